"""A head for tests of the SDK: the other end of a socket pair, in a thread.

It speaks the wire and leaves every decision to the test: requests are answered
by functions, calls wait in a queue until the test answers them.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from muster import HeadLostError, _context, _values, _wire
from muster._client import Connection

DEADLINE = 10.0


class Call:
    """A Call frame as the head got it."""

    def __init__(self, head: FakeHead, frame: _wire.Frame) -> None:
        self.head = head
        self.id = frame.id
        self.ack = frame.ack
        route, payload = _values.decode(frame.body, frame.bufs)
        self.cluster, self.method, self.how, self.ranks, self.timeout_ms, *rest = route
        self.parent, self.flags = rest
        self.args, self.kwargs = payload

    def answer(self, value: Any, rank: int | None = None) -> None:
        buffers: list[Any] = []
        body = _values.encode(value, buffers)
        flags = 0 if rank is None else _wire.FLAG_RANK
        self.head.send(_wire.KIND_ANSWER, self.id, body, buffers, flags, rank or 0)

    def fail(self, rank: int | None = None, **error: Any) -> None:
        error = {"code": "user", "message": "it failed", "rank": -1, "exit_code": 0} | error
        flags = _wire.FLAG_ERROR | (0 if rank is None else _wire.FLAG_RANK)
        self.head.send(_wire.KIND_ANSWER, self.id, _wire.pack(error), (), flags, rank or 0)


class NoWay:
    """The way back to a head that is gone for good."""

    def find(self, deadline: float) -> _wire.FrameStream:
        raise HeadLostError(self.how_ended())

    def how_ended(self) -> str:
        return "the fake head ended"

    def story(self) -> str:
        return ""

    def stop(self) -> None: ...

    def abandon(self) -> None: ...


class FakeHead:
    """Reads frames in a thread of its own; `calls` and `others` hold what came."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.calls: queue.Queue[Call] = queue.Queue()
        self.others: queue.Queue[_wire.Frame] = queue.Queue()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        self.on_call: Callable[[Call], None] = self.calls.put
        self.reading = threading.Event()
        self.reading.set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="fake-head", daemon=True)

    def connect(self, current_call: Callable[[], int] | None = None) -> Connection:
        self._thread.start()
        return Connection(_wire.FrameStream(self.theirs), NoWay(), current_call)

    def _serve(self) -> None:
        stream = _wire.FrameStream(self.ours)
        try:
            while True:
                self.reading.wait()
                self._take(stream.read())
        except (EOFError, OSError):
            pass

    def _take(self, frame: _wire.Frame) -> None:
        if frame.kind == _wire.KIND_CALL:
            self.on_call(Call(self, frame))
        elif frame.kind == _wire.KIND_REQUEST:
            verb, message = _wire.unpack(frame.body)
            self.requests.append((verb, message))
            answer = self.verbs[verb](message)
            flags = _wire.FLAG_ERROR if "code" in answer else 0
            self.send(_wire.KIND_RESPONSE, frame.id, _wire.pack(answer), (), flags)
        else:
            self.others.put(frame)

    def send(
        self,
        kind: int,
        ident: int,
        body: bytes,
        buffers: Any = (),
        flags: int = 0,
        rank: int = 0,
    ) -> None:
        with self._lock:
            _wire.send_frame(self.ours, kind, ident, body, buffers, flags, ack=rank)

    def next_call(self) -> Call:
        return self.calls.get(timeout=DEADLINE)

    def next_other(self) -> _wire.Frame:
        return self.others.get(timeout=DEADLINE)

    def hang_up(self) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FakeHead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.reading.set()
        try:
            self.hang_up()
        except OSError:
            pass
        if self._thread.is_alive():
            self._thread.join(DEADLINE)
        self.ours.close()
        self.theirs.close()


def echo(call: Call) -> None:
    """Answer a call with its first argument."""
    call.answer(call.args[0] if call.args else None)


class Session:
    """Makes the process believe that it has a session with a fake head."""

    def __init__(self, head: FakeHead) -> None:
        self.head = head

    def __enter__(self) -> FakeHead:
        settings = {"address": "", "virtual": "", "log_to_stderr": False, "progress": False}
        connection = self.head.connect()
        _context._process.session = _context.Session(settings, connection, None, {})
        return self.head

    def __exit__(self, *exc_info: object) -> None:
        session, _context._process.session = _context._process.session, None
        if session is not None:
            session.connection.close(lambda: RuntimeError("the test is over"))
        self.head.__exit__(None, None, None)


def param(name: str, kind: int = 1, default: bool = False) -> dict[str, Any]:
    return {"name": name, "kind": kind, "default": default}


def method(
    name: str,
    dispatch: str = "",
    *params: dict[str, Any],
    execute: str = "ALL",
    custom: bytes = b"",
) -> dict[str, Any]:
    return {
        "name": name,
        "registered": bool(dispatch),
        "dispatch": dispatch,
        "execute": execute if dispatch else "",
        "collective": False,
        "idempotent": False,
        "on_timeout": "",
        "async": False,
        "params": list(params),
        "custom": custom,
    }


def cluster_info(name: str, world: int, *methods: dict[str, Any], tp: int = 1) -> dict[str, Any]:
    """A ClusterInfo message: world CPU or GPU workers on one node."""
    sizes = {"world_size": world, "tp_size": tp, "dp_size": world // tp, "pp_size": 1, "cp_size": 1}
    return {
        "number": 7,
        "name": name,
        "pool": 1,
        "master_addr": "127.0.0.1",
        "master_port": 4711,
        "workers": [
            {
                "number": 100 + rank,
                "rank": rank,
                "name": f"{name}-{rank}-G{rank}",
                "node": 0,
                "node_name": "node-0",
                "address": "127.0.0.1",
                "devices": [{"node": 0, "device": rank, "global": rank}],
                "pid": 1000 + rank,
                "state": "ready",
                "log_file": "",
            }
            for rank in range(world)
        ],
        "ranks": [
            {
                **sizes,
                "rank": rank,
                "tp_rank": rank % tp,
                "dp_rank": rank // tp,
                "pp_rank": 0,
                "cp_rank": 0,
            }
            for rank in range(world)
        ],
        "description": {
            "class": "pkg.Actor",
            "methods": list(methods),
            "serial": True,
            "doc": "",
        },
    }
