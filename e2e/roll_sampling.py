"""A sampling scheduler in the shape of ROLL's: an async actor that holds clusters, sends each
prompt to a worker that it has an affinity to, rewards what comes, filters, aborts and goes on."""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch

from muster.compat import ray
from muster.compat.roll import DataProto, Dispatch, Worker, register


class Engine(Worker):
    """Stands for an inference engine: a request that is told to be long ends by abort alone."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.running: dict[str, asyncio.Event] = {}
        self.served = 0
        self.loaded = True

    async def generate_request(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.served += 1
        tokens, request_id = list(payload["input_ids"]), payload["rid"]
        if payload["long"]:
            stop = self.running[request_id] = asyncio.Event()
            await stop.wait()
            del self.running[request_id]
            return {"finish_reasons": ["abort"], "output_token_ids": [*tokens, -1]}
        return {"finish_reasons": ["stop"], "output_token_ids": [*tokens, self.rank]}

    async def abort_requests(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if request_id in self.running:
                self.running[request_id].set()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def offload_states_partial(self, target_dp_ranks: list[int]) -> bool:
        self.loaded = self.loaded and self.rank_info.dp_rank not in target_dp_ranks
        return self.loaded

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_states_partial(self, target_dp_ranks: list[int]) -> bool:
        self.loaded = self.loaded or self.rank_info.dp_rank in target_dp_ranks
        return self.loaded

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def counts(self) -> tuple[int, int]:
        return self.served, len(self.running)


class Rewards(Worker):
    async def compute_rewards(self, data: DataProto) -> DataProto:
        scores = data.batch["prompt_id"].float() * 10
        return DataProto.from_dict({"scores": scores}, {"by": [self.worker_name] * len(data)})


class Router:
    """Requests of one prompt go to one worker; a worker has at most so many at once."""

    def __init__(self, cluster: Any, most: int) -> None:
        self.cluster, self.workers, self.most = cluster, cluster.workers, most
        self.active = set(range(len(self.workers)))
        self.loads = [0] * len(self.workers)
        self.inflight: list[set[str]] = [set() for _ in self.workers]
        self.rank_of: dict[int, int] = {}
        self.changed = asyncio.Condition()
        self.open = asyncio.Event()

    async def generate(self, payload: dict[str, Any], uid: int) -> dict[str, Any]:
        await self.open.wait()
        rank = await self._acquire(uid)
        self.inflight[rank].add(payload["rid"])
        try:
            found: dict[str, Any] = await self.workers[rank].generate_request.remote(payload)
            return found
        finally:
            self.inflight[rank].remove(payload["rid"])
            async with self.changed:
                self.loads[rank] -= 1
                self.changed.notify_all()

    async def _acquire(self, uid: int) -> int:
        def free() -> list[int]:
            wanted = {self.rank_of[uid]} & self.active if uid in self.rank_of else self.active
            return [rank for rank in wanted or self.active if self.loads[rank] < self.most]

        async with self.changed:
            await self.changed.wait_for(free)
            rank = self.rank_of[uid] = min(free(), key=lambda at: (self.loads[at], at))
            self.loads[rank] += 1
        return rank

    async def abort_all(self, ranks: Any = None) -> int:
        ranks = self.active if ranks is None else ranks
        ids = [list(self.inflight[rank]) for rank in ranks]
        calls = [
            self.workers[r].abort_requests.remote(one) for r, one in zip(ranks, ids, strict=True)
        ]
        await asyncio.gather(*calls)
        return sum(map(len, ids))

    async def wait_complete(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: not any(self.loads))

    async def shrink(self, ranks: list[int]) -> int:
        """Take workers out: their requests are aborted and go elsewhere, then they offload."""
        self.active -= set(ranks)
        aborted = await self.abort_all(ranks)
        async with self.changed:
            await self.changed.wait_for(lambda: not any(self.loads[rank] for rank in ranks))
        refs = self.cluster.offload_states_partial(ranks, blocking=False)
        await asyncio.gather(*[asyncio.wrap_future(ref.future()) for ref in refs])
        return aborted

    async def expand(self, ranks: list[int]) -> None:
        refs = self.cluster.load_states_partial(ranks, blocking=False)
        await asyncio.gather(*[asyncio.wrap_future(ref.future()) for ref in refs])
        self.active |= set(ranks)
        async with self.changed:
            self.changed.notify_all()


class SamplingScheduler:
    """Keeps prompts running, hands out batches of those that are done, older steps' first."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.prompts = itertools.count()
        self.request_id, self.requests = uuid.uuid4(), itertools.count()
        self.done: list[DataProto] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.running: dict[int, int] = {}  # prompts, and in which step each began
        self.filtered = self.aborted = 0
        self.step = -1

    async def set_scheduler(self, actor_cluster: Any, reward_clusters: dict[str, Any]) -> None:
        self.router = Router(actor_cluster, self.config["max_running_requests"])
        self.rewarders = {
            domain: itertools.cycle(cluster.workers) for domain, cluster in reward_clusters.items()
        }
        self.enough = asyncio.Condition()
        self.wanted = asyncio.Semaphore(0)
        self.sending = asyncio.create_task(self._send())

    async def get_batch(self, data: DataProto, global_step: int, batch_size: int) -> DataProto:
        self.step, self.meta = global_step, copy.deepcopy(data.meta_info)
        ahead = self.config["async_generation_ratio"] * batch_size if global_step == 0 else 0
        for _ in range(batch_size + ahead):
            self.wanted.release()
        self.router.open.set()

        def are_enough() -> bool:
            older = any(began < global_step for began in self.running.values())
            return (len(self.done) >= batch_size and not older) or self.sending.done()

        async with self.enough:
            await self.enough.wait_for(are_enough)
        if self.sending.done():
            await self.sending  # raises
        self.done.sort(key=lambda one: int(one.non_tensor_batch["began"][0]))
        batch = DataProto.concat([self.done.pop(0) for _ in range(batch_size)])
        batch.meta_info["metrics"] = {
            "scheduler/filtered": self.filtered,
            "scheduler/aborted": self.aborted,
            "scheduler/running": len(self.tasks),
        }
        return batch

    async def pause_sampling(self) -> None:
        """Before weights change: what runs is aborted, and goes on where it was afterwards."""
        self.router.open.clear()
        await self.router.abort_all()
        await self.router.wait_complete()

    async def shrink_workers(self, ranks: list[int]) -> int:
        return await self.router.shrink(ranks)

    async def expand_workers(self, ranks: list[int]) -> None:
        await self.router.expand(ranks)

    async def running_requests(self, at_least: int) -> int:
        """How many the engines hold, once they are so many."""
        while True:
            counts = await asyncio.gather(*self.router.cluster.counts(blocking=False))
            held: int = sum(running for _, running in counts)
            if held >= at_least:
                return held

    async def shutdown(self) -> int:
        self.sending.cancel()
        for task in self.tasks:
            task.cancel()
        await self.router.abort_all()
        await asyncio.gather(self.sending, *self.tasks, return_exceptions=True)
        return len(self.tasks)

    async def _send(self) -> None:
        while True:
            await self.wanted.acquire()
            task = asyncio.create_task(self._prompt(next(self.prompts)))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _prompt(self, prompt: int) -> None:
        began = self.running[prompt] = self.step
        request = DataProto.from_dict({"prompt_id": torch.tensor([prompt])}, meta_info=self.meta)
        async with self._generating(request, prompt) as tokens:
            request.batch["response"] = torch.tensor([[*tokens, 0, 0][:3]])
        rewards = await next(self.rewarders["default"]).compute_rewards.remote(request)
        request.union(rewards)
        request.non_tensor_batch["began"] = np.array([began], dtype=object)
        async with self.enough:
            del self.running[prompt]
            if prompt in self.config["filter"]:
                self.filtered += 1
                self.wanted.release()  # another one in its place
            else:
                self.done.append(request)
            self.enough.notify_all()

    @asynccontextmanager
    async def _generating(self, request: DataProto, prompt: int) -> Any:
        """The tokens of a prompt: what was aborted is sent again, with what it has by then."""
        tokens, long = [prompt], prompt in self.config["long"]
        while True:
            rid = f"{self.request_id}_{next(self.requests)}"
            payload = {"rid": rid, "input_ids": tokens, "long": long}
            answer = await self.router.generate(payload, uid=prompt)
            tokens = answer["output_token_ids"]
            if answer["finish_reasons"] == ["stop"]:
                break
            self.aborted += 1
            long = False
        yield tokens


def named_scheduler(config: dict[str, Any]) -> Any:
    """The session's one, on the node of who asks, as pipelines make it."""
    from muster.compat.ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    actor: Any = ray.remote(SamplingScheduler)
    return actor.options(
        name="DynamicSamplingScheduler-default",
        namespace="roll",
        get_if_exists=True,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=here, soft=False),
        max_concurrency=1000,
    ).remote(config)
