"""Rights to objects: what is put into stores, what is named in frames, what is given back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakehead import DEADLINE, Call, FakeHead
from fakestore import Stores

import muster
from muster import _errors, _objects, _values, _wire
from muster._client import Connection
from muster._objects import Stored
from muster._refs import Ref
from muster._runtime.board import Board
from muster._runtime.line import Line
from muster._runtime.wayback import WayBack

ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 2, [0], 0, 0, 8)))
LARGE = _objects.LARGE


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores() as made:
        yield made


class Head(FakeHead):
    """A head that counts: who was told of an object has a right to it until it gives it back."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}
        self.changed = threading.Condition()
        self.frames: list[tuple[int, list[_wire.Reference]]] = []

    def _take(self, frame: _wire.Frame) -> None:
        refs = [buf for buf in frame.bufs if isinstance(buf, _wire.Reference)]
        with self.changed:
            self.frames.append((frame.kind, refs))
            for ref in refs:
                if ref.new:
                    self.counts[ref.object] = self.counts.get(ref.object, 0) + 1
                assert self.counts.get(ref.object), "named by who has no right to it"
            if frame.kind == _wire.KIND_NOTICE:
                verb, message = _wire.unpack(frame.body)
                assert verb == "release"
                for number, count in message["objects"]:
                    self.counts[number] -= count
                    assert self.counts[number] >= 0
            self.changed.notify_all()
        if frame.kind != _wire.KIND_NOTICE:
            super()._take(frame)

    def give(self, call: Call, value: Any, refs: list[_wire.Reference]) -> None:
        """Answer with references: the caller then has a right to each object."""
        with self.changed:
            for number in {ref.object for ref in refs}:
                self.counts[number] = self.counts.get(number, 0) + 1
        body = _values.encode(value, [])
        self.send(_wire.KIND_ANSWER, call.id, body, refs)

    def wait_for_counts(self, expected: dict[int, int]) -> None:
        def there() -> bool:
            return {n: count for n, count in self.counts.items() if count} == expected

        with self.changed:
            assert self.changed.wait_for(there, DEADLINE), self.counts


@pytest.fixture
def head(stores: Stores) -> Iterator[Head]:
    fake = Head()
    with fake:
        yield fake


@pytest.fixture
def connection(head: Head, stores: Stores) -> Connection:
    made = head.connect()
    made.ledger = stores.ledger
    stores.ledger.send = made.flush
    return made


def start(connection: Connection, *args: Any) -> Ref:
    buffers: list[Any] = []
    payload = _values.encode_payload(args, {}, buffers)
    _objects.stow(buffers, "arguments of m")
    return connection.call(ROUTE, payload, buffers)


# --- putting large buffers aside ---------------------------------------------------------------


def test_large_buffers_of_a_message_go_into_one_object(stores: Stores) -> None:
    small, one, two = np.arange(10), np.arange(100_000), bytes(LARGE + 1)
    bufs: list[Any] = []
    body = _values.encode([small, one, two, np.zeros(LARGE, np.uint8)], bufs)
    _objects.stow(bufs, "arguments of train_step")
    stored = [buf for buf in bufs if type(buf) is Stored]
    assert len(stored) == 3 and len(bufs) == 4
    (made,) = stores.store.objects.values()
    stores.store.wait_for(lambda: made.what == "arguments of train_step")
    assert [buf.offset % 64 for buf in stored] == [0, 0, 0]
    assert len({buf.right for buf in stored}) == 1
    back = _values.decode(body, bufs)
    assert np.array_equal(back[0], small) and np.array_equal(back[1], one) and back[2] == two
    assert not back[3].any() and back[3].flags.writeable
    assert [verb for verb, _ in stores.store.requests] == ["alloc", "open"]


