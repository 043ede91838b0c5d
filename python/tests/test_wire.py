from __future__ import annotations

import json
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import golden
import numpy as np
import pytest

from muster import _wire
from muster._errors import AuthError, ProtocolError, TooLargeError
from muster._wire import Frame, FrameStream, pack_frame, send_frame

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    a.settimeout(30)
    b.settimeout(30)
    with a, b:
        yield a, b


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def whole(*frame: Any, **more: Any) -> bytes:
    return b"".join(pack_frame(*frame, **more))


def send_and_close(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.close()


def feed(data: bytes, limit: int = _wire.MAX_FRAME) -> list[Frame]:
    """The frames of a stream that is data and then ends."""
    a, b = socket.socketpair()
    with a, b:
        thread = in_thread(lambda: send_and_close(a, data))
        stream = FrameStream(b, limit)
        frames = []
        try:
            while True:
                frames.append(stream.read())
        except EOFError:
            return frames
        finally:
            b.close()
            thread.join(30)


# --- round trips ---------------------------------------------------------------------------


def sizes() -> list[int]:
    edges = (_wire.JOIN, _wire._OWN, _wire._CHUNK, _wire._GROW)
    return [0, 1, *(e + d for e in edges for d in (-33, -24, -1, 0, 1)), 5_000_000]


@pytest.mark.parametrize("size", sizes())
def test_frames_of_every_size_arrive_whole(pair: Pair, size: int) -> None:
    a, b = pair
    body = random.Random(size).randbytes(size)
    stream = FrameStream(b)

    def send() -> None:
        send_frame(a, 11, 7, body)
        send_frame(a, 8, 2**64 - 1, b"\xc0", [body, b"", body], flags=9, peer=3, ack=2**32 - 1)
        send_frame(a, 12, 1, b"\xc0")

    thread = in_thread(send)
    first, second, third = stream.read(), stream.read(), stream.read()
    thread.join(30)
    assert first[:5] == (11, 0, 7, 0, 0) and bytes(first.body) == body and not first.bufs
    assert second[:5] == (8, 9, 2**64 - 1, 3, 2**32 - 1) and bytes(second.body) == b"\xc0"
    assert [bytes(buf) for buf in second.bufs] == [body, b"", body]
    assert third[:3] == (12, 0, 1) and bytes(third.body) == b"\xc0"
    assert stream.next() is None


def test_small_frames_are_one_part_and_large_ones_are_not_copied() -> None:
    assert len(pack_frame(8, 1, b"x")) == 1 and len(pack_frame(8, 1, b"x", [b"y"] * 50)) == 1
    large = bytearray(1 << 20)
    parts = pack_frame(8, 1, b"x", [large, b"", b"y"])
    assert len(parts) == 3 and parts[1].obj is large
    body = bytes(1 << 20)
    assert pack_frame(8, 1, body)[1] is body


def test_buffers_of_any_shape_are_sent_as_bytes(pair: Pair) -> None:
    a, b = pair
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(100_000), np.array(3, ">i2")]
    thread = in_thread(lambda: send_frame(a, 11, 1, b"\xc0", arrays))
    frame = FrameStream(b).read()
    thread.join(30)
    assert [bytes(buf) for buf in frame.bufs] == [arr.tobytes() for arr in arrays]


@pytest.mark.parametrize("size", [0, 100, 50_000, 3_000_000])
def test_references_travel_among_buffers(pair: Pair, size: int) -> None:
    a, b = pair
    here = random.Random(size).randbytes(size)
    refs = [_wire.Reference(5 << 48 | 7, 64, 1 << 40, True), _wire.Reference(2**64 - 1, 0, 0)]
    thread = in_thread(lambda: send_frame(a, 8, 1, b"\xc0", [refs[0], here, refs[1]]))
    frame = FrameStream(b).read()
    thread.join(30)
    assert frame.bufs[0] == refs[0] and frame.bufs[2] == refs[1]
    assert bytes(frame.bufs[1]) == here and bytes(frame.body) == b"\xc0"


def test_very_many_buffers_are_few_pieces(pair: Pair) -> None:
    """Each send looks through all that is left, so that a piece each would take minutes."""
    refs = [_wire.Reference(1 + n, 64, 1 << 40) for n in range(60_000)]
    assert len(pack_frame(8, 1, b"\xc0", refs)) < 5
    long = b"x" * 100_000
    bufs = [refs[0], b"ab", np.zeros((2, 3)), b"", *([b"c", long] * 50), refs[1], np.arange(9)]
    parts = pack_frame(8, 1, b"\xc0", bufs)
    assert len(parts) < 110 and sum(len(part) == len(long) for part in parts) == 50
    a, b = pair
    thread = in_thread(lambda: send_frame(a, 8, 1, b"\xc0", bufs))
    frame = FrameStream(b).read()
    thread.join(30)
    assert [*frame.bufs[:2], *frame.bufs[3:5]] == [refs[0], b"ab", b"", b"c"]
    assert bytes(frame.bufs[2]) == bytes(48) and frame.bufs[-2] == refs[1]
    assert bytes(frame.bufs[-1]) == np.arange(9).tobytes() and frame.bufs[-3] == long


