"""Muster carries batches: rows in shared memory, and references to them in calls."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import batches
import loads
import muster
from batches import RAGGED_ROWS, WORKERS, Way
from muster import (
    Batch,
    Cluster,
    Dispatch,
    PerRank,
    ResourceManager,
    Worker,
    WorkerConfig,
    register,
)


class Looker(Worker):
    """The worker of both clusters; it keeps the rows that it gives, and marks them anew."""

    _made: Any = None
    _ragged: Any = None

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        return os.getpid()

    @register(Dispatch.DP_MP_COMPUTE)
    def look(self, batch: Batch) -> list[loads.Seen]:
        return [loads.look(batch["x"])]

    def look_at_array(self, share: loads.Matrix) -> loads.Seen:
        return loads.look(share)

    @register(Dispatch.DP_MP_COMPUTE)
    def make(self, steps: list[tuple[int, int]]) -> Batch:
        rows, step = steps[0]
        if self._made is None or len(self._made) != rows:
            self._made = np.ones((rows, loads.WIDTH), np.float32)
        loads.mark(self._made, step, self.rank)
        return Batch({"x": self._made})

    @register(Dispatch.DP_MP_COMPUTE)
    def look_ragged(self, batch: Batch) -> list[loads.SeenRagged]:
        return [loads.look_ragged(batch["tokens"], batch["prompt"])]

    @register(Dispatch.DP_MP_COMPUTE)
    def make_ragged(self, steps: list[int]) -> Batch:
        if self._ragged is None:
            self._ragged = loads.ragged(RAGGED_ROWS // WORKERS, batches.seed_of(self.rank))
        tokens, prompts = self._ragged
        loads.mark_ragged(tokens, steps[0], self.rank)
        return Batch({"tokens": tokens, "prompt": prompts})


class Muster:
    """Two clusters on one machine."""

    def up(self, mib: int) -> None:
        muster.init()
        resources = ResourceManager(0, 1)
        self._makers, self._takers = (
            Cluster(
                name=name,
                worker_cls=Looker,
                resource_manager=resources,
                worker_config=WorkerConfig(world_size=WORKERS),
            )
            for name in ("makers", "takers")
        )

    def pids(self) -> list[int]:
        found: list[int] = self._makers.process() + self._takers.process()
        return found

    def first(self, whole: loads.Matrix) -> list[Way]:
        prepare = batches.marking(whole)
        return [Way("batch", prepare, self._send), Way("arrays", prepare, self._send_arrays)]

    def _send(self, whole: loads.Matrix) -> Any:
        return self._makers.look(Batch({"x": whole}))

    def _send_arrays(self, whole: loads.Matrix) -> Any:
        shares = loads.shares(whole, WORKERS)
        return self._makers.execute_all_sync("look_at_array", PerRank(shares))

    def _make(self, rows: int, step: int) -> Any:
        return self._makers.make([(rows, step)] * WORKERS)

    def second(self, rows: int) -> list[Way]:
        def passed(step: int) -> Any:
            made = self._make(rows, step)
            self._takers.look(made)
            return made

        return [
            Way("again", passed, lambda b: self._takers.look(b)),
            Way("batch", lambda step: self._make(rows, step), lambda b: self._takers.look(b)),
        ]

    def gather(self, rows: int) -> list[Way]:
        return [Way("batch", lambda step: self._make(rows, step), lambda b: b["x"])]

    def ragged_first(self, tokens: list[Any], prompts: list[str]) -> list[Way]:
        def send(given: list[Any]) -> Any:
            return self._makers.look_ragged(Batch({"tokens": given, "prompt": prompts}))

        return [Way("batch", batches.marking_ragged(tokens), send)]

    def ragged_second(self) -> list[Way]:
        def make(step: int) -> Any:
            return self._makers.make_ragged([step] * WORKERS)

        return [Way("batch", make, lambda b: self._takers.look_ragged(b))]

    def down(self) -> None:
        muster.shutdown()


if __name__ == "__main__":
    batches.main(Muster())
