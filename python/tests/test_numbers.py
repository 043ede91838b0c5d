"""Frames that come twice are taken once, and a stream that lost one is over."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakehead import DEADLINE
from fakeheads import Heads

import muster
from muster import _values, _wire
from muster._client import Connection
from muster._refs import Ref
from muster._wire import FrameStream, pack_frame

ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 2, [0], 0, 0, 8)))
LARGE = 3 * _wire._OWN


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    for sock in (a, b):
        sock.settimeout(DEADLINE)
    yield a, b
    a.close()
    b.close()


def frames(*sizes: int) -> list[bytes]:
    """Frames as one sender numbers them."""
    sender = FrameStream(socket.socket())
    sender.sock.close()
    return [
        b"".join(pack_frame(8, n, bytes(size), peer=sender.number()))
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 2, 3, 4],
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
        [0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4],
        [0, 1, 0, 2, 1, 3, 2, 4, 3],
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 2],
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_repeats_are_dropped(
    pair: tuple[socket.socket, socket.socket], order: list[int], at_once: bool
) -> None:
    a, b = pair
    made = frames(0, 100, LARGE, 3, LARGE)
    stream = FrameStream(b)
    with ThreadPoolExecutor(1) as threads:
        data = [made[n] for n in order]
        if at_once:
            data = [b"".join(data)]

        def send() -> None:
            for piece in data:
                a.sendall(piece)
            a.shutdown(socket.SHUT_WR)

        sending = threads.submit(send)
        got = [stream.read() for _ in made]
        with pytest.raises(EOFError):  # what comes behind them, came before
            stream.read()
        sending.result(DEADLINE)
    assert [(frame.id, len(frame.body), frame.peer) for frame in got] == [
        (n, len(made[n]) - _wire.HEADER_SIZE, 0) for n in range(len(made))
    ]


def test_numbers_go_round_and_links_keep_theirs(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    a, b = pair
    sender, stream = FrameStream(a), FrameStream(b)
    for n in range(600):
        (frame,) = pack_frame(8, n, b"\xc0", peer=sender.number() | 3)
        a.sendall(frame + (frame if n % 5 == 0 else b""))
        read = stream.read()
        assert (read.id, read.peer) == (n, 3)
    _wire.send_frame(a, 8, 600, b"\xc0")  # not numbered: taken as it comes
    _wire.send_frame(a, 8, 600, b"\xc0")
    assert [stream.read().id for _ in range(2)] == [600, 600]
    assert stream.next() is None


@pytest.mark.parametrize("size", [0, LARGE])
def test_a_stream_that_lost_a_frame_ends(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    a, b = pair
    made = frames(*([size] * 400))
    stream = FrameStream(b)
    with ThreadPoolExecutor(1) as threads:

        def send() -> None:
            for n in (0, 1, *range(3, 400)):  # beyond where numbers come again
                try:
                    a.sendall(made[n])
                except OSError:
                    return

        sending = threads.submit(send)
        assert [stream.read().id for _ in range(2)] == [0, 1]
        with pytest.raises((EOFError, _wire.CutError)):
            stream.read()
        b.close()
        sending.result(DEADLINE)


def test_a_frame_that_cannot_be_sent_takes_no_number(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    a, b = pair
    sender, stream = FrameStream(a), FrameStream(b)
    _wire.send_frame(sender, 8, 1, b"\xc0")
    with pytest.raises(muster.TooLargeError):
        _wire.send_frame(sender, 8, 2, b"\xc0", [b""] * 70000)
    _wire.send_frame(sender, 8, 3, b"\xc0")
    assert [stream.read().id for _ in range(2)] == [1, 3]


# --- a caller ---------------------------------------------------------------------------


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    made = Heads(tmp_path)
    yield made
    made.close()


def start(connection: Connection, *args: Any) -> Ref:
    buffers: list[Any] = []
    return connection.call(ROUTE, _values.encode_payload(args, {}, buffers), buffers)


def test_answers_that_come_twice_count_once(heads: Heads) -> None:
    """Also in what is acknowledged: the head counts the Answers that it has sent."""
    connection, line = heads.connect()
    numbers = FrameStream(line.sock)
    sent: list[bytes] = []
    for n in range(5):
        ref = start(connection, n)
        (call,) = line.calls(1)
        assert call.ack == n
        body = _values.encode(f"answer {n}", [])
        (answer,) = pack_frame(_wire.KIND_ANSWER, ref._id, body, peer=numbers.number())
        sent.append(answer)
        line.sock.sendall(answer + answer + b"".join(sent))
        assert muster.get(ref, DEADLINE) == f"answer {n}"
    line.cut()
    start(connection, "last")
    told, again = heads.returned().back()
    assert told["answers"] == 5
    assert len(again) == 1


def test_what_a_caller_sends_is_numbered_on_every_connection(heads: Heads) -> None:
    """The line's stream ends where a number is missing, and drops what has an old one."""
    connection, line = heads.connect()
    refs = []
    for n in range(300):
        refs.append(start(connection, n))
        assert line.calls(1)[0].id == refs[-1]._id
    connection.cancel(refs[7]._id)
    assert line.read().kind == _wire.KIND_CANCEL
    with pytest.raises(muster.TooLargeError):
        connection.call(ROUTE, b"", [b""] * 70000)
    line.cut()
    line = heads.returned()
    _, again = line.back()
    assert [f.id for f in again if f.kind == _wire.KIND_CALL] == [ref._id for ref in refs]
    more = start(connection, "more")
    assert [frame.id for frame in line.calls(1)] == [more._id]


def test_a_signal_handler_that_sends_takes_its_own_number(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run when a frame is packed and not yet under way."""
    connection, line = heads.connect()
    pack, inner = _wire.pack_frame, list[Ref]()
    handlers = iter(range(3))

    def interrupted(*given: Any, **more: Any) -> list[Any]:
        parts = pack(*given, **more)
        if next(handlers, None) is not None:
            inner.append(start(connection, "inner"))
        return parts

    monkeypatch.setattr(_wire, "pack_frame", interrupted)
    outer = start(connection, "outer")
    monkeypatch.undo()
    last = start(connection, "last")
    sent = [frame.id for frame in line.calls(5)]
    assert sorted(sent) == sorted([outer._id, last._id, *(ref._id for ref in inner)])
    assert sent[-1] == last._id


def test_nothing_is_acknowledged_while_a_call_is_made_of_it(heads: Heads) -> None:
    """What is, the head would forget, and the call could name it no more."""
    connection, line = heads.connect()
    first = start(connection, 1)
    line.calls(1)
    with connection.holding_acks():
        line.answer(first._id, "read")
        assert muster.get(first, DEADLINE) == "read"
        start(connection, 2)
        assert line.calls(1)[0].ack == 0
    start(connection, 3)
    assert line.calls(1)[0].ack == 1
