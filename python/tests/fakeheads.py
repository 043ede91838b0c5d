"""Heads for tests of coming back: one after the other at the same address.

The test plays each of them: it takes the connection, reads frames in order, and
answers or cuts as it likes.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

from fakehead import DEADLINE

from muster import _values, _wire
from muster._client import Connection
from muster._refs import Ref
from muster._ways import Dial, Hello

CALLER = 5
_ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 2, [0], 0, 0, 8)))


def start(connection: Connection, *args: Any) -> Ref:
    """A call of a method m, with these arguments."""
    buffers: list[Any] = []
    payload = _values.encode_payload(args, {}, buffers)
    return connection.call(_ROUTE, payload, buffers)


class Line:
    """A connection as its head has it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(DEADLINE)
        self.sock = sock
        self.stream = _wire.FrameStream(sock)
        self.hello: dict[str, Any] = {}

    def welcome(self, **more: Any) -> None:
        self.hello = _wire.unpack(self.stream.read().body)
        message = {"version": _wire.VERSION, "release": "0", "session": "s", "caller": CALLER}
        self.send(_wire.KIND_WELCOME, 0, _wire.pack(message | more))

    def refuse(self, code: str, message: str) -> None:
        self.stream.read()
        error = {"code": code, "message": message, "rank": -1, "exit_code": 0}
        self.send(_wire.KIND_WELCOME, 0, _wire.pack(error), flags=_wire.FLAG_ERROR)

    def read(self) -> _wire.Frame:
        return self.stream.read()

    def calls(self, count: int) -> list[_wire.Frame]:
        """The next frames, which are new calls."""
        frames = [self.read() for _ in range(count)]
        assert all(frame.kind == _wire.KIND_CALL and not frame.flags for frame in frames), frames
        return frames

    def back(self) -> tuple[dict[str, Any], list[_wire.Frame]]:
        """What a caller tells that was there before, and the frames that it sends again."""
        verb, told = _wire.unpack(self.read().body)
        assert verb == "back"
        return told, self.again()

    def again(self) -> list[_wire.Frame]:
        frames = []
        while (frame := self.read()).kind != _wire.KIND_NOTICE:
            frames.append(frame)
        assert _wire.unpack(frame.body) == ["resent", {}]
        return frames

    def send(self, kind: int, ident: int, body: bytes, **more: Any) -> None:
        _wire.send_frame(self.sock, kind, ident, body, **more)

    def answer(self, ident: int, value: Any, rank: int | None = None) -> None:
        self.sock.sendall(answer_frame(ident, value, rank))

    def cut(self) -> None:
        """Hang up, in the way of a process that is killed."""
        self.sock.close()


def answer_frame(ident: int, value: Any, rank: int | None = None) -> bytes:
    bufs: list[Any] = []
    body = _values.encode(value, bufs)
    flags = 0 if rank is None else _wire.FLAG_RANK
    parts = _wire.pack_frame(_wire.KIND_ANSWER, ident, body, bufs, flags, ack=rank or 0)
    return b"".join(parts)


class Heads:
    """Who listens at an address, over time."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "head.sock")
        self._lines: list[Line] = []
        self._connections: list[Connection] = []
        self.listen()

    def listen(self) -> None:
        """Be there, again."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.listener.settimeout(DEADLINE)

    def die(self) -> None:
        """Be gone, with all connections."""
        os.unlink(self.path)
        self.listener.close()
        for line in self._lines:
            line.cut()

    def accept(self) -> Line:
        line = Line(self.listener.accept()[0])
        self._lines.append(line)
        return line

    @property
    def last(self) -> Line:
        """The connection of now."""
        return self._lines[-1]

    def returned(self) -> Line:
        """The next connection, of a caller that was there before."""
        line = self.accept()
        line.welcome(epoch=2)
        assert line.hello["back"] == CALLER
        return line

    def connect(self, **more: Any) -> tuple[Connection, Line]:
        """A caller, and the connection that it has."""
        way = Dial(self.path, Hello(_wire.ROLE_CONTROLLER, "token", worker=0))
        lines: list[Line] = []

        def play() -> None:
            lines.append(self.accept())
            lines[0].welcome(epoch=1)

        thread = threading.Thread(target=play)
        thread.start()
        stream, _ = way.once(DEADLINE)
        thread.join()
        connection = Connection(stream, way, **more)
        connection.comeback.begin()
        self._connections.append(connection)
        return connection, lines[0]

    def close(self) -> None:
        for connection in self._connections:
            connection.close(lambda: RuntimeError("the test is over"))
        self.listener.close()
        for line in self._lines:
            line.sock.close()
