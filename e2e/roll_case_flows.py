"""Roles and actors for the cases of `roll_cases_flows.py`: those of a pipeline, in small."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from roll_case_roles import RankInfo, custom_np_concatenate, ranks_of, ray

if TYPE_CHECKING:
    from muster.compat.roll import DataProto, Dispatch, Worker, WorkerConfig, register
else:
    from roll_case_roles import DataProto, Dispatch, Worker, WorkerConfig, register


class Strategy:
    """Writes down what it is asked; its model is one tensor."""

    offload_nccl = False

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.asked: list[Any] = []
        self.weight = torch.full((2,), float(worker.rank))
        self.targets: dict[str, list[Any]] = {}

    def load_states(self, *args: Any, **kwargs: Any) -> None:
        self.asked.append(("load", args, kwargs))

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        self.asked.append(("offload", args, kwargs))

    def process_weights_after_loading(self) -> None:
        self.asked.append("processed")

    def get_metrics(self, metric_names: list[str] | None = None) -> dict[str, Any]:
        return {"rank": self.worker.rank, "names": metric_names}

    def get_model_update_load_kwargs(self) -> dict[str, Any]:
        return {}

    def setup_model_update(self, infer_cluster: Any, model_update_name: str) -> None:
        """Each rank sends to its share of the workers, by their devices."""
        mine = self.worker.rank
        shares = [infer_cluster.rank2worker[rank] for rank in sorted(infer_cluster.rank2devices)]
        self.targets[model_update_name] = shares[mine :: self.worker.world_size]

    def model_update(self, model_update_name: str) -> dict[str, float]:
        targets = self.targets[model_update_name]
        bucket = {"weight": self.weight + 10}
        ray.get([one.update_parameter_in_bucket.remote(bucket, is_lora=False) for one in targets])
        return {"sent": float(len(targets))}

    def update_parameter_in_bucket(self, bucket: dict[str, Any], is_lora: bool) -> None:
        self.weight = bucket["weight"].clone()


class Trainer(Worker):
    """Log probabilities, training steps, checkpoints."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any, fails: int = -1) -> None:
        if self.rank == fails:
            raise FileNotFoundError("no checkpoint")
        self.pipeline_config = pipeline_config
        self.strategy = Strategy(self)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def compute_log_probs(self, data: Any) -> Any:
        made = DataProto.from_dict({"log_probs": data.batch["ids"].float().sum(-1)})
        made.meta_info = {"metrics": {"rows": len(data), "step": data.meta_info["global_step"]}}
        return made

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def train_step(self, data: Any) -> Any:
        metrics: dict[str, list[Any]] = {}
        batches = data.make_iterator(
            mini_batch_size=2, epochs=2, seed=7, dataloader_kwargs={"shuffle": True}
        )
        for batch in batches:
            metrics.setdefault("order", []).extend(batch.batch["ids"][:, 0].tolist())
            metrics.setdefault("loss@sum", []).append(float(batch.batch["ids"].sum()))
        return DataProto(meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def do_checkpoint(self, global_step: int, is_last_step: bool = False) -> Any:
        metrics = {f"time/{self.cluster_name}": float(global_step), "last": is_last_step}
        return DataProto(meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def same(self, data: Any) -> Any:
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def look(self, data: Any) -> Any:
        """All of it, as it came."""
        return sorted(data.batch.keys()), data.batch["ids"].sum().item(), data.meta_info

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def by_rank(self, data: Any, what: list[str]) -> Any:
        """Tensors that are of another shape, name or type on each rank."""
        rows = len(data)
        made = {
            "width": {"t": torch.ones(rows, 1 + self.rank)},
            "name": {f"t{self.rank}": torch.ones(rows)},
            "type": {"t": torch.ones(rows, dtype=(torch.int64, torch.float32)[self.rank % 2])},
        }[what[0]]
        return DataProto.from_dict(made)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def no_rows_on_one(self, data: Any) -> Any:
        return data[:0] if self.rank == 0 else data

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def but_one(self, data: Any, ranks: list[int]) -> Any:
        """The rows, but of one rank that has only something to tell."""
        data.meta_info = {"metrics": {"rows": len(data)}, "rank": self.rank}
        return DataProto(meta_info=data.meta_info) if self.rank == ranks[0] else data

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def lists(self, several: list[Any]) -> list[Any]:
        return [(self.rank, one) for one in several]

    @register()
    def each(self, one: Any) -> Any:
        return self.rank, one

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def open_meta(self, data: Any) -> list[Any]:
        (nested,) = data.meta_info["nested"]
        return [(ray.get(data.meta_info["ref"]), ray.get(nested["ref"]))]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def kind_of(self, data: Any) -> Any:
        return type(data).__name__, data.meta_info

    def asked(self) -> Any:
        return self.strategy.asked

    def weight(self) -> Any:
        return self.strategy.weight

    def apply(self, function: Any, *args: Any) -> Any:
        return function(*args)


class Laid(Worker):
    """Ranks in stages, sequences and tensors; tp is the quickest, then cp, dp, pp."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, tp: int = 1, cp: int = 1, pp: int = 1) -> None:
        dp = self.world_size // (tp * cp * pp)
        sizes = {"tp_size": tp, "cp_size": cp, "dp_size": dp, "pp_size": pp}
        self.rank_info = RankInfo(
            world_size=self.world_size,
            rank=self.rank,
            tp_rank=self.rank % tp,
            cp_rank=self.rank // tp % cp,
            dp_rank=self.rank // (tp * cp) % dp,
            pp_rank=self.rank // (tp * cp * dp),
            **sizes,
        )

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def all(self, rows: list[int]) -> list[Any]:
        return [(self.rank, row) for row in rows]

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST)
    def first(self, data: Any) -> list[Any]:
        return [(self.rank, len(data))]

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def first_of_all(self, data: Any) -> Any:
        return self.rank, len(data), len(data.non_tensor_batch.keys())

    def configured(self) -> Any:
        config = self.worker_config
        names = ("name", "world_size", "loss", "generating_args", "checkpoint_config")
        return type(config).__name__, self.worker_name, [getattr(config, n, None) for n in names]

    def named(self) -> Any:
        return self.worker_name, self.cluster_name, os.environ["WORKER_NAME"]


@dataclass
class OwnConfig(WorkerConfig):
    """With a field of its own."""

    loss: str = "none"


class OwnProto(DataProto):
    """A DataProto of its own class."""


class Generator(Worker):
    """Several responses to each prompt; dp 2 x tp 2 where it is told so."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        self.rank_info = ranks_of(self, pipeline_config["tp"])

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST)
    def generate(self, data: Any) -> Any:
        if data.batch is None or not len(data):
            return DataProto(meta_info={"rank": self.rank})
        several = data.meta_info["generation_config"]["num_return_sequences"]
        responses = data.batch["ids"].repeat_interleave(several, dim=0) * 10
        made = DataProto.from_dict({"responses": responses}, meta_info={"rank": self.rank})
        made.meta_info["metrics"] = {"generated": len(made)}
        return made


class Rewards(Worker):
    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def compute_rewards(self, data: Any) -> Any:
        scores = [len(prompt) + self.pipeline_config["bonus"] for prompt in data["prompt"]]
        made = DataProto.from_dict({"scores": torch.tensor(scores)})
        made.meta_info["metrics"] = {f"{self.cluster_name}/scores": np.array(scores)}
        return made

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        self.pipeline_config = pipeline_config


class Server(Worker):
    """Requests that wait until they are answered or aborted, as those of inference servers."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.known = asyncio.Condition()

    async def generate_request(self, data: Any) -> Any:
        request = data.meta_info["request_id"]
        answer = self.waiting[request] = asyncio.get_running_loop().create_future()
        async with self.known:
            self.known.notify_all()
        data.meta_info["finish"] = await answer
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def abort_requests(self, requests: list[str] | None = None) -> list[str]:
        wanted = list(self.waiting) if requests is None else requests
        return [one for one in wanted if self._finish(one, "aborted")]

    async def answer(self, number: int) -> None:
        await self.arrived(number)
        for request in list(self.waiting):
            self._finish(request, "stop")

    async def arrived(self, number: int) -> None:
        async with self.known:
            await self.known.wait_for(lambda: len(self.waiting) >= number)

    def _finish(self, request: str, why: str) -> bool:
        future = self.waiting.pop(request, None)
        if future is None or future.done():
            return False
        future.set_result(why)
        return True


class Environments(Worker):
    """Plays in threads, and puts what came of it into a queue until it is stopped."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.stopped = threading.Event()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def run_rollout_loop(self, queue: Any, seed: int) -> int:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=2) as threads:
            played = [loop.run_in_executor(threads, self._play, queue, seed, at) for at in range(2)]
            return sum(await asyncio.gather(*played))

    def _play(self, queue: Any, seed: int, at: int) -> int:
        for episode in range(100):
            if self.stopped.is_set():
                return 1
            ids = torch.full((1, 2), seed + self.rank)
            made = DataProto.from_dict({"ids": ids}, {"env": [f"{self.rank}.{at}"]})
            if ray.get(queue.put.remote(at, episode, made)) is None:
                return 1  # nobody wants more
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def stop(self) -> None:
        self.stopped.set()


class Queue:
    """Groups of rows; who asks waits until there are enough, who puts is told when to stop."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.rows: list[Any] = []
        self.enough = asyncio.Event()

    async def put(self, group: int, episode: int, rows: Any) -> int | None:
        if self.enough.is_set():
            return None
        self.rows.append(rows)
        if len(self.rows) == self.wanted:
            self.enough.set()
        return len(self.rows)

    async def get_batch(self) -> Any:
        await self.enough.wait()
        return DataProto.concat(self.rows)


class Router:
    """Holds a cluster, lets requests through or holds them back."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.open = asyncio.Event()
        self.open.set()
        self.held = self.sent = 0

    async def generate(self, data: Any) -> Any:
        self.held += not self.open.is_set()
        await self.open.wait()
        rank = self.sent % self.cluster.world_size
        self.sent += 1
        return await self.cluster.workers[rank].generate_request.remote(data)

    async def suspend(self) -> None:
        self.open.clear()

    async def resume(self) -> int:
        self.open.set()
        return self.held

    async def sizes(self) -> Any:
        return self.cluster.world_size, self.cluster.dp_size, self.cluster.cluster_name

    async def abort(self) -> Any:
        return self.cluster.abort_requests()

    def name(self) -> str:
        return str(ray.get_runtime_context().get_actor_name())


class CallBacks:
    """Is called back with answers."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.more = asyncio.Event()

    async def report_response(self, data: Any) -> None:
        self.answers[data.meta_info["request_id"]] = data
        self.more.set()

    async def collect(self, number: int) -> Any:
        while len(self.answers) < number:
            self.more.clear()
            await self.more.wait()
        return DataProto.concat([self.answers[key] for key in sorted(self.answers)])


class Answering(Worker):
    def add_request(self, command: str, data: Any) -> None:
        answer = data.meta_info.pop("response_callback_fn")
        data.batch["y"] = data.batch["ids"] * 2
        ray.get(answer(data))


def picked(rows: int) -> Any:
    """Rows with an object in each that holds tensors, as those of images do."""
    images = [{"pixels": torch.full((at + 1,), at), "size": (at, 1)} for at in range(rows)]
    return custom_np_concatenate([images])
