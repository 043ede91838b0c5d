"""Batches between clusters: cut by reference, read in place, given back when nobody needs them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster import Batch, Broadcast, Cluster, ResourceManager
from running import cluster, eventually, session
from stages import MIB, Stage, objects, rows, stores


@pytest.fixture(scope="module", params=["1x8", "2x4", "2x4+relay", "2x4+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    per_node, nodes = (8, 1) if request.param == "1x8" else (4, 2)
    with session(request.param), ResourceManager(per_node, nodes) as made:
        yield made


@pytest.fixture(scope="module")
def a(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Stage, rm, name="a", device_mapping="0-7", tp=2) as made:
        yield made


@pytest.fixture(scope="module")
def b(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Stage, rm, name="b", device_mapping="0-7", tp=2) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the stores are empty again."""
    if "rm" not in request.fixturenames:
        yield
        return
    made = request.getfixturevalue("a"), request.getfixturevalue("b")
    yield
    for each in made:
        each.let_go()
    assert eventually(lambda: not objects()), objects()


SIZES = [pytest.param(40, 4, id="small"), pytest.param(400, 1024, id="large")]


@pytest.mark.parametrize(("n", "width"), SIZES)
def test_rows_are_cut_and_put_together(a: Cluster, n: int, width: int) -> None:
    x = rows(n, width)
    sent = Batch(
        {"x": x, "id": np.arange(n), "prompt": [f"p{i}é" for i in range(n)]}, meta={"step": 3}
    )
    seen = a.look(sent)
    quarter = n // 4
    for rank, (length, columns, meta, total, ends) in enumerate(seen):
        dp = rank // 2
        assert length == quarter and columns == ["x", "id", "prompt"] and meta == {"step": 3}
        assert total == x[dp * quarter : (dp + 1) * quarter].sum()
        assert ends == [x[dp * quarter].tolist(), x[(dp + 1) * quarter - 1].tolist()]
    back = a.echo(sent)
    assert isinstance(back, Batch) and len(back) == n and back.columns == ["x", "id", "prompt"]
    assert np.array_equal(back["x"], x) and back["prompt"] == sent["prompt"]
    assert back.meta == {"step": 3}


@pytest.mark.parametrize("n", [0, 1, 3, 5, 9])
def test_odd_sizes(a: Cluster, n: int) -> None:
    sent = Batch({"x": rows(n, 2), "t": [str(i) for i in range(n)]})
    assert [length for length, *_ in a.look(sent)] == [
        len(part) for part in np.array_split(np.arange(n), 4) for _ in range(2)
    ]
    back = a.double(sent)
    assert np.array_equal(back["x"], sent["x"] * 2) and back["x"].dtype == np.int64


@pytest.mark.parametrize(("n", "width"), SIZES)
def test_from_cluster_to_cluster(a: Cluster, b: Cluster, n: int, width: int) -> None:
    x = rows(n, width)
    once = a.double(Batch({"x": x}))
    twice = b.double(once)
    assert np.array_equal(twice["x"], x * 4)
    assert twice.meta["rank"] == 0
    part = b.double(twice[10:20])
    assert np.array_equal(part["x"], x[10:20] * 8)
    order = np.random.default_rng(1).permutation(n)
    mixed = b.echo(twice[order])
    assert np.array_equal(mixed["x"], x[order] * 4)
    both = b.echo(Batch.concat([once[:7], twice[:5]]))
    assert np.array_equal(both["x"], np.concatenate([x[:7] * 2, x[:5] * 4]))


def test_metrics_of_each_rank_count(a: Cluster, b: Cluster) -> None:
    """Also of ranks that agree; those of one batch, cut and joined again, count once."""
    sent = Batch({"x": rows(8, 2)}, {"step": 1})
    out = a.measure(sent)
    for again in (out, b.echo(out), b.note(out), b.echo(Batch.concat([out[:3], out[3:]]))):
        metrics = again.meta["metrics"]
        assert metrics["rows"] == [2, 2, 2, 2] and metrics["acc"] == [0.0, 1.0, 1.0, 1.0]
        assert metrics["h"].tolist() == [[1, 1]] * 4 and again.meta["step"] == 1
    odd = a.measure(sent[:7])
    assert odd.meta["metrics"]["rows"] == [2, 2, 2, 1] and len(repr(odd)) > 0
    assert [h.shape for h in odd.meta["metrics"]["h"]] == [(1, 2), (1, 2), (1, 2), (1, 1)]
    both = Batch.concat([out, odd, out[:1]]).meta["metrics"]
    assert both["rows"] == [2, 2, 2, 2, 2, 2, 2, 1]


