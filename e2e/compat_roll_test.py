"""Clusters as ROLL's pipelines make and call them: names, environment, modes, errors, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
import ray_roles
from muster._calling import Group
from muster.compat import ray
from muster.compat.roll import Cluster, ObjectRefWrap, ResourceManager, WorkerConfig
from roll_roles import Broken, Echo, Giver, Slow
from running import output_of, run_script, session

PYTHON = Path(muster.__file__).resolve().parent.parent


@contextmanager
def role(cls: Any, rm: ResourceManager, name: str = "role", **config: Any) -> Iterator[Any]:
    made = Cluster(
        name=name,
        worker_cls=cls,
        resource_manager=rm,
        worker_config=WorkerConfig(name=name, **config),
    )
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("2x4"):
        made = ResourceManager(4, 2)
        yield made
        made.destroy_placement_group()


@pytest.fixture(scope="module")
def four(rm: ResourceManager) -> Iterator[Any]:
    """Four ranks, all data parallel."""
    with role(Echo, rm, "four", world_size=4) as made:
        yield made


@pytest.fixture
def laid(rm: ResourceManager) -> Iterator[Any]:
    """Four ranks, dp 2 x tp 2 as they say in initialize."""
    with role(Echo, rm, "laid", device_mapping="list(range(0,4))") as made:
        assert made.dp_size == 4 and not made.initialized
        made.initialize({"any": "thing"}, tp=2)
        assert made.initialized
        yield made


# --- who is who --------------------------------------------------------------------------------


def test_names_and_places(rm: ResourceManager) -> None:
    with role(Echo, rm, "infer", device_mapping=[3, 1, 4, 5], num_gpus_per_worker=2) as c:
        assert [w.name for w in c.workers] == ["infer-0-G13", "infer-1-G01"]
        assert c.world_size == 2 and c.cluster_name == "infer"
        assert c.rank2devices == {
            0: [
                {"rank": 0, "node_rank": 0, "gpu_rank": 3},
                {"rank": 1, "node_rank": 0, "gpu_rank": 1},
            ],
            1: [
                {"rank": 0, "node_rank": 1, "gpu_rank": 0},
                {"rank": 1, "node_rank": 1, "gpu_rank": 1},
            ],
        }
        places = c.placement_groups[1][1]
        assert sorted(places) == ["gpu_rank", "node_rank", "placement_group", "ray_address"]
        assert places["placement_group"] == rm.nodes_placement_group(1)
        found = c.execute_all_sync("attributes")
        assert [one["worker_name"] for one in found] == ["infer-0-G13", "infer-1-G01"]
        assert [one["devices"] for one in found] == list(c.rank2devices.values())
        assert [len(one["places"]) for one in found] == [2, 2]
        assert found[0]["places"][0]["placement_group"] == rm.nodes_placement_group(0)
        assert {one["master"] for one in found} == {(c.master_addr, c.master_port)}
        assert found[0]["repr"] == "Echo(infer-0-G13)" and found[0]["free"]
        assert [one["rank"] for one in found] == [0, 1] and found[0]["world_size"] == 2


def test_cpu_workers_go_round_the_nodes(four: Any) -> None:
    assert [w.name for w in four.workers] == ["four-0", "four-1", "four-2", "four-3"]
    assert [four.rank2devices[r] for r in range(2)] == [
        [{"rank": 0, "node_rank": 0, "gpu_rank": None}],
        [{"rank": 0, "node_rank": 1, "gpu_rank": None}],
    ]
    assert four.rank2worker[2] == four.workers[2] and four.worker2rank[four.workers[3]] == 3
    assert set(four.worker2nodes) == set(four.workers)


def test_environment(rm: ResourceManager) -> None:
    envs = {"MY": "own", "LOCAL_RANK": "5"}
    with role(Echo, rm, "env", device_mapping="[5, 2]", system_envs=envs) as c:
        names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "CLUSTER_NAME", "WORKER_NAME", "MY")
        found = c.execute_all_sync("environment", *names, "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
        assert [one.pop("MASTER_PORT") for one in found] == [str(c.master_port)] * 2
        assert found == [
            {
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "LOCAL_RANK": "5",  # system_envs come last
                "CLUSTER_NAME": "env",
                "WORKER_NAME": f"env-{rank}-G{gpu}",
                "MY": "own",
                "CUDA_VISIBLE_DEVICES": gpu,
            }
            for rank, gpu in ((0, "1"), (1, "2"))
        ]


def test_by_path_and_decorated(rm: ResourceManager) -> None:
    for given in ("roll_roles.Echo", "roll_roles:Echo", ray.remote(Echo)):
        with role(given, rm, "path", world_size=1) as c:
            assert c.one_to_all(1) == [(0, (1,), {})]
    with pytest.raises(ImportError, match="roll_roles has no 'Ecko'; did you mean 'Echo'"):
        Cluster("bad", "roll_roles.Ecko", rm, WorkerConfig(world_size=1))


def test_a_name_is_taken_once(rm: ResourceManager, four: Any) -> None:
    with pytest.raises(ValueError, match="four"):
        Cluster("four", Echo, rm, WorkerConfig(world_size=1))


def test_constructors_errors_surface(rm: ResourceManager) -> None:
    with pytest.raises(LookupError, match="no model for rank"):
        Cluster("broken", Broken, rm, WorkerConfig(world_size=2))


def test_pools_that_cannot_be_had(rm: ResourceManager) -> None:
    with pytest.raises(AssertionError):
        ResourceManager(8, 1)
    with pytest.raises(AssertionError, match="names \\[8\\]"):
        Cluster("beyond", Echo, rm, WorkerConfig(device_mapping="[8]"))
    every = ResourceManager(0)  # all nodes
    assert every.num_nodes == 2 and every.num_gpus == 0
    with pytest.raises(AssertionError, match="the nodes have no GPUs"):
        Cluster("none", Echo, every, WorkerConfig(device_mapping="[0]"))
    every.destroy_placement_group()


# --- modes ---------------------------------------------------------------------------------------


def test_to_all(four: Any) -> None:
    assert four.one_to_all([1, 2, 3, 4], k=(5,)) == [
        (rank, ([1, 2, 3, 4],), {"k": (5,)}) for rank in range(4)
    ]
    assert four.one_to_all() == [(rank, (), {}) for rank in range(4)]
    assert four.one_to_all_one("x") == (0, ("x",), {})


def test_all_to_all(four: Any) -> None:
    assert four.default([0, 10, 20, 30], k=(4, 5, 6, 7)) == [
        (rank, (rank * 10,), {"k": 4 + rank}) for rank in range(4)
    ]
    assert four.default() == [(rank, (), {}) for rank in range(4)]
    for wrong in ([1, 2], 3, {"a": 1}):
        with pytest.raises(AssertionError, match="an element for each of 4 ranks"):
            four.default(wrong)


def test_rows(laid: Any) -> None:
    assert laid.dp_size == 2 and laid.tp_size == 2 and laid.pp_size == 1 and laid.cp_size == 1
    assert laid.get_rank_info(rank=3).dp_rank == 1 and laid.vp_size == 1
    assert laid.dp_mp([1, 2, 3, 4], k=["a", "b"]) == [
        (0, ([1, 2],), {"k": ["a"]}),
        (2, ([3, 4],), {"k": ["b"]}),
    ]
    assert laid.dp_mp([1, 2]) == [(0, ([1],), {}), (2, ([2],), {})]
    assert laid.number() == [0, 2]  # ROLL refuses to put numbers together
    assert laid.first_collect_all([1, 2]) == [(0, ([1],)), (1, ([1],)), (2, ([2],)), (3, ([2],))]
    for wrong in ([1, 2, 3], [], (1, 2), 7):
        with pytest.raises(AssertionError):
            laid.dp_mp(wrong)
    with pytest.raises(AssertionError):
        laid.get_rank_info(rank=4)


class Chunked:
    """What only has a method chunk."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def chunk(self, chunks: int) -> list[list[int]]:
        return [self.rows[at::chunks] for at in range(chunks)]


