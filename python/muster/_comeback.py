"""Coming back to a head after its connection has ended.

A thread that lives only meanwhile looks for a head (`_ways` says how), introduces
this process as one that was there before, and tells it what is unanswered
(`_unanswered`). Those who wait wait on, event loops run on, and an exception that
is thrown into one of them disturbs nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from . import _errors, _wire
from ._environment import head_grace

#: How often those who wait look by themselves: nobody may have told them.
_LOOKS = 0.2


class Stopped(Exception):
    """Nobody wants to come back any more."""


class Way(Protocol):
    """How to get to a head. Its methods but `stop` are called by one thread at a time."""

    def find(self, deadline: float) -> _wire.FrameStream:
        """A connection to a head that has welcomed us; it may take until the deadline.

        HeadLostError where there is none, `Stopped` after `stop`.
        """

    def how_ended(self) -> str:
        """Why the connection ended, for people, and what to do about it."""

    def story(self) -> str:
        """What happened, and who is there now, for people; empty where nobody needs to know."""

    def stop(self) -> None:
        """Look no further. It takes no lock, so that signal handlers may call it."""

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's."""


class Returning(Protocol):
    """A connection as it comes back."""

    def rejoin(self, stream: _wire.FrameStream) -> None:
        """Tell a head what there is, and go on over its connection; OSError if that ended."""

    def lost(self, why: str) -> None:
        """There is no way back."""


class Comeback:
    """Brings one connection back, as often as it ends. Methods may be called from any thread."""

    def __init__(self, connection: Returning, way: Way) -> None:
        self.way = way
        #: Shows a line to people.
        self.say: Callable[[str], None] = _say_nothing
        self._connection = connection
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._moved = threading.Event()

    def begin(self) -> None:
        """Look for a head, unless that is being done."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="muster-comeback", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                self._connection.lost(self.way.how_ended())
                return
            self._thread = thread

    def wait(self, over: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until ``over()``; False when the deadline passed first."""
        while not over():
            left = _LOOKS if deadline is None else min(_LOOKS, deadline - monotonic())
            if left <= 0:
                return False
            self.begin()
            self._moved.clear()
            if not over():
                self._moved.wait(left)
        return True

    def moved(self) -> None:
        """Wake who waits: there is a connection, or there will be none."""
        self._moved.set()

    def join(self, timeout: float) -> None:
        """After `Way.stop`: wait until nothing is being done any more."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        began = monotonic()
        deadline = began + head_grace()
        try:
            while True:
                stream = self.way.find(deadline)
                try:
                    self._connection.rejoin(stream)
                    break
                except OSError:
                    stream.sock.close()  # it went as it had come
            if story := self.way.story():
                seconds = monotonic() - began
                self.say(f"muster: {story} after {seconds:.1f} s, nothing was lost")
        except Stopped:
            pass
        except _errors.MusterError as error:
            self._connection.lost(str(error))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self._connection.lost(f"{self.way.how_ended()}\n\nComing back failed: {why}")
        finally:
            self._moved.set()


def _say_nothing(_line: str) -> None:
    """Nobody listens."""
