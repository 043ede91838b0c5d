"""The ways to a head that was there before: dialling it, or starting it anew.

A head at an address is dialled until it is there. An embedded one that was killed
is started anew, with its session's name: it reads what the old one wrote down,
and waits for all whom the old one knew. A head that left in order is not come
back to, nor one that does not want us.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from . import _errors, _wire
from ._comeback import Stopped
from ._embedded import HeadProcess
from ._environment import head_grace

#: Seconds between two attempts, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.2
#: How often an embedded head is started anew, within so many seconds.
_MOST_RESTARTS, _RESTART_WINDOW = 10, 60.0
#: Seconds within which a head that closed its connection has exited, and one that is killed.
_EXIT_NOTICE, _EXIT_PATIENCE = 1.0, 5.0


def back(answers: int, objects: list[tuple[int, int]]) -> bytes:
    """The frame by which a caller that was there before begins to tell what it has."""
    return _notice("back", {"answers": answers & 0xFFFFFFFF, "objects": objects})


def resent() -> bytes:
    """The frame by which it ends."""
    return _notice("resent", {})


def _notice(verb: str, body: dict[str, Any]) -> bytes:
    return b"".join(_wire.pack_frame(_wire.KIND_NOTICE, 0, _wire.pack([verb, body])))


class Hello:
    """How this process introduces itself, the first time and again."""

    def __init__(self, role: str, token: str, **extra: Any) -> None:
        self.role = role
        self.token = token
        self.extra = extra
        self.back = 0  # our number as a caller, once we have one

    def say(self, sock: socket.socket, seconds: float) -> tuple[_wire.FrameStream, dict[str, Any]]:
        """Say hello on a new connection, which is closed if that fails."""
        stream = _wire.FrameStream(sock)
        try:
            sock.settimeout(max(0.001, seconds))
            back = {"back": self.back} if self.back else {}
            welcome = _wire.hello(stream, self.role, self.token, **self.extra, **back)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        self.back = int(welcome.get("caller", 0))
        return stream, welcome


class Dial:
    """The way to a head that listens at a path."""

    def __init__(self, path: str, hello: Hello, quiet: bool = False) -> None:
        self._path = path
        self._hello = hello
        self._quiet = quiet
        self._stopped = False
        self._trying: socket.socket | None = None

    def find(self, deadline: float) -> _wire.FrameStream:
        """Dial until a head is there; see `Way`."""
        if not self._hello.back:
            raise _errors.HeadLostError(self.how_ended())
        return self.dial(deadline)[0]

    def dial(self, deadline: float) -> tuple[_wire.FrameStream, dict[str, Any]]:
        """The same, with its Welcome."""
        pause = _FIRST_PAUSE
        while True:
            last = ""
            try:
                return self.once(deadline - monotonic())
            except _wire.CutError as error:
                last = str(error)
            except _errors.LimitError as error:
                last = str(error)  # it has no room at the moment
            except _errors.MusterError as error:
                if not self._hello.back:
                    raise  # it was never there before
                raise _errors.HeadLostError(
                    f"{self.how_ended()} It did not take this process back: {error}"
                ) from None
            except OSError as error:
                last = error.strerror or str(error)
                if not os.path.isdir(os.path.dirname(self._path)):  # it left in order
                    raise _errors.HeadLostError(self.how_ended()) from None
            if self._stopped:
                raise Stopped
            left = deadline - monotonic()
            if left <= 0:
                raise _errors.HeadLostError(
                    f"{self.how_ended()} No head was there again within {head_grace():g} s "
                    f"(MUSTER_HEAD_GRACE): {last}"
                )
            sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def once(self, seconds: float) -> tuple[_wire.FrameStream, dict[str, Any]]:
        """Dial one time."""
        sock = self._trying = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, seconds))
            if self._stopped:
                raise Stopped
            sock.connect(self._path)
            return self._hello.say(sock, seconds)
        except BaseException:
            sock.close()
            raise
        finally:
            self._trying = None

    def how_ended(self) -> str:
        """As `Way` has it."""
        return f"the head at {self._path} ended or hung up. Is it still running?"

    def story(self) -> str:
        """As `Way` has it."""
        return "" if self._quiet else f"the head at {self._path} was gone; it is there again"

    def stop(self) -> None:
        """As `Way` has it."""
        self._stopped = True
        _hang_up(self._trying)

    def abandon(self) -> None:
        """As `Way` has it."""
        if self._trying is not None:
            self._trying.close()


class Embedded:
    """The way to a head that this process starts itself."""

    def __init__(self, binary: str, hello: Hello, options: Sequence[str] = ()) -> None:
        self.head, self._pair = HeadProcess.start(binary, *options)
        self._binary = binary
        self._options = options  # of every head
        self._hello = hello
        self._session = ""
        self._address = ""
        self._token = ""
        self._restarts: deque[float] = deque()
        self._stopped = False
        self._redial: Dial | None = None
        self._story = ""

    def welcome(self, seconds: float) -> tuple[_wire.FrameStream, dict[str, Any]]:
        """Introduce ourselves for the first time."""
        stream, welcome = self._hello.say(self._pair, seconds)
        self._session = str(welcome.get("session", ""))
        self._address = str(welcome.get("address", ""))
        self._token = str(welcome.get("token", ""))
        return stream, welcome

    def find(self, deadline: float) -> _wire.FrameStream:
        """Start the head anew, if it did not leave in order; see `Way`."""
        if not self._hello.back:
            raise _errors.HeadLostError(self.head.how_ended())
        if not self.head.wait(_EXIT_NOTICE):
            return self._dial(deadline)
        ended = self.head.manner()
        while True:
            if self._stopped:
                raise Stopped
            if self.head.orderly():
                raise _errors.HeadLostError(self.head.how_ended())
            self._count_restart(deadline)
            try:
                stream = self._restart(deadline)
            except _errors.HeadLostError:
                raise
            except (_wire.CutError, OSError):
                if not self.head.wait(_EXIT_NOTICE):
                    self.head.kill()
                    self.head.wait(_EXIT_PATIENCE)
                continue
            self._story = f"{ended}; a new one took over"
            return stream

    def _count_restart(self, deadline: float) -> None:
        now = monotonic()
        if now > deadline:
            raise _errors.HeadLostError(
                f"{self.head.how_ended()}\n\nNo other took over within {head_grace():g} s "
                "(MUSTER_HEAD_GRACE)"
            )
        while self._restarts and now - self._restarts[0] > _RESTART_WINDOW:
            self._restarts.popleft()
        if len(self._restarts) >= _MOST_RESTARTS:
            raise _errors.HeadLostError(
                f"{self.head.how_ended()}\n\nIt was started anew {_MOST_RESTARTS} times within "
                f"{_RESTART_WINDOW:g} s, and ended each time"
            )
        self._restarts.append(now)

    def _restart(self, deadline: float) -> _wire.FrameStream:
        try:
            self._start_anew()
        except _errors.MusterError as error:
            raise _errors.HeadLostError(
                f"{self.head.how_ended()}\n\nNo other could be started: {error}"
            ) from None
        try:
            if self._stopped:
                self._pair.close()
                raise Stopped
            return self._hello.say(self._pair, deadline - monotonic())[0]
        except _wire.CutError:
            raise
        except _errors.MusterError as error:
            self.head.wait(_EXIT_NOTICE)
            raise _errors.HeadLostError(
                f"{self.head.how_ended()}\n\nIt was started anew, and did not take this process "
                f"back: {error}"
            ) from None

    def _start_anew(self) -> None:
        before = self.head
        self.head, self._pair = HeadProcess.start(
            self._binary, "--resume", self._session, *self._options
        )
        before.forget()

    def _dial(self, deadline: float) -> _wire.FrameStream:
        """It still runs, and only its connection was cut."""
        hello = Hello(_wire.ROLE_CONTROLLER, self._token, **self._hello.extra)
        hello.back = self._hello.back
        self._redial = Dial(self._address, hello)
        if self._stopped:
            raise Stopped
        try:
            stream = self._redial.find(deadline)
        except _errors.HeadLostError as error:
            raise _errors.HeadLostError(f"{self.head.how_ended()}\n\n{error}") from None
        self._story = f"the connection to the head (process {self.head.pid}) was cut; it is back"
        return stream

    def clear_up(self, seconds: float) -> None:
        """After a head that was killed while it stopped everything: have another one do it."""
        if self.head.orderly() or not self._hello.back:
            return
        shutdown = _wire.pack_frame(
            _wire.KIND_REQUEST, 1, _wire.pack(["shutdown", {}]), flags=_wire.FLAG_AGAIN
        )
        try:
            self._start_anew()
            stream, _ = self._hello.say(self._pair, seconds)
            for frame in ([back(0, [])], shutdown, [resent()]):
                _wire.send_parts(stream.sock, _wire.numbered(stream.number(), frame))
        except (OSError, _errors.MusterError):
            pass  # there was nothing left to be stopped, or nobody can
        self.head.wait(seconds)
        self._pair.close()

    def how_ended(self) -> str:
        """As `Way` has it."""
        return self.head.how_ended()

    def story(self) -> str:
        """As `Way` has it."""
        return self._story

    def stop(self) -> None:
        """As `Way` has it."""
        self._stopped = True
        _hang_up(self._pair)
        if self._redial is not None:
            self._redial.stop()

    def abandon(self) -> None:
        """As `Way` has it."""
        self._pair.close()
        if self._redial is not None:
            self._redial.abandon()


def _hang_up(sock: socket.socket | None) -> None:
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