def test_rows_of_different_lengths(laid: Any) -> None:
    """Each by its own, results of other calls among them."""
    rows = ray.remote(_six).remote()
    assert laid.dp_mp([1, 2, 3, 4], rows, k=["a", "b"], c=Chunked([5, 6, 7])) == [
        (0, ([1, 2], [0, 1, 2]), {"k": ["a"], "c": [5, 7]}),
        (2, ([3, 4], [3, 4, 5]), {"k": ["b"], "c": [6]}),
    ]
    refs = laid.dp_mp([1, 2], rows, blocking=False)
    assert ray.get(refs[3].obj_ref) == [(3, ([2], [3, 4, 5]), {})]


def _six() -> list[int]:
    return list(range(6))


def test_rank_zero(four: Any) -> None:
    assert four.on_rank_zero("x") == (0, "x")
    assert ray.get(four.on_rank_zero("x", blocking=False)) == (0, "x")


def test_modes_of_ones_own(four: Any) -> None:
    assert four.custom("ab") == "ababab"
    assert four.custom(x=[1]) == [1, 1, 1]
    refs = four.custom("ab", blocking=False)
    assert ray.get(refs) == ["", "ab", "abab", "ababab"]
    assert four.custom_to_all(7) == [7, 7, 7, 7]
    assert four.custom_to_all([1, 2, 3, 4]) == [1, 2, 3, 4]  # as execute_all spreads it
    assert four.custom_of_theirs(list("abcd")) == [(rank, ["abcd"[rank]]) for rank in range(4)]


