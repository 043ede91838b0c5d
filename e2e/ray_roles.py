"""What the cases of `ray_cases.py` call: actors and tasks, on Ray or on `muster.compat.ray`.

RAY_CASES=ray chooses Ray itself.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

REAL = os.environ.get("RAY_CASES") == "ray"

ray: Any = importlib.import_module("ray" if REAL else "muster.compat.ray")
if REAL:
    from ray._private import profiling
    from ray._private.async_compat import has_async_methods
    from ray.runtime_env import RuntimeEnv
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )
    from ray.util.timer import _Timer
else:
    from muster.compat.ray._private import profiling
    from muster.compat.ray._private.async_compat import has_async_methods
    from muster.compat.ray.runtime_env import RuntimeEnv
    from muster.compat.ray.util.placement_group import placement_group, remove_placement_group
    from muster.compat.ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        PlacementGroupSchedulingStrategy,
    )
    from muster.compat.ray.util.timer import _Timer

__all__ = [
    "NodeAffinitySchedulingStrategy",
    "PlacementGroupSchedulingStrategy",
    "RuntimeEnv",
    "_Timer",
    "has_async_methods",
    "placement_group",
    "profiling",
    "ray",
    "remove_placement_group",
]


NAMESPACE = "cases"
CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES.append(function)
    return function


def start() -> None:
    ray.init(num_cpus=8, num_gpus=4, namespace=NAMESPACE, log_to_driver=False)


def raises(kind: Any, act: Callable[[], Any]) -> Any:
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised")


def remote(thing: Any) -> Any:
    """``ray.remote``, with a type."""
    return ray.remote(thing)


def remote_in_half(thing: Any) -> Any:
    """The same with an option."""
    return ray.remote(num_cpus=0.5)(thing)


def returning(count: int) -> Callable[[Any], Any]:
    """``ray.method(num_returns=...)``, with a type."""
    marked: Callable[[Any], Any] = ray.method(num_returns=count)
    return marked


class Special(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"special {code}")
        self.code = code


class Sealed(Exception):
    """It has no children."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("no children")


class Odd(Exception):
    """It cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("odd one")
        self.lock = threading.Lock()


class _Counter:
    """What it does lies in order."""

    def __init__(self, start: int = 0, step: int = 1) -> None:
        self.value, self.step = start, step

    def add(self, times: int = 1) -> int:
        self.value += times * self.step
        return self.value

    def fail(self, code: int) -> None:
        raise Special(code)

    def leave(self) -> None:
        os._exit(3)

    def pid(self) -> int:
        return os.getpid()

    def __len__(self) -> int:
        return 7

    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    def kinds(self, *args: Any, **kwargs: Any) -> list[str]:
        return [type(value).__name__ for value in (*args, *kwargs.values())]

    def total(self, refs: list[Any]) -> int:
        return sum(ray.get(refs))

    def call(self, other: Any, times: int) -> int:
        return int(ray.get(other.add.remote(times)))

    def make(self, name: str) -> Any:
        return ray.remote(Plain).options(name=name).remote(7)

    def pass_on(self, other: Any, code: int) -> None:
        ray.get(other.fail.remote(code))

    def hold(self, value: Any) -> Any:
        return [ray.put(value)]

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    @returning(2)
    def two(self) -> tuple[int, int]:
        return 1, 2

    @returning(0)
    def none(self) -> None: ...

    def pair(self, seconds: float) -> tuple[int, int]:
        time.sleep(seconds)
        return 1, 2

    def _private(self) -> str:
        return "private"

    def me(self) -> int:
        return len(ray.get_runtime_context().current_actor.two.remote())

    def timeout(self, timeout: int, name: str, blocking: bool) -> tuple[int, str, bool]:
        return timeout, name, blocking

    def odd(self) -> None:
        raise Odd

    def sealed(self) -> None:
        raise Sealed("sealed")

    def give(self) -> Any:
        return threading.Lock()

    def exit_actor(self) -> None:
        ray.actor.exit_actor()

    def sys_exit(self) -> None:
        sys.exit(0)

    def take(self, others: list[Any]) -> None:
        self.others = others

    def ask(self) -> int:
        return int(ray.get(self.others[0].add.remote()))

    def where(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "actor": context.get_actor_id(),
            "name": context.get_actor_name(),
            "namespace": context.namespace,
            "initialized": ray.is_initialized(),
            "worker": context.worker.mode == ray.WORKER_MODE,
            "gpus": len(ray.get_gpu_ids()),
        }


# As a decorator does it, but that the type would hide what it makes of the class.
_Counter.__name__ = _Counter.__qualname__ = "Counter"
Counter: Any = ray.remote(_Counter)


class Plain:
    """Not decorated."""

    def __init__(self, value: int) -> None:
        self.value = value

    def get(self) -> int:
        return self.value


class Queue:
    """As ROLL's queues: async getters that wait for sync putters."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.event = asyncio.Event()
        self.running = asyncio.get_running_loop() is not None

    def put(self, item: Any) -> None:
        self.items.append(item)
        self.event.set()

    async def get(self, count: int) -> list[Any]:
        while len(self.items) < count:
            self.event.clear()
            await self.event.wait()
        return self.items[:count]

    async def ask(self, other: Any) -> int:
        await asyncio.gather(*[other.add.remote() for _ in range(3)])
        return int(await other.add.remote())

    async def fail(self, other: Any) -> str:
        try:
            await other.fail.remote(4)
        except Special as error:
            return f"caught {error.cause.code}"  # type: ignore[attr-defined]
        return "nothing"

    async def forever(self) -> None:
        await asyncio.Event().wait()

    async def call_back(self, other: Any) -> int:
        me = ray.get_runtime_context().current_actor
        return int(await other.back.remote(me))

    async def back(self, other: Any) -> int:
        await asyncio.sleep(0.3)
        return int(await other.size.remote())

    async def place(self, gpus: int) -> int:
        group = placement_group([{"GPU": gpus}])
        await group.ready()
        remove_placement_group(group)
        return int(group.bundle_count)

    def size(self) -> int:
        return len(self.items)

    async def give_up(self) -> None:
        raise asyncio.CancelledError

    def loops(self) -> bool:
        return self.running

    async def ping(self, other: Any, me: Any, depth: int) -> int:
        return 0 if depth == 0 else 1 + int(await other.ping.remote(me, other, depth - 1))


