"""Metas of batches that are put together: whose metrics count, and how often."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from muster import Batch


def sent(batch: Batch) -> Batch:
    """The batch as it comes to somebody else."""
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    back = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    assert isinstance(back, Batch)
    return back


def rows(n: int = 4, **metrics: Any) -> Batch:
    return Batch({"x": np.arange(n)}, {"step": 1, "metrics": metrics})


def metrics_of(*batches: Batch) -> Any:
    joined = Batch.concat(batches)
    assert sent(joined).meta["metrics"] == joined.meta["metrics"]
    return joined.meta["metrics"]


def test_parts_that_agree_count_each() -> None:
    same = {"acc": 1.0}
    several = [Batch({"x": [at]}, {"metrics": same}) for at in range(3)]
    assert metrics_of(*several) == {"acc": [1.0, 1.0, 1.0]}
    assert metrics_of(*map(sent, several)) == {"acc": [1.0, 1.0, 1.0]}
    assert metrics_of(rows(acc=0.0), *several) == {"acc": [0.0, 1.0, 1.0, 1.0]}
    assert Batch.concat([Batch(meta={"metrics": 1}) for _ in "ab"]).meta == {"metrics": [1, 1]}


def test_the_results_of_ranks_count_each() -> None:
    """Each rank gets a part of one batch and says something of it."""
    whole = rows(7, old=5)
    told = [sent(sent(whole)[a:b].with_meta(metrics={"rows": b - a})) for a, b in ((0, 4), (4, 7))]
    assert metrics_of(*told) == {"rows": [4, 3]}
    for part in (shards := [sent(whole[at : at + 1]) for at in range(3)]):
        part.meta["metrics"] = {"acc": 1.0}
    assert metrics_of(*map(sent, shards)) == {"acc": [1.0, 1.0, 1.0]}
    for part in (shards := [sent(whole[at : at + 1]) for at in range(3)]):
        part.meta["metrics"]["acc"] = 1.0
    assert metrics_of(*map(sent, shards)) == {"acc": [1.0] * 3, "old": 5}
    for part in (shards := whole.chunk(2)):
        part.meta["metrics"]["acc"] = 1.0
    assert metrics_of(*shards) == {"acc": [1.0, 1.0], "old": 5}
    assert whole.meta["metrics"] == {"old": 5}


def test_what_ranks_add_leaves_the_rest_counted_once() -> None:
    whole = Batch.concat([rows(loss=1, lens=[4]), rows(loss=2, lens=[5, 6])])
    shards = [sent(part) for part in whole.chunk(3)]
    for part in shards[:2]:
        part.meta["metrics"]["acc"] = 1.0
    told = {"loss": [1, 2], "lens": [4, 5, 6]}
    assert sent(shards[0]).meta["metrics"] == {**told, "acc": 1.0}
    whole = sent(Batch.concat(map(sent, shards)))
    assert whole.meta["metrics"] == {**told, "acc": [1.0, 1.0]}
    for part in (shards := [sent(part) for part in whole.chunk(2)]):  # cut and joined once more
        part.meta["metrics"]["time"] = 3
    again = Batch.concat(map(sent, shards))
    assert again.meta["metrics"] == {**told, "acc": [1.0, 1.0], "time": [3, 3]}
    joined = metrics_of(again, rows(loss=7, time=4))
    assert joined == {"loss": [1, 2, 7], "lens": [4, 5, 6], "acc": [1.0] * 2, "time": [3, 3, 4]}


def test_what_ranks_change_counts_for_those_who_did() -> None:
    whole = rows(6, old=5, acc=0.5)
    shards = [sent(part) for part in whole.chunk(3)]
    for at, part in enumerate(shards[:2]):
        part.meta["metrics"]["acc"] = at
    assert sent(shards[1]).meta["metrics"] == {"old": 5, "acc": 1}
    assert metrics_of(*map(sent, shards[:2])) == {"old": 5, "acc": [0, 1]}
    for order in (shards, shards[::-1]):
        told = metrics_of(*map(sent, order))
        assert told["old"] == 5 and sorted(told["acc"]) == [0, 0.5, 1]
    for part in (shards := [sent(part) for part in whole.chunk(3)]):
        del part.meta["metrics"]["acc"]
        part.meta["metrics"]["old"] += 1
    assert metrics_of(*map(sent, shards)) == {"old": [6, 6, 6]}
    for part in shards:
        part.meta["metrics"].clear()
    assert metrics_of(*shards) == {}


def test_a_dict_of_a_ranks_own_is_all_its_own() -> None:
    for part in (shards := [sent(part) for part in rows(old=5, acc=1).chunk(3)]):
        part.meta["metrics"] = {"old": 5, "acc": 2}
    assert metrics_of(*map(sent, shards)) == {"old": [5] * 3, "acc": [2] * 3}


@pytest.mark.parametrize("value", [1.0, [1, 2], np.ones(3), np.ones(70_000)], ids=type)
def test_one_part_cut_and_joined_counts_once(value: Any) -> None:
    whole = rows(acc=value)
    for one in (whole, sent(whole), sent(sent(whole))):
        for cut in (one.chunk(3), [one, one], [sent(part) for part in one.chunk(3)]):
            again = Batch.concat(cut)
            assert np.array_equal(again.meta["metrics"]["acc"], value)
            assert np.array_equal(sent(again).meta["metrics"]["acc"], value)
    side = whole.select("x").union(sent(whole).rename({"x": "y"}))
    assert np.array_equal(side.meta["metrics"]["acc"], value)


def test_other_entries_leave_metrics_theirs() -> None:
    whole = Batch.concat([rows(acc=1), rows(acc=2)])
    shards = [sent(part).with_meta(step=7, seen=at) for at, part in enumerate(whole.chunk(3))]
    again = Batch.concat(map(sent, shards))
    assert again.meta == {"step": 7, "seen": 0, "metrics": {"acc": [1, 2]}}
    for at, part in enumerate(shards := [sent(part) for part in whole.chunk(3)]):
        part.meta["seen"] = at
        del part.meta["step"]
    again = Batch.concat([sent(part) for part in shards])
    assert again.meta == {"seen": 0, "metrics": {"acc": [1, 2]}}
    assert metrics_of(whole.with_meta(step=2), rows(acc=3)) == {"acc": [1, 2, 3]}


def test_changed_in_place() -> None:
    """Arrays are the same objects, and their content is another."""
    whole = rows(seen=np.zeros(2))
    shards = [sent(part) for part in whole.chunk(2)]
    for part in shards:
        part.meta["metrics"]["seen"] += 1
    joined = Batch.concat([sent(part) for part in shards])
    assert joined.meta["metrics"]["seen"].tolist() == [1.0] * 4


def test_arrays_that_do_not_fit_together() -> None:
    joined = sent(Batch.concat([rows(h=np.ones((1, 2))), rows(h=np.ones((1, 3)))]))
    assert [h.shape for h in joined.meta["metrics"]["h"]] == [(1, 2), (1, 3)]
    assert "metrics" in repr(joined) and len(pickle.dumps(joined)) > 0
    torch = pytest.importorskip("torch")
    joined = Batch.concat([rows(h=torch.ones(1, 2)), rows(h=torch.ones(1, 3))])
    assert [tuple(h.shape) for h in joined.meta["metrics"]["h"]] == [(1, 2), (1, 3)]


def test_copies_are_the_same_part() -> None:
    whole = rows(acc=1)
    for made in (copy.copy(whole), copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert metrics_of(whole[:2], made[2:]) == {"acc": 1}


def test_looking_changes_nothing() -> None:
    def both(look: bool) -> Any:
        several = [sent(rows(acc=at)) for at in (1, 2)]
        first = Batch.concat([*several, several[0][:1]])
        if look:
            assert first.meta["metrics"] == {"acc": [1, 2]}
            assert several[0].meta["metrics"] == {"acc": 1}
            assert first.meta is first.meta
        third = rows(acc=3)
        return [
            metrics_of(first, third),
            metrics_of(first[:2], third, first[2:]),
            metrics_of(several[0], first),
            metrics_of(sent(first), sent(first)[1:], first.with_meta(a=1)),
            metrics_of(sent(several[0]), several[0]),
        ]

    assert both(look=True) == both(look=False)
    assert both(look=False)[:2] == [{"acc": [1, 2, 3]}] * 2


def test_what_was_looked_at_and_changed_is_one_new_part() -> None:
    whole = Batch.concat([rows(acc=1), rows(acc=2)])
    whole.meta["metrics"]["acc"].append(3)
    assert metrics_of(*whole.chunk(3)) == {"acc": [1, 2, 3]}
    assert metrics_of(whole[:1], sent(whole)) == {"acc": [1, 2, 3]}
    del whole.meta["metrics"]
    assert sent(whole[:1]).meta == {"step": 1}


@pytest.mark.parametrize("size", [2, 100_000])
def test_nobody_else_sees_what_is_changed_in_place(size: int) -> None:
    given: dict[str, Any] = {"metrics": {"h": [1], "deep": {"a": ([2],)}, "seen": np.zeros(size)}}
    whole = Batch({"x": np.arange(4)}, given)
    for one in (whole, sent(whole), sent(sent(whole)[:3])):
        shards, metrics = one.chunk(2), one.meta["metrics"]
        before = shards[1].meta["metrics"]
        metrics["h"].append(2)
        metrics["deep"]["a"][0].append(3)
        metrics["seen"] += 1
        for other in (given["metrics"], before, shards[0].meta["metrics"]):
            assert other["h"] == [1] and other["deep"] == {"a": ([2],)}
            assert other["seen"].max() == 0
        again = Batch.concat(shards).meta["metrics"]
        assert again["h"] == [1] and again["seen"].shape == (size,)
        assert one.meta["metrics"]["h"] == [1, 2] and sent(one).meta["metrics"]["seen"].min() == 1


def test_metrics_that_were_looked_at_are_told_once() -> None:
    shards = rows(seen=np.zeros(3), h=[np.ones(2)]).chunk(3)
    for part in shards:
        assert part.meta["metrics"]["seen"].max() == 0
    assert len(Batch.concat(shards)._metas) == 1


def test_metrics_that_stay_as_they_are_are_copied_once() -> None:
    whole = rows(seen=np.zeros(3), h=[1])

    def told() -> Any:
        several = [(meta.values or {}).get("metrics", {}) for meta in whole[:1]._metas]
        return next(metrics["seen"] for metrics in several if "seen" in metrics)

    assert whole.meta["step"] == 1 and told() is told()
    before = told()
    whole.meta["metrics"]["seen"][0] = 1
    assert told() is not before and told()[0] == 1 and before[0] == 0
    whole.meta["metrics"]["other"] = threading.Lock()  # which cannot be sent
    assert whole[:1].meta["metrics"]["h"] == [1]
    whole.meta["metrics"]["h"].append(2)
    assert whole[:1].meta["metrics"]["h"] == [1, 2]


def test_metrics_in_themselves_are_no_trap() -> None:
    loop: list[Any] = []
    loop += [loop, (loop, {"a": loop})]
    assert rows(loop=loop).meta["metrics"]["loop"]


def test_tensors_are_copied_too() -> None:
    torch = pytest.importorskip("torch")
    whole = rows(loss=torch.zeros(2))
    shards = whole.chunk(2)
    whole.meta["metrics"]["loss"] += 1
    assert shards[0].meta["metrics"]["loss"].tolist() == [0.0, 0.0]
