"""The shapes of ROLL's schedulers and weight updates, with strategies that only count."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from muster.compat import ray
from muster.compat.roll import DataProto, Dispatch, Worker, reduce_metrics, register


class Scheduler:
    """Holds a cluster, sends requests to its workers, filters what comes, until it has enough."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.lock = threading.Lock()
        self.count = 0

    def set_scheduler(self, actor_cluster: Any, filter_even: bool) -> None:
        self.cluster = actor_cluster
        self.filter_even = filter_even
        self.ranks = [
            rank
            for rank, info in enumerate(actor_cluster.worker_rank_info)
            if (info.tp_rank, info.pp_rank, info.cp_rank) == (0, 0, 0)
        ]

    def get_batch(self, data: DataProto) -> DataProto:
        import torch

        with self.lock:
            self.count += 1
        copies = data.meta_info["num_return_sequences"]
        done: dict[int, DataProto] = {}
        filtered = 0
        workers = itertools.cycle(self.cluster.workers[rank] for rank in self.ranks)
        running: dict[Any, int] = {}
        prompts = itertools.count()
        while len(done) < self.batch_size:
            while len(running) < 4:
                prompt = next(prompts)
                request = DataProto.from_dict({"x": torch.full((copies,), float(prompt))})
                running[next(workers).same.remote(request)] = prompt
            ready, _ = ray.wait(list(running), num_returns=1)
            prompt = running.pop(ready[0])
            answer = ray.get(ready[0])
            if self.filter_even and prompt % 2 == 0:
                filtered += 1
                continue
            answer.batch["prompt_id"] = torch.full((copies,), prompt)
            done[prompt] = answer
        out = DataProto.concat([done[prompt] for prompt in sorted(done)[: self.batch_size]])
        out.meta_info["metrics"] = {"scheduler/filtered": filtered}
        ray.get(list(running))
        return out

    def calls(self) -> int:
        return self.count


class Requests(Worker):
    """Takes requests, and answers each by the function that came with it."""

    def add_request(self, command: str, data: DataProto) -> None:
        assert command == "ADD"
        answer = data.meta_info.pop("response_callback_fn")
        data.batch["y"] = data.batch["x"] * 2
        ray.get(answer(data))


class CallBacks:
    """Sends requests and is called back with the answers, in another thread."""

    def __init__(self) -> None:
        self.answers: dict[int, DataProto] = {}
        self.more = threading.Condition()

    def get_batch(self, cluster: Any, prompts: int, callback: Any) -> DataProto:
        import torch

        for prompt in range(prompts):
            request = DataProto.from_dict({"x": torch.tensor([float(prompt)])})
            request.meta_info |= {"request_id": prompt, "response_callback_fn": callback}
            worker = cluster.workers[prompt % cluster.world_size]
            worker.add_request.remote(command="ADD", data=request)
        with self.more:
            assert self.more.wait_for(lambda: len(self.answers) == prompts, timeout=60)
        return DataProto.concat([self.answers[prompt] for prompt in range(prompts)])

    def report_response(self, data: DataProto) -> None:
        with self.more:
            self.answers[data.meta_info["request_id"]] = data
            self.more.notify_all()


class Weights:
    """A strategy whose model is one number."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.value = 0.0
        self.groups: dict[str, Any] = {}

    def setup_model_update(self, infer_cluster: Any, model_update_name: str) -> None:
        self.groups[model_update_name] = infer_cluster

    def model_update(self, model_update_name: str) -> dict[str, float]:
        """Each train rank sends to its share of the infer workers."""
        cluster = self.groups[model_update_name]
        mine = cluster.workers[self.worker.rank :: self.worker.world_size]
        ray.get([worker.update_parameter_in_bucket.remote(self.value) for worker in mine])
        return {"buckets": float(len(mine))}

    def update_parameter_in_bucket(self, value: float) -> None:
        self.value = value


class Trainer(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        super().initialize(pipeline_config)
        self.strategy = Weights(self)

    def learn(self, value: float) -> None:
        self.strategy.value = value

    def weight(self) -> float:
        value: float = self.strategy.value
        return value


class ModelUpdateGroup:
    """In the script: has each train worker send its weights."""

    def __init__(self, src_cluster: Any, tgt_cluster: Any, frequency: int = 1) -> None:
        self.src_cluster = src_cluster
        self.frequency = frequency
        self.name = f"model_update/{src_cluster.cluster_name}_2_{tgt_cluster.cluster_name}"
        train = set(src_cluster.worker_config.device_mapping or [])
        assert max(train) - min(train) == len(train) - 1
        ray.get(
            [
                worker.setup_model_update.remote(
                    infer_cluster=tgt_cluster, model_update_name=self.name
                )
                for worker in src_cluster.workers
            ]
        )

    def model_update(self, step: int) -> dict[str, Any]:
        if step % self.frequency:
            return {}
        done = ray.get(
            [
                worker.start_model_update.remote(model_update_name=self.name)
                for worker in self.src_cluster.workers
            ]
        )
        return reduce_metrics(DataProto.concat(done).meta_info["metrics"])
