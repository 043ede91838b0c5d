"""Malformed, truncated, oversized and unauthorised input: told, and nothing is lost by it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest

import muster
from muster import Cluster, ResourceManager
from roles import Keeper
from running import cluster, eventually, session
from trouble import Vandal

HELLO, WELCOME, REQUEST, CALL, RESULT, CLOSE = 1, 2, 3, 8, 11, 17
GIB = 1 << 30


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    with session("1x2"), ResourceManager(2, 1) as rm:
        with cluster(Keeper, rm, name="keeper", device_mapping="0-1") as made:
            yield made


@pytest.fixture(autouse=True)
def _works_on(c: Cluster) -> Iterator[None]:
    """Whatever was sent, by whomever: the session works."""
    yield
    assert c.echo("still here", timeout=20) == ["still here"] * 2


def folder() -> Path:
    [found] = [
        p for p in Path(os.environ["MUSTER_DIR"]).glob("muster-*/*") if (p / "head.sock").exists()
    ]
    return found


def frame(
    kind: int, body: bytes, *, length: int | None = None, nbuf: int = 0, id: int = 0
) -> bytes:
    claimed = len(body) if length is None else length
    return struct.pack("<IBBHQII", claimed, kind, 0, nbuf, id, 0, 0) + body


def hello(**changes: Any) -> bytes:
    token = (folder() / "token").read_text().strip()
    message = {
        "magic": "muster",
        "version": 1,
        "release": muster.__version__,
        "role": "controller",
        "token": token,
        "worker": 0,
        "pid": os.getpid(),
    }
    return frame(HELLO, msgpack.packb({**message, **changes}))


class Line:
    """A connection to one of the session's sockets."""

    def __init__(self, name: str = "head.sock") -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(folder() / name))

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # it has hung up already, which is an answer as well

    def rest(self) -> bytes:
        """All that comes until the other side hangs up."""
        got = b""
        while True:
            try:
                piece = self.sock.recv(65536)
            except ConnectionError:
                return got
            if not piece:
                return got
            got += piece

    def until(self, text: bytes) -> bytes:
        """What comes until text is there, or the other side hangs up."""
        got = b""
        while text not in got and (piece := self.sock.recv(65536)):
            got += piece
        return got

    def answer(self) -> tuple[int, int, Any]:
        """Kind, flags and body of the next frame."""
        head = self._exactly(24)
        length, kind, flags, *_ = struct.unpack("<IBBHQII", head)
        return kind, flags, msgpack.unpackb(self._exactly(length), strict_map_key=False)

    def _exactly(self, n: int) -> bytes:
        got = b""
        while len(got) < n:
            piece = self.sock.recv(n - len(got))
            if not piece:
                raise EOFError(f"hung up after {got!r}")
            got += piece
        return got


def sockets() -> list[str]:
    return ["head.sock", *sorted(p.name for p in folder().glob("agent-*.sock"))]


GARBAGE = {
    "nothing": b"",
    "one byte": b"\x00",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half a header": frame(HELLO, b"")[:11],
    "a header that claims too much": frame(HELLO, b"", length=0xFFFFFFFF),
    "a header that claims a gigabyte": frame(HELLO, b"x" * 100, length=GIB),
    "buffers that do not add up": frame(HELLO, b"x" * 16, nbuf=0xFFFF),
    "an unknown kind": frame(99, b"\xc0"),
    "no msgpack": frame(HELLO, b"\xc1\xc1\xc1"),
    "half a map": frame(HELLO, b"\xdf\xff\xff\xff\xff"),
    "deep nesting": frame(HELLO, b"\x91" * 100_000),
    "a call before hello": frame(CALL, msgpack.packb([[1, "echo", 0, None, 0, 0, 0], [[], {}]])),
    "not a map": frame(HELLO, msgpack.packb([1, 2, 3])),
    "another magic": frame(HELLO, msgpack.packb({"magic": "monarch", "version": 1})),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_instead_of_a_hello(c: Cluster, name: str) -> None:
    for path in sockets():
        with Line(path) as line:
            line.send(GARBAGE[name])
            line.sock.shutdown(socket.SHUT_WR)
            answer = line.rest()
            assert len(answer) < 10_000
            token = (folder() / "token").read_text().strip().encode()
            assert token not in answer


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"token": "wrong"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "0" * 64}, "token"),
        ({"version": 2}, "version"),
        ({"version": 0}, "version"),
        ({"version": 10**9}, "version"),
        ({"role": "emperor"}, "emperor"),
        ({"role": "owner"}, ""),
        ({"role": "agent", "node": 77}, ""),
        ({"role": "worker", "worker": 1}, ""),
        ({"role": "worker", "worker": 123456}, ""),
        ({"worker": 123456}, ""),
        ({"magic": "ray"}, ""),
    ],
)
def test_hellos_that_are_refused(c: Cluster, changes: dict[str, Any], told: str) -> None:
    """With an error that says why, in words, and without the token."""
    with Line() as line:
        line.send(hello(**changes))
        kind, flags, error = line.answer()
        assert (kind, flags & 1) == (WELCOME, 1)
        assert told in error["message"]
        assert len(error["message"]) > 10
        assert line.rest() == b""


