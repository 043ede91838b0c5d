"""Muster over several hosts: nodes from Ray, workers on all, calls and rows past Ray.

Also `plain`: the same with MUSTER_TRANSPORT=plain, which the harness sets.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import muster
import nodes
import probe
from muster import Batch, Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register
from nodes import GPUS, HOSTS, Rows, Seen


class Echo(Worker):
    """Answers."""

    @register(Dispatch.ONE_TO_ALL)
    def echo(self, value: object) -> object:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def host(self) -> str:
        return socket.gethostname()


class Carrier(Worker):
    """Makes rows, and looks at them."""

    _rows: Rows | None = None

    def make(self, rows: int, step: int) -> Batch:
        if self._rows is None:
            self._rows = Rows()
        return Batch({"x": self._rows.marked(rows, step)})

    @register(Dispatch.ONE_TO_ALL)
    def look(self, batch: Batch) -> Seen:
        return nodes.look(batch["x"])


@dataclass
class Carriers:
    """A cluster of the second host, one of the third, and one of all."""

    maker: Cluster
    taker: Cluster
    each: Cluster


class Muster:
    """A script that was written for one machine; its environment says where the nodes are."""

    _clusters = 0
    _pool: ResourceManager | None = None

    def up(self) -> None:
        muster.init()

    def _cluster(self, of: type[Worker], config: WorkerConfig) -> Cluster:
        self._pool = self._pool or ResourceManager(GPUS, HOSTS)
        self._clusters += 1
        return Cluster(
            name=f"{of.__name__.lower()}{self._clusters}",
            worker_cls=of,
            resource_manager=self._pool,
            worker_config=config,
        )

    def start(self, workers: int) -> Cluster:
        # One worker a GPU, as far as those go; else workers without, on each node in turn.
        if workers == GPUS * HOSTS:
            return self._cluster(Echo, WorkerConfig(device_mapping=list(range(workers))))
        return self._cluster(Echo, WorkerConfig(world_size=workers))

    def hosts(self, group: Cluster) -> list[str]:
        found: list[str] = group.host()
        return found

    def broadcast(self, group: Cluster) -> list[object]:
        answers: list[object] = group.echo(probe.TOKEN)
        return answers

    def one(self) -> Cluster:
        return self._cluster(Echo, WorkerConfig(device_mapping=[GPUS]))

    def caller(self, group: Cluster) -> Callable[[], object]:
        call = group.execute_rank_zero_sync
        return lambda: call("echo", probe.TOKEN)

    def pipeline(self, group: Cluster, calls: int) -> list[object]:
        call = group.execute_rank_zero_async
        answers: list[object] = muster.get([call("echo", probe.TOKEN) for _ in range(calls)])
        return answers

    def carry(self) -> Carriers:
        places = ([GPUS], [2 * GPUS], [0, GPUS, 2 * GPUS])
        configs = (WorkerConfig(device_mapping=devices) for devices in places)
        return Carriers(*(self._cluster(Carrier, config) for config in configs))

    def make(self, carriers: Carriers, rows: int, step: int) -> Batch:
        made: Batch = carriers.maker.execute_rank_zero_sync("make", rows, step)
        return made

    def take(self, carriers: Carriers, made: Batch) -> Seen:
        seen: Seen = carriers.taker.execute_rank_zero_sync("look", made)
        return seen

    def take_all(self, carriers: Carriers, made: Batch) -> list[Seen]:
        seen: list[Seen] = carriers.each.look(made)
        return seen

    def stop(self, group: Cluster) -> None:
        group.shutdown()

    def down(self) -> None:
        muster.shutdown()


if __name__ == "__main__":
    nodes.main(Muster())
