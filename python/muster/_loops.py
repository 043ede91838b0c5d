"""Event loops that await answers: each has the connection among its readers meanwhile.

Knows nothing of frames; the connection's ``poll`` takes in what arrived.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from ._refs import Ref


class Loops:
    """The event loops that wait for one connection."""

    __slots__ = ("_at_rest", "_fd", "_loops", "_poll")

    def __init__(self, fd: int, poll: Callable[[], None], at_rest: Callable[[], None]) -> None:
        self._fd = fd
        self._poll = poll
        self._at_rest = at_rest  # called when none is left
        self._loops: dict[int, tuple[asyncio.AbstractEventLoop, int]] = {}

    def waiting(self) -> bool:
        """Whether any loop waits."""
        return bool(self._loops)

    def arrival(self, ref: Ref) -> Generator[Any, None, None]:
        """What ``await ref`` waits on: the ref is done when it returns."""
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        home = get_ident()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            try:
                if get_ident() == home:
                    settle()
                else:
                    loop.call_soon_threadsafe(settle)
            except RuntimeError:
                pass  # the loop ended without waiting for us

        self._attach(loop)
        try:
            ref.watch(wake)
            yield from future.__await__()
        finally:
            ref.unwatch(wake)
            self._detach(loop)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        for key, (other, _) in tuple(self._loops.items()):
            if other.is_closed():
                self._loops.pop(key, None)
        _, waiting = self._loops.get(id(loop), (loop, 0))
        if not waiting:
            loop.add_reader(self._fd, self._poll)
        self._loops[id(loop)] = (loop, waiting + 1)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        entry = self._loops.get(id(loop))
        if entry is None or loop.is_closed():
            self._loops.pop(id(loop), None)
        elif entry[1] > 1:
            self._loops[id(loop)] = (loop, entry[1] - 1)
        else:
            del self._loops[id(loop)]
            loop.remove_reader(self._fd)
        if not self._loops:
            self._at_rest()
