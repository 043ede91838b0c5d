"""Who gets what and what comes back, for every mode, shape and size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import muster
from muster import Broadcast, Cluster, PerRank, RankInfo, ResourceManager, register
from roles import Custom, Echo, LaidOut
from running import cluster, session

# dp, tp, pp, cp: each alone, each with another, and all at once.
SHAPES = [
    (1, 1, 1, 1),
    (4, 1, 1, 1),
    (1, 4, 1, 1),
    (1, 1, 4, 1),
    (1, 1, 1, 4),
    (3, 2, 1, 1),
    (2, 1, 3, 1),
    (3, 1, 1, 2),
    (2, 2, 2, 1),
    (2, 2, 2, 2),
]
SIZES = [0, 1, 2, 5, 8, 17]


class Shape:
    """A cluster of a shape, and where Megatron's layout puts each rank: tp, cp, dp, pp."""

    def __init__(self, made: Cluster, dp: int, tp: int, pp: int, cp: int) -> None:
        self.cluster = made
        self.sizes = dp, tp, pp, cp
        self.world = dp * tp * pp * cp
        self.dp_rank = [rank // (tp * cp) % dp for rank in range(self.world)]
        self.collected = [
            rank
            for rank in range(self.world)
            if rank % tp == 0 and rank // tp % cp == 0 and rank // (tp * cp * dp) == pp - 1
        ]

    def part(self, rows: Any, rank: int) -> Any:
        dp, at = self.sizes[0], self.dp_rank[rank]
        size, more = divmod(len(rows), dp)
        begin = at * size + min(at, more)
        return rows[begin : begin + size + (at < more)]


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("2x8"), ResourceManager(8, 2) as made:
        yield made


@pytest.fixture(scope="module", params=SHAPES, ids=lambda s: "dp{}-tp{}-pp{}-cp{}".format(*s))
def shape(rm: ResourceManager, request: pytest.FixtureRequest) -> Iterator[Shape]:
    dp, tp, pp, cp = request.param
    mapping = list(range(dp * tp * pp * cp))
    with cluster(Echo, rm, device_mapping=mapping, tp=tp, pp=pp, cp=cp) as made:
        yield Shape(made, dp, tp, pp, cp)


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    """Four ranks, dp 2 x tp 2."""
    with cluster(Echo, rm, name="four", device_mapping="0-3", tp=2) as made:
        yield made


@pytest.fixture(params=[True, False], ids=["blocking", "future"])
def how(request: pytest.FixtureRequest) -> Any:
    def call(bound: Any, *args: Any, **kwargs: Any) -> Any:
        if request.param:
            return bound(*args, **kwargs)
        return muster.get(bound(*args, blocking=False, **kwargs))

    return call


def test_shape_is_told(shape: Shape) -> None:
    c, (dp, tp, pp, cp) = shape.cluster, shape.sizes
    assert (c.dp_size, c.tp_size, c.pp_size, c.cp_size) == (dp, tp, pp, cp)
    assert c.world_size == shape.world
    for rank, info in enumerate(c.worker_rank_info):
        assert (info.rank, info.world_size) == (rank, shape.world)
        assert info.dp_rank == shape.dp_rank[rank]
        assert info.tp_rank == rank % tp
        assert (info.dp_size, info.tp_size, info.pp_size, info.cp_size) == (dp, tp, pp, cp)
        assert info.is_pipeline_last_stage == (info.pp_rank == pp - 1)


def test_one_to_all(shape: Shape, how: Any) -> None:
    rows = [1, "two", (3,)]
    got = how(shape.cluster.one_to_all, rows, key=rows)
    assert got == [(rank, (rows,), {"key": rows}) for rank in range(shape.world)]
    assert how(shape.cluster.one_to_all_one, rows) == (0, (rows,), {})


def test_all_to_all(shape: Shape, how: Any) -> None:
    rows = [f"row {i}" for i in range(shape.world)]
    for method in (shape.cluster.all_to_all, shape.cluster.default):
        got = how(method, rows, tuple(rows), key=rows)
        assert got == [(r, (row, row), {"key": row}) for r, row in enumerate(rows)]


@pytest.mark.parametrize("size", SIZES)
def test_dp(shape: Shape, size: int) -> None:
    c, rows = shape.cluster, list(range(size))
    words = tuple(str(row) for row in rows)
    expected = [
        (r, (shape.part(rows, r),), {"words": shape.part(words, r)}) for r in range(shape.world)
    ]
    assert c.dp_mp_compute(rows, words=words) == [expected[r] for r in shape.collected]
    assert c.dp_mp_dispatch_first(rows, words=words) == [expected[r] for r in shape.collected]
    assert c.dp_mp_compute_collect_all(rows, words=words) == expected
    assert c.dp_mp_dispatch_first_collect_all(rows, words=words) == expected
    assert c.same(rows) == rows
    assert rows == list(range(size))


def test_dp_as_future(shape: Shape) -> None:
    ref = shape.cluster.same(list(range(7)), blocking=False)
    assert muster.get(ref) == list(range(7))
    assert muster.get(ref) == list(range(7))


def test_rank_zero(shape: Shape, how: Any) -> None:
    c, rows = shape.cluster, list(range(shape.world))
    before = c.execute_all_sync("counted")
    assert how(c.zero_of_all, rows, k=1) == (0, (rows,), {"k": 1})
    assert how(c.zero_of_each, rows) == (0, (0,), {})
    assert how(c.zero_of_dp, rows) == (0, (shape.part(rows, 0),), {})
    after = c.execute_all_sync("counted")
    assert after == [before[0] + 1, *before[1:]], "rank 0 alone ran"


def test_custom_functions(shape: Shape, how: Any) -> None:
    world = shape.world
    assert how(shape.cluster.custom, 3) == {"largest": 3 * (world - 1)}
    assert how(shape.cluster.custom, 3, y=4) == {"largest": 7 * (world - 1)}


def test_execute_never_cuts_by_guess(shape: Shape) -> None:
    c, rows = shape.cluster, list(range(shape.world))
    for method in ("plain", "default", "one_to_all"):
        got = c.execute_all_sync(method, rows, key=tuple(rows))
        assert got == [(r, (rows,), {"key": tuple(rows)}) for r in range(shape.world)]
    assert c.execute_rank_zero_sync("plain", rows) == (0, (rows,), {})
    refs = c.execute_all_async("plain", rows)
    assert len(refs) == shape.world
    assert muster.get(refs) == [(r, (rows,), {}) for r in range(shape.world)]


def test_execute_per_rank(shape: Shape) -> None:
    c, rows = shape.cluster, [[i] * i for i in range(shape.world)]
    got = c.execute_all_sync("plain", PerRank(rows), 5, key=PerRank(tuple(rows)))
    assert got == [(r, (row, 5), {"key": row}) for r, row in enumerate(rows)]
    assert c.execute_rank_zero_sync("plain", PerRank(rows)) == (0, ([],), {})


MODES = [
    "default",
    "one_to_all",
    "one_to_all_one",
    "all_to_all",
    "dp_mp_compute",
    "dp_mp_dispatch_first",
    "dp_mp_compute_collect_all",
    "dp_mp_dispatch_first_collect_all",
    "zero_of_all",
    "zero_of_each",
    "zero_of_dp",
]


def by_rank(got: Any) -> dict[int, tuple[Any, ...]]:
    """What each rank that came back had seen, whatever the mode joined it to."""
    if isinstance(got, tuple):
        got = [got]
    return {rank: args for rank, args, _ in got}


@pytest.mark.parametrize("mode", MODES)
def test_broadcast_and_per_rank_in_every_mode(c: Cluster, mode: str) -> None:
    got = by_rank(getattr(c, mode)(Broadcast([1, 2, 3]), PerRank(["a", "b", "c", "d"])))
    for rank, args in got.items():
        assert args == ([1, 2, 3], "abcd"[rank])


@pytest.mark.parametrize("mode", MODES)
def test_per_rank_of_a_wrong_length(c: Cluster, mode: str) -> None:
    with pytest.raises(ValueError, match=r"3.*4") as caught:
        getattr(c, mode)(PerRank([1, 2, 3]))
    assert isinstance(caught.value, muster.MusterError)


@pytest.mark.parametrize("mode", ["default", "all_to_all", "zero_of_each"])
@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_wrong_length_names_both(c: Cluster, mode: str, size: int) -> None:
    with pytest.raises(ValueError, match=rf"{size}\b.*\b4\b|\b4\b.*\b{size}\b") as caught:
        getattr(c, mode)([1] * size)
    assert isinstance(caught.value, muster.MusterError)


@pytest.mark.parametrize(
    "value", [7, None, "text", b"bytes", {"a": 1}, {1, 2}, 1.5], ids=lambda v: type(v).__name__
)
@pytest.mark.parametrize("mode", ["all_to_all", "dp_mp_compute", "dp_mp_dispatch_first"])
def test_what_cannot_be_cut_names_argument_and_mode(c: Cluster, mode: str, value: Any) -> None:
    before = c.execute_all_sync("counted")
    with pytest.raises((TypeError, ValueError), match=r"'?weights'?.*" + mode.upper()) as caught:
        getattr(c, mode)([1, 2, 3, 4], weights=value)
    assert isinstance(caught.value, muster.MusterError)
    assert "Broadcast" in str(caught.value), "it says what to do"
    assert c.execute_all_sync("counted") == before


def test_rows_of_different_lengths(c: Cluster) -> None:
    with pytest.raises(ValueError, match=r"3.*2"):
        c.dp_mp_compute([1, 2, 3], [1, 2])


@pytest.mark.parametrize(
    ("answers", "collected"),
    [
        ([1, 2, 3, 4], [1, 3]),
        ([None] * 4, [None, None]),
        ([[1], None, None, None], [[1], None]),
        ([None, None, [1, 2], None], [None, [1, 2]]),
        ([5, [1], [2], [3]], [5, [2]]),
        ([[1], 9, [2, 3], 9], [1, 2, 3]),
        ([[], [], [], []], []),
        ([[], 0, [7], 0], [7]),
        ([(1,), 0, (2,), 0], [(1,), (2,)]),
        ([{"a": 1}] * 4, [{"a": 1}] * 2),
        (["ab"] * 4, ["ab", "ab"]),
        ([[[1]], 0, [[2], []], 0], [[1], [2], []]),
    ],
)
def test_what_is_collected_decides(c: Cluster, answers: Any, collected: Any) -> None:
    """Ranks 0 and 2 are the collected ones; what the others return does not matter."""
    assert c.answers([1, 2], Broadcast(answers)) == collected


def test_arguments_are_not_changed(c: Cluster) -> None:
    rows, inner = [[1], [2], [3]], {"k": [1, 2]}
    c.dp_mp_compute(rows, key=Broadcast(inner))
    c.one_to_all(rows, inner)
    assert (rows, inner) == ([[1], [2], [3]], {"k": [1, 2]})


def test_no_arguments(c: Cluster) -> None:
    assert c.dp_mp_compute() == [(0, (), {}), (2, (), {})]
    assert c.all_to_all() == [(r, (), {}) for r in range(4)]


def test_custom_functions_that_go_wrong(rm: ResourceManager) -> None:
    with cluster(Custom, rm, name="custom", device_mapping="0-3") as c:
        with pytest.raises(ValueError, match=r"3.*4"):
            c.short(1)
        with pytest.raises((TypeError, ValueError), match=r"shapeless|dispatch"):
            c.shapeless(1)
        with pytest.raises(PermissionError, match="not today"):
            c.refused(1)
        with pytest.raises(PermissionError, match="not today"):
            c.uncollected(1)
        ref = c.uncollected(1, blocking=False)
        with pytest.raises(PermissionError, match="not today"):
            muster.get(ref)
        assert c.last({"any": "thing"}, y=[1]) == (3, {"any": "thing"}, [1])
        assert muster.get(c.last(5, blocking=False)) == (3, 5, None)
        assert c.execute_all_sync("last", 5) == [(r, 5, None) for r in range(4)]


def test_custom_functions_on_rank_zero(rm: ResourceManager) -> None:
    """Rank 0 alone runs, with its part; its result comes back alone."""
    with cluster(Custom, rm, name="zero", device_mapping="0-3") as c:
        assert c.zero(5) == 100


@pytest.mark.parametrize(
    "mode", [{}, {"dispatch_fn": len}, {"collect_fn": len}, {"dispatch_fn": 1, "collect_fn": 2}, 7]
)
def test_modes_that_cannot_be(mode: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        register(mode)(lambda self: None)


def layout(world: int, order: list[int], dp: int) -> list[RankInfo]:
    return [
        RankInfo(world_size=world, dp_size=dp, tp_size=world // dp, rank=r, dp_rank=at % dp,
                 tp_rank=at // dp)
        for r, at in enumerate(order)
    ]  # fmt: skip


def test_layout_reported_in_a_call(rm: ResourceManager) -> None:
    """What a worker says in initialize wins over the configuration, at once."""
    with cluster(Echo, rm, name="late", device_mapping="0-3") as c:
        assert (c.dp_size, c.tp_size) == (4, 1)
        assert [r for r, _, _ in c.dp_mp_compute([1, 2, 3, 4])] == [0, 1, 2, 3]
        c.lay_out(layout(4, [0, 1, 2, 3], dp=2))  # dp fastest: ranks 0, 1 lead
        assert (c.dp_size, c.tp_size) == (2, 2)
        assert [i.dp_rank for i in c.worker_rank_info] == [0, 1, 0, 1]
        assert c.dp_mp_compute([1, 2, 3]) == [(0, ([1, 2],), {}), (1, ([3],), {})]
        c.lay_out(layout(4, [3, 2, 1, 0], dp=2))  # and it is never stale
        # Rank 2 is dp 1, rank 3 is dp 0: results come in the caller's order.
        assert c.dp_mp_compute([1, 2, 3]) == [(3, ([1, 2],), {}), (2, ([3],), {})]
        assert c.same(list("abc")) == list("abc")


def test_layout_reported_in_the_constructor(rm: ResourceManager) -> None:
    with cluster(LaidOut, rm, name="laid", device_mapping="0-5", strategy_args={"dp": 3}) as c:
        assert (c.dp_size, c.tp_size) == (3, 2)
        assert c.rows(list("abcd")) == [(0, "a"), (0, "b"), (1, "c"), (2, "d")]


IMPOSSIBLE = {
    "two ranks in one place": [RankInfo(2, dp_size=2, rank=r, dp_rank=0) for r in range(2)],
    "sizes that do not multiply to the world": [
        RankInfo(2, dp_size=3, rank=r, dp_rank=r) for r in range(2)
    ],
    "a rank outside its size": [
        RankInfo(2, dp_size=2, rank=0),
        RankInfo(2, dp_size=2, rank=1, dp_rank=5),
    ],
    "ranks that disagree": [
        RankInfo(2, dp_size=2, rank=0),
        RankInfo(2, tp_size=2, rank=1, tp_rank=1),
    ],
}


@pytest.mark.parametrize("infos", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_impossible_layout_fails_the_call_that_reported_it(
    rm: ResourceManager, infos: list[RankInfo]
) -> None:
    with cluster(Echo, rm, name="odd", device_mapping="0-1") as c:
        with pytest.raises(muster.MusterError, match="odd"):
            c.lay_out(infos)
        c.lay_out([RankInfo(2, tp_size=2, rank=r, tp_rank=r) for r in range(2)])
        assert c.tp_size == 2


@pytest.mark.parametrize(("tp", "pp", "cp"), [(3, 1, 1), (1, 5, 1), (2, 2, 2)])
def test_sizes_that_do_not_fit_the_ranks(rm: ResourceManager, tp: int, pp: int, cp: int) -> None:
    with pytest.raises(ValueError, match="4") as caught:
        with cluster(Echo, rm, name="unfit", device_mapping="0-3", tp=tp, pp=pp, cp=cp):
            pass
    assert isinstance(caught.value, muster.MusterError)
