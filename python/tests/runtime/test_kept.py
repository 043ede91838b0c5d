"""What a worker keeps of its legs, and sends again, by itself."""

from __future__ import annotations

import socket

from muster import _wire
from muster._runtime.board import Board
from muster._runtime.kept import RESULT, Kept
from muster._runtime.line import Line
from muster._runtime.wayback import WayBack


def kept(*done: bool) -> Kept:
    made = Kept()
    for n, is_done in enumerate(done, 1):
        leg = made.receive(10 * n, b"")
        if is_done:
            leg[RESULT] = [b"frame"]
    return made


def calls(made: Kept) -> list[int]:
    return [leg[1] for leg in made.legs]


def test_what_still_runs_is_not_let_go_of() -> None:
    """Whoever asks next is to know that it is here, whatever was said of its result."""
    made = kept(True, False, True)
    made.drop(3)
    assert calls(made) == [20, 30]
    made.notice(_wire.pack(["acked", {"through": 3, "calls": [20, 30]}]))
    assert calls(made) == [20]
    made.legs[0][RESULT] = [b"frame"]
    made.drop(3)
    assert calls(made) == []
    assert made.received == 3


def test_sequences_go_round() -> None:
    made = kept(True, True)
    for leg, sequence in zip(made.legs, (0xFFFFFFFF, 1 << 32), strict=True):
        leg[0] = sequence
    made.drop(0xFFFFFFF0)  # of long ago
    assert calls(made) == [10, 20]
    made.drop(0xFFFFFFFF)
    assert calls(made) == [20]
    made.drop(0)  # the one after it
    assert calls(made) == []


def test_a_result_that_the_next_head_was_told_of_is_not_sent_once_more() -> None:
    """It would name its objects twice."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        stream, read = _wire.FrameStream(theirs), _wire.FrameStream(ours)
        way = WayBack(stream, "", {}, Board("w-0"), None)
        line = Line(theirs, None, way)
        first, second = way.kept.receive(7, b""), way.kept.receive(8, b"")
        assert line.reply_small(first, 0, b"\xc0", stream)
        assert read.read().id == 7
        way.repeated = {first[0]}
        line.repeat(first)
        line.reply(second, 0, b"\xc0", [])
        assert read.read().id == 8
        line.repeat(second)  # it did not get out when that was told
        assert read.read().id == 8
