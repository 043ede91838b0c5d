"""Calls of a sync class on threads: the main thread reads, others run.

The threads are daemons of our own rather than an executor's, whose threads are
joined at exit and would keep a worker from ending while a call runs.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from .. import _wire
from . import linux
from .board import Interrupted
from .calls import Host
from .current import call as current
from .kept import ORIGIN, Leg, origin_of
from .line import Line


class _Slot:
    """A thread of the pool, and whether its call was interrupted."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.interrupted = False


class Pool:
    """Runs up to ``limit`` calls at once; they begin in the order in which they come."""

    def __init__(self, host: Host, line: Line, stream: _wire.FrameStream, limit: int) -> None:
        self.limit = limit
        self._host = host
        self._line = line
        self._stream = stream
        self._legs: queue.SimpleQueue[tuple[_wire.Frame, Leg]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards what follows
        self._waiting: set[int] = set()
        self._running: dict[int, _Slot] = {}
        self._threads = 0

    def run(self) -> None:
        """Hand out calls until it is time to leave."""
        self._line.begin()
        board, way, stream = self._host.board, self._line.way, self._stream
        while True:
            frame = stream.next()
            if frame is None:
                if board.leaving is not None:
                    raise SystemExit(board.leaving)
                try:
                    frame = stream.read()
                except (EOFError, _wire.CutError):
                    stream = way.after(stream)
                    continue
            if frame[0] != _wire.KIND_LEG:
                self._host.other(frame, way.kept)
                continue
            if frame[4]:
                way.kept.drop(frame[4])
            leg = way.receive(frame, stream)
            if leg is None:
                stream = way.after(stream)
                continue
            with self._lock:
                board.last = frame[2]
                self._waiting.add(frame[2])
                busy = len(self._waiting) + len(self._running)
                fresh = busy > self._threads and self._threads < self.limit
                self._threads += fresh
            self._legs.put((frame, leg))
            if fresh:
                self._start_thread(f"muster-call-{self._threads}")

    def _start_thread(self, name: str) -> None:
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:
            # Locks in there complain where the handler of SIGTERM has raised in between.
            if self._host.board.leaving is not None:
                raise SystemExit(self._host.board.leaving) from None
            raise

    def cancel(self, call: int) -> str:
        """Cancel a call, from the control thread; return what became of it."""
        board = self._host.board
        with self._lock:
            slot = self._running.get(call)
            if slot is not None:
                if not slot.interrupted:
                    slot.interrupted = True
                    board.taint(call)
                    linux.raise_in_thread(slot.thread, Interrupted)
                return "interrupted"
            if call in self._waiting or call > board.last:
                board.mark(call)
                return "queued"
        return "done"

    def _work(self) -> None:
        slot = _Slot(threading.get_ident())
        while True:
            try:
                self._one(slot, *self._legs.get())
            except SystemExit as end:
                self._host.check_process()
                self._host.board.end(end.code)
                return

    def _one(self, slot: _Slot, frame: _wire.Frame, leg: Leg) -> None:
        host = self._host
        call, muted, body, parts = frame[2], frame[1] & _wire.FLAG_MUTE, frame[5], frame[6]
        del frame
        name = "a method"
        method: Any = None
        args: Any = None
        kwargs: Any = None
        value: Any = None
        error: BaseException | None = None
        try:
            try:
                try:
                    name, method, args, kwargs, leg[ORIGIN] = host.unpack(body, parts)
                finally:
                    self._begin(slot, call)
                current.set(call)
                if host.board.attention:
                    host.board.admit(call)
                value = method(*args, **kwargs)
                self._finish(slot, call)
            except BaseException as caught:
                self._finish(slot, call)
                error = caught
        except Interrupted as caught:  # it landed between the method's own exception and here
            self._finish(slot, call)
            error = caught
        if isinstance(error, SystemExit):
            raise error
        if type(leg[ORIGIN]) is not int:
            leg[ORIGIN] = origin_of(body)
        method = args = kwargs = None
        parts = ()
        if muted:
            value = None
        flags, body, bufs = host.result(name, value) if error is None else host.failure(name, error)
        value = error = None  # what only they name is given back with the reply
        host.check_process()
        self._line.settle(call)
        self._line.reply(leg, flags, body, bufs)

    def _begin(self, slot: _Slot, call: int) -> None:
        with self._lock:
            self._waiting.discard(call)
            self._running[call] = slot
            slot.interrupted = False

    def _finish(self, slot: _Slot, call: int) -> None:
        """End the time in which an injection may land, and take back one that has not."""
        with self._lock:
            if self._running.pop(call, None) is not None and slot.interrupted:
                linux.forget_raise_in_thread(slot.thread)
