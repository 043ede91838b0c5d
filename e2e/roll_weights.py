"""Weights from train to infer workers in the shape of ROLL's updaters, over gloo.

Train workers hold the infer cluster. Where an infer worker shares their devices they gather
what they have for it and call it; to the others rank 0 broadcasts, in a group that it sets up
with them by their handles.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster.compat import ray
from muster.compat.roll import Dispatch, Worker, register

_LIMIT = timedelta(seconds=60)


def join(address: str, port: int, name: str, rank: int, size: int) -> Any:
    """A group beside the process's own, by a store that its rank 0 has."""
    store = dist.TCPStore(address, port, size, is_master=rank == 0, timeout=_LIMIT)
    prefixed = dist.PrefixStore(name, store)
    return dist.ProcessGroupGloo(prefixed, rank, size, _LIMIT)


class Sender:
    """The strategy of a train worker: a model of two weights."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.weights = {"w": torch.zeros(3), "b": torch.zeros(1)}
        self.updaters: dict[str, Updater] = {}
        dist.init_process_group("gloo", timeout=_LIMIT)  # by MASTER_ADDR and its like

    def setup_model_update(self, infer_cluster: Any, model_update_name: str) -> None:
        assert model_update_name not in self.updaters
        self.updaters[model_update_name] = Updater(self, infer_cluster, model_update_name)

    def get_model_update_load_kwargs(self) -> dict[str, Any]:
        return {}

    def model_update(self, model_update_name: str) -> dict[str, float]:
        return self.updaters[model_update_name].update()


class Updater:
    def __init__(self, sender: Sender, infer_cluster: Any, name: str) -> None:
        self.sender, self.workers = sender, infer_cluster.workers
        self.group: Any = None
        self.group_name = f"{name}_stub"
        self.broadcast_to: list[Any] = []
        each = infer_cluster.worker_config.num_gpus_per_worker
        mine = sender.worker.worker_config.device_mapping or []
        its = infer_cluster.worker_config.device_mapping or []
        self.colocated = bool(set(mine) & set(its))
        if self.colocated:
            self._share_devices(each, min(mine) - min(its))
            self.broadcast_to = self.workers[(max(mine) + 1 - min(its)) // each :]
        else:
            self.broadcast_to = self.workers
        if dist.get_rank() == 0 and self.broadcast_to:
            self._set_up_broadcast(each)

    def _share_devices(self, each: int, offset: int) -> None:
        """Train ranks that sit on the devices of one infer worker are a group."""
        for first in range(0, dist.get_world_size(), each):
            ranks = list(range(first, first + each))
            group = dist.new_group(ranks=ranks, backend="gloo")
            if dist.get_rank() in ranks:
                self.parallel = group
        self.partner = self.workers[(dist.get_rank() + offset) // each]

    def _set_up_broadcast(self, each: int) -> None:
        worker = self.sender.worker
        address, port = worker.get_node_ip(), worker.get_free_port()
        size = len(self.broadcast_to) * each + 1
        refs = [
            infer.setup_collective_group.remote(
                master_address=address,
                master_port=port,
                group_name=self.group_name,
                rank_offset=at * each + 1,
                world_size=size,
            )
            for at, infer in enumerate(self.broadcast_to)
        ]
        self.group = join(address, port, self.group_name, 0, size)
        ray.get(refs)

    def update(self) -> dict[str, float]:
        sent = 0
        for name, weight in self.sender.weights.items():
            refs = []
            if self.colocated:
                refs += self._to_partner(name, weight)
            if self.group is not None:
                refs += self._to_others(name, weight)
            ray.get(refs)
            sent += len(refs)
        return {"calls": float(sent)}

    def _to_partner(self, name: str, weight: torch.Tensor) -> list[Any]:
        size, rank = dist.get_world_size(self.parallel), dist.get_rank(self.parallel)
        gathered: list[Any] | None = [None] * size if rank == 0 else None
        to = dist.get_global_rank(self.parallel, 0)
        dist.gather_object((name, weight), gathered, to, group=self.parallel)
        return [self.partner.update_parameter_in_bucket.remote(gathered)] if gathered else []

    def _to_others(self, name: str, weight: torch.Tensor) -> list[Any]:
        refs = [
            worker.broadcast_parameter.remote(
                group_name=self.group_name,
                names=[name],
                dtypes=[weight.dtype],
                shapes=[weight.shape],
            )
            for worker in self.broadcast_to
        ]
        self.group.broadcast([weight], _root(0)).wait()
        return refs


def _root(rank: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


class Receiver:
    """The strategy of an infer worker."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.groups: dict[str, Any] = {}
        self.shards = 0

    def setup_collective_group(
        self,
        master_address: str,
        master_port: int,
        group_name: str,
        rank_offset: int,
        world_size: int,
    ) -> None:
        self.groups[group_name] = join(
            master_address, master_port, group_name, rank_offset, world_size
        )

    def broadcast_parameter(self, group_name: str, names: Any, dtypes: Any, shapes: Any) -> None:
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            weight = torch.empty(shape, dtype=dtype)
            self.groups[group_name].broadcast([weight], _root(0)).wait()
            self.weights[name] = weight

    def update_parameter_in_bucket(self, gathered: list[tuple[str, torch.Tensor]]) -> None:
        self.shards = len(gathered)
        for name, weight in gathered:
            self.weights[name] = weight.clone()


class TrainWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        super().initialize(pipeline_config)
        self.strategy = Sender(self)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train_step(self, by: float) -> float:
        """All ranks have the same weights after it."""
        step = torch.tensor([by * (self.rank + 1)])
        dist.all_reduce(step)
        for weight in self.strategy.weights.values():
            weight += step
        return float(step)


class InferWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        super().initialize(pipeline_config)
        self.strategy = Receiver()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self) -> dict[str, Any]:
        strategy = self.strategy
        return {name: w.tolist() for name, w in strategy.weights.items()} | {"of": strategy.shards}
