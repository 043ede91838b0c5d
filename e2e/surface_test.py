"""The names that users' code relies on: each there, each doing what it is for."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import muster
from muster import (
    Broadcast,
    Cluster,
    Dispatch,
    Execute,
    PerRank,
    RankInfo,
    ResourceManager,
    Worker,
    WorkerConfig,
    register,
)
from roles import Caller, Echo, Loop, Order, Probe
from running import cluster, eventually, session

NAMES = """init shutdown get wait as_completed get_cluster MusterError PerRank Broadcast
ResourceManager WorkerConfig Cluster register Dispatch Execute RankInfo Worker""".split()  # noqa: SIM905
MODES = """ONE_TO_ALL ONE_TO_ALL_ONE ALL_TO_ALL DP_MP_COMPUTE DP_MP_DISPATCH_FIRST
DP_MP_DISPATCH_FIRST_COLLECT_ALL DP_MP_COMPUTE_COLLECT_ALL""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("2x4"), ResourceManager(num_gpus_per_node=4, num_nodes=2) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Echo, rm, name="echo", device_mapping="[3,1,5,4]", num_gpus_per_worker=2) as made:
        yield made


@pytest.fixture(scope="module")
def cpu(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Echo, rm, name="cpu", world_size=3) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_name_is_public(name: str) -> None:
    assert getattr(muster, name) is not None
    assert name in muster.__all__
    assert name in dir(muster)


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    assert Dispatch[mode].name == mode


def test_execute_modes_and_defaults() -> None:
    assert {Execute.ALL.name, Execute.RANK_ZERO.name} == {"ALL", "RANK_ZERO"}
    with pytest.raises((ValueError, KeyError, TypeError)):
        register("NO_SUCH_MODE")


def test_rank_info_is_a_record() -> None:
    info = RankInfo(world_size=8, tp_size=2, dp_size=2, pp_size=2, rank=7, pp_rank=1)
    assert info.is_pipeline_last_stage
    assert [f.name for f in dataclasses.fields(info)] == [
        *("world_size", "tp_size", "dp_size", "pp_size", "cp_size"),
        *("rank", "tp_rank", "dp_rank", "pp_rank", "cp_rank"),
    ]


def test_attributes(c: Cluster) -> None:
    assert c.cluster_name == "echo"
    assert (c.world_size, c.dp_size, c.tp_size, c.pp_size, c.cp_size) == (2, 2, 1, 1, 1)
    assert len(c.workers) == 2
    assert [c.rank2worker[r] for r in range(2)] == list(c.workers)
    assert [c.worker2rank[w] for w in c.workers] == [0, 1]
    assert set(c.worker2nodes) == set(c.workers)
    assert all(isinstance(node, str) for node in c.worker2nodes.values())
    assert [w.worker_name for w in c.workers] == ["echo-0-G13", "echo-1-G01"]
    assert isinstance(c.master_addr, str)
    assert isinstance(c.master_port, int) and 0 < c.master_port < 65536
    assert all(isinstance(info, RankInfo) for info in c.worker_rank_info)
    assert [info.rank for info in c.worker_rank_info] == [0, 1]


def test_devices_keep_the_mappings_order(c: Cluster) -> None:
    places = [[(d["node_rank"], d["gpu_rank"]) for d in c.rank2devices[r]] for r in range(2)]
    assert places == [[(0, 3), (0, 1)], [(1, 1), (1, 0)]]
    groups = c.placement_groups
    assert [[(d["node_rank"], d["gpu_rank"]) for d in rank] for rank in groups] == places
    assert {frozenset(d) for rank in groups for d in rank} == {
        frozenset({"node_rank", "gpu_rank", "placement_group", "ray_address"})
    }


def test_cpu_cluster_attributes(cpu: Cluster) -> None:
    assert [w.worker_name for w in cpu.workers] == ["cpu-0", "cpu-1", "cpu-2"]
    assert cpu.dp_size == cpu.world_size == 3


def test_initialized_after_initialize(rm: ResourceManager) -> None:
    with cluster(Initialized, rm, name="init", world_size=1) as c:
        assert not c.initialized
        c.initialize()
        assert c.initialized


