"""Where ranks were: groups on one screen, each place once. The words are those of Go."""

from __future__ import annotations

from typing import Any

import pytest

from muster import DeadlineError
from muster._places import describe, spans


def stack(rank: int, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "worker": f"t-{rank}", "node": "n", "text": f"at {rank}\n", **more}


def group(ranks: list[int], place: str, **more: Any) -> dict[str, Any]:
    return {"ranks": ranks, "place": place, **more}


def test_the_odd_one_out_is_seen_first() -> None:
    error = DeadlineError(
        "t.step: no answer within 1s",
        groups=[
            group([0, 1, 2], "in all_reduce (comm.py:12)"),
            group([7], "in next (dataloader.py:88)"),
            group([3], "it is idle: it waits for a call", answered=True),
        ],
        stacks=[stack(0), stack(1, native=True), stack(2), stack(7)],
    )
    assert (
        str(error)
        == """t.step: no answer within 1s

  ranks 0-2 in all_reduce (comm.py:12)
  rank 7 in next (dataloader.py:88)
  rank 3 (answered): it is idle: it waits for a call

t-1 on n had not answered, like 2 more at this place:
at 1

t-7 on n had not answered:
at 7"""
    )


def test_one_alone_needs_no_group() -> None:
    assert (
        describe([group([2], "in f (a.py:1)")], [stack(2)])
        == "\n\nt-2 on n had not answered:\nat 2"
    )
    assert describe([], [stack(2)]) == "\n\nt-2 on n had not answered:\nat 2"
    assert describe([], []) == ""


def test_many_places_fit_on_a_screen() -> None:
    groups = [group([rank], f"in f (a.py:{rank})") for rank in range(64)]
    text = describe(groups, [stack(rank) for rank in range(64)])
    head, _, _ = text.partition(" had not answered")
    assert head.count("\n") < 24 and "… and 48 more ranks at 48 other places" in head
    assert text.count("had not answered") == 16


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 4, 6, 7], "0-2,4,6-7")]
)
def test_spans(ranks: list[int], text: str) -> None:
    assert spans(ranks) == text


def test_spans_are_cut() -> None:
    assert len(spans(list(range(0, 200, 2)))) <= 61