def test_non_blocking(laid: Any) -> None:
    bare = laid.one_to_all(1, blocking=False)
    assert ray.get(bare) == [(rank, (1,), {}) for rank in range(4)]
    assert all(isinstance(ref, ray.ObjectRef) for ref in bare)
    spread = laid.default([1, 2, 3, 4], blocking=False)
    assert ray.get(spread) == [(rank, (rank + 1,), {}) for rank in range(4)]
    one = laid.one_to_all_one(1, blocking=False)
    assert [ref.collected for ref in one] == [True, False, False, False]
    rows = laid.dp_mp([1, 2], blocking=False)
    assert all(isinstance(ref, ObjectRefWrap) for ref in rows)
    assert [ref.collected for ref in rows] == [True, False, True, False]
    assert ray.get([ref.obj_ref for ref in rows]) == [
        [(rank, ([rank // 2 + 1],), {})] for rank in range(4)
    ]
    every = laid.first_collect_all([1, 2], blocking=False)
    assert ray.get(every)[1] == (1, ([1],))


def test_awaited(laid: Any) -> None:
    async def both() -> Any:
        blocking = laid.one_to_all_one(5)  # legal inside a loop
        wrapped = await asyncio.gather(*laid.dp_mp([1, 2], blocking=False))
        bare = await asyncio.gather(*laid.one_to_all(1, blocking=False))
        return blocking, wrapped, bare

    blocking, wrapped, bare = asyncio.run(both())
    assert blocking == (0, (5,), {}) and len(wrapped) == 4 and bare[3] == (3, (1,), {})


# --- execute_* ---------------------------------------------------------------------------------


def test_execute(four: Any) -> None:
    assert four.execute_all_sync(method_name="plain") == [(rank, (), {}) for rank in range(4)]
    assert four.execute_all_sync("plain", [1, 2, 3, 4], k=[5, 6, 7, 8]) == [
        (rank, (rank + 1,), {"k": rank + 5}) for rank in range(4)
    ]
    whole = [1, 2, 3, 4]
    assert four.execute_all_sync("plain", whole, k=1)[3] == (3, (whole,), {"k": 1})
    assert four.execute_all_sync("plain", [1, 2, 3])[0] == (0, ([1, 2, 3],), {})
    assert four.execute_all_sync("plain", timeout=3)[0] == (0, (), {"timeout": 3})
    assert ray.get(four.execute_all("plain", 1)) == [(rank, (1,), {}) for rank in range(4)]
    assert four.execute_rank_zero_sync("plain", [1, 2, 3, 4]) == (0, ([1, 2, 3, 4],), {})
    assert ray.get(four.execute_rank_zero("plain", 1)) == (0, (1,), {})


def test_methods_that_are_not_there(four: Any) -> None:
    calls: list[Any] = [
        lambda: four.nothing,
        lambda: four.plain,  # not registered
        lambda: four.execute_all_sync("nothing"),
        lambda: four.execute_rank_zero_async("nothing"),
        lambda: four.workers[0].nothing,
    ]
    for call in calls:
        with pytest.raises(AttributeError):
            call()
    with pytest.raises(TypeError):
        four.on_rank_zero()
    with pytest.raises(TypeError):
        four.on_rank_zero(1, 2, 3)


def test_handles(four: Any) -> None:
    worker = four.workers[2]
    assert ray.get(worker.plain.remote(1, k=2)) == (2, (1,), {"k": 2})
    assert ray.get(worker.get_rank_info.remote()).dp_rank == 2


def test_refs_of_every_kind_are_arguments(four: Any) -> None:
    """What was put, small and large; what an actor returns; what came inside a value."""
    large = np.arange(1 << 18)
    ref, pending = ray.put(large), ray.remote(Giver).remote().give.remote(5)
    assert four.execute_all_sync("total", ref) == [int(large.sum())] * 4
    assert ray.get([w.total.remote(ref) for w in four.workers]) == [int(large.sum())] * 4
    assert four.one_to_all(pending)[3] == (3, (5,), {})
    assert ray.get(four.workers[1].plain.remote(k=pending)) == (1, (), {"k": 5})
    assert four.default([pending, 1, pending, 2]) == [
        (rank, (given,), {}) for rank, given in enumerate([5, 1, 5, 2])
    ]
    assert ray.get(four.workers[0].pass_on.remote({"ref": ref}, four.workers[2])) == large.sum()
    with pytest.raises(ZeroDivisionError):
        four.one_to_all(four.fail(1, blocking=False)[1])


def test_a_rank_begins_when_its_own_ref_is_there(four: Any) -> None:
    queue = ray.remote(ray_roles.Queue).remote()
    given = [queue.get.remote(1), *(queue.size.remote() for _ in range(3))]
    late, *refs = four.default(given, blocking=False)
    assert ray.get(refs, timeout=60) == [(rank, (0,), {}) for rank in (1, 2, 3)]
    assert ray.wait([late], timeout=0) == ([], [late])
    ray.get(queue.put.remote(7))
    assert ray.get(late, timeout=60) == (0, ([7],), {})
    ray.kill(queue)


def test_who_waits_gets_one_answer(four: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ref for each rank costs twice as much, and is for those who do not wait."""
    monkeypatch.setattr(Group, "start_each", None)
    monkeypatch.setattr(Group, "start", None)
    assert four.execute_all_sync("default", 1) == [(rank, (1,), {}) for rank in range(4)]
    spread = four.execute_all_sync("default", [5, 6, 7, 8])
    assert spread == [(rank, (rank + 5,), {}) for rank in range(4)]
    assert four.execute_rank_zero_sync("default", x=2) == (0, (), {"x": 2})
    assert four.custom(2) == 6


# --- errors --------------------------------------------------------------------------------------


def test_a_users_error(four: Any) -> None:
    with pytest.raises(ZeroDivisionError, match="rank 2") as caught:
        four.fail(2)
    error = caught.value
    assert isinstance(error, muster.RemoteError) and (error.rank, error.worker) == (2, "four-2")
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert type(error.cause) is ZeroDivisionError and error.cause.args == ("rank 2",)
    assert "raise ZeroDivisionError" in error.traceback and error.function_name == "fail"
    refs = four.fail(1, blocking=False)
    assert ray.get([refs[0], refs[2], refs[3]]) == [0, 2, 3]  # the others go on
    with pytest.raises(ZeroDivisionError):
        ray.get(refs[1])


def test_a_time_limit(rm: ResourceManager, monkeypatch: pytest.MonkeyPatch) -> None:
    with role(Echo, rm, "late", world_size=1) as c:
        monkeypatch.setenv("roll_RPC_TIMEOUT", "1")
        with pytest.raises(TimeoutError, match="in sleep") as caught:
            c.sleep(60)
        assert isinstance(caught.value, ray.exceptions.GetTimeoutError)
        assert isinstance(caught.value, muster.DeadlineError) and caught.value.stacks
        monkeypatch.delenv("roll_RPC_TIMEOUT")


@pytest.mark.chaos
def test_a_process_that_ends(rm: ResourceManager) -> None:
    with role(Echo, rm, "mortal", world_size=2) as c:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(c.workers[1].die.remote())
        with pytest.raises(ray.exceptions.RayActorError, match="exit code 7") as caught:
            c.one_to_all(1)
        assert isinstance(caught.value, muster.WorkerDiedError) and caught.value.rank == 1
        assert caught.value.actor_id == c.workers[1]._actor_id
        with pytest.raises(ray.exceptions.RayActorError, match="exit code 7") as caught:
            c.execute_all_sync("one_to_all", 1)
        assert caught.value.actor_id == c.workers[1]._actor_id
        assert c.execute_rank_zero_sync("one_to_all", 1) == (0, (1,), {})


# --- async, other roles, the end ---------------------------------------------------------------


def test_async_methods_run_at_once(rm: ResourceManager) -> None:
    with role(Slow, rm, "slow", world_size=2) as c:
        waiting = [c.wait(blocking=False) for _ in range(50)]
        c.open()
        assert [ray.get(refs) for refs in waiting] == [[0, 1]] * 50
        assert c.rows([1, 2]) == [10, 20]


def test_a_cluster_inside_a_worker(rm: ResourceManager, four: Any) -> None:
    with role(Echo, rm, "train", world_size=2) as train:
        handles = [four.workers[1], four.workers[3]]
        found = train.execute_all_sync("call_others", four, handles)
        for rank, (answers, plain, name, devices) in enumerate(found):
            assert answers == [(other, (rank,), {}) for other in range(4)]
            assert plain == [(1, (rank,), {}), (3, (rank,), {})]
            assert name == "four" and devices == four.rank2devices


def test_shared_storage(four: Any) -> None:
    found = four.execute_all_sync("keep", "key", "value")
    assert sorted(kept for kept, _ in found) == [False, False, False, True]
    assert {value for _, value in found} == {"value"}


def test_base_methods(four: Any) -> None:
    assert four.load_states() == [None] * 4 and four.offload_states(1) == [None] * 4
    assert four.process_weights_after_loading() == [None] * 4
    assert four.get_metrics().meta_info == {"metrics": {}}


def test_import_ray_where_it_was_installed(tmp_path: Path) -> None:
    """A pipeline that imports ray in many files: one line more, and none of them changes."""
    (tmp_path / "worker_of_theirs.py").write_text(
        """
import ray
from muster.compat.roll import Dispatch, Worker, register

@ray.remote
class Role(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def go(self, x):
        return ray.get(ray.put(x)), ray.__name__
"""
    )
    source = """
import muster.compat.ray
muster.compat.ray.install()
import ray
from muster.compat.roll import Cluster, ResourceManager, WorkerConfig
from worker_of_theirs import Role

if __name__ == "__main__":
    ray.init()
    c = Cluster("role", Role, ResourceManager(0, 1), WorkerConfig(world_size=2))
    print(c.go(5))
    ray.shutdown()
"""
    found = output_of(run_script(tmp_path, source, PYTHONPATH=str(PYTHON)))
    assert "[(5, 'muster.compat.ray'), (5, 'muster.compat.ray')]" in found
