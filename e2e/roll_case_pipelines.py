"""Workers and actors for the cases of `roll_cases_pipelines.py`."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from roll_case_roles import Cluster, Probe, WorkerConfig, ray

if TYPE_CHECKING:
    from muster.compat.roll import Dispatch, Worker, register
else:
    from roll_case_roles import Dispatch, Worker, register


class Unsendable(Exception):
    """Holds what no pickle takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Coded(ValueError):
    """Has an attribute."""


class Fragile(Probe):
    """Fails in every way."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        if os.environ.get("FAILS") == str(self.rank):
            raise RuntimeError(f"no model for rank {self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_as(self, kind: str) -> None:
        if kind == "unsendable":
            raise Unsendable("holds a lock")
        if kind == "chained":
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise LookupError("outer") from error
        if kind == "attributes":
            made = Coded("with a code")
            made.code = 7  # type: ignore[attr-defined]
            raise made
        kinds: dict[str, BaseException] = {
            "keyboard": KeyboardInterrupt("a key"),
            "stop": StopIteration("no more"),
            "timeout": TimeoutError("too late"),
            "os": FileNotFoundError(2, "not there", "file"),
            "assert": AssertionError("no"),
        }
        raise kinds[kind]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give_lock(self) -> Any:
        return threading.Lock()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give_local(self) -> Any:
        class Local:
            def __repr__(self) -> str:
                return "a local class's"

        return Local()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def leave(self, rank: int) -> int:
        if self.rank == rank:
            sys.exit(0)
        return int(self.rank)


class Peer(Probe):
    """Knows others."""

    def meet(self, others: list[Any]) -> None:
        self.others = others

    def ask_all(self, value: Any) -> Any:
        return ray.get([other.plain.remote(value) for other in self.others])

    def ask_by_name(self, name: str) -> Any:
        return ray.get(ray.get_actor(name, namespace="roll").plain.remote(self.rank))

    def end(self, other: Any) -> None:
        ray.kill(other)

    def open(self, value: dict[str, Any]) -> Any:
        return ray.get(value["deep"])

    def make_ref(self, value: Any) -> Any:
        return {"ref": ray.put(value)}

    def call_ref(self, other: Any) -> Any:
        return {"ref": other.plain.remote(self.rank)}

    def call_put(self, given: Any) -> Any:
        held = given if "cluster" in given else ray.get(given["ref"])
        return held["cluster"].one_to_all_one(self.rank)

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def self_told(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "name": context.get_actor_name(),
            "id": len(context.get_actor_id() or ""),
            "namespace": context.namespace,
            "self": ray.get_actor(self.worker_name, namespace="roll") == context.current_actor,
            "mode": context.worker.mode,
            "node": len(context.get_node_id()),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "task": len(context.get_task_id() or ""),
        }


def rank_of(worker: Any, value: int) -> Any:
    return worker.rank, value


class Actor:
    """An actor that is no worker, and holds a cluster and a handle."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    async def ask(self, value: Any) -> Any:
        return await asyncio.gather(
            *[worker.plain.remote(value) for worker in self.held["peers"].workers],
            self.held["one"].plain.remote(value),
        )

    async def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    async def make(self, name: str, pool: Any) -> Any:
        self.made = Cluster(name, Probe, pool, WorkerConfig(name=name, world_size=2))
        return self.made

    async def through(self, value: Any) -> Any:
        return self.held["peers"].execute_all_sync("ask_all", value)


class Turns(Worker):
    """With async methods, of which some count themselves."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.inside = self.most = self.cancelled = 0
        self.entered = asyncio.Event()
        self.seen: list[int] = []

    async def crowd(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.05)
        self.inside -= 1
        return self.most

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def max_concurrency_seen(self) -> int:
        return self.most

    async def forever(self) -> None:
        self.entered.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def begun(self) -> None:
        await self.entered.wait()

    async def count(self) -> int:
        return self.cancelled

    def threads(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    async def order(self, at: int) -> list[int]:
        self.seen.append(at)
        return self.seen

    def plain(self, *args: Any) -> Any:
        return self.rank, args

    async def call_back(self, handle: Any) -> Any:
        return await handle.plain.remote(self.rank)
