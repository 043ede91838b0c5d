"""Worker classes that get stuck: in Python, in C, in one rank of many."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from pathlib import Path

from muster import Dispatch, Worker, register


class Team(Worker):
    """Ranks that need each other."""

    @register(Dispatch.ONE_TO_ALL, collective=True)
    def step(self, odd: int = -1, early: int = -1) -> int:
        """All wait for each other, but ``odd`` for its rows, and ``early`` for nobody."""
        if odd < 0 or self.rank == early:
            return self.rank
        if self.rank == odd:
            self.next_rows()
        self.all_reduce()
        return self.rank

    def all_reduce(self) -> None:
        threading.Event().wait(60)

    def next_rows(self) -> None:
        threading.Event().wait(60)

    @register(Dispatch.ONE_TO_ALL, collective=True)
    def until(self, path: str, rank: int) -> int:
        """One rank waits for a file."""
        while self.rank == rank and not Path(path).exists():
            time.sleep(0.01)
        return self.rank

    def pid(self) -> int:
        return os.getpid()


class Held(Worker):
    """Waits in C, and keeps the GIL meanwhile."""

    @register(Dispatch.ONE_TO_ALL)
    def in_c(self, rank: int = 0) -> int:
        if self.rank == rank:
            keep_the_gil()
        return self.rank

    @register(Dispatch.ONE_TO_ALL, on_timeout="kill")
    def deadly(self, rank: int = 0) -> int:
        return self.in_c(rank)

    def pid(self) -> int:
        return os.getpid()


def keep_the_gil() -> None:
    """Wait for a semaphore that nobody posts; unlike a sleep, signals do not end it."""
    libc = ctypes.PyDLL(None)  # of a PyDLL, functions are called with the GIL
    semaphore = ctypes.create_string_buffer(64)
    libc.sem_init(semaphore, 0, 0)
    libc.sem_wait(semaphore)


class Deaf(Worker):
    """Catches whatever is raised in it."""

    def in_python(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                threading.Event().wait(seconds)
            except BaseException:
                continue


class Server(Worker):
    """A class with coroutines."""

    async def wait(self) -> None:
        await asyncio.sleep(60)

    async def pid(self) -> int:
        return os.getpid()
