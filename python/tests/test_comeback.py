"""The end of a connection that is not the end: callers wait on, and the next head is told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from fakehead import DEADLINE, cluster_info, method, param
from fakeheads import Heads, Line, answer_frame, start

import muster
from muster import _calling, _values, _wire
from muster._client import Connection
from muster._refs import Ref

AGAIN = _wire.FLAG_AGAIN


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    made = Heads(tmp_path)
    yield made
    made.close()


@pytest.fixture
def threads(heads: Heads) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made
        heads.close()  # nobody waits for ever


def get(threads: ThreadPoolExecutor, ref: Ref) -> Future[Any]:
    return threads.submit(muster.get, ref, DEADLINE)


def args(frame: _wire.Frame) -> list[Any]:
    _, (given, _) = _values.decode(frame.body, frame.bufs)
    assert isinstance(given, list)
    return given


@pytest.mark.parametrize("read", [0, 1, 3])
@pytest.mark.parametrize("answered", [0, 1, 2, 3])
@pytest.mark.parametrize("half", [0, 1, 23, 24, 30])
def test_cut_anywhere(heads: Heads, read: int, answered: int, half: int) -> None:
    """Whatever the head got and said, each call is answered once, in the order of sending."""
    connection, line = heads.connect()
    refs = [start(connection, n) for n in range(3)]
    line.calls(read)
    out = b"".join(answer_frame(refs[n]._id, f"first {n}") for n in range(answered))
    out += answer_frame(refs[answered % 3]._id, "never seen whole")[:half]
    line.sock.sendall(out)
    line.cut()
    with ThreadPoolExecutor(3) as threads:
        values = [get(threads, ref) for ref in refs]
        line = heads.returned() if answered < 3 else line
        if answered < 3:
            told, again = line.back()
            assert told == {"answers": answered, "objects": []}
            assert [(f.kind, f.flags, f.id, args(f)) for f in again] == [
                (_wire.KIND_CALL, AGAIN, refs[n]._id, [n]) for n in range(answered, 3)
            ]
            for n in range(answered, 3):
                line.answer(refs[n]._id, f"second {n}")
        expected = [f"{'first' if n < answered else 'second'} {n}" for n in range(3)]
        assert [value.result(DEADLINE) for value in values] == expected


def test_answers_that_had_arrived_count_also_for_who_only_sends(heads: Heads) -> None:
    connection, line = heads.connect()
    first = start(connection, 1)
    line.calls(1)
    line.answer(first._id, "in time")
    line.cut()
    second = start(connection, 2)  # does not fail, and does not wait
    line = heads.returned()
    told, again = line.back()
    assert told["answers"] == 1
    assert [frame.id for frame in again] == [second._id]
    assert muster.get(first, 0) == "in time"
    line.answer(second._id, "later")
    assert muster.get(second, DEADLINE) == "later"
    third = start(connection, 3)
    assert line.calls(1)[0].ack == 2
    line.answer(third._id, 3)
    assert muster.get(third, DEADLINE) == 3


def test_calls_made_while_there_is_no_head_reach_the_next(heads: Heads) -> None:
    connection, _ = heads.connect()
    heads.die()
    refs = [start(connection, n) for n in range(5)]
    assert not any(ref.done() for ref in refs)
    assert connection.away()
    heads.listen()
    line = heads.returned()
    _, again = line.back()
    assert [frame.id for frame in again] == [ref._id for ref in refs]
    assert not connection.away()
    for ref in reversed(refs):
        line.answer(ref._id, ref._id)
    assert muster.get(refs, DEADLINE) == [ref._id for ref in refs]
    assert not connection._frames, "what is answered is kept no more"


def test_requests_cancels_and_expires_go_with_their_calls(
    heads: Heads, threads: ThreadPoolExecutor
) -> None:
    connection, line = heads.connect()
    one, two = start(connection, 1), start(connection, 2)
    asked = threads.submit(connection.request, "status", {}, DEADLINE)
    frames = [line.read() for _ in range(3)]
    two.cancel()
    connection.expire(one._id)
    connection.later("pool.release", {"pool": 3})
    frames += [line.read() for _ in range(2)]
    request = next(frame for frame in frames if frame.kind == _wire.KIND_REQUEST)
    line.cut()
    line = heads.returned()
    _, again = line.back()
    assert [(f.kind, f.flags, f.id) for f in again if f.kind != _wire.KIND_REQUEST] == [
        (_wire.KIND_CALL, AGAIN, one._id),
        (_wire.KIND_EXPIRE, 0, one._id),
        (_wire.KIND_CALL, AGAIN, two._id),
        (_wire.KIND_CANCEL, 0, two._id),
    ]
    assert [(f.flags, f.id) for f in again if f.kind == _wire.KIND_REQUEST] == [(AGAIN, request.id)]
    line.send(_wire.KIND_RESPONSE, request.id, _wire.pack({"up": 1}))
    assert asked.result(DEADLINE) == {"up": 1}
    for ref in (one, two):
        line.answer(ref._id, "over")
        assert muster.get(ref, DEADLINE) == "over"
    assert not connection._unanswered.more


def group(connection: Connection) -> _calling.Group:
    info = cluster_info("c", 2, method("m", "", param("x"), param("y", default=True)))
    return _calling.Group(connection, info)


def test_what_a_call_names_as_a_future_is_put_before_it(heads: Heads) -> None:
    connection, line = heads.connect()
    calls = group(connection)
    m = calls.method("m")
    first = calls.start(m, 2, 0, [np.zeros(2)], {}, None)
    each = calls.start_each(m, ["x"], {}, None)
    late = calls.start(m, 2, 0, [first], {"y": each[1]}, None)
    line.calls(3)
    line.answer(first._id, np.ones(3))
    line.answer(each[0]._id, "rank 0", rank=0)
    line.answer(each[1]._id, "rank 1", rank=1)
    array = muster.get(first, DEADLINE)
    array += 1  # what is put is as it came
    assert muster.get(each, DEADLINE) == ["rank 0", "rank 1"]
    line.cut()
    line = heads.returned()
    told, again = line.back()
    assert told["answers"] == 3
    *put, call = again
    assert (call.kind, call.id, call.flags) == (_wire.KIND_CALL, late._id, AGAIN)
    assert all(frame.kind == _wire.KIND_ANSWER for frame in put)
    by_place = {(frame.id, frame.flags, frame.ack): frame for frame in put}
    assert set(by_place) == {
        (first._id, 0, 0),
        (each[0]._id, _wire.FLAG_RANK, 0),
        (each[1]._id, _wire.FLAG_RANK, 1),
    }
    value = by_place[first._id, 0, 0]
    assert np.array_equal(_values.decode(value.body, value.bufs), np.ones(3))
    line.answer(late._id, "done")
    assert muster.get(late, DEADLINE) == "done"
    assert not connection._wanted and not connection._unanswered._answers


def test_a_future_that_is_answered_by_a_head_that_is_gone_is_sent_by_value(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding it pending and sending, its answer came, and another head after that."""
    connection, line = heads.connect()
    calls = group(connection)
    m = calls.method("m")
    first = calls.start(m, 2, 0, ["x"], {}, None)
    line.calls(1)
    encode = _calling.Group._encode

    def between(self: _calling.Group, *given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        encoded = encode(self, *given, **more)
        line.answer(first._id, "its value")
        assert muster.get(first, DEADLINE) == "its value"
        line.cut()
        assert heads.returned().back()[1] == []
        return encoded

    monkeypatch.setattr(_calling.Group, "_encode", between)
    calls.start(m, 2, 0, [first], {}, None)
    assert args(heads.last.calls(1)[0]) == ["its value"]


def test_a_split_call_may_be_answered_twice(heads: Heads) -> None:
    connection, line = heads.connect()
    calls = group(connection)
    refs = calls.start_each(calls.method("m"), ["x"], {}, None)
    ident = line.calls(1)[0].id
    line.answer(ident, "from rank 1", rank=1)
    assert muster.get(refs[1], DEADLINE) == "from rank 1"
    line.cut()
    line = heads.returned()
    told, again = line.back()
    assert (told["answers"], [frame.id for frame in again]) == (1, [ident])
    line.answer(ident, "not this", rank=1)
    line.answer(ident, "from rank 0", rank=0)
    assert muster.get(refs, DEADLINE) == ["from rank 0", "from rank 1"]
    start(connection, 1)
    assert line.calls(1)[0].ack == 3


def test_threads_and_loops_wait_on(heads: Heads, threads: ThreadPoolExecutor) -> None:
    connection, line = heads.connect()
    ticked = threading.Event()

    async def awaiting(n: int) -> Any:
        async def tick() -> None:
            while True:
                ticked.set()
                await asyncio.sleep(0.001)

        ticking = asyncio.ensure_future(tick())
        value = await asyncio.gather(start(connection, n), start(connection, n))
        ticking.cancel()
        return value

    refs = [start(connection, n) for n in range(3)]
    waiting = [get(threads, ref) for ref in refs]
    waiting += [threads.submit(asyncio.run, awaiting(n)) for n in range(3)]
    line.calls(9)
    for _ in range(3):  # three heads die, one after the other
        heads.die()
        ticked.clear()
        assert ticked.wait(DEADLINE), "loops run on meanwhile"
        heads.listen()
        line = heads.returned()
        _, again = line.back()
        assert len(again) == 9
    for frame in again:
        line.answer(frame.id, args(frame)[0])
    results = [each.result(DEADLINE) for each in waiting]
    assert results == [0, 1, 2, [0, 0], [1, 1], [2, 2]]
    assert not connection._loops.waiting()


class Interrupt(BaseException):
    """As KeyboardInterrupt, but nobody else raises it."""


def test_an_interrupt_on_the_way_back_leaves_it_to_the_next(
    heads: Heads, threads: ThreadPoolExecutor
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    connection, line = heads.connect()
    refs = [start(connection, n) for n in range(2)]
    line.calls(2)
    heads.die()
    other = get(threads, refs[1])
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for n in range(40):
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001 + n * 0.0002)
                muster.get(refs[0], DEADLINE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    heads.listen()
    line = heads.returned()
    _, again = line.back()
    assert [frame.id for frame in again] == [ref._id for ref in refs]
    for ref in refs:
        line.answer(ref._id, "at last")
    assert muster.get(refs[0], DEADLINE) == "at last"
    assert other.result(DEADLINE) == "at last"
    end = time.monotonic() + DEADLINE
    while connection._turns and time.monotonic() < end:
        time.sleep(0.001)  # the thread that came back may still be at its last frame
    assert not connection._turns


def test_interrupts_while_connections_are_cut_lose_nothing(heads: Heads) -> None:
    """Exceptions thrown anywhere, cuts at any time: each call is answered, in its order."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    connection, line = heads.connect()
    seen: list[int] = []
    over = threading.Event()

    def serve(line: Line) -> None:
        count = 0
        while not over.is_set():
            try:
                frame = line.read()
                if frame.kind == _wire.KIND_CALL:
                    if not frame.flags & AGAIN or args(frame)[0] not in seen:
                        seen.append(args(frame)[0])
                    line.answer(frame.id, args(frame)[0])
                    count += 1
                if count > 50:
                    raise EOFError
            except (EOFError, OSError, muster.ProtocolError):
                line.cut()
                if over.is_set():
                    return
                line, count = heads.returned(), 0

    number = 0

    def calls() -> None:  # not in the try block itself: see _reading of loops
        nonlocal number
        for _ in range(50):
            number += 1
            assert muster.get(start(connection, number), DEADLINE) == number

    server = threading.Thread(target=serve, args=(line,), daemon=True)
    server.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    until = monotonic() + 1.5
    try:
        while monotonic() < until or (interrupted <= 30 and monotonic() < until + DEADLINE):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0003 + (interrupted % 89) * 0.00001)
                    calls()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:  # in the finally, too
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert muster.get(start(connection, "after all"), DEADLINE) == "after all"
    over.set()
    assert interrupted > 30
    numbers = [n for n in seen if isinstance(n, int)]
    assert numbers == sorted(set(numbers)), "in order, and none twice"
    connection.close(lambda: RuntimeError("over"))
    server.join(DEADLINE)


def test_large_frames_go_both_ways_at_once(heads: Heads, threads: ThreadPoolExecutor) -> None:
    """A head that sends before it reads must be read from while it is told."""
    connection, line = heads.connect()
    large = b"x" * (2 << 20)
    sent = [threads.submit(start, connection, large) for _ in range(4)]
    line.read()
    line.cut()
    line = heads.returned()
    for _ in range(8):  # answers to nobody, as to calls that were given up
        line.answer(1 << 40, large)
    told, again = line.back()
    assert told["answers"] == 0
    assert {args(frame)[0] for frame in again} == {large}
    again += line.calls(4 - len(again))  # what was not begun with before: it must be read
    refs = [each.result(DEADLINE) for each in sent]
    values = [get(threads, ref) for ref in refs]
    for frame in again:
        line.answer(frame.id, large)
    assert all(value.result(DEADLINE) == large for value in values)


def test_a_head_that_goes_while_it_is_told_is_looked_for_again(heads: Heads) -> None:
    connection, line = heads.connect()
    refs = [start(connection, b"y" * (1 << 16)) for _ in range(3)]
    line.read()
    line.cut()
    for _ in range(2):
        line = heads.returned()
        line.read()
        line.cut()
    line = heads.returned()
    _, again = line.back()
    assert [frame.id for frame in again] == [ref._id for ref in refs]


def test_what_is_asked_for_again_is_sent_again(heads: Heads) -> None:
    connection, line = heads.connect()
    refs = [start(connection, n) for n in range(3)]
    line.calls(3)
    line.answer(refs[0]._id, 0)
    wanted = [refs[0]._id, refs[2]._id, 99]
    line.send(_wire.KIND_NOTICE, 0, _wire.pack(["again", {"calls": wanted}]))
    assert muster.get(refs[0], DEADLINE) == 0
    connection.poll()
    frame = line.read()
    assert (frame.id, frame.flags, args(frame)) == (refs[2]._id, AGAIN, [2])
    start(connection, "behind it")
    assert args(line.calls(1)[0]) == ["behind it"]


def time_of(frame: _wire.Frame) -> int:
    (_, _, _, _, milliseconds, *_), _ = _values.decode(frame.body, frame.bufs)
    assert isinstance(milliseconds, int)
    return milliseconds


@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize("bufs", [False, True])
def test_a_deadline_goes_on_while_there_is_no_head(
    heads: Heads, monkeypatch: pytest.MonkeyPatch, size: int, bufs: bool
) -> None:
    """What is sent again has the time that is left; 1 says that nothing is."""
    connection, line = heads.connect()
    calls = group(connection)
    m = calls.method("m")
    argument = [np.zeros(size, np.uint8) if bufs else bytes(size)]
    patient = calls.start(m, 1, -1, argument, {}, 3600.0)
    assert time_of(line.calls(1)[0]) == 3_600_000
    each = calls.start_each(m, argument, {}, 60.0)
    assert time_of(line.calls(1)[0]) == 60_000
    free = calls.start(m, 1, -1, argument, {}, None)
    assert time_of(line.calls(1)[0]) == 0
    now = monotonic()
    for passed in (600.0, 4000.0):
        monkeypatch.setattr("muster._unanswered.monotonic", lambda to=now + passed: to)
        line.cut()
        line = heads.returned()
        _, again = line.back()
        assert [frame.id for frame in again] == [patient._id, each[0]._id, free._id]
        times = [time_of(frame) for frame in again]
        assert times[1:] == [1, 0]
        assert 2_999_000 < times[0] <= 3_000_000 if passed == 600.0 else times[0] == 1
        assert all(len(args(frame)[0]) == size for frame in again)
    line.answer(patient._id, "in time after all")
    assert muster.get(patient, DEADLINE) == "in time after all"
    for ref in (each[0], free):
        line.answer(ref._id, 0)
        muster.get(ref, DEADLINE)
    assert not connection._unanswered._dues


def test_arguments_are_kept_as_they_were(heads: Heads) -> None:
    connection, line = heads.connect()
    array = np.zeros(20_000)
    start(connection, array)
    line.read()
    array += 1
    line.cut()
    _, again = heads.returned().back()
    assert np.array_equal(args(again[0])[0], np.zeros(20_000))


def test_waiting_for_a_call_ends_in_time_while_there_is_no_head(heads: Heads) -> None:
    connection, _ = heads.connect()
    heads.die()
    ref = start(connection, 1)
    assert not connection.wait_one(ref, monotonic() + 0.05)
    assert not ref.done()
    heads.listen()


def test_in_a_worker_waits_are_told_again_and_objects_are_its_workers(heads: Heads) -> None:
    connection, line = heads.connect(current_call=lambda: 42)
    ref = start(connection, 1)
    connection.tell_waiting([ref])
    line.calls(1)
    assert line.read().kind == _wire.KIND_WAIT
    line.cut()
    line = heads.returned()
    line.back()
    wait = line.read()
    assert (wait.kind, wait.id, _wire.unpack(wait.body)) == (_wire.KIND_WAIT, 42, [ref._id])


# --- no way back ----------------------------------------------------------------------


def lost(connection: Connection, ref: Ref, *texts: str) -> None:
    with pytest.raises(muster.HeadLostError) as caught:
        muster.get(ref, DEADLINE)
    for text in texts:
        assert text in str(caught.value)
    with pytest.raises(muster.HeadLostError):
        start(connection, "later")


def test_the_grace_is_over(heads: Heads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HEAD_GRACE", "0.1")
    connection, _ = heads.connect()
    ref = start(connection, 1)
    heads.die()
    lost(connection, ref, "No head was there again within 0.1 s (MUSTER_HEAD_GRACE)", heads.path)
    heads.listen()


def test_a_head_that_left_in_order_is_not_looked_for(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    heads = Heads(folder)
    connection, line = heads.connect()
    ref = start(connection, 1)
    line.calls(1)
    shutil.rmtree(folder)  # as a head does that ends
    heads.listener.close()
    line.cut()
    lost(connection, ref, "ended or hung up")
    heads.close()


def test_a_head_that_does_not_take_us_back(heads: Heads, threads: ThreadPoolExecutor) -> None:
    connection, line = heads.connect()
    waiting = threads.submit(lost, connection, start(connection, 1), "take this process back: who")
    line.calls(1)
    line.cut()
    heads.accept().refuse("auth", "who are you")
    waiting.result(DEADLINE)


def test_a_head_that_hung_up_for_what_was_sent_is_not_come_back_to(heads: Heads) -> None:
    connection, line = heads.connect()
    ref = start(connection, 1)
    error = {"code": "protocol", "message": "a frame of nonsense", "rank": -1, "exit_code": 0}
    line.calls(1)
    line.send(_wire.KIND_CLOSE, 0, _wire.pack(error))
    line.cut()
    lost(connection, ref, "a frame of nonsense")


def test_a_frame_that_cannot_be_read_is_the_end(heads: Heads) -> None:
    connection, line = heads.connect()
    ref = start(connection, 1)
    line.calls(1)
    line.sock.sendall(_wire.HEADER.pack(0xFFFFFFFF, _wire.KIND_ANSWER, 0, 0, ref._id, 0, 0))
    lost(connection, ref, "4294967295 bytes")


@pytest.mark.parametrize("there", ["nobody", "a silent head"])
def test_closing_ends_the_way_back(heads: Heads, threads: ThreadPoolExecutor, there: str) -> None:
    connection, _ = heads.connect()
    ref = start(connection, 1)
    waiting = get(threads, ref)
    heads.die()
    if there != "nobody":
        heads.listen()
        heads.accept()
    began = monotonic()
    connection.close(lambda: muster.HeadLostError("closed"))
    assert monotonic() - began < DEADLINE / 2
    with pytest.raises(muster.HeadLostError, match="closed"):
        waiting.result(DEADLINE)
    if there == "nobody":
        heads.listen()


def test_a_child_forked_on_the_way_back_leaves_it_alone(heads: Heads) -> None:
    connection, line = heads.connect()
    ref = start(connection, 1)
    line.calls(1)
    heads.die()
    assert not connection.wait_one(ref, monotonic() + 0.05)
    child = os.fork()
    if child == 0:
        try:
            connection.abandon(lambda: RuntimeError("forked"))
            start(connection, 2)
        except RuntimeError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    heads.listen()
    line = heads.returned()
    assert [frame.id for frame in line.back()[1]] == [ref._id]
    line.answer(ref._id, "parent goes on")
    assert muster.get(ref, DEADLINE) == "parent goes on"
