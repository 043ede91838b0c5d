"""A worker whose call connection ends: it goes on, comes back, and nothing runs twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.harness import Agent, Peer, Worker, origin

from muster import _values, _wire

NOT_DONE, DONE = 0, 1


@pytest.fixture
def worker(boss: Agent, line: Peer) -> Worker:
    made = boss.fork(line, "samples:Plain")
    made.ready()
    return made


def told(seq: int, call: int, done: int) -> list[int]:
    return [seq, call, origin(call), done]


def value(frame: _wire.Frame) -> Any:
    return _values.decode(frame.body, frame.bufs)


def test_an_idle_worker_comes_back_with_what_it_keeps(boss: Agent, worker: Worker) -> None:
    for call in (10, 20, 30):
        assert worker.calls.call(call, "add", call) == call + 1
    back, again = boss.again(worker)
    assert back["received"] == 3
    assert back["legs"] == [told(n, 10 * n, DONE) for n in (1, 2, 3)]
    assert [(frame.id, value(frame)) for frame in again] == [(10, 11), (20, 21), (30, 31)]
    assert back["ready"]["pid"] == worker.pid
    assert back["ready"]["description"] == worker.description
    assert back["ready"]["info"] is None
    assert worker.calls.call(40, "add", 1) == 2


def test_what_is_acknowledged_is_dropped(boss: Agent, worker: Worker) -> None:
    calls = worker.calls
    for call in range(1, 7):
        assert calls.call(call, "add", call) == call + 1
    calls.leg(7, "add", 7, ack=2)
    calls.leg(8, "add", 8, ack=0)
    calls.leg(9, "add", 9, ack=1)  # older: it means nothing
    assert [calls.result()[0] for _ in range(3)] == [7, 8, 9]
    calls.send(_wire.KIND_NOTICE, 0, ["acked", {"through": 3, "calls": [5, 8]}])
    assert calls.call(10, "add", 10, ack=3) == 11
    back, again = boss.again(worker)
    assert [(leg[0], leg[1]) for leg in back["legs"]] == [(4, 4), (6, 6), (7, 7), (9, 9), (10, 10)]
    assert back["received"] == 10
    assert [frame.id for frame in again] == [4, 6, 7, 9, 10]
    worker.calls.leg(11, "add", 1, ack=10)
    worker.calls.result()
    back, again = boss.again(worker)
    assert back["legs"] == [told(11, 11, DONE)]


def test_a_busy_worker_comes_back_at_once_and_answers_there(
    boss: Agent, worker: Worker, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    worker.calls.leg(1, "until", str(there))
    assert worker.line() == "waiting"
    for seq in (1, 1, 1):
        back, again = boss.again(worker)
        assert back["received"] == seq
        assert back["legs"] == [told(1, 1, NOT_DONE)]
        assert again == []
    there.touch()
    frame = worker.calls.read()
    assert (frame.kind, frame.flags, frame.id, value(frame)) == (_wire.KIND_RESULT, 0, 1, "there")
    assert worker.calls.call(2, "note", "once") == [str(there), "once"]


def test_legs_behind_a_busy_one_were_not_got_and_come_again(
    boss: Agent, worker: Worker, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    worker.calls.leg(1, "until", str(there))
    assert worker.line() == "waiting"
    for call in (2, 3):
        worker.calls.leg(call, "note", call)
    back, _ = boss.again(worker)
    assert back["received"] == 1
    for call in (2, 3):
        worker.calls.leg(call, "note", call)
    there.touch()
    assert [worker.calls.result() for _ in range(3)] == [
        (1, "there"),
        (2, [str(there), 2]),
        (3, [str(there), 2, 3]),
    ]


def test_a_result_that_is_made_while_there_is_no_head_is_kept(
    boss: Agent, worker: Worker, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    worker.calls.leg(1, "until", str(there))
    assert worker.line() == "waiting"
    boss.stop_listening("worker")
    worker.calls.sock.close()
    there.touch()
    assert worker.line() == "done"
    boss.listen_again("worker")
    worker.calls = boss.accept("worker")
    back, again = worker.calls.back()
    if back["legs"] == [told(1, 1, NOT_DONE)]:  # it was that quick
        assert worker.calls.result() == (1, "there")
    else:
        assert back["legs"] == [told(1, 1, DONE)]
        assert [value(frame) for frame in again] == ["there"]


def test_a_frame_that_is_cut_anywhere_was_not_got(boss: Agent, worker: Worker) -> None:
    body = _values.encode(["note", 0, origin(9), [[list(range(30))], {}]], [])
    frame = b"".join(_wire.pack_frame(_wire.KIND_LEG, 9, body))
    for size in (1, 5, 23, 24, 25, len(frame) // 2, len(frame) - 1):
        worker.calls.sock.sendall(frame[:size])
        back, again = boss.again(worker)
        assert (back["received"], back["legs"], again) == (0, [], [])
    worker.calls.sock.sendall(frame)
    assert worker.calls.result() == (9, [list(range(30))])
    back, again = boss.again(worker)
    assert back["legs"] == [told(1, 9, DONE)]


def test_results_are_kept_as_they_were(boss: Agent, worker: Worker) -> None:
    assert np.array_equal(worker.calls.call(1, "kept_array"), np.zeros(20_000))
    worker.calls.call(2, "change_array")
    _, again = boss.again(worker)
    assert np.array_equal(value(again[0]), np.zeros(20_000))


def test_failures_and_what_cannot_be_decoded_have_an_origin(boss: Agent, worker: Worker) -> None:
    assert worker.calls.call(1, "fail").code == "user"
    assert worker.calls.call(2, "no_such_method").code == "not_found"
    bufs: list[Any] = []
    body = _values.encode(["add", 0, origin(3), [[_Local()], {}]], bufs)
    gone = body.replace(b"test_wayback", b"test_gone_abc")
    _wire.send_frame(worker.calls.sock, _wire.KIND_LEG, 3, gone, bufs)
    assert worker.calls.result()[1].code == "encoding"
    back, again = boss.again(worker)
    assert back["legs"] == [told(n, n, DONE) for n in (1, 2, 3)]
    assert all(frame.flags == _wire.FLAG_ERROR | _wire.FLAG_AGAIN for frame in again)


class _Local:
    pass


def test_rank_info_that_changed_is_told_again(boss: Agent, worker: Worker) -> None:
    worker.calls.call(1, "relayout", True)
    back, _ = boss.again(worker)
    assert back["ready"]["info"]["dp_rank"] == 5


def test_a_worker_that_forked_comes_back(boss: Agent, worker: Worker) -> None:
    assert worker.calls.call(1, "fork_and_look") >= 0
    boss.again(worker)
    assert worker.calls.call(2, "add", 1) == 2


def test_coroutines_run_on_and_answer_the_next_head(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Async")
    worker.ready()
    worker.calls.leg(1, "wait")
    assert worker.calls.call(2, "echo", "early") == "early"
    back, again = boss.again(worker)
    assert back["legs"] == [told(1, 1, NOT_DONE), told(2, 2, DONE)]
    assert [value(frame) for frame in again] == ["early"]
    worker.calls.leg(3, "open")
    assert dict(worker.calls.result() for _ in range(2)).keys() == {1, 3}
    back, _ = boss.again(worker)
    assert [leg[3] for leg in back["legs"]] == [DONE] * 3


def test_a_large_reply_of_a_coroutine_that_was_cut_comes_again(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Async")
    worker.ready()
    worker.calls.leg(1, "big", 1 << 20)  # more than a socket takes
    worker.calls.stream.fill()  # it has begun
    _, again = boss.again(worker)
    assert len(value(again[0])) == 1 << 20
    assert worker.calls.call(2, "echo", 1) == 1


def test_threads_run_on_and_answer_the_next_head(boss: Agent, line: Peer, tmp_path: Path) -> None:
    worker = boss.fork(line, "samples:Threaded", max_concurrency=3)
    worker.ready()
    there = tmp_path / "there"
    worker.calls.leg(1, "until", str(there))
    assert worker.line() == "waiting"
    assert worker.calls.call(2, "quick", 2) == 2
    back, again = boss.again(worker)
    assert back["legs"] == [told(1, 1, NOT_DONE), told(2, 2, DONE)]
    assert [frame.id for frame in again] == [2]
    there.touch()
    assert worker.calls.result() == (1, "there")
    assert worker.calls.call(3, "quick", 3) == 3


@pytest.mark.parametrize("kind", ["samples:Plain", "samples:Async", "samples:Threaded"])
def test_a_worker_without_a_head_leaves_when_the_grace_is_over(
    lone: Agent, kind: str, tmp_path: Path
) -> None:
    line = lone.zygote(preload=["numpy"])
    limit = 3 if kind == "samples:Threaded" else 0
    worker = lone.fork(line, kind, max_concurrency=limit, env={"MUSTER_HEAD_GRACE": "0.2"})
    worker.ready()
    lone.stop_listening("worker")
    worker.calls.sock.close()
    assert worker.exit() == 1
    assert "no other was there within 0.2 s (MUSTER_HEAD_GRACE)" in worker.output()


@pytest.mark.parametrize("kind", ["samples:Plain", "samples:Async"])
def test_a_worker_without_a_head_leaves_when_its_agent_says_so(
    boss: Agent, line: Peer, kind: str
) -> None:
    for end in ("signal", "notice", "hang up"):
        worker = boss.fork(line, kind)
        worker.ready()
        worker.calls.sock.close()
        silent = boss.accept_silently("worker")  # a head that says nothing
        if end == "signal":
            os.kill(worker.pid, signal.SIGTERM)
        elif end == "notice":
            worker.control.send(_wire.KIND_NOTICE, 0, ["shutdown", {}])
        else:
            worker.control.sock.close()
        assert worker.exit() == (1 if end == "hang up" else 0)
        silent.close()


def test_a_worker_that_the_head_does_not_know_leaves(boss: Agent, worker: Worker) -> None:
    worker.calls.sock.close()
    sock = boss.accept_silently("worker")
    error = {"code": "auth", "message": "who are you", "rank": -1, "exit_code": 0}
    _wire.send_frame(sock, _wire.KIND_WELCOME, 0, _wire.pack(error), flags=_wire.FLAG_ERROR)
    assert worker.exit() == 1
    assert "its head will not have it: who are you" in worker.output()
    sock.close()


def test_a_head_that_goes_while_it_is_told_is_looked_for_again(boss: Agent, worker: Worker) -> None:
    worker.calls.call(1, "array", 1 << 20)  # more than a socket takes
    worker.calls.sock.close()
    for _ in range(2):
        boss.accept("worker").sock.close()
    worker.calls = boss.accept("worker")
    _, again = worker.calls.back()
    assert len(value(again[0])) == 1 << 20
