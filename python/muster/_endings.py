"""What is to be done when an object is gone, such that nothing of it is lost.

A finalizer runs in whichever thread lets go last, at any point of its code, and
an exception that a signal handler raises inside of it is dropped by Python, with
whatever the finalizer had left to do. So the first step is one C call, which
leaves an entry in a list. Python code then looks at the list, without waiting
for anything; if that is interrupted, the entry is found by whoever looks next,
and the exception is raised anew where the object went.

Weak references do this: their callbacks run from the newest to the oldest, and
what the last returns is let go of when nothing of it runs any more.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, Protocol


class Ending(weakref.ref[Any]):
    """Comes into a list when its object is gone."""

    __slots__ = ("entry", "flusher")

    entry: Any
    flusher: Any


#: Of objects that live, and of those with whose endings nobody has dealt yet, by identity.
endings: dict[int, Ending] = {}


class Entry(Protocol):
    """What is to be done, for whoever deals with an ending."""

    watched: bool  # it will come into a list


Flusher = Callable[[Any], Any]


def flusher(flush: Callable[[], None]) -> Flusher:
    """What `when_gone` has to be given to have ``flush`` called, which must wait for nothing: it
    may run inside any lock. It calls `forget` for endings that it deals with."""
    return partial(_flush, flush)


def when_gone(owner: object, entry: Entry, ended: list[Ending], flush: Flusher) -> None:
    """When ``owner`` is gone, put an `Ending` with ``entry`` into ``ended`` and flush."""
    last = weakref.ref(owner, flush)
    ending = Ending(owner, ended.append)
    ending.entry = entry
    ending.flusher = last
    entry.watched = False
    key = id(ending)
    # No call between these two, after which a signal handler could run.
    endings[key] = ending
    entry.watched = True


def forget(ending: Any) -> None:
    """Let go of an ending; the list that it came into has it for as long as it needs it."""
    endings.pop(id(ending), None)


class _Gone:
    """Somebody who was there."""


#: Stands for an object that is not there yet, or not any more: calling it gives None. To do so
#: runs no code of ours, which a process that has just woken up would have to fetch.
nobody: Callable[[], Any] = weakref.ref(_Gone())


def waiting(kind: type[Any]) -> list[Any]:
    """The entries of one kind whose objects live, or whose endings nobody has dealt with."""
    return [ending.entry for ending in endings.copy().values() if type(ending.entry) is kind]


def attempt(lock: Any, work: Callable[[], bool]) -> bool:
    """Do some work if a lock is free, without waiting for it; whether it was, and what the work
    says. No signal handler can run between taking the lock and knowing that it was taken."""
    taken: list[bool] = []
    try:
        taken.extend(map(lock.acquire, (False,)))
        return taken[0] and work()
    finally:
        if taken and taken[0]:
            lock.release()


def owned(lock: Any) -> bool:
    """Whether this very thread has a lock, which it could take again."""
    own: bool = lock._is_owned()
    return own


def _flush(
    flush: Callable[[], None], _gone: Any, over: Callable[[], bool] = sys.is_finalizing
) -> object:
    try:
        if not over():
            flush()
        return None
    except BaseException as error:
        return _raising_again(error)


class _Again(weakref.ref[Any]):
    """Raises again what interrupted the step before."""

    __slots__ = ("again",)

    again: Callable[[], object]


_raise_again = methodcaller("again")  # C code alone runs: nothing can be raised too early
_to_raise: dict[int, _Again] = {}  # the last of each thread


def _raising_again(error: BaseException) -> object:
    """An object whose end raises such an exception anew. It ends when a callback of a weak
    reference has returned it: that is, where the object went that this was about."""
    from ctypes import c_ulong, py_object, pythonapi

    thread, owner = get_ident(), _Gone()
    again = _Again(owner, _raise_again)
    kind = py_object(type(error))
    again.again = partial(pythonapi.PyThreadState_SetAsyncExc, c_ulong(thread), kind)
    _to_raise[thread] = again
    return owner
