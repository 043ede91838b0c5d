"""What a worker finds around it, and where it sits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import muster
from muster import Cluster, ResourceManager, WorkerConfig
from roles import Probe
from running import cluster, session


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("4x8"), ResourceManager(8, 4) as made:
        yield made


def environments(c: Cluster, *names: str) -> list[tuple[str | None, ...]]:
    return [tuple(env.values()) for env in c.execute_all_sync("environment", *names)]


RANK_VARIABLES = """RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
CLUSTER_NAME WORKER_NAME MUSTER_LOCAL_RANK CUDA_VISIBLE_DEVICES""".split()  # noqa: SIM905


def test_rank_variables(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="env", device_mapping="6-9") as c:
        got = c.execute_all_sync("environment", *RANK_VARIABLES)
        for rank, env in enumerate(got):
            node, device = divmod(6 + rank, 8)
            assert env == {
                "RANK": str(rank),
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "2",
                "NODE_RANK": str(node),
                "MASTER_ADDR": c.master_addr,
                "MASTER_PORT": str(c.master_port),
                "CLUSTER_NAME": "env",
                "WORKER_NAME": f"env-{rank}-G{device}",
                "MUSTER_LOCAL_RANK": str(rank % 2),
                "CUDA_VISIBLE_DEVICES": str(device),
            }
        assert c.execute_all_sync("at_import", *RANK_VARIABLES) == got, "already at import"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_environment_is_there_at_import(rm: ResourceManager, start: str) -> None:
    with cluster(Probe, rm, name="early", world_size=2, start=start, env={"MINE": "1"}) as c:
        got = c.execute_all_sync("at_import", "RANK", "MINE", "CLUSTER_NAME")
        assert got == [{"RANK": str(r), "MINE": "1", "CLUSTER_NAME": "early"} for r in range(2)]


@pytest.mark.parametrize(
    ("mapping", "per_worker", "names", "visible"),
    [
        ("[3,1]", 2, ["n-0-G13"], ["1,3"]),
        ("5", 1, ["n-0-G5"], ["5"]),
        ([9], 1, ["n-0-G1"], ["1"]),
        ("[7,0,3,12,8,15]", 3, ["n-0-G037", "n-1-G047"], ["0,3,7", "0,4,7"]),
        ("list(range(0,4))", 2, ["n-0-G01", "n-1-G23"], ["0,1", "2,3"]),
        ("0-1,16-17", 2, ["n-0-G01", "n-1-G01"], ["0,1", "0,1"]),
        ("list(range(0,2)) + [4, 5]", 1, [f"n-{r}-G{d}" for r, d in enumerate([0, 1, 4, 5])], None),
        (range(30, 32), 1, ["n-0-G6", "n-1-G7"], ["6", "7"]),
    ],
)
def test_names_and_devices(
    rm: ResourceManager, mapping: Any, per_worker: int, names: list[str], visible: Any
) -> None:
    config = {"device_mapping": mapping, "num_gpus_per_worker": per_worker}
    with cluster(Probe, rm, name="n", **config) as c:
        assert c.world_size == len(names)
        assert [w.worker_name for w in c.workers] == names
        got = environments(c, "WORKER_NAME", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
        assert [name for name, _, _ in got] == names
        assert [local for _, _, local in got] == ["0"] * len(names)
        if visible:
            assert [v for _, v, _ in got] == visible
        plan = rm.plan({"n": WorkerConfig(**config)})
        assert [w["name"] for w in plan.clusters["n"]] == names


def test_world_size_with_a_mapping_gives_gpus_per_worker(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="w", world_size=2, device_mapping="0-7") as c:
        assert environments(c, "CUDA_VISIBLE_DEVICES") == [("0,1,2,3",), ("4,5,6,7",)]


def test_visible_devices_of_the_whole_node(rm: ResourceManager) -> None:
    """LOCAL_RANK is then the true local rank, and a valid index of a device."""
    with cluster(Probe, rm, name="node", device_mapping="0-7", visible_devices="node") as c:
        got = environments(c, "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "MUSTER_LOCAL_RANK")
        assert got == [("0,1,2,3,4,5,6,7", str(r), str(r)) for r in range(8)]


def test_visible_devices_of_the_node_for_part_of_it(rm: ResourceManager) -> None:
    """Each worker's LOCAL_RANK is a device that it was given, whatever else it sees."""
    with cluster(Probe, rm, name="node", device_mapping="12-15", visible_devices="node") as c:
        names = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "MUSTER_LOCAL_RANK")
        for rank, (visible, local, true) in enumerate(environments(c, *names)):
            assert visible is not None and local is not None
            assert visible.split(",")[int(local)] == str(4 + rank)
            assert true == str(rank)


