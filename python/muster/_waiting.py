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
