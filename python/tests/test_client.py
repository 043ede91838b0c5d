"""The connection: who reads, who waits, and what happens when either is disturbed."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from fakehead import DEADLINE, FakeHead, echo

import muster
from muster import _reading, _values, _wire
from muster._client import Connection
from muster._refs import Ref
from muster._waiting import Gate

ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 2, [0], 0, 0, 8)))


@pytest.fixture
def head() -> Iterator[FakeHead]:
    with FakeHead() as fake:
        yield fake


@pytest.fixture
def connection(head: FakeHead) -> Connection:
    return head.connect()


def start(connection: Connection, *args: Any) -> Ref:
    buffers: list[Any] = []
    payload = _values.encode_payload(args, {}, buffers)
    return connection.call(ROUTE, payload, buffers)


def call(connection: Connection, *args: Any) -> Any:
    return muster.get(start(connection, *args), timeout=DEADLINE)


def test_a_call_is_answered(head: FakeHead, connection: Connection) -> None:
    head.on_call = echo
    assert call(connection, {"a": (1, 2)}) == {"a": (1, 2)}


def test_answers_are_acknowledged_with_what_is_sent_next(
    head: FakeHead, connection: Connection
) -> None:
    acks = []

    def note(got: Any) -> None:
        acks.append(got.ack)
        got.answer(None)

    head.on_call = note
    for _ in range(3):
        call(connection)
    assert acks == [0, 1, 2]


def test_the_leader_hands_over_what_belongs_to_others(
    head: FakeHead, connection: Connection
) -> None:
    with ThreadPoolExecutor(3) as threads:
        refs = [start(connection, n) for n in range(3)]
        values = [threads.submit(muster.get, ref, DEADLINE) for ref in refs]
        calls = [head.next_call() for _ in range(3)]
        for got in (calls[2], calls[0], calls[1]):
            got.answer(got.args[0])
        assert [value.result(DEADLINE) for value in values] == [0, 1, 2]


def test_a_follower_takes_the_lead_when_the_leader_is_done(
    head: FakeHead, connection: Connection
) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(call, connection, 1)
        one = head.next_call()
        second = threads.submit(call, connection, 2)
        two = head.next_call()
        one.answer("one")
        assert first.result(DEADLINE) == "one"
        two.answer("two")
        assert second.result(DEADLINE) == "two"


def test_many_threads_share_a_connection(head: FakeHead, connection: Connection) -> None:
    head.on_call = echo

    def work(seed: int) -> bool:
        return all(call(connection, (seed, n)) == (seed, n) for n in range(100))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_a_large_answer_arrives_whole(head: FakeHead, connection: Connection) -> None:
    head.on_call = echo
    large = bytes(range(256)) * (40 << 10)  # 10 MiB, out of band
    rows = list(range(300_000))  # in the body
    assert call(connection, [large, rows, large]) == [large, rows, large]


def test_a_sender_reads_while_the_head_does_not(head: FakeHead, connection: Connection) -> None:
    """A head over its limits stops reading until its answers are taken."""
    large = b"x" * (4 << 20)

    def answer_before_reading_on(got: Any) -> None:
        got.answer(large)

    head.on_call = answer_before_reading_on
    refs = [start(connection, large) for _ in range(8)]  # would block if it only wrote
    assert all(muster.get(ref, DEADLINE) == large for ref in refs)


def test_loops_in_several_threads_await(head: FakeHead, connection: Connection) -> None:
    head.on_call = echo

    async def work(seed: int) -> list[int]:
        refs = [start(connection, seed * 100 + n) for n in range(50)]
        return list(await asyncio.gather(*refs))

    def run(seed: int) -> bool:
        return asyncio.run(work(seed)) == [seed * 100 + n for n in range(50)]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(8)))
    assert not connection._loops.waiting(), "nothing bound to a loop is kept"


def test_a_sync_call_works_inside_a_running_loop(head: FakeHead, connection: Connection) -> None:
    async def main() -> tuple[Any, Any]:
        awaited = start(connection, "awaited")
        waiting = asyncio.ensure_future(_value(awaited))
        await asyncio.sleep(0)  # the loop now has the socket among its readers
        head.next_call().answer("awaited")
        head.on_call = echo
        inside = call(connection, "inside")  # reads the other answer as well
        return inside, await waiting

    assert asyncio.run(main()) == ("inside", "awaited")


async def _value(ref: Ref) -> Any:
    return await ref


def test_a_cancelled_task_leaves_the_call_alone(head: FakeHead, connection: Connection) -> None:
    async def main() -> Any:
        ref = start(connection, 1)
        task = asyncio.ensure_future(_value(ref))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        head.next_call().answer("still there")
        return await ref

    assert asyncio.run(main()) == "still there"
    assert not connection._loops.waiting()


def test_a_loop_that_ends_without_notice_is_forgotten(
    head: FakeHead, connection: Connection
) -> None:
    ref = start(connection, 1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(_value(ref))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    head.next_call().answer("value")
    assert muster.get(ref, DEADLINE) == "value"

    async def again() -> Any:
        return await start(connection, 2)

    head.on_call = echo
    assert asyncio.run(again()) == 2
    assert not connection._loops.waiting()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_end_of_the_head_reaches_every_waiter(
    head: FakeHead, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reading, "_FOLLOWER_LOOKS", 10 * DEADLINE)  # they are told, then

    async def awaiting() -> Any:
        return await start(connection, "loop")

    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(call, connection, n) for n in range(2)]
        waiting.append(threads.submit(asyncio.run, awaiting()))
        for _ in range(3):
            head.next_call()
        head.hang_up()
        for each in waiting:
            with pytest.raises(muster.HeadLostError, match="the fake head ended"):
                each.result(DEADLINE)
    with pytest.raises(muster.HeadLostError, match="the fake head ended"):
        start(connection, "later")


def test_answers_before_the_end_still_count(head: FakeHead, connection: Connection) -> None:
    first, second = start(connection, 1), start(connection, 2)
    head.next_call().answer("in time")
    head.next_call()
    head.hang_up()
    assert muster.get(first, DEADLINE) == "in time"
    with pytest.raises(muster.HeadLostError):
        muster.get(second, DEADLINE)


def test_a_malformed_frame_ends_the_connection_with_a_reason(
    head: FakeHead, connection: Connection
) -> None:
    ref = start(connection, 1)
    head.next_call()
    head.ours.sendall(_wire.HEADER.pack(0xFFFFFFFF, _wire.KIND_ANSWER, 0, 0, ref._id, 0, 0))
    with pytest.raises(muster.HeadLostError, match="4294967295 bytes"):
        muster.get(ref, DEADLINE)


class _Joined(dict[Any, Any]):
    """Turns to which one comes while the first is looked for."""

    def values(self) -> Any:
        found = super().values()

        class Once:
            def __iter__(_: Any) -> Any:
                first = iter(found)
                self.setdefault("late", None)
                return first

        return Once()


def test_who_comes_late_does_not_keep_the_first_from_being_told(connection: Connection) -> None:
    gate = Gate()
    connection._turns = _Joined({(1, 1): gate})
    connection._wake_first()
    assert not gate._lock.locked()
    connection._turns.clear()


class Interrupt(BaseException):
    """As KeyboardInterrupt, but nobody else raises it."""


def test_interrupts_lose_no_byte(head: FakeHead, connection: Connection) -> None:
    """Exceptions thrown by a signal handler anywhere leave the connection in order."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    payload = list(range(3000))

    def calls() -> None:  # not in the try block itself: see _reading of loops
        for _ in range(50):
            assert call(connection, payload) == payload

    head.on_call = echo
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    until = monotonic() + 1.5
    try:
        while monotonic() < until or (interrupted <= 50 and monotonic() < until + DEADLINE):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + (interrupted % 97) * 0.00001)
                    calls()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:  # in the finally, too
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 50
    assert call(connection, "after all") == "after all"
    assert not connection._turns


