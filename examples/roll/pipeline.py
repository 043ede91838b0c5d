"""A pipeline written for ROLL: rollouts, rewards and training on three roles."""

from dataclasses import dataclass
from typing import Any

import torch

from muster.compat import ray
from muster.compat.roll import (
    Cluster,
    DataProto,
    Dispatch,
    ResourceManager,
    Worker,
    WorkerConfig,
    pad_dataproto_to_divisor,
    reduce_metrics,
    register,
    unpad_dataproto,
)


@dataclass
class PipelineConfig:
    seed: int = 42
    resume_from_checkpoint: str | None = None


class Policy:
    """Stands for a strategy: a model of one number."""

    offload_nccl = False

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.weight = torch.zeros(1)

    def setup_model_update(self, infer_cluster: Cluster, model_update_name: str) -> None:
        self.infer_cluster = infer_cluster

    def get_model_update_load_kwargs(self) -> dict[str, Any]:
        return {"include": ["model_params"]}

    def load_states(self, **which: Any) -> None:
        """Bring the model onto the GPU, where there is one."""

    def offload_states(self, **which: Any) -> None:
        """Take it off again."""

    def model_update(self, model_update_name: str) -> dict[str, float]:
        if self.worker.rank == 0:
            ray.get([w.set_weight.remote(self.weight) for w in self.infer_cluster.workers])
        return {"sent": 1.0}


class ActorWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        super().initialize(pipeline_config)
        self.strategy = Policy(self)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def generate(self, data: DataProto) -> DataProto:
        responses = data.batch["prompts"] + self.strategy.weight
        return DataProto.from_dict({"responses": responses}, meta_info=data.meta_info)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def train_step(self, data: DataProto) -> DataProto:
        self.strategy.weight += 1
        loss = data.batch["rewards"].mean().item()
        return DataProto(meta_info={"metrics": {"actor/loss": loss, "actor/rows_sum": len(data)}})

    def set_weight(self, weight: torch.Tensor) -> None:
        self.strategy.weight = weight.clone()


class RewardWorker(Worker):
    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def compute_rewards(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"rewards": data.batch["responses"].sum(dim=-1)})


class Pipeline:
    def __init__(self, config: PipelineConfig) -> None:
        self.resource_manager = ResourceManager(num_gpus_per_node=4, num_nodes=1)
        self.train = self.role("actor_train", ActorWorker, device_mapping="list(range(0,2))")
        self.infer = self.role("actor_infer", ActorWorker, device_mapping="list(range(0,4))")
        self.reward = self.role("reward", RewardWorker, world_size=2)
        ray.get(self.train.initialize(pipeline_config=config, blocking=False))
        ray.get(self.infer.initialize(pipeline_config=config, blocking=False))
        names = {"infer_cluster": self.infer, "model_update_name": "train_2_infer"}
        ray.get([w.setup_model_update.remote(**names) for w in self.train.workers])

    def role(self, name: str, worker_cls: type, **config: Any) -> Any:
        return Cluster(
            name=name,
            worker_cls=worker_cls,
            resource_manager=self.resource_manager,
            worker_config=WorkerConfig(name=name, **config),
        )

    def run(self, steps: int) -> None:
        prompts = torch.arange(12.0).reshape(6, 2)
        for step in range(steps):
            name = {"model_update_name": "train_2_infer"}
            ray.get([w.start_model_update.remote(**name) for w in self.train.workers])

            batch = DataProto.from_dict({"prompts": prompts}, meta_info={"global_step": step})
            padded, pad = pad_dataproto_to_divisor(batch, self.infer.dp_size)
            batch.union(unpad_dataproto(self.infer.generate(padded), pad))

            refs = self.reward.compute_rewards(batch, blocking=False)
            batch.union(DataProto.materialize_concat(data_refs=refs))

            metrics = self.train.train_step(batch).meta_info["metrics"]
            print(step, reduce_metrics(metrics))


if __name__ == "__main__":
    ray.init(log_to_driver=True)
    Pipeline(config=PipelineConfig()).run(steps=3)
    ray.shutdown()