class Initialized(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def initialize(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def load_states(self) -> str:  # type: ignore[override]
        return "mine"


def test_base_methods(rm: ResourceManager, c: Cluster) -> None:
    """Registered on the base: they do nothing until a class gives them something to do."""
    assert c.load_states() == c.offload_states() == [None, None]
    assert c.process_weights_after_loading() == [None, None]
    assert len(c.get_metrics()) == 2
    infos = c.execute_all_sync("get_rank_info")
    assert infos == list(c.worker_rank_info)
    devices = c.execute_all_sync("get_devices_info")
    assert [len(d) for d in devices] == [2, 2]
    assert all(isinstance(ip, str) for ip in c.execute_all_sync("get_node_ip"))
    assert all(1024 <= port < 65536 for port in c.execute_all_sync("get_free_port"))
    with cluster(Initialized, rm, name="own", world_size=1) as own:
        assert own.load_states() == ["mine"]


def test_worker_knows_itself(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="probe", device_mapping="0,6") as c:
        for rank, got in enumerate(c.execute_all_sync("identity")):
            name = ["probe-0-G0", "probe-1-G2"][rank]
            assert got == (rank, 2, "probe", name, c.master_addr, c.master_port)
        assert isinstance(c.execute_rank_zero_sync("config"), WorkerConfig)


def test_config_reaches_workers_whole(rm: ResourceManager) -> None:
    args = {"lr": 1e-5, "nested": [(1, 2), {3}]}
    with cluster(Probe, rm, name="conf", world_size=1, strategy_args=args) as c:
        assert c.execute_rank_zero_sync("config").strategy_args == args


@pytest.mark.parametrize("path", ["roles.Echo", "roles:Echo"])
def test_class_by_path(rm: ResourceManager, path: str) -> None:
    with cluster(path, rm, name="path", world_size=2) as c:
        assert c.same([1, 2, 3]) == [1, 2, 3]
        assert c.one_to_all(1) == [(0, (1,), {}), (1, (1,), {})]


def test_bound_methods_are_the_registered_public_ones(c: Cluster) -> None:
    assert callable(c.one_to_all)
    for name in ("plain", "_private", "no_such"):
        with pytest.raises(AttributeError):
            getattr(c, name)
    assert hasattr(c, "same") and not hasattr(c, "plain")
    assert "one_to_all" in dir(c)


def test_execute_forms(c: Cluster) -> None:
    both: list[Any] = [(0, (1,), {}), (1, (1,), {})]
    assert c.execute_all_sync("plain", 1) == both
    for form in (c.execute_all_async, c.execute_all):
        refs = form("plain", 1)
        assert isinstance(refs, list) and len(refs) == 2
        assert muster.get(refs) == both
        assert [muster.get(ref) for ref in refs] == both
    assert c.execute_rank_zero_sync("plain", 1) == both[0]
    for one in (c.execute_rank_zero_async, c.execute_rank_zero):
        assert muster.get(one("plain", 1)) == both[0]


@pytest.mark.parametrize("form", ["execute_all_sync", "execute_rank_zero_sync"])
def test_execute_takes_a_timeout(c: Cluster, form: str) -> None:
    assert getattr(c, form)("counted", timeout=30) in (0, [0, 0])


def test_handles(c: Cluster) -> None:
    handle = c.workers[1]
    assert handle.call("plain", 1, k=2) == (1, (1,), {"k": 2})
    assert muster.get(handle.plain.remote(1)) == (1, (1,), {})
    assert handle.call("plain", [1, 2], timeout=30) == (1, ([1, 2],), {})
    assert {c.workers[0]: "a"}[c.workers[0]] == "a"
    assert c.workers[0] != c.workers[1]


def test_get_cluster(c: Cluster) -> None:
    found = muster.get_cluster("echo")
    assert found.execute_all_sync("plain") == c.execute_all_sync("plain")
    assert found.workers[0] == c.workers[0]
    with pytest.raises(LookupError, match="nobody") as caught:
        muster.get_cluster("nobody")
    assert isinstance(caught.value, muster.MusterError)


def test_pickled_clusters_and_handles(c: Cluster) -> None:
    again = pickle.loads(pickle.dumps(c))
    assert again.same([1, 2, 3]) == [1, 2, 3]
    assert again.worker2rank[c.workers[1]] == 1
    handle = pickle.loads(pickle.dumps(c.workers[1]))
    assert handle.call("plain") == (1, (), {})


def test_called_from_workers_of_another_cluster(rm: ResourceManager, c: Cluster) -> None:
    with cluster(Caller, rm, name="caller", world_size=2) as caller:
        both: list[Any] = [(0, (5,), {}), (1, (5,), {})]
        assert caller.execute_all_sync("through", c, "plain", 5) == [both, both]
        assert caller.execute_all_sync("through", c.workers[1], "plain", 5) == [both[1]] * 2
        assert caller.execute_all_sync("bound", c, [1, 2, 3]) == [[1, 2, 3]] * 2
        assert caller.execute_all_sync("by_name", "echo", "plain", 5) == [both, both]
        assert caller.execute_rank_zero_sync("look", c) == ("echo", 2, 2, c.rank2devices)


def test_a_worker_that_calls_its_own_caller_is_told_of_the_cycle(rm: ResourceManager) -> None:
    with (
        cluster(Caller, rm, name="a", world_size=1) as a,
        cluster(Caller, rm, name="b", world_size=1) as b,
    ):
        with pytest.raises(muster.MusterError, match=r"a\.through.*b\.through"):
            a.execute_all_sync("through", b, "through", a, "through", b, "look", a, timeout=20)


def test_sync_calls_run_first_in_first_out(rm: ResourceManager) -> None:
    with cluster(Order, rm, name="order", world_size=2) as c:
        refs = [c.note(i, blocking=False) for i in range(200)]
        assert muster.get(refs) == [[i, i] for i in range(200)]
        assert c.execute_all_sync("noted") == [list(range(200))] * 2
        assert c.execute_all_sync("thread") == [True, True], "CUDA likes the main thread"


def test_one_order_for_several_callers(rm: ResourceManager) -> None:
    with cluster(Order, rm, name="order", world_size=3) as c:
        threads = [
            threading.Thread(target=lambda n=n: [c.note((n, i)) for i in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        orders = c.execute_all_sync("noted")
        assert orders[0] == orders[1] == orders[2]
        assert [i for n, i in orders[0] if n == 2] == list(range(50))


def test_max_concurrency(rm: ResourceManager) -> None:
    with cluster(Order, rm, name="pool", world_size=1, max_concurrency=4) as c:
        refs = [c.execute_rank_zero_async("meet", 4) for _ in range(4)]
        assert max(muster.get(refs, timeout=30)) == 4
    with cluster(Order, rm, name="pool", world_size=1, max_concurrency=2) as c:
        refs = [c.execute_rank_zero_async("meet", 2) for _ in range(12)]
        assert max(muster.get(refs, timeout=30)) == 2


def test_async_class_interleaves(rm: ResourceManager) -> None:
    with cluster(Loop, rm, name="loop", world_size=2) as c:
        waiting = c.wait_for_it(blocking=False)
        assert c.execute_all_sync("sync_one") == [0, 1]
        assert not waiting.done()
        c.open()
        assert muster.get(waiting, timeout=20) == ["opened 0", "opened 1"]


def test_context_manager_and_shutdown_twice(rm: ResourceManager) -> None:
    with Cluster(
        name="ctx",
        worker_cls=Probe,
        resource_manager=rm,
        worker_config=WorkerConfig(world_size=2),
    ) as c:
        pids = c.execute_all_sync("pid")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    c.shutdown()
    c.shutdown()
    with pytest.raises(muster.MusterError, match="ctx"):
        c.execute_all_sync("pid")


def test_a_name_can_be_used_again_after_shutdown_only(rm: ResourceManager) -> None:
    with cluster(Echo, rm, name="twice", world_size=1):
        with pytest.raises(ValueError, match="twice") as caught:
            with cluster(Echo, rm, name="twice", world_size=1):
                pass
        assert isinstance(caught.value, muster.MusterError)
    with cluster(Echo, rm, name="twice", world_size=1) as c:
        assert c.same([1]) == [1]


def test_futures_as_arguments(c: Cluster) -> None:
    first = c.same([1, 2, 3], blocking=False)
    second = c.same(first, blocking=False)
    assert muster.get(second) == [1, 2, 3]
    assert c.execute_all_sync("plain", c.execute_rank_zero_async("counted"))[1] == (1, (0,), {})


def test_marks_hold_their_values() -> None:
    assert list(PerRank([1, 2]).values) == [1, 2]
    assert Broadcast([1, 2]).value == [1, 2]


def test_spawned_and_forked_alike(rm: ResourceManager) -> None:
    for start in ("fork", "spawn"):
        with cluster(Probe, rm, name="start", world_size=2, start=start) as c:
            assert c.execute_all_sync("identity")[1][:4] == (1, 2, "start", "start-1")


def test_preload_is_loaded_in_the_worker(rm: ResourceManager) -> None:
    with cluster(Probe, rm, name="pre", world_size=1, preload=["wave"]) as c:
        assert c.execute_all_sync("loaded", "wave") == [True]
    with cluster(Probe, rm, name="nopre", world_size=1) as c:
        assert c.execute_all_sync("loaded", "wave") == [False]


def test_shutdown_inside_a_call(rm: ResourceManager) -> None:
    c = Cluster("busy", Order, rm, WorkerConfig(world_size=2, grace=1.0))
    pids = [w.pid for w in c.workers]
    ref: Any = c.execute_all_async("meet", 2)
    c.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(muster.MusterError):
        muster.get(ref)
    assert eventually(ref[0].done)