@pytest.mark.parametrize("role", ["control", "worker", "controller", "events"])
def test_wrong_tokens_at_the_agent(c: Cluster, role: str) -> None:
    for path in sockets()[1:]:
        with Line(path) as line:
            line.send(hello(role=role, token="wrong", worker=1, stacks_fd=1))
            kind, flags, error = line.answer()
            assert (kind, flags & 1) == (WELCOME, 1), error
            assert error["message"]


def test_a_version_is_told_with_what_both_speak(c: Cluster) -> None:
    with Line() as line:
        line.send(hello(version=7, release="9.9.9"))
        _, _, error = line.answer()
        assert "7" in error["message"] and "1" in error["message"]


MALFORMED = {
    "truncated": frame(CALL, b"\x92\x97", length=5000, id=1),
    "oversized": frame(CALL, b"", length=GIB + 1, id=1),
    "buffers that do not add up": frame(CALL, b"\x00" * 32, nbuf=4, id=1),
    "buffers larger than the frame": frame(
        CALL, struct.pack("<Q", 1 << 60) + b"\xc0", nbuf=1, id=1
    ),
    "an unknown kind": frame(200, b"\xc0", id=1),
    "a kind for others": frame(RESULT, b"\xc0", id=1),
    "no msgpack": frame(CALL, b"\xc1", id=1),
    "no route": frame(CALL, msgpack.packb(5), id=1),
    "a route of strangers": frame(CALL, msgpack.packb([["a", 1, "b"], []]), id=1),
    "no payload": frame(CALL, msgpack.packb([[1, "echo", 0, None, 0, 0, 4], 7]), id=1),
    "a request that is none": frame(REQUEST, msgpack.packb({"a": 1}), id=1),
    "an unknown verb": frame(REQUEST, msgpack.packb(["make coffee", {}]), id=1),
    "a known verb with rubbish": frame(REQUEST, msgpack.packb(["cluster.create", [1]]), id=1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frames_from_a_controller(c: Cluster, name: str) -> None:
    """Its connection ends, or it is answered with an error; nobody else notices."""
    with Line() as line:
        line.send(hello())
        kind, flags, _ = line.answer()
        assert (kind, flags & 1) == (WELCOME, 0)
        line.send(MALFORMED[name])
        if name != "truncated":
            assert b"message" in line.until(b"message")


@pytest.mark.parametrize("how", [0, 1, 2, 3, 255])
def test_calls_to_what_is_not_there(c: Cluster, how: int) -> None:
    with Line() as line:
        line.send(hello())
        line.answer()
        route = [424242, "echo", how, [0], 0, 0, 0]
        line.send(frame(CALL, msgpack.packb([route, [[1], {}]]), id=5))
        _, flags, error = line.answer()
        assert flags & 1 and error["message"]


def test_many_connections_that_say_nothing(c: Cluster) -> None:
    lines = [Line() for _ in range(100)]
    assert c.echo(1, timeout=20) == [1, 1]
    for line in lines:
        line.sock.close()


def test_a_worker_that_writes_into_its_own_connections(c: Cluster) -> None:
    """User code that scribbles over descriptors: that worker is lost, by name; no other."""
    with ResourceManager(0, 1) as rm, cluster(Vandal, rm, name="vandal", world_size=2) as vandal:
        with pytest.raises(muster.MusterError, match="vandal-1"):
            vandal.execute_all_sync("scribble", muster.PerRank([False, True]), timeout=10)
            vandal.execute_all_sync("scribble", False, timeout=10)


def test_an_argument_of_more_than_a_frame_takes(c: Cluster) -> None:
    """What is large lies in the store; frames hold at most 1 GiB."""
    huge = np.zeros(GIB + (100 << 20), dtype="u1")
    huge[3] = 7
    assert c.execute_rank_zero_sync("total", huge) == 7 + len(huge)


def test_a_result_of_more_than_a_frame_takes(c: Cluster) -> None:
    back = c.execute_rank_zero_sync("make_array", ((GIB + (100 << 20)) // 8,))
    assert back.nbytes == GIB + (100 << 20)


def test_what_cannot_go_out_of_band_is_bound_by_the_frame(c: Cluster) -> None:
    """Refused with both sizes, before anything is sent."""
    with pytest.raises(ValueError, match=r"(?i)1073741824|1 ?gib") as caught:
        c.execute_rank_zero_sync("total", ["x" * 8000] * (GIB // 8000 + 1))  # none of them is large
    assert isinstance(caught.value, muster.MusterError)
    assert "bytes" in str(caught.value) or "GiB" in str(caught.value)


def test_large_results_one_by_one(c: Cluster) -> None:
    refs = c.execute_all_async("make", 600 << 20)
    assert [len(muster.get(refs.pop(0))) for _ in range(2)] == [600 << 20] * 2


def test_nothing_is_left_of_the_large_ones(c: Cluster) -> None:
    """The workers give memory back; what is shared is the store's."""

    def resident() -> int:
        total = 0
        for pid in [w.pid for w in c.workers]:
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.split("RssAnon:")[1].split()[0]) * 1024
        return total

    assert eventually(lambda: resident() < 400 << 20, 20), resident()