def test_a_reference_of_any_length_fits_into_a_frame() -> None:
    (frame,) = pack_frame(8, 1, b"\xc0", [_wire.Reference(1, 0, 1 << 62)] * 3)
    assert len(frame) == _wire.HEADER_SIZE + 1 + 3 * (8 + 32)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(31), "of 31 bytes instead of 32"),
        (bytes(32), "names no object"),
        (struct.pack("<QQQII", 1, 1 << 63, 1 << 63, 0, 0), "no object has"),
    ],
)
def test_malformed_references_are_refused(pair: Pair, data: bytes, why: str) -> None:
    a, b = pair
    frame = bytearray(pack_frame(8, 1, b"\xc0", [data])[0])
    struct.pack_into("<Q", frame, _wire.HEADER_SIZE, 1 << 63 | len(data))
    a.sendall(frame)
    with pytest.raises(ProtocolError, match=why):
        FrameStream(b).read()


def test_more_buffers_than_one_iovec_takes(pair: Pair) -> None:
    a, b = pair
    bufs = [bytes([i % 256]) * 50 for i in range(5000)]
    thread = in_thread(lambda: send_frame(a, 11, 1, b"\xc0", bufs))
    frame = FrameStream(b).read()
    thread.join(30)
    assert [bytes(buf) for buf in frame.bufs] == bufs


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_buffers_are_writable_aligned_and_the_frames_own(pair: Pair, size: int) -> None:
    a, b = pair
    stream = FrameStream(b)
    for body in (b"\xc0", b"\xc0" * 7, b"\xc0" * 24):
        data = np.arange(size, dtype="<f8")
        thread = in_thread(lambda body=body, data=data: send_frame(a, 11, 1, body, [data]))  # type: ignore[misc]
        frame = stream.read()
        thread.join(30)
        back = np.frombuffer(frame.bufs[0], "<f8")
        assert back.flags.writeable and (back == data).all()
        assert back.flags.aligned or size < 1000
        back[0] = 5.0
        send_frame(a, 12, 1, b"\xc1" * 9000)
        stream.read()  # overwrites nothing of the first
        assert bytes(frame.body) == body and back[1] == 1.0


def test_many_frames_in_one_receive_and_one_in_many(pair: Pair) -> None:
    a, b = pair
    frames = [whole(5, i, b"\xc0" * i, [b"z" * i] if i % 3 == 0 else ()) for i in range(200)]
    a.sendall(b"".join(frames))
    stream = FrameStream(b)
    for i in range(200):
        frame = stream.read()
        assert frame.id == i and bytes(frame.body) == b"\xc0" * i
    data = whole(5, 1, b"\xc0" * 40, [b"abc", b"", b"d" * 100])
    for i in range(len(data)):
        assert stream.next() is None
        a.sendall(data[i : i + 1])
        stream.fill()
    got = stream.next()
    assert got is not None and [bytes(x) for x in got.bufs] == [b"abc", b"", b"d" * 100]


def test_fill_does_not_wait_when_told_so(pair: Pair) -> None:
    a, b = pair
    b.setblocking(True)
    stream = FrameStream(b)
    with pytest.raises(BlockingIOError):
        stream.fill(socket.MSG_DONTWAIT)
    a.sendall(whole(5, 1, bytes(100_000))[:50_000])
    stream.fill(socket.MSG_DONTWAIT)
    assert stream.next() is None
    with pytest.raises(BlockingIOError):
        while True:
            stream.fill(socket.MSG_DONTWAIT)
    a.sendall(whole(5, 1, bytes(100_000))[50_000:])
    assert len(stream.read().body) == 100_000
    assert stream.fileno() == b.fileno()


# --- limits ----------------------------------------------------------------------------------


class Huge(bytes):
    """Says that it is larger than it is."""

    def __len__(self) -> int:
        return _wire.MAX_FRAME + 1


