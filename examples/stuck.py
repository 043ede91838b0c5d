"""One rank of eight does not come back: what to look at, from another terminal.

muster run --virtual 2x4 examples/stuck.py
muster status
muster stacks actor_train
"""

import threading

from muster import Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register


class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def save(self, path: str) -> None:
        print(f"writing {path}", flush=True)
        if self.rank == 2:
            self.wait_for_disk()

    def wait_for_disk(self) -> None:
        threading.Event().wait(timeout=60)


if __name__ == "__main__":
    rm = ResourceManager(num_gpus_per_node=4, num_nodes=2)
    actor = Cluster(
        name="actor_train",
        worker_cls=Actor,
        resource_manager=rm,
        worker_config=WorkerConfig(device_mapping="0-7", tp=2),
    )
    actor.save("step-400")
