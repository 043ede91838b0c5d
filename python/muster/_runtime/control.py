"""The agent's line to a worker, answered by a thread that never runs user code.

So pings and cancels are heard while the main thread is busy. It holds no state
of calls; that is the runner's and the board's. It also sees to it that the main
thread hears its signals.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from time import monotonic
from typing import Any, Protocol

from .. import _wire
from . import linux
from .board import Board
from .calls import Who, own_error
from .engines import set_env

#: Seconds until a signal that the main thread has not heard is repeated, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class Runner(Protocol):
    """One of the three ways to run calls."""

    limit: int

    def run(self) -> None:
        """Serve calls until the connection ends; on the main thread."""

    def cancel(self, call: int) -> str:
        """Cancel a call; from any thread. "queued", "interrupted", "loop" or "done"."""


class Control:
    """Serves the control connection from the moment the worker is welcome."""

    def __init__(
        self, sock: socket.socket, stream: _wire.FrameStream, board: Board, who: Who
    ) -> None:
        self._stream = stream
        self._board = board
        self._who = who
        #: Set once the worker can run calls.
        self.runner: Runner | None = None

    def start(self) -> None:
        """Serve on a daemon thread."""
        threading.Thread(target=self._serve, name="muster-control", daemon=True).start()

    def _serve(self) -> None:
        # Signals whose Python handlers must run soon have to reach the main
        # thread, which only then leaves a system call.
        signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, linux.CANCEL_SIGNAL}
        )
        try:
            while True:
                frame = self._stream.next()
                if frame is None:
                    self._listen()
                    self._stream.fill()
                else:
                    self._frame(frame)
        except (EOFError, OSError, _wire.FrameError):
            pass
        self._leave()

    def _listen(self) -> None:
        """Wait for the agent's next word, and have the main thread hear signals meanwhile."""
        board = self._board
        poller = select.poll()
        poller.register(self._stream, select.POLLIN)
        poller.register(board.signals, select.POLLIN)
        pause, due = _FIRST_PAUSE, None
        while True:
            if not board.unheard():
                pause, due = _FIRST_PAUSE, None
            elif due is None:
                due = monotonic() + pause
            elif monotonic() >= due:
                board.repeat_signals()
                pause = min(2 * pause, _LONGEST_PAUSE)
                due = monotonic() + pause
            left = None if due is None else max(0.0, due - monotonic()) * 1000
            ready = [fd for fd, _ in poller.poll(left)]
            if board.signals in ready:
                board.note_signals()
            if self._stream.fileno() in ready:
                return

    def _leave(self) -> None:
        """The agent is gone: end now. The kernel's parent-death signal comes first."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        os._exit(1)

    def _frame(self, frame: _wire.Frame) -> None:
        verb, body = _wire.unpack(frame[5])
        if frame[0] == _wire.KIND_NOTICE:
            if verb == "shutdown":
                self._board.end(0)
            return
        if frame[0] != _wire.KIND_REQUEST:
            return
        try:
            flags, answer = self._answer(verb, body)
        except (KeyError, TypeError, ValueError) as error:
            message = f"the request {verb!r} cannot be read: {type(error).__name__}: {error}"
            flags, answer = _wire.FLAG_ERROR, own_error("protocol", message, self._who)
        _wire.send_frame(self._stream, _wire.KIND_RESPONSE, frame[2], _wire.pack(answer), (), flags)

    def _answer(self, verb: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if verb == "ping":
            return 0, {}
        if verb == "cancel":
            if self.runner is None:
                return 0, {"state": "done"}
            return 0, {"state": self.runner.cancel(body["call"])}
        if verb == "tasks":
            tell = getattr(self.runner, "tasks", None)
            return 0, {"text": "" if tell is None else tell()}
        if verb == "env":
            set_env(dict.fromkeys(body["unset"] or ()) | (body["set"] or {}))
            env = dict(os.environ)
            "".join(env.values()).encode()  # not all is text: that goes by a call
            return 0, {"env": env}
        if verb == "clear":
            self._board.clear()
            return 0, {}
        message = f"a worker does not know the request {verb!r}"
        return _wire.FLAG_ERROR, own_error("protocol", message, self._who)