def test_what_is_too_large_is_refused_before_anything_is_sent(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(TooLargeError, match=r"1073741825 bytes.*1073741824.*in parts") as caught:
        send_frame(a, 8, 1, Huge())
    assert isinstance(caught.value, ValueError)
    huge = np.broadcast_to(np.zeros(1, "u1"), (1 << 20,)).copy()
    with pytest.raises(TooLargeError, match="1 GiB"):
        send_frame(a, 8, 1, b"\xc0", [huge] * 1025)
    with pytest.raises(TooLargeError, match="70000 buffers"):
        send_frame(a, 8, 1, b"\xc0", [b""] * 70000)
    send_frame(a, 12, 9, b"\xc0")
    assert FrameStream(b).read().id == 9


def test_memory_follows_what_arrives_not_what_is_claimed(pair: Pair) -> None:
    a, b = pair
    b.setblocking(True)
    stream = FrameStream(b)
    a.sendall(_wire.HEADER.pack(_wire.MAX_FRAME, 8, 0, 0, 1, 0, 0) + bytes(1000))
    stream.fill()
    assert stream.next() is None
    sent = 1024
    while sent < 5_000_000:
        a.sendall(bytes(60_000))
        sent += 60_000
        with pytest.raises(BlockingIOError):
            while True:
                stream.fill(socket.MSG_DONTWAIT)
        assert stream._big is not None
        assert len(stream._big) <= max(_wire._GROW, 2 * sent) + 100


def test_the_limit_of_a_stream() -> None:
    frame = whole(1, 0, b"x" * 101)
    assert len(feed(frame, 101)) == 1
    with pytest.raises(ProtocolError, match="claims 101 bytes, the limit here is 100"):
        feed(frame, 100)


# --- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 300, 100_000])
def test_the_end_of_a_stream(size: int) -> None:
    data = whole(5, 1, b"\xc0" * size)
    assert len(feed(data * 2)) == 2
    for cut in {1, 10, 23, 24, len(data) - 1} & set(range(1, len(data))):
        missing = f"{(24 if cut < 24 else len(data)) - cut} of {24 if cut < 24 else len(data)} "
        with pytest.raises(ProtocolError, match="in the middle of a frame.*" + missing):
            feed(data + data[:cut])


def test_a_reset_is_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for part, error in ((b"", EOFError), (b"abc", ProtocolError)):
            with socket.create_connection(server.getsockname()) as client:
                peer, _ = server.accept()
                stream = FrameStream(client)
                client.settimeout(30)
                if part:
                    peer.sendall(part)
                    stream.fill()
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
                with pytest.raises(error, match="reset"):
                    stream.read()


def test_sending_to_nobody_is_an_os_error(pair: Pair) -> None:
    a, b = pair
    b.close()
    for body in (b"\xc0", bytes(1 << 20)):
        with pytest.raises(OSError, match=r"pipe|reset"):
            send_frame(a, 5, 1, body)


class Interrupt(BaseException):
    pass


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A timer whose handler raises in the main thread, over and over."""

    def handler(signum: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interrupts")
def test_interrupts_while_receiving_lose_nothing(pair: Pair) -> None:
    a, b = pair
    b.settimeout(None)
    count = 150
    frames = [whole(5, i, bytes([i % 256]) * (i * 997 % 60_000)) for i in range(count)]
    thread = in_thread(lambda: a.sendall(b"".join(frames)))
    stream = FrameStream(b)
    got: list[int] = []
    interrupted = 0
    deadline = time.monotonic() + 30
    while len(got) < count and time.monotonic() < deadline:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                stream.fill()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:  # in the finally, too
            interrupted += 1
        while (frame := stream.next()) is not None:
            assert bytes(frame.body) == bytes([frame.id % 256]) * (frame.id * 997 % 60_000)
            got.append(frame.id)
    thread.join(30)
    assert got == list(range(count))


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_sending_leaves_a_whole_frame(pair: Pair) -> None:
    a, b = pair
    a.settimeout(None)
    body = bytes(8 << 20)
    release = threading.Event()
    got: list[Frame] = []

    def receive() -> None:
        release.wait(30)
        stream = FrameStream(b)
        got.extend((stream.read(), stream.read()))

    thread = in_thread(receive)

    def handler(signum: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        release.set()
        raise Interrupt

    signal.signal(signal.SIGALRM, handler)
    # By then the socket is full. Again until it is heard: not if it comes as a wait begins.
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    with pytest.raises(Interrupt):
        send_frame(a, 5, 1, body)
    send_frame(a, 5, 2, b"\xc0")
    thread.join(30)
    assert [len(f.body) for f in got] == [len(body), 1]


# --- hello --------------------------------------------------------------------------------------


def answer(sock: socket.socket, reply: bytes) -> list[Any]:
    seen: list[Any] = []

    def work() -> None:
        seen.append(_wire.unpack(FrameStream(sock, _wire.HELLO_LIMIT).read().body))
        sock.sendall(reply)

    in_thread(work)
    return seen


WELCOME = {"version": 1, "release": _wire.RELEASE, "session": "s"}


def test_hello(pair: Pair) -> None:
    a, b = pair
    after = whole(10, 5, b"\xc0")
    for make in (lambda: a, lambda: FrameStream(a)):
        seen = answer(b, whole(2, 0, _wire.pack(WELCOME)) + after)
        peer: Any = make()
        assert _wire.hello(peer, "worker", "secret", worker=3) == WELCOME
        assert seen[0] == {
            "magic": "muster",
            "version": 1,
            "release": _wire.RELEASE,
            "role": "worker",
            "token": "secret",
            "pid": seen[0]["pid"],
            "worker": 3,
        }
        stream = peer if isinstance(peer, FrameStream) else FrameStream(a)
        assert stream.read().id == 5  # nothing behind the Welcome was swallowed


@pytest.mark.parametrize("as_stream", [True, False])
def test_hello_refused(pair: Pair, as_stream: bool) -> None:
    a, b = pair

    def attempt(reply: bytes) -> None:
        answer(b, reply)
        _wire.hello(FrameStream(a) if as_stream else a, "worker", "bad")

    error = {"code": "auth", "message": "wrong token", "rank": -1, "exit_code": 0}
    with pytest.raises(AuthError, match="wrong token"):
        attempt(whole(2, 0, _wire.pack(error), flags=1))
    with pytest.raises(ProtocolError, match=r"version 2.*this is version 1"):
        attempt(whole(2, 0, _wire.pack({**WELCOME, "version": 2})))
    with pytest.raises(ProtocolError, match="kind 5"):
        attempt(whole(5, 0, b"\xc0"))
    with pytest.raises(ProtocolError, match="map"):
        attempt(whole(2, 0, b"\x93\x01\x02\x03"))
    with pytest.raises(ProtocolError, match="msgpack"):
        attempt(whole(2, 0, b"\xc1"))
    with pytest.raises(ProtocolError, match="claims"):
        attempt(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("as_stream", [True, False])
def test_hello_to_someone_who_hangs_up(pair: Pair, as_stream: bool) -> None:
    a, b = pair

    def hang_up() -> None:
        FrameStream(b).read()
        b.close()

    in_thread(hang_up)
    with pytest.raises(ProtocolError, match="before the worker was welcomed"):
        _wire.hello(FrameStream(a) if as_stream else a, "worker")


# --- golden vectors and garbage --------------------------------------------------------------------

STORED = json.loads(golden.FILE.read_text())


@pytest.mark.parametrize("vector", STORED["frames"], ids=lambda v: v["name"])
def test_golden_frames(vector: dict[str, Any]) -> None:
    body = bytes.fromhex(vector["body_hex"])
    bufs = [bytes.fromhex(buf) for buf in vector["bufs_hex"]]
    kind, flags, id, peer, ack = (vector[k] for k in ("kind", "flags", "id", "peer", "ack"))
    data = bytes.fromhex(vector["frame_hex"])
    assert whole(kind, id, body, bufs, flags, peer, ack) == data
    (frame,) = feed(data)
    assert frame[:5] == (kind, flags, id, peer, ack)
    assert bytes(frame.body) == body and [bytes(buf) for buf in frame.bufs] == bufs


def test_golden_frames_cover_every_kind_and_flag() -> None:
    assert {v["kind"] for v in STORED["frames"]} == _wire.KINDS
    assert {f for v in STORED["frames"] for f in (1, 2, 4, 8) if v["flags"] & f} == {1, 2, 4, 8}


@pytest.mark.parametrize("vector", STORED["malformed"], ids=lambda v: v["name"])
def test_golden_malformed_frames(vector: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match=vector["error"]):
        feed(bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize("vector", STORED["truncated"], ids=lambda v: v["name"])
def test_golden_truncated_frames(vector: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="missing"):
        feed(bytes.fromhex(vector["hex"]))


def test_mutated_frames_are_frames_or_protocol_errors() -> None:
    rng = random.Random(4)
    corpus = [bytes.fromhex(v["frame_hex"]) for v in STORED["frames"]]
    end = time.monotonic() + 8
    refused = 0
    for _ in range(3000):
        data = bytearray(b"".join(rng.choices(corpus, k=rng.randint(1, 3))))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.7:
                data[at] = rng.choice((0, 1, 255, rng.randrange(256)))
            else:
                del data[at : at + rng.randint(1, 9)]
                data += rng.randbytes(2)
        try:
            feed(bytes(data))
        except ProtocolError:
            refused += 1
        if time.monotonic() > end:
            break
    assert refused > 100
