"""What the head tells while calls go on: workers' output and progress.

A daemon thread reads a connection of its own and writes to ``sys.stderr``. It
ends when the head has sent the last line, so that joining it drains all output.
When the connection ends before its time, it dials again.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from . import _errors, _wire
from ._environment import head_grace

#: Seconds between lines on the same subject where there is no terminal.
_PLAIN_EVERY = 2.0
_ERASE = "\r\x1b[2K"
#: Seconds between two attempts to find the head again.
_PAUSE = 0.02


class Events:
    """The events connection and the thread that reads it."""

    def __init__(self, address: str, token: str, *, logs: bool, progress: bool) -> None:
        self._address = address
        self._token = token
        self._over = False  # no more is to be expected
        found = self._find()
        assert found is not None
        self._stream, self._epoch = found
        self.dials = 1  # connections so far
        self._screen = Screen()
        self._logs = logs
        self._progress = progress
        self._mark: float = 0
        self._marked = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="muster-events", daemon=True)
        self._thread.start()

    def _dial(self) -> tuple[_wire.FrameStream, int]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(10)
            sock.connect(self._address)
            stream = _wire.FrameStream(sock)
            welcome = _wire.hello(stream, _wire.ROLE_EVENTS, self._token)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return stream, int(welcome.get("epoch", 0))

    def _run(self) -> None:
        try:
            while True:
                self._read()
                if self._over or not self._dial_again():
                    return
        finally:
            self._screen.clear()
            self._reached(float("inf"))

    def _read(self) -> None:
        """Write what comes, until the connection ends."""
        try:
            while True:
                frame = self._stream.read()
                if frame.kind == _wire.KIND_NOTICE:
                    verb, message = _wire.unpack(frame.body)
                    self._notice(verb, message)
        except (EOFError, OSError, _errors.ProtocolError):
            pass  # the connection for calls tells if that is an error

    def _find(self) -> tuple[_wire.FrameStream, int] | None:
        """A head that welcomes us, whichever there is within the grace: one may be killed at any
        time, and another follows. None when it is not wanted any more."""
        deadline = monotonic() + head_grace()
        while not self._over:
            try:
                return self._dial()
            except (OSError, _wire.CutError):
                if monotonic() >= deadline:
                    raise
            sleep(_PAUSE)
        return None

    def _dial_again(self) -> bool:
        """Whether there is a head again, or still."""
        sleep(_PAUSE)
        try:
            found = self._find()
        except (OSError, _errors.MusterError):
            return False
        if found is None:
            return False
        stream, epoch = found
        self._stream.sock.close()
        self._stream = stream
        with self._marked:
            if epoch != self._epoch:  # another head, which counts its marks anew
                self._epoch, self._mark = epoch, 0
            self.dials += 1
            self._marked.notify_all()
        return True

    def _notice(self, verb: str, message: dict[str, Any]) -> None:
        if verb == "log" and self._logs:
            self._screen.lines([f"[{line['worker']}] {line['text']}" for line in message["lines"]])
        elif verb == "progress" and self._progress:
            self._screen.progress(message)
        elif verb == "warning":
            self._screen.lines([f"muster: {message['text']}"])
        elif verb == "mark":
            self._reached(message["mark"])

    def _reached(self, mark: float) -> None:
        with self._marked:
            self._mark = max(self._mark, mark)
            self._marked.notify_all()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let progress be shown live, while the caller waits and writes nothing itself."""
        self._screen.allow_live(1)
        try:
            yield
        finally:
            self._screen.allow_live(-1)

    def wait_for(self, mark: int, timeout: float, dials: int) -> None:
        """Wait until everything that the head sent before ``mark`` has been written. ``dials`` is
        of before the mark was asked for: a connection that came after may never see it."""
        with self._marked:
            self._marked.wait_for(lambda: self._mark >= mark or self.dials != dials, timeout)

    def join(self, timeout: float) -> None:
        """Wait until the head has sent everything and hung up; hang up ourselves after that."""
        self._over = True
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        try:
            self._stream.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
        self._stream.sock.close()

    def show(self, line: str) -> None:
        """Write a line of our own."""
        self._screen.lines([line])

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connection."""
        self._stream.sock.close()


class Screen:
    """Lines and one live status line on stderr, which never break each other up.

    The live line is there only while somebody waits: what the script writes
    itself would end up in it, and be erased with it.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._waits = 0
        self._since = 0.0  # when the first of those who wait began to
        self._live = ""
        self._subjects: dict[str, tuple[float, float]] = {}  # first seen, last shown

    def allow_live(self, change: int) -> None:
        """Somebody begins to wait (1) or has ended to (-1)."""
        with self._lock:
            if self._waits == 0:
                self._since = self._clock()
            self._waits += change
            if self._waits == 0:
                self.clear()

    def lines(self, lines: list[str]) -> None:
        """Write whole lines, above the live one."""
        with self._lock:
            text = "".join(line + "\n" for line in lines)
            if self._live:
                text = f"{_ERASE}{text}{self._live}"
            write(text)

    def progress(self, message: dict[str, Any]) -> None:
        """Show how far something is: live on a terminal, now and then elsewhere."""
        with self._lock:
            self._progress(message)

    def _progress(self, message: dict[str, Any]) -> None:
        subject, now = str(message["subject"]), self._clock()
        final = bool(message.get("final"))
        first, shown = self._subjects.get(subject, (now, float("-inf")))
        status = describe(message, now - first)
        if final:
            self._subjects.pop(subject, None)
        else:
            self._subjects[subject] = (first, shown)
        if _is_terminal():
            was_live = self._live
            over = not self._waits or (final and not self._subjects)
            self._live = "" if over else _fit(status)
            if was_live or self._live:
                write(_ERASE + self._live)
        elif self._worth_a_line(
            subject, now - (min(first, self._since) if self._waits else first), now - shown, final
        ):
            write(status + "\n")
            if not final:
                self._subjects[subject] = (first, now)

    @staticmethod
    def _worth_a_line(subject: str, since_first: float, since_shown: float, final: bool) -> bool:
        """Where nothing can be erased: clusters' starts and ends, and what takes long."""
        if not subject.startswith("cluster ") and since_first < _PLAIN_EVERY:
            return False
        return final or since_shown >= _PLAIN_EVERY

    def clear(self) -> None:
        """Take the live line away."""
        with self._lock:
            if self._live:
                self._live = ""
                write(_ERASE)


def describe(message: dict[str, Any], seconds: float) -> str:
    """One line on where something stands."""
    text = f"muster: {message['subject']}: {message['doing']}"
    if message.get("total"):
        text += f" {message['done']}/{message['total']}"
    if seconds >= 1:
        text += f" ({seconds:.0f} s)"
    if message.get("waiting"):
        text += f", waiting for {message['waiting']}"
    return text


def _fit(text: str) -> str:
    """Cut to the terminal's width: a live line that wraps cannot be erased."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return text[: max(20, (columns or shutil.get_terminal_size().columns) - 1)]


def _is_terminal() -> bool:
    try:
        return bool(sys.stderr.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def write(text: str) -> None:
    """Write at once to what is stderr now; a closed or missing one is no reason to fail."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass
