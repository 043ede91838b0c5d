"""What waiting for answers takes: who gets them, what a follower sleeps on, what is to be sent.

Knows nothing of connections; `_client` puts the two together.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Sink(Protocol):
    """Takes the answers to one id."""

    def deliver(self, flags: int, rank: int, body: Any, buffers: Any) -> bool: ...

    def fail(self, failure: Callable[[], BaseException]) -> None: ...


class Gate:
    """What a follower sleeps on: opened by whoever has news for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def open(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # open already

    def wait(self, timeout: float) -> None:
        self._lock.acquire(True, timeout)


def unsent(parts: Sequence[Any], done: int) -> list[memoryview]:
    """What is left of the pieces after ``done`` bytes."""
    left: list[memoryview] = []
    for part in parts:
        size = len(part)
        if done >= size:
            done -= size
            continue
        left.append(memoryview(part)[done:])
        done = 0
    return left


_FEW = 64  # pieces of a frame that are left as they are
_SHORT = 4 << 10


def joined(pieces: list[Any]) -> list[Any]:
    """The pieces, where they are very many with short ones put together: each send looks through
    all that is left."""
    if len(pieces) < _FEW:
        return pieces
    made: list[Any] = []
    run: list[Any] = []
    for piece in pieces:
        if (len(piece) if type(piece) is bytes else piece.nbytes) <= _SHORT:
            run.append(piece)
            continue
        if run:
            made.append(b"".join(run))
            run = []
        made.append(piece)
    return [*made, b"".join(run)] if run else made
