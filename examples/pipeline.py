# pipeline.py
from muster import Cluster, ResourceManager, Worker, WorkerConfig, register, Dispatch

class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def initialize(self, config): self.scale = config["scale"]
    @register(Dispatch.DP_MP_COMPUTE)
    def train_step(self, rows): return [r * self.scale for r in rows]

if __name__ == "__main__":
    rm = ResourceManager(num_gpus_per_node=8, num_nodes=1)
    actor = Cluster(name="actor_train", worker_cls=Actor, resource_manager=rm,
                    worker_config=WorkerConfig(device_mapping="0-7", tp=2))
    actor.execute_all_sync("initialize", {"scale": 2})
    print(actor.dp_size, actor.tp_size, actor.train_step([1, 2, 3, 4, 5]))
