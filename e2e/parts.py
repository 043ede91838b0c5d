"""Classes that services and engines are made of in the black-box tests: plain ones.

They live in a module of their own, as workers import classes by path.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import muster
from muster import Cluster, Dispatch, Worker, register


class Counter:
    """Counts, and remembers what it was made with."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    def add(self, times: int = 1) -> int:
        self.value += self.step * times
        return self.value

    def pid(self) -> int:
        return os.getpid()

    def name(self) -> str:
        return "the class's own"

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail(self, why: str) -> None:
        raise KeyError(why)

    def _hidden(self) -> None: ...


class Refusing:
    """Cannot be made."""

    def __init__(self, why: str) -> None:
        raise ValueError(f"not made: {why}")


class Endless:
    """One that is never made."""

    def __init__(self, note: Path) -> None:
        part = note.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(note)
        threading.Event().wait()


class Keeper:
    """Keeps what it is made with, and says goodbye in a file."""

    def __init__(self, *given: Any, farewell: str = "", **named: Any) -> None:
        self.given, self.named, self.farewell = given, named, farewell

    def describe(self) -> list[str]:
        return [type(one).__name__ for one in (*self.given, *self.named.values())]

    def sums(self) -> list[float]:
        return [float(one.sum()) for one in self.given]

    def call(self, index: int, method: str, *args: Any) -> Any:
        return getattr(self.given[index], method)(*args)

    def stay(self) -> None:
        time.sleep(60)

    def destroy(self) -> None:
        if self.farewell:
            with open(self.farewell, "a", encoding="utf-8") as file:
                file.write(f"{type(self).__name__}\n")