class _Late:
    """A socket on whose receiving a signal comes when the interpreter has looked for signals."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._raise = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGALRM)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, *args: Any) -> Any:
        # C code alone runs between the two.
        both = [self._raise, functools.partial(self._sock.recv, *args)]
        return list(map(functools.partial.__call__, both))[1]


def test_a_signal_that_comes_as_a_wait_begins_is_heard(
    head: FakeHead, connection: Connection
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    ref = start(connection, 1)
    got = head.next_call()
    connection._stream.sock = _Late(connection._stream.sock)  # type: ignore[assignment]
    before = signal.signal(signal.SIGALRM, interrupt)
    guard = threading.Timer(DEADLINE, got.answer, (None,))
    guard.start()
    try:
        with pytest.raises(Interrupt):
            muster.get(ref)
        assert guard.is_alive()  # nothing else has come
    finally:
        guard.cancel()
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_may_call_while_its_thread_waits(
    head: FakeHead, connection: Connection
) -> None:
    inner: list[Any] = []

    def handler(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        head.on_call = echo
        inner.append(call(connection, "inner"))
        outer.answer("outer")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        ref = start(connection, 1)
        outer = head.next_call()
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # until it is heard
        assert muster.get(ref, DEADLINE) == "outer"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert inner == ["inner"]


def test_get_gives_up_in_time_and_brings_stacks(head: FakeHead, connection: Connection) -> None:
    ref = start(connection, 1)
    got = head.next_call()

    def expire() -> None:
        frame = head.next_other()
        assert (frame.kind, frame.id) == (_wire.KIND_EXPIRE, ref._id)
        stack = {"rank": 0, "worker": "w-0", "node": "node-0", "text": "in f"}
        got.fail(code="timeout", message="no answer from 1 rank", stacks=[stack])

    threading.Thread(target=expire).start()
    with pytest.raises(TimeoutError, match="w-0 on node-0 had not answered:\nin f") as caught:
        muster.get(ref, timeout=0.05)
    assert isinstance(caught.value, muster.MusterError)
    with pytest.raises(muster.DeadlineError):
        muster.get(ref)


def test_in_a_worker_the_head_is_told_what_a_call_waits_for(head: FakeHead) -> None:
    connection = head.connect(current_call=lambda: 42)
    head.on_call = echo
    ref = start(connection, "x")
    assert muster.get(ref, DEADLINE) == "x"
    told = head.next_other()
    assert (told.kind, told.id, _wire.unpack(told.body)) == (_wire.KIND_WAIT, 42, [ref._id])


def test_a_forked_child_cannot_use_the_connection(head: FakeHead, connection: Connection) -> None:
    from muster import _context

    settings = {"address": "", "virtual": "", "log_to_stderr": False, "progress": False}
    _context._install_fork_hook()
    _context._process.session = _context.Session(settings, connection, None, {})
    try:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                start(connection, 1)
            except muster.MusterError as error:
                try:
                    muster.init()
                except muster.MusterError:
                    code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        head.on_call = echo
        assert call(connection, "parent goes on") == "parent goes on"
    finally:
        _context._process.session = None