def test_columns_side_by_side(a: Cluster, b: Cluster) -> None:
    n = 400
    sent = Batch({"x": rows(n), "text": ["t"] * n})
    more = a.add(sent)
    assert more.columns == ["x", "text", "rank"]
    assert more["rank"].tolist() == [r for r in (0, 2, 4, 6) for _ in range(100)]
    less = b.echo(more.select("rank", "x"))
    assert less.columns == ["rank", "x"] and np.array_equal(less["x"], sent["x"])
    joined = b.echo(less.union(more.select("text")))
    assert sorted(joined.columns) == ["rank", "text", "x"] and joined["text"] == ["t"] * n


def test_only_the_first_of_a_part_is_fed(a: Cluster) -> None:
    told = a.fed(Batch({"x": rows(400)}, meta={"m": 1}))
    assert [length for length, *_ in told] == [100, 0] * 4
    assert {(tuple(c), m["m"], t) for _, c, m, t in told} == {(("x",), 1, "<i8")}


def test_meta_alone_goes_to_everybody(a: Cluster) -> None:
    told = a.look(Batch(meta={"lr": 0.1}))
    assert [(n, c, m) for n, c, m, *_ in told] == [(0, [], {"lr": 0.1})] * 8


def test_rows_without_columns_are_cut_as_others_are(a: Cluster) -> None:
    sent = Batch({"x": rows(10, 1)}, meta={"lr": 0.1}).select()
    told = a.look(sent)
    assert [(n, c, m) for n, c, m, *_ in told] == [
        (n, [], {"lr": 0.1}) for n in (3, 3, 3, 3, 2, 2, 2, 2)
    ]
    assert len(a.echo(sent)) == 10


def test_broadcast_of_a_batch(a: Cluster) -> None:
    assert [n for n, *_ in a.look(Broadcast(Batch({"x": rows(400)})))] == [400] * 8
    back = a.execute_all_sync("look", Batch({"x": rows(8, 1)}))
    assert [n for n, *_ in back] == [8] * 8


@pytest.mark.parametrize("width", [2, 1024])
def test_balanced_cuts_come_back_in_order(a: Cluster, width: int) -> None:
    rng = np.random.default_rng(3)
    n = 256
    lengths = np.maximum(1, rng.lognormal(5, 1, n)).astype(np.int64)
    sent = Batch({"x": rows(n, width), "len": lengths}).balanced("len")
    back = a.add(sent)
    assert np.array_equal(back["x"], rows(n, width)) and np.array_equal(back["len"], lengths)
    loads = [int(lengths[back["rank"] == rank].sum()) for rank in (0, 2, 4, 6)]
    assert max(loads) <= 1.03 * (sum(loads) / 4)
    assert a.repeat(sent, Broadcast([3]))["x"][:, 0].tolist() == np.repeat(np.arange(n), 3).tolist()


def test_groups_and_multiples(a: Cluster) -> None:
    n = 400
    group = np.random.default_rng(4).integers(0, 30, n)
    back = a.add(Batch({"x": rows(n, 2), "prompt": group}).grouped("prompt"))
    assert np.array_equal(back["prompt"], group)
    for g in range(30):
        assert len(set(back["rank"][group == g].tolist())) == 1
    back = a.add(Batch({"x": rows(100, 2)}).multiple_of(16))
    counts = [int((back["rank"] == rank).sum()) for rank in (0, 2, 4, 6)]
    assert sum(counts) == 100 and sum(c % 16 == 0 for c in counts) >= 3


@pytest.mark.parametrize("width", [2, 1024])
def test_a_rank_begins_when_its_own_rows_are_there(
    a: Cluster, b: Cluster, tmp_path: Path, width: int
) -> None:
    sent = Batch({"x": rows(400, width)})
    slow = a.slow(sent, Broadcast([30]), Broadcast([str(tmp_path)]), blocking=False)
    done = b.slow(slow, Broadcast([0]), Broadcast([str(tmp_path)]), blocking=False)
    assert eventually(lambda: all((tmp_path / f"done-b-{r}").exists() for r in range(2, 8)))
    assert not (tmp_path / "begun-b-0").exists() and not done.done()
    (tmp_path / "go").touch()
    assert np.array_equal(muster.get(done)["x"], sent["x"])
    assert np.array_equal(muster.get(slow)["x"], sent["x"])


@pytest.mark.parametrize("width", [2, 1024])
def test_writes_of_one_are_seen_by_no_other(a: Cluster, width: int) -> None:
    n = 400
    sent = Batch({"x": rows(n, width)})
    total = int(sent["x"].sum())
    first = a.scribble(Broadcast(sent))
    assert first == [(-1 - rank) * n * width for rank in range(8)]
    assert [t for *_, t, _ in a.look(Broadcast(sent))] == [total] * 8
    assert int(sent["x"].sum()) == total
    mine = a.echo(sent)
    mine["x"][...] = 7
    assert int(a.echo(sent)["x"].sum()) == total


