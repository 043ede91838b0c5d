"""Muster: CPU workers of one cluster, forked from a zygote that imports what is heavy."""

from __future__ import annotations

import os
from collections.abc import Callable

import muster
import probe
from muster import Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register


class Echo(Worker):
    """The worker's object."""

    @register(Dispatch.ONE_TO_ALL)
    def echo(self, value: object) -> object:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        return os.getpid()


class Muster:
    """The head that a script starts for itself."""

    def up(self) -> None:
        muster.init()
        self._resources = ResourceManager(0, 1)
        self._clusters = 0

    def start(self, workers: int, heavy: str, callers: int) -> Cluster:
        self._clusters += 1
        return Cluster(
            name=f"echo{self._clusters}",
            worker_cls=Echo,
            resource_manager=self._resources,
            worker_config=WorkerConfig(world_size=workers, preload=heavy.split()),
        )

    def caller(self, group: Cluster) -> Callable[[], object]:
        call = group.execute_rank_zero_sync
        return lambda: call("echo", probe.TOKEN)

    def pipeline(self, group: Cluster, calls: int) -> list[object]:
        call = group.execute_rank_zero_async
        answers: list[object] = muster.get([call("echo", probe.TOKEN) for _ in range(calls)])
        return answers

    def broadcast(self, group: Cluster) -> list[object]:
        answers: list[object] = group.echo(probe.TOKEN)
        return answers

    def pids(self, group: Cluster) -> list[int]:
        found: list[int] = group.process()
        return found

    def stop(self, group: Cluster) -> None:
        group.shutdown()

    def down(self) -> None:
        muster.shutdown()


if __name__ == "__main__":
    probe.main(Muster())
