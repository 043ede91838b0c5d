"""Refs as futures of `concurrent.futures`.

Such a future is filled whether anybody waits for it or not, so somebody has to
read: an event loop on a thread of its own, made when the first is asked for.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any


class _Reader:
    """The loop, and the process that it is in: a forked one has none."""

    lock = threading.Lock()
    loop: asyncio.AbstractEventLoop | None = None
    pid = 0


def of(ref: Awaitable[Any]) -> Future[Any]:
    """A future that has what the ref has, when it has it."""
    return asyncio.run_coroutine_threadsafe(_result(ref), _loop())


def later(seconds: float, act: Callable[[], None]) -> None:
    """Have something done after a while, on the thread of that loop."""
    loop = _loop()
    loop.call_soon_threadsafe(loop.call_later, seconds, act)


async def _result(ref: Awaitable[Any]) -> Any:
    return await ref


def _loop() -> asyncio.AbstractEventLoop:
    with _Reader.lock:
        if _Reader.loop is None or _Reader.pid != os.getpid():
            loop = _Reader.loop = asyncio.new_event_loop()
            _Reader.pid = os.getpid()
            threading.Thread(target=loop.run_forever, name="muster-futures", daemon=True).start()
        return _Reader.loop
