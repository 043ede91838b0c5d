"""ROLL's marks, dispatch and collect functions, and placements."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from muster import RankInfo
from muster.compat import ray, roll
from muster.compat.roll import DataProto, Dispatch, Execute, register


class Layout:
    """A cluster as far as the functions need one: dp 2 x tp 2."""

    world_size, dp_size = 4, 2

    def get_rank_info(self, rank: int) -> RankInfo:
        return RankInfo(4, 2, 2, 1, 1, rank, rank % 2, rank // 2)


C = Layout()


# --- marks -------------------------------------------------------------------------------------


def test_register_marks_and_keeps_the_method() -> None:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, clear_cache=False)
    def add(a: int, b: int = 1) -> int:
        """Say."""
        return a + b

    @register()
    async def later(a: int) -> int:
        return a

    assert getattr(add, roll.BIND_WORKER_METHOD_FLAG) == {
        "dispatch_mode": Dispatch.ONE_TO_ALL,
        "execute_mode": Execute.RANK_ZERO,
    }
    assert add(1) == 2 and add.__name__ == "add" and add.__doc__ == "Say."
    assert asyncio.run(later(3)) == 3
    flag = getattr(later, roll.BIND_WORKER_METHOD_FLAG)
    assert flag["dispatch_mode"] is Dispatch.ALL_TO_ALL and flag["execute_mode"] is Execute.ALL


def test_register_refuses() -> None:
    with pytest.raises(AssertionError, match="it is a Dispatch or a dict"):
        register(dispatch_mode="ONE_TO_ALL")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="needs 'collect_fn'"):
        register(dispatch_mode={"dispatch_fn": print})
    with pytest.raises(AssertionError, match="it is an Execute"):
        register(execute_mode="ALL")  # type: ignore[arg-type]


# --- dispatch ----------------------------------------------------------------------------------


def test_one_to_all() -> None:
    assert roll.dispatch_one_to_all(C, 1, k="v") == (([1] * 4,), {"k": ["v"] * 4})


def test_all_to_all() -> None:
    args, kwargs = roll.dispatch_all_to_all(C, [1, 2, 3, 4], k=(5, 6, 7, 8))
    assert args == ([1, 2, 3, 4],) and kwargs == {"k": (5, 6, 7, 8)}
    for wrong in ([1, 2], 3, "abcd"):
        with pytest.raises(AssertionError, match="an element for each of 4 ranks"):
            roll.dispatch_all_to_all(C, wrong)


def test_rows_over_dp() -> None:
    args, kwargs = roll.dispatch_dp_mp_compute(C, [1, 2, 3, 4], k=["a", "b"])
    assert args == ([[1, 2], [1, 2], [3, 4], [3, 4]],)
    assert kwargs == {"k": [["a"], ["a"], ["b"], ["b"]]}


@pytest.mark.parametrize(
    ("arg", "told"),
    [
        ([1, 2, 3], "a list of 3, which does not divide by dp_size 2"),
        ([], "a list of 0, which does not divide"),
        ((1, 2), "a tuple of 2, which cannot be cut"),
        (7, "is a int, which cannot be cut"),
        ({"a": 1}, "is a dict of 1, which cannot be cut"),
    ],
)
def test_what_rows_cannot_be_cut_of(arg: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        roll.dispatch_dp_mp_compute(C, arg)


def test_meta_alone_goes_to_all() -> None:
    ((first, *others),), _ = roll.dispatch_dp_mp_compute(C, DataProto(meta_info={"s": 1}))
    assert first.meta_info == {"s": 1} and len(others) == 3


# --- collect -----------------------------------------------------------------------------------


def test_collect() -> None:
    output = [[0], [1], [2], [3]]
    assert roll.collect_all_to_all(C, output) is output
    assert roll.collect_all_to_one(C, output) == [0]
    assert roll.collect_dp_mp_compute(C, output) == [0, 2]
    metrics = [DataProto(meta_info={"metrics": {"a": at}}) for at in range(4)]
    assert roll.collect_dp_mp_compute(C, metrics).meta_info == {"metrics": {"a": [0, 2]}}
    with pytest.raises(NotImplementedError, match="results of type int"):
        roll.collect_dp_mp_compute(C, [1, 2, 3, 4])
    with pytest.raises(AssertionError):
        roll.collect_all_to_all(C, [1])


# --- placements --------------------------------------------------------------------------------


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> roll.ResourceManager:
    """Two nodes of four GPUs, without a head."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="here"))
    made = roll.ResourceManager.__new__(roll.ResourceManager)
    made.num_nodes, made.gpu_per_node = 2, 4
    groups: Any = {0: "pg0", 1: "pg1"}
    made.node2pg = groups
    return made


def test_places(manager: roll.ResourceManager) -> None:
    found = manager.allocate_placement_group(2, [5, 4, 0, 1])
    assert [[(at["node_rank"], at["gpu_rank"]) for at in rank] for rank in found] == [
        [(1, 1), (1, 0)],
        [(0, 0), (0, 1)],
    ]
    assert found[0][0] == {
        "node_rank": 1,
        "gpu_rank": 1,
        "placement_group": "pg1",
        "ray_address": "here",
    }
    cpu = manager.allocate_placement_group(3)
    assert [rank[0]["node_rank"] for rank in cpu] == [0, 1, 0]
    assert [rank[0]["gpu_rank"] for rank in cpu] == [None] * 3


def test_places_that_are_not_there(manager: roll.ResourceManager) -> None:
    with pytest.raises(ValueError, match="3 workers, but device_mapping has 2 entries"):
        manager.allocate_placement_group(3, [0, 1])
    with pytest.raises(AssertionError, match="world_size=2 does not divide"):
        manager.allocate_placement_group(2, [0, 1, 2])
    with pytest.raises(AssertionError, match=r"names \[8\], but the nodes have 2 x 4 GPUs, 0 to 7"):
        manager.allocate_placement_group(1, [8])


# --- imports -----------------------------------------------------------------------------------


def test_importing_it_needs_neither_torch_nor_ray() -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'tensordict', 'ray', 'roll'): sys.modules[name] = None\n"
        "from muster.compat import roll\n"
        "assert all(hasattr(roll, name) for name in roll.__all__)\n"
        "data = roll.DataProto(meta_info={'a': 1})\n"
        "assert data.chunk(2)[1].meta_info == {'a': 1}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