def test_many_buffers_that_are_large_together_go_too(stores: Stores) -> None:
    arrays = [np.full(100_000 // 8, n) for n in range(100)] + [np.arange(3)]
    bufs: list[Any] = []
    body = _values.encode(arrays, bufs)
    _objects.stow(bufs, "many")
    assert sum(type(buf) is Stored for buf in bufs) == 100
    assert all(map(np.array_equal, _values.decode(body, bufs), arrays))


def test_without_a_store_all_rides_in_the_frame() -> None:
    bufs: list[Any] = [bytes(LARGE)]
    _objects.stow(bufs, "nowhere")
    assert bufs == [bytes(LARGE)]
    with pytest.raises(_errors.ProtocolError, match="no store"):
        _objects.from_buffer(_wire.Reference(1, 0, 8))


def test_values_of_every_kind_lie_over_what_was_put_aside(stores: Stores) -> None:
    values: list[Any] = [
        np.asfortranarray(np.arange(250_000.0).reshape(500, 500)),
        {"a": [np.arange(200_000), b"x" * LARGE], "b": (np.ones(300_000, "<c16"),)},
        np.zeros((0, 7)),
        np.arange(300_000).astype("M8[ns]"),
        [np.array(["ä", None] * 50_000, object)],
        np.rec.array([(1, 2.0)] * 40_000, dtype=[("a", "<i4"), ("b", "<f8")]),
    ]
    for value in values:
        bufs: list[Any] = []
        body = _values.encode(value, bufs)
        _objects.stow(bufs, "a value")
        back = _values.decode(body, bufs)
        again: list[Any] = []
        assert _values.encode(back, again) == body
        assert all(map(lambda a, b: bytes(a) == bytes(b), again, _plain(bufs)))


def _plain(bufs: list[Any]) -> list[Any]:
    return [_objects.views([buf])[0] if type(buf) is Stored else buf for buf in bufs]


def test_a_failure_while_it_is_put_aside_leaves_nothing(stores: Stores) -> None:
    stores.store.budget = LARGE
    bufs: list[Any] = [bytes(LARGE), bytes(2 * LARGE)]
    with pytest.raises(MemoryError):
        _objects.stow(bufs, "too much")
    assert [type(buf) for buf in bufs] == [bytes, bytes]
    gc.collect()
    assert not stores.store.objects and not stores.ledger.given_back


# --- rights ---------------------------------------------------------------------------------


def test_arguments_are_named_once_and_given_back(head: Head, connection: Connection) -> None:
    array = np.arange(LARGE)
    ref = start(connection, array, array + 1)
    call = head.next_call()
    assert np.array_equal(call.args[0], array) and np.array_equal(call.args[1], array + 1)
    (number,) = head.counts
    kinds = [(kind, [ref.new for ref in refs]) for kind, refs in head.frames]
    assert kinds[0] == (_wire.KIND_CALL, [True, False]), "new once, not once a reference"
    head.wait_for_counts({})
    del call
    assert number and not ref.done()


def test_answers_give_rights_that_end_with_the_value(head: Head, connection: Connection) -> None:
    ref = start(connection, np.arange(LARGE))
    call = head.next_call()
    (number,) = head.counts
    named = head.frames[0][1][0]
    head.give(call, "decoded later", [named, named])
    connection.wait_one(ref)
    head.wait_for_counts({number: 1})
    assert muster.get(ref) == "decoded later"
    head.wait_for_counts({})


def test_an_answer_that_nobody_reads_is_given_back(head: Head, connection: Connection) -> None:
    ref = start(connection, np.arange(LARGE))
    call = head.next_call()
    named = head.frames[0][1][0]
    head.give(call, 1, [named])
    connection.wait_one(ref)
    head.wait_for_counts({named.object: 1})
    del ref
    head.wait_for_counts({})
    ref = start(connection, np.arange(LARGE))
    call = head.next_call()
    named = head.frames[-1][1][0] if head.frames[-1][1] else head.frames[-2][1][0]
    head.give(call, 1, [named])
    head.give(call, 2, [named])  # to an id that is not waited for any more
    other = start(connection, 3)
    head.next_call().answer(4)
    assert muster.get(other, timeout=DEADLINE) == 4
    del ref, call
    head.wait_for_counts({})


def test_what_is_passed_on_is_not_new_and_held_until_it_was_sent(
    head: Head, connection: Connection
) -> None:
    first = start(connection, np.arange(LARGE))
    call = head.next_call()
    named = head.frames[0][1][0]
    head.give(call, _wire.pack(None), [named])
    connection.wait_one(first)
    assert first._answer is not None
    bufs = [*first._answer[2]]
    del first
    ref = connection.call(ROUTE, _wire.pack([[], {}]), bufs)
    head.next_call()
    assert head.frames[-1][1] == [_wire.Reference(named.object, 0, named.length, False)]
    head.wait_for_counts({named.object: 1})
    del bufs
    head.wait_for_counts({})
    assert not ref.done()


def test_a_worker_keeps_what_its_calls_name_until_they_are_answered(
    stores: Stores, head: Head
) -> None:
    connection = head.connect(current_call=lambda: 5)
    connection.ledger = stores.ledger
    ref = start(connection, np.arange(LARGE))
    call = head.next_call()
    gc.collect()
    assert not stores.ledger.given_back, "the head may read the other connection first"
    call.answer(1)
    assert muster.get(ref, timeout=DEADLINE) == 1
    assert [count for _, count in stores.ledger.given_back] == [1]


def test_a_frame_that_was_never_sent_names_nothing(head: Head, connection: Connection) -> None:
    bufs: list[Any] = [bytes(LARGE)]
    _objects.stow(bufs, "arguments")
    stored = bufs[0]
    with pytest.raises(_errors.TooLargeError):
        connection._send(_wire.KIND_CALL, 9, b"\xc0", [stored, *[b""] * 70_000])
    assert stored.right.account.count == 0 and not stored.right.account.lines
    start(connection, 1)
    head.next_call()
    connection._send(_wire.KIND_CANCEL, 9, b"\xc0", [stored])
    with head.changed:
        assert head.changed.wait_for(lambda: any(refs for _, refs in head.frames), DEADLINE)
    assert head.counts == {stored.right.object: 1}


def test_what_belongs_to_a_session_before_is_refused(
    stores: Stores, head: Head, connection: Connection
) -> None:
    bufs: list[Any] = [bytes(LARGE)]
    _objects.stow(bufs, "arguments")
    connection.ledger = _objects.use(stores.welcome)
    with pytest.raises(_errors.ReleasedError, match="lay in the store of a session"):
        connection._send(_wire.KIND_CALL, 1, b"\xc0", bufs)


def test_rights_of_many_threads_come_back(head: Head, connection: Connection) -> None:
    answered = threading.Semaphore(0)

    def answer(call: Call) -> None:
        call.answer(len(call.args))
        answered.release()

    head.on_call = answer

    def work() -> None:
        for _ in range(30):
            assert muster.get(start(connection, np.zeros(LARGE, np.uint8)), timeout=DEADLINE) == 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    head.wait_for_counts({})
    assert len(head.counts) == 150


def test_batches_of_releases_are_one_notice(stores: Stores) -> None:
    ledger = stores.ledger
    bufs: list[Any] = [_wire.Reference(n, 0, 8) for n in (5, 6, 5)]
    _objects.claim(bufs, ledger)
    assert bufs[0].right is bufs[2].right
    _objects.claim(bufs, ledger)  # again, as after an interrupt
    del bufs
    frame = ledger.release(len(ledger.given_back))
    assert _wire.unpack(frame[24:]) == ["release", {"objects": [[6, 1], [5, 1]]}] or _wire.unpack(
        frame[24:]
    ) == ["release", {"objects": [[5, 1], [6, 1]]}]


def test_a_reply_and_what_it_sets_free_go_out_together(stores: Stores) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        way = WayBack(_wire.FrameStream(theirs), "", {}, Board("w-0"), stores.ledger)
        line = Line(theirs, stores.ledger, way)
        line.begin()
        bufs: list[Any] = [bytes(LARGE)]
        _objects.stow(bufs, "result of m")
        number = bufs[0].right.object
        line.reply(way.kept.receive(5, 1), 0, b"\xc0", bufs)
        data = ours.recv(1 << 16)
        stream = _wire.FrameStream(ours)
        stream._data = data
        result, release = stream.next(), stream.next()
        assert result is not None and release is not None
        assert result.kind == _wire.KIND_RESULT and result.bufs[0].new
        assert _wire.unpack(release.body) == ["release", {"objects": [[number, 1]]}]
        # And what is let go of later goes at once.
        more: list[Any] = [_wire.Reference(77, 0, 8)]
        _objects.claim(more, stores.ledger)
        more.clear()
        assert _wire.unpack(stream.read().body) == ["release", {"objects": [[77, 1]]}]
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                theirs.send(bytes(1 << 16))
        theirs.setblocking(True)
        more = [_wire.Reference(78, 0, 8)]
        _objects.claim(more, stores.ledger)
        more.clear()  # does not wait
        assert line._unsent


def test_a_new_head_is_told_what_is_known_and_not_given_back(stores: Stores) -> None:
    ledger = stores.ledger
    kept: list[Any] = [_wire.Reference(n, 0, 8) for n in (5, 6, 5)]
    again: list[Any] = [_wire.Reference(6, 0, 8)]
    gone: list[Any] = [_wire.Reference(7, 0, 8)]
    for bufs in (kept, again, gone):
        _objects.claim(bufs, ledger)
    gone.clear()
    assert ledger.given_back
    made: list[Any] = [bytes(LARGE)]
    _objects.stow(made, "nobody was told of it")
    assert sorted(ledger.stock()) == [(5, 1), (6, 2)]
    assert not ledger.given_back, "what was given back is part of it"
    again.clear()
    assert ledger.given_back == [(6, 1)]


def test_batches_among_values_are_opened_when_they_are_used(stores: Stores) -> None:
    from muster import Batch

    batch = Batch({"x": np.arange(40_000), "s": ["a"] * 40_000}, meta={"step": 3})
    value: dict[str, Any] = {
        "batch": batch,
        "raw": np.arange(50_000),
        "more": (np.arange(60_000), batch),
    }
    bufs: list[Any] = []
    body = _values.encode(value, bufs)
    _objects.stow(bufs, "mixed")
    back = _values.decode(body, bufs)
    opened = [message["objects"] for verb, message in stores.store.requests if verb == "open"]
    assert len(opened) == 1 and len(opened[0]) == 1, "only what lies there as it is"
    assert np.array_equal(back["raw"], value["raw"])
    assert np.array_equal(back["more"][0], np.arange(60_000))
    for found in (back["batch"], back["more"][1]):
        assert np.array_equal(found["x"], np.arange(40_000)) and found.meta == {"step": 3}
