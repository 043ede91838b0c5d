"""Looks at batches: what was only read is let go of, what was written stays.

What is read of a batch lies open in a store, and stays open for a while: who reads
a column once mostly reads it again. When the process turns to something else, as a
call that begins or ends, it is let go of, unless somebody has a view of it, or
something was written to it: a view that is made anew would not show that.

Who is looked at by others is told by counts of references: where these say more
than there are, something stays open, as it would have anyway.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from sys import getrefcount
from typing import Any, ClassVar, Protocol

_LOOKS = 8  # at what somebody had at the last look, each time

_Weak = Callable[[], Any]


class Stretch(Protocol):
    """What lies open in a store."""

    def let_go(self) -> bool:
        """Let go of it, unless it is to stay; whether somebody looks at it, so that it is to be
        asked again."""


class Reader(Protocol):
    """Who reads stretches, and keeps what was read."""

    def _let_go(self, stretches: dict[int, Stretch]) -> bool:
        """Let go of what was read, where nobody else has it, and tell of what stretches; whether
        somebody has some of it, so that it is to be asked again."""


def references(value: object) -> int:
    """How many references there are, as `ALONE` has them."""
    return getrefcount(value)


def _alone() -> int:
    value = object()
    return references(value)


#: The references to what one local variable has, and nobody else: not the same in all Pythons.
ALONE = _alone()


class Looks:
    """What this process keeps open. It may be used from any thread.

    There is something to let go of while there is something in ``fresh``, or ``held``.
    """

    __slots__ = ("__weakref__", "_readers", "_stretches", "fresh", "held", "lock")

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock  # of what stretches are made of
        # Weak references:
        self.fresh: set[_Weak] = set()  # to readers that have read something since the last time
        self._readers: deque[_Weak] = deque()  # from which somebody had something
        self._stretches: deque[_Weak] = deque()  # at which somebody looked
        self.held = False  # there is one of these
        _Forks.living.add(self)

    def note(self, reader: Reader) -> None:
        """A reader has read something."""
        self.fresh.add(weakref.ref(reader, self.fresh.discard))

    def let_go(self) -> None:
        """Let go of what nobody needs open."""
        stretches: dict[int, Stretch] = {}
        with self.lock:
            readers = _taken(self.fresh.pop, len(self.fresh))
            for reader in readers + _taken(self._readers.popleft, _LOOKS):
                if reader._let_go(stretches):
                    self._readers.append(weakref.ref(reader))
            for stretch in _taken(self._stretches.popleft, _LOOKS):
                stretches[id(stretch)] = stretch
            readers, reader, stretch = [], None, None
            while stretches:
                stretch = stretches.popitem()[1]
                if stretch.let_go():
                    self._stretches.append(weakref.ref(stretch))
            self.held = bool(self._readers or self._stretches)

    def stay(self) -> None:
        """Have all that is open now stay so, for as long as its readers live: a forked child may
        look at it, of which nothing is known here."""
        for waiting in (self.fresh, self._readers, self._stretches):
            waiting.clear()


def _taken(take: Callable[[], _Weak], most: int) -> list[Any]:
    """As many as there are, and live."""
    found = []
    try:
        for _ in range(most):
            found.append(take()())
    except (IndexError, KeyError):
        pass  # there are no more
    return [one for one in found if one is not None]


# --- forks -------------------------------------------------------------------------------


class _Forks:
    """All looks of this process, and by thread those that wait for a fork."""

    living: ClassVar[weakref.WeakSet[Looks]] = weakref.WeakSet()
    waiting = threading.local()


def before_fork() -> None:
    """A child is about to be forked, which sees what its parent looks at. Nobody lets go of any
    of that until `after_fork`; what another thread is letting go of, the child has not."""
    waiting = _Forks.waiting.looks = []
    for looks in sorted(_Forks.living, key=id):  # the same order for all threads that fork
        looks.lock.acquire()
        waiting.append(looks)
        looks.stay()


def after_fork() -> None:
    """In the parent: it goes on."""
    for looks in _Forks.waiting.__dict__.pop("looks", ()):
        looks.stay()  # other threads may have read something meanwhile
        looks.lock.release()


def in_child() -> None:
    """In the child: who had a lock is not there."""
    _Forks.living, _Forks.waiting = weakref.WeakSet(), threading.local()
