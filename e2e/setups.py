"""Classes whose objects are made of large things, and what may be left of those."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np

import muster
from muster import Dispatch, Worker, WorkerConfig, register
from running import eventually
from stages import MIB, objects

IN_TIME = 30.0


def restarting() -> WorkerConfig:
    return WorkerConfig(on_failure="restart_worker")


class Scribbler:
    """Looks at what it is made with, then writes all over it."""

    def __init__(self, *given: Any, keep: bool = True) -> None:
        self.first = [int(one.sum()) for one in given]
        for one in given:
            one[...] = 7
        self.given = given if keep else ()

    def seen(self) -> tuple[list[int], list[int], int]:
        return self.first, [int(one.sum()) for one in self.given], os.getpid()


class Holder:
    """Keeps what it is made with."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def get(self, index: int) -> Any:
        return self.given[index]

    def total(self) -> int:
        return int(self.given[0]["x"].sum())

    def passed_on(self) -> Any:
        return self.given[0]

    def agent(self) -> int:
        return os.getppid()

    async def later(self) -> list[int]:
        """What makes it run on an event loop."""
        return [len(one) for one in self.given]


class Dropper:
    """Drops what it is made with."""

    def __init__(self, given: Any) -> None:
        self.size: int = given.nbytes

    def get(self) -> int:
        return self.size


class Refusing:
    """Cannot be made of anything large."""

    def __init__(self, given: Any) -> None:
        raise ValueError(f"not of {given.nbytes} bytes")


class Maker(Worker):
    """Makes services itself."""

    @register(Dispatch.ONE_TO_ALL)
    def make(self, name: str, size: int) -> list[int]:
        made = muster.service(Scribbler, name, np.ones(size, np.uint8), config=restarting())
        first: list[int] = made.seen()[0]
        return first


@dataclass
class Weighty(WorkerConfig):
    weights: Any = None


class Trainer(Worker):
    """Is configured with weights, and changes its own."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.first = int(worker_config.weights.sum())
        worker_config.weights[: MIB // 2] = self.rank

    @register(Dispatch.ONE_TO_ALL)
    def seen(self) -> tuple[int, list[int], int]:
        weights = self.worker_config.weights
        return self.first, [int(weights[0]), int(weights[-1])], os.getpid()


def nothing_left() -> None:
    assert eventually(lambda: not objects(), IN_TIME), objects()


def died(of: Any, pid: int) -> None:
    """End a process, and wait until calls reach the next."""
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: _pid_now(of) not in (pid, 0), IN_TIME)


def _pid_now(of: Any) -> int:
    try:
        return int(of())
    except muster.WorkerDiedError:
        return 0
