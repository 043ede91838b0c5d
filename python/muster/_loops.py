"""Event loops that await answers: each has the connection among its readers meanwhile.

Knows nothing of frames; the connection's ``poll`` takes in what arrived.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import socket

    from ._refs import Ref


class _Waiting:
    """A loop, how many of its tasks wait, and which descriptor it has among its readers."""

    __slots__ = ("fd", "loop", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.tasks = 0
        self.fd = -1


class _Ended:
    """A socket that loops may still have among their readers: the last to leave closes it."""

    def __init__(self, sock: socket.socket, loops: int) -> None:
        self._sock = sock
        self._left = [None] * loops
        if not loops:
            sock.close()

    def leave(self) -> None:
        self._left.pop()  # one step, as several threads take it
        if not self._left:
            self._sock.close()


class Loops:
    """The event loops that wait for one connection.

    What they look at they ask for when they turn to it: who tells them that a connection has
    ended, or that there is another, may be overtaken by who tells them of the next.
    """

    __slots__ = ("_at_rest", "_fd", "_loops", "_poll")

    def __init__(
        self, fd: Callable[[], int], poll: Callable[[], None], at_rest: Callable[[], None]
    ) -> None:
        self._fd = fd  # says -1 while there is nothing to read from
        self._poll = poll
        self._at_rest = at_rest  # called when none is left
        self._loops: dict[int, _Waiting] = {}

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

    def leave(self) -> None:
        """The connection has ended: no loop is to look at it until there is another."""
        for waiting in tuple(self._loops.values()):
            _soon(waiting.loop, self._align, waiting)

    def move(self, ended: socket.socket) -> None:
        """There is another connection; the old one is closed as soon as no loop looks at it."""
        every = tuple(self._loops.values())
        rest = _Ended(ended, len(every))

        def move(waiting: _Waiting) -> None:
            self._align(waiting)
            rest.leave()

        for waiting in every:
            if not _soon(waiting.loop, move, waiting):
                rest.leave()

    def _align(self, waiting: _Waiting) -> None:
        """In its thread: have a loop look at what there is, as long as it waits."""
        fd = self._fd() if waiting.tasks else -1
        if waiting.loop.is_closed() or waiting.fd == fd:
            return
        if waiting.fd >= 0:
            waiting.loop.remove_reader(waiting.fd)
        waiting.fd = fd
        if fd >= 0:
            waiting.loop.add_reader(fd, self._poll)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        for key, other in tuple(self._loops.items()):
            if other.loop.is_closed():
                self._loops.pop(key, None)
        waiting = self._loops.get(id(loop))
        if waiting is None:
            waiting = self._loops[id(loop)] = _Waiting(loop)
        waiting.tasks += 1
        self._align(waiting)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._loops.get(id(loop))
        if waiting is None or loop.is_closed():
            self._loops.pop(id(loop), None)
        elif waiting.tasks > 1:
            waiting.tasks -= 1
        else:
            waiting.tasks = 0
            self._align(waiting)
            del self._loops[id(loop)]
        if not self._loops:
            self._at_rest()


def _soon(
    loop: asyncio.AbstractEventLoop, step: Callable[[_Waiting], None], waiting: _Waiting
) -> bool:
    """Have a step taken in a loop's own thread; False where it has ended."""
    try:
        loop.call_soon_threadsafe(step, waiting)
    except RuntimeError:
        return False
    return True