class Maker:
    """As ROLL's schedulers: it makes its queue and waits for others when it is made."""

    def __init__(self, name: str, strategy: Any) -> None:
        options = {"name": name, "scheduling_strategy": strategy, "max_concurrency": 9}
        self.queue = ray.remote(Queue).options(**options).remote()
        other = Counter.remote()
        self.found: list[int] = ray.get([other.add.remote() for _ in range(2)])

    async def made(self) -> list[int]:
        return self.found

    async def put(self, item: int) -> None:
        await self.queue.put.remote(item)

    async def get_batch(self, count: int) -> list[int]:
        getting = asyncio.create_task(self._get(count))
        await asyncio.wait({getting}, return_when=asyncio.FIRST_COMPLETED)
        return await getting

    async def _get(self, count: int) -> list[int]:
        found: list[int] = await self.queue.get.remote(count)
        return found


class Gate:
    """Threads meet in it."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(3)

    def meet(self) -> int:
        return self.barrier.wait(timeout=60)

    def ping(self, other: Any, me: Any, depth: int) -> int:
        if depth == 0:
            return 0
        return 1 + int(ray.get(other.ping.remote(me, other, depth - 1)))


class Noting:
    """Tells another when it is made."""

    def __init__(self, counter: Any) -> None:
        ray.get(counter.add.remote())

    def alive(self) -> bool:
        return True


class AsyncNoting(Noting):
    async def idle(self) -> None: ...


class Broken:
    def __init__(self) -> None:
        raise Special(9)

    def hello(self) -> str:
        return "hello"


@remote
def double(x: int) -> int:
    return x * 2


@remote_in_half
def total(*values: int, extra: int = 0) -> int:
    return sum(values) + extra


@remote
def boom(code: int) -> None:
    raise Special(code)


@remote
def tree(depth: int) -> int:
    return 1 if depth == 0 else sum(ray.get([tree.remote(depth - 1) for _ in range(2)]))


@remote
def variable(name: str) -> str:
    return os.environ.get(name, "")


@remote
def bundles(group: Any) -> int:
    return int(group.bundle_count)


@remote
def mean(array: Any) -> float:
    return float(array.mean())


@remote
def crash() -> None:
    os._exit(4)
