"""Coming back to a head after its connection has ended.

A thread sleeps until the other end hangs up: a head waits for all whom it knew,
those too who are busy elsewhere. It then looks for a head (`_ways` says how),
introduces this process as one that was there before, and has it told what is
unanswered (`_unanswered`). Those who wait wait on, event loops run on, and an
exception that is thrown into one of them disturbs nobody.
"""

from __future__ import annotations

import _thread
import select
import socket
from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

from . import _errors, _wire
from ._environment import head_grace
from ._waiting import Gate

#: How often those who wait look by themselves: nobody may have told them.
_LOOKS = 0.2
_PAUSE = 0.02
_BRIEF = 0.001


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

    def socket(self) -> socket.socket:
        """What it goes by at the moment, or went."""

    def alive(self) -> bool:
        """Whether anybody may want it any more."""

    def away(self) -> bool:
        """Whether it has ended, and all that came by it was read."""

    def poll(self) -> None:
        """Take in what has arrived, or see the end, unless somebody else does."""

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
        # Locks of C code alone: the Python code of others can be left with one in hand by an
        # exception that is thrown in.
        self._busy = _thread.allocate_lock()  # held by the thread
        self._gates: list[Gate] = []  # of those who wait

    def begin(self) -> None:
        """Look after the connection from now on, if nobody does."""
        if self._busy.locked():
            return
        try:
            # One step, which an exception that is thrown into this thread cannot split.
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter is ending
            self._connection.lost(self.way.how_ended())

    def wait(self, over: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until ``over()``; False when the deadline passed first."""
        gate = Gate()
        try:
            self._gates.append(gate)
            return self._wait(over, deadline, gate)
        finally:
            if gate in self._gates:
                self._gates.remove(gate)

    def _wait(self, over: Callable[[], bool], deadline: float | None, gate: Gate) -> bool:
        while not over():
            left = _LOOKS if deadline is None else min(_LOOKS, deadline - monotonic())
            if left <= 0:
                return False
            self.begin()
            gate.wait(left)
        return True

    def moved(self) -> None:
        """Wake who waits: there is a connection, or there will be none."""
        for gate in tuple(self._gates):
            gate.open()

    def join(self, timeout: float) -> None:
        """After `Way.stop`: wait until nothing is being done any more."""
        if self._busy.acquire(timeout=timeout):
            self._busy.release()

    def _run(self) -> None:
        if self._busy.acquire(blocking=False):
            try:
                self._watch()
            finally:
                self._busy.release()

    def _watch(self) -> None:
        connection = self._connection
        while connection.alive():
            _wait_for_end(connection.socket())
            while connection.alive() and not connection.away():
                connection.poll()
                sleep(_BRIEF)  # somebody else may be reading, who then sees it
            if connection.alive():
                self._look()

    def _look(self) -> None:
        began = monotonic()
        deadline = began + head_grace()
        try:
            while True:
                stream = self.way.find(deadline)
                try:
                    self._connection.rejoin(stream)
                    break
                except OSError:  # it went as it had come
                    sleep(_PAUSE)
            if story := self.way.story():
                seconds = max(0.1, monotonic() - began)
                self.say(f"muster: {story} after {seconds:.1f} s, nothing was lost")
        except Stopped:
            pass
        except _errors.MusterError as error:
            self._connection.lost(str(error))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self._connection.lost(f"{self.way.how_ended()}\n\nComing back failed: {why}")


def _wait_for_end(sock: socket.socket) -> None:
    """Wait until the other end has hung up, whatever there is to be read."""
    fd = sock.fileno()
    if fd >= 0:
        poller = select.poll()
        poller.register(fd, select.POLLRDHUP)
        poller.poll()


def _say_nothing(_line: str) -> None:
    """Nobody listens."""