class AsyncKeeper(Keeper):
    """The same, and its end is a coroutine."""

    async def echo(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    async def destroy(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().destroy()


class Closing:
    """Has close() and no destroy()."""

    def __init__(self, farewell: str) -> None:
        self.farewell = farewell

    def close(self) -> None:
        with open(self.farewell, "a", encoding="utf-8") as file:
            file.write("Closing\n")


class Generator(Worker):
    """An inference role, which tells a scheduler what it made."""

    @register(Dispatch.ONE_TO_ALL)
    def set_weights(self, weights: float) -> None:
        self.weights = weights

    @register(Dispatch.ONE_TO_ALL)
    def get_weights(self) -> float:
        return self.weights

    def generate(self, prompt: int, scheduler: muster.Service | None = None) -> int:
        answer = prompt * 10 + self.rank
        if scheduler is not None:
            scheduler.report(prompt, answer)
        return answer

    def take(self, weights: float) -> int:
        self.weights = weights
        return self.rank


class Trainer(Worker):
    """A training role that pushes its weights to inference workers by their handles."""

    @register(Dispatch.ONE_TO_ALL)
    def setup(self, targets: list[muster.WorkerHandle]) -> None:
        self.targets = targets[self.rank :: self.world_size]

    @register(Dispatch.ONE_TO_ALL)
    def push(self, weights: float) -> list[int]:
        refs = [target.take.remote(weights) for target in self.targets]
        told: list[int] = muster.get(refs)
        return told


class Scheduler:
    """Holds a cluster, asks its workers on threads, and is called back while it waits."""

    def __init__(self, infer: Cluster) -> None:
        self.infer = infer
        self.done: dict[int, int] = {}
        self.more = threading.Condition()

    def me(self) -> muster.Service:
        return muster.get_service("scheduler")

    def report(self, prompt: int, answer: int) -> None:
        with self.more:
            self.done[prompt] = answer
            self.more.notify_all()

    def get_batch(self, size: int) -> list[int]:
        me, workers = self.me(), self.infer.workers
        refs = [workers[i % len(workers)].generate.remote(i, me) for i in range(size)]
        with self.more:
            assert self.more.wait_for(lambda: len(self.done) >= size, timeout=60)
        assert muster.get(refs) == [self.done[i] for i in range(size)]
        return [self.done[i] for i in range(size)]

    def state(self) -> int:
        return len(self.done)


class AsyncScheduler:
    """The same on an event loop: awaits what it asks for, and is called back meanwhile."""

    def __init__(self, infer: Cluster) -> None:
        self.infer = infer
        self.done: dict[int, int] = {}

    def report(self, prompt: int, answer: int) -> None:
        self.done[prompt] = answer

    async def get_batch(self, size: int) -> list[int]:
        me = muster.get_service("scheduler")
        workers = self.infer.workers
        refs = [workers[i % len(workers)].generate.remote(i, me) for i in range(size)]
        answers = await asyncio.gather(*refs)
        assert answers == [self.done[i] for i in range(size)]
        return list(answers)

    async def state(self) -> int:
        return len(self.done)


class Maker(Worker):
    """Makes services from inside a worker."""

    def make(self, name: str, start: int) -> muster.Service:
        return muster.service(Counter, name, start)

    def here(self) -> list[str]:
        return [node["name"] for node in muster.nodes() if node["here"]]


class Pair:
    """Calls another service, which may call back."""

    def __init__(self, other: str) -> None:
        self.other = other

    def outer(self) -> str:
        return str(muster.get_service(self.other).back(muster.get_service("pair")))

    def inner(self) -> str:
        return "inner"


class AsyncPair(Pair):
    """The same on an event loop."""

    async def outer(self) -> str:  # type: ignore[override]
        return str(await muster.get_service(self.other).back.remote(muster.get_service("pair")))


class Stalling(Pair):
    """Waits inside a coroutine, which stalls its event loop."""

    async def outer(self) -> str:  # type: ignore[override]
        return super().outer()

    async def later(self) -> str:
        ref = muster.get_service(self.other).back.remote(muster.get_service("pair"))
        return str(muster.get(ref))


class Patient:
    """Is made when it is let, and writes down each time that it is begun."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "begun"), "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.005)

    def pid(self) -> int:
        return os.getpid()


class Narcissus:
    """Asks for itself before it is there."""

    def __init__(self) -> None:
        muster.service(Narcissus, "narcissus")


class Back:
    """Calls back who called it."""

    def back(self, who: muster.Service) -> str:
        return "back " + str(who.inner())


class Model:
    """An engine."""

    def __init__(self, size: int, name: str = "") -> None:
        self.size, self.named = size, name

    def forward(self, x: Any) -> Any:
        return x * self.size

    def patience(self, timeout: float = 60) -> float:
        return timeout

    async def later(self, x: int) -> int:
        await asyncio.sleep(0.001)
        return x + self.size

    def where(self) -> tuple[int, str]:
        return os.getpid(), self.named

    def fail(self) -> None:
        raise RuntimeError("out of ideas")

    def visible(self) -> str | None:
        return os.environ.get("PART")

    def until(self, name: str) -> str:
        while name not in os.environ:
            time.sleep(0.01)
        return os.environ[name]


class Host(Worker):
    """Makes engines of its own."""

    @register(Dispatch.ONE_TO_ALL)
    def initialize(self, size: int) -> None:
        self.create_engine("parts.Model", "own", size)

    @register(Dispatch.ONE_TO_ALL)
    def through(self, x: int) -> int:
        return int(self.engine("own").forward(x)) + int(self.call_engine("own", "forward", 1))


class AsyncHost(Worker):
    """Runs calls side by side."""

    async def ping(self) -> str:
        return "pong"


class Gate:
    """An engine whose calls meet."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def wait(self) -> str:
        await self.open.wait()
        return "through"

    async def let(self) -> None:
        self.open.set()


class Waiter:
    def wait(self, timeout: float | None = None) -> float | None:
        return timeout


class Holder:
    """Is given pools that are asked for."""

    def pools(self, pool: Any, inside: list[Any]) -> list[int]:
        return [pool.id, *(one.pool(60).id for one in inside)]