def test_cpu_workers_spread_round_robin(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="cpu", world_size=6) as c:
        got = environments(
            c, "NODE_RANK", "CUDA_VISIBLE_DEVICES", "WORKER_NAME", "MUSTER_LOCAL_RANK"
        )
        assert [int(node or "x") for node, _, _, _ in got] == [0, 1, 2, 3, 0, 1]
        assert {visible for _, visible, _, _ in got} <= {"", None}
        assert [name for _, _, name, _ in got] == [f"cpu-{r}" for r in range(6)]
        assert [local for _, _, _, local in got] == ["0", "0", "0", "0", "1", "1"]


def test_users_environment(rm: ResourceManager) -> None:
    env: dict[str, Any] = {"FLAG": "false", "EMPTY": "", "UMLAUT": "ä=b c\n", "NUMBER": 3}
    with cluster(Probe, rm, name="env", world_size=1, env=env) as c:
        assert environments(c, *env) == [tuple(str(value) for value in env.values())]


def test_the_scripts_environment_is_inherited(
    rm: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_LATE_IN_THE_SCRIPT", "yes")
    with cluster(Probe, rm, name="env", world_size=1) as c:
        assert environments(c, "SET_LATE_IN_THE_SCRIPT") == [("yes",)]


@pytest.mark.parametrize("name", [*RANK_VARIABLES, "MUSTER_LOCAL_RANK"])
def test_rank_variables_cannot_be_overridden(rm: ResourceManager, name: str) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        with cluster(Probe, rm, name="env", device_mapping="0", env={name: "7"}):
            pass
    assert isinstance(caught.value, muster.MusterError)


@pytest.mark.parametrize("env", [{"A": None}, {1: "a"}, {"A=B": "c"}, {"NUL": "\0"}, {"": "x"}])
def test_environments_that_cannot_be(rm: ResourceManager, env: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        with cluster(Probe, rm, name="env", world_size=1, env=env):
            pass


def test_omp_num_threads(rm: ResourceManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    with cluster(Probe, rm, name="omp", device_mapping="0-1") as c:
        [(first,), (second,)] = environments(c, "OMP_NUM_THREADS")
        assert first == second and 1 <= int(first or 0) <= max(1, cores // 2)
    with cluster(Probe, rm, name="omp", device_mapping="0", env={"OMP_NUM_THREADS": "3"}) as c:
        assert environments(c, "OMP_NUM_THREADS") == [("3",)]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with cluster(Probe, rm, name="omp", device_mapping="0") as c:
        assert environments(c, "OMP_NUM_THREADS") == [("5",)]


def test_master_port_is_held_for_rank_0(rm: ResourceManager) -> None:
    with (
        cluster(Probe, rm, name="one", device_mapping="0-1") as one,
        cluster(Probe, rm, name="two", device_mapping="0-1") as two,
    ):
        assert one.master_port != two.master_port
        assert one.workers[0].call("bind", one.master_port, False) == "OSError", "held"
        assert one.workers[0].call("bind", one.master_port, True) == "connected"
        assert two.workers[0].call("bind", two.master_port, True) == "connected"
        assert one.workers[0].call("bind", one.master_port, True) == "connected", "again"
        port = one.master_port
    with socket.socket() as given_back:
        given_back.bind(("127.0.0.1", port))


def test_hold_ports(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="ports", world_size=2) as c:
        held = c.execute_all_sync("hold", 3)
        ports = [port for some in held for port in some]
        assert len(set(ports)) == 6 and c.master_port not in ports
        for worker, own in zip(c.workers, held, strict=True):
            for port in own:
                assert worker.call("bind", port, True) == "connected"
                with socket.socket() as other, pytest.raises(OSError):
                    other.bind(("", port))
    for port in ports:
        with socket.socket() as given_back:
            given_back.bind(("", port))


def test_colocation(rm: ResourceManager) -> None:
    with (
        cluster(Probe, rm, name="train", device_mapping="0-3") as train,
        cluster(Probe, rm, name="infer", device_mapping="0-3", num_gpus_per_worker=2) as infer,
        cluster(Probe, rm, name="ref", device_mapping=[3, 2]) as ref,
    ):
        assert [w.worker_name for w in infer.workers] == ["infer-0-G01", "infer-1-G23"]
        assert environments(ref, "CUDA_VISIBLE_DEVICES") == [("3",), ("2",)]
        assert len(train.execute_all_sync("pid")) == 4


def test_cpu_only_manager(rm: ResourceManager) -> None:
    with ResourceManager(0, 1) as cpu, cluster(Probe, cpu, name="cpu", world_size=2) as c:
        assert [w.worker_name for w in c.workers] == ["cpu-0", "cpu-1"]
        with pytest.raises(ValueError, match="0"):
            with cluster(Probe, cpu, name="gpu", device_mapping="0"):
                pass


def test_plan_is_what_starts(rm: ResourceManager) -> None:
    configs = {
        "train": WorkerConfig(device_mapping="[9,8,17,16]", num_gpus_per_worker=2),
        "reward": WorkerConfig(world_size=5),
    }
    plan = rm.plan(configs)
    for name, config in configs.items():
        with Cluster(name, Probe, rm, config) as c:
            planned = plan.clusters[name]
            assert [w["name"] for w in planned] == [w.worker_name for w in c.workers]
            nodes = environments(c, "NODE_RANK", "MUSTER_LOCAL_RANK")
            assert len(nodes) == len(planned)
            devices = [
                [d["node_rank"] * 8 + d["gpu_rank"] for d in c.rank2devices[r]]
                for r in range(c.world_size)
            ]
            assert [list(w["devices"]) for w in planned] == devices
    assert "train" in str(plan) and "reward" in str(plan)
    assert str(rm.plan(configs)) == str(plan), "the same input gives the same plan"


def test_allocate_placement_group(rm: ResourceManager) -> None:
    groups = rm.allocate_placement_group(world_size=2, device_mapping=[8, 9, 0, 1])
    assert [[(d["node_rank"], d["gpu_rank"]) for d in rank] for rank in groups] == [
        [(1, 0), (1, 1)],
        [(0, 0), (0, 1)],
    ]
    cpu = rm.allocate_placement_group(world_size=6)
    assert [rank[0]["node_rank"] for rank in cpu] == [0, 1, 2, 3, 0, 1]


IMPOSSIBLE = [
    ({"device_mapping": "0-32"}, "32"),
    ({"device_mapping": [-1]}, "-1"),
    ({"device_mapping": [3, 3], "num_gpus_per_worker": 2}, "3"),
    ({"device_mapping": "0-2", "num_gpus_per_worker": 2}, "3"),
    ({"device_mapping": "7-8", "num_gpus_per_worker": 2}, "7|8"),
    ({"device_mapping": "0-3", "world_size": 5}, "5"),
    ({"device_mapping": "0-3", "world_size": 3}, "3"),
    ({"device_mapping": "0-3", "world_size": 4, "num_gpus_per_worker": 2}, "4"),
    ({"device_mapping": "zero"}, "zero"),
    ({"device_mapping": "__import__('os').system('true')"}, "import"),
    ({"device_mapping": "3-0"}, "3-0|3"),
    ({"device_mapping": "0-"}, "0-"),
    ({"device_mapping": ""}, "device_mapping"),
    ({"device_mapping": []}, "device_mapping"),
    ({"device_mapping": [0.5]}, "0.5"),
    ({"device_mapping": "0-99999999999999"}, "99999999999999"),
    ({"world_size": 0}, "0"),
    ({"world_size": -2}, "-2"),
    ({}, "world_size"),
    ({"device_mapping": "0-3", "tp": 3}, "3"),
    ({"device_mapping": "0-3", "tp": 0}, "0|tp"),
    ({"world_size": 1, "start": "teleport"}, "teleport"),
    ({"world_size": 1, "visible_devices": "some"}, "some"),
    ({"world_size": 1, "max_concurrency": 0}, "max_concurrency|0"),
    ({"world_size": 1, "startup_timeout": -1}, "startup_timeout|-1"),
    ({"world_size": 2, "num_gpus_per_worker": 1}, "device_mapping|num_gpus_per_worker"),
]


@pytest.mark.parametrize(("config", "named"), IMPOSSIBLE, ids=[str(c) for c, _ in IMPOSSIBLE])
def test_impossible_configurations(rm: ResourceManager, config: Any, named: str) -> None:
    """Each names what is wrong, in a plan as at a start, and leaves the name free."""
    for attempt in (
        lambda: rm.plan({"odd": WorkerConfig(**config)}),
        lambda: Cluster("odd", Probe, rm, WorkerConfig(**config)).shutdown(),
    ):
        with pytest.raises((ValueError, TypeError), match=named):
            attempt()
    with cluster(Probe, rm, name="odd", world_size=1) as c:
        assert c.world_size == 1


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "x" * 300, "a\n", "ä"])
def test_cluster_names_that_cannot_be(rm: ResourceManager, name: str) -> None:
    """Refused by name, or taken as it is; never half of both."""
    try:
        with cluster(Probe, rm, name=name, world_size=1) as c:
            assert environments(c, "CLUSTER_NAME") == [(name,)]
    except ValueError as error:
        assert "name" in str(error)


@pytest.mark.parametrize(("gpus", "nodes"), [(9, 1), (8, 5), (4, 9), (-1, 1), (1, 0), (1, -1)])
def test_pools_that_cannot_be(rm: ResourceManager, gpus: int, nodes: int) -> None:
    with pytest.raises((muster.MusterError, ValueError), match=rf"{gpus}|{nodes}"):
        ResourceManager(gpus, nodes, timeout=1)