def test_a_view_outlives_everything_else(a: Cluster, b: Cluster) -> None:
    n = 400
    sent = Batch({"x": rows(n)})
    held = a.echo(sent)["x"]
    total = int(held.sum())
    a.keep(sent)
    a.keep_handle(sent)
    del sent
    for i in range(110):
        other = b.double(Batch({"x": np.full((n, 1024), i, np.int64)}))
        assert int(other["x"].sum()) == 2 * i * n * 1024
        del other
    assert int(held.sum()) == total
    kept = a.sums()
    assert [k[1] for k in kept] == [total] * 8 and sum(k[0] for k in kept[::2]) == total
    again = a.give_back(1)[3]
    assert np.array_equal(again["x"], held)


OPEN = ("fds", "maps")  # of a process, as Stage.memory has them


def test_memory_is_flat(a: Cluster, b: Cluster) -> None:
    def step(i: int) -> None:
        out = b.double(a.double(Batch({"x": np.full((64, 16384), i, np.int64)})))
        assert out["x"][5, 7] == 4 * i

    def look() -> tuple[list[dict[str, int]], int, list[int]]:
        gc.collect()
        return (
            [*a.memory(), *b.memory()],
            len(os.listdir("/proc/self/fd")),
            [node["used_bytes"] + node["pooled_bytes"] for node in stores()],
        )

    def after(steps: int) -> tuple[list[dict[str, int]], int, list[int]]:
        for i in range(steps):
            step(i)
        return look()

    # As in large_test: first until all have met the segments that there are.
    (met, *_), (workers, fds, stored) = after(20), after(20)
    for _ in range(12):
        if all(now[k] <= was[k] for was, now in zip(met, workers, strict=True) for k in OPEN):
            break
        met, (workers, fds, stored) = workers, after(20)
    later, more_fds, more_stored = after(60)
    assert more_fds <= fds + 2
    for before, now in zip(workers, later, strict=True):
        assert now["fds"] <= before["fds"] + 2 and now["maps"] <= before["maps"] + 2
        assert now["anonymous"] <= before["anonymous"] + 16 * MIB
    for had, has in zip(stored, more_stored, strict=True):
        assert has <= had + 32 * MIB


def test_what_passes_from_cluster_to_cluster_is_not_in_the_controller(
    a: Cluster, b: Cluster
) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    made = Batch.concat(a.make(512, 2048))  # 64 MiB
    before = resident()
    for _ in range(20):
        made = b.echo(a.echo(made))
    assert resident() - before < 20 * 2 * 64 * MIB * 0.05
    assert len(made) == 4096 and int(made["x"][-1, -1]) == 7


def test_large_arguments_of_any_kind(a: Cluster) -> None:
    array = np.arange(MIB, dtype=np.float64)
    for value in (array, {"deep": [array, "text", array[::2]]}, b"x" * MIB, (array, {1: array})):
        back = a.large(value)[5]
        if isinstance(value, bytes):
            assert back == value
            continue
        flat = np.concatenate([x.ravel() for x in arrays(value)])
        assert np.array_equal(flat, np.concatenate([x.ravel() for x in arrays(back)]))
    assert len(a.large(array)) == 8


def arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays(item)


def test_released(a: Cluster) -> None:
    out = a.double(Batch({"x": rows(400)}))
    view = out["x"]
    out.release()
    out.release()
    uses: list[Callable[[], Any]] = [
        lambda: out["x"],
        lambda: a.echo(out),
        lambda: out[3:5],
        lambda: out.to_dict(),
    ]
    for use in uses:
        with pytest.raises(muster.MusterError, match="released") as caught:
            use()
        assert isinstance(caught.value, ValueError)
    assert view[3, 0] == 6
    with a.double(Batch({"x": rows(8, 2)})) as inside:
        assert len(inside) == 8
    with pytest.raises(muster.MusterError, match="released"):
        inside["x"]


def test_columns_that_disagree(a: Cluster) -> None:
    with pytest.raises(ValueError, match=r"'x'.*3|3.*'x'") as caught:
        Batch({"x": np.zeros(3), "y": [1, 2]})
    assert "'y'" in str(caught.value) and "2" in str(caught.value)
    with pytest.raises(ValueError, match="length"):
        a.slow(Batch({"x": rows(8, 2)}), [1, 2, 3], Broadcast(["x"]))
