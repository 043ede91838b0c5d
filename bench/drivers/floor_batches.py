"""The floor under batches: memory that is already there, copied by as many threads as Muster has.

A first hop is at least one copy of the rows from the script's memory into
memory that others can map (a memfd, mapped shared, touched before), and a gather
one copy from there into new memory of the script. There are no workers and no
messages: what those cost is not in this floor.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

import batches
import loads
from batches import RAGGED_ROWS, WORKERS, Way


class Floor:
    """One segment of shared memory, touched."""

    def up(self, mib: int) -> None:
        self._pool = ThreadPoolExecutor(batches.copying_threads())
        self._fd = os.memfd_create("floor")
        self._room = max(mib, 256) << 20
        os.posix_fallocate(self._fd, 0, self._room)
        self._memory = mmap.mmap(self._fd, self._room, mmap.MAP_SHARED)
        self._shared = np.frombuffer(self._memory, np.uint8)
        self._shared[::4096] = 1

    def pids(self) -> list[int]:
        return []

    def _copy(self, target: Any, source: Any) -> None:
        """All bytes, each thread one piece of them."""
        target, source = target.reshape(-1), source.reshape(-1)
        each = -(-len(source) // batches.copying_threads())
        wait(
            [
                self._pool.submit(np.copyto, target[i : i + each], source[i : i + each])
                for i in range(0, len(source), each)
            ]
        )

    def _as(self, rows: int) -> loads.Matrix:
        size = rows * loads.WIDTH * 4
        return self._shared[:size].view(np.float32).reshape(rows, loads.WIDTH)

    def first(self, whole: loads.Matrix) -> list[Way]:
        def copy(given: loads.Matrix) -> list[loads.Seen]:
            self._copy(self._as(len(given)), given)
            return [loads.look(x) for x in loads.shares(self._as(len(given)), WORKERS)]

        return [Way("copy", batches.marking(whole), copy)]

    def second(self, rows: int) -> list[Way]:
        return []

    def gather(self, rows: int) -> list[Way]:
        def copy(shared: loads.Matrix) -> loads.Matrix:
            made = np.empty_like(shared)
            self._copy(made, shared)
            return made

        return [Way("copy", batches.marking(self._as(rows * WORKERS)), copy)]

    def ragged_first(self, tokens: list[Any], prompts: list[str]) -> list[Way]:
        lengths = [len(x) for x in tokens]
        ends = np.cumsum([0, *lengths])
        each = RAGGED_ROWS // WORKERS

        def copy(given: list[Any]) -> list[loads.SeenRagged]:
            values = self._shared[: ends[-1] * 8].view(np.int64)
            np.concatenate(given, out=values)
            texts = "".join(prompts).encode()
            self._shared[ends[-1] * 8 :][: len(texts)] = np.frombuffer(texts, np.uint8)
            return [
                (
                    each,
                    int(values[ends[i]]),
                    int(values[ends[i + each] - 1]),
                    len(prompts[i]),
                    len(prompts[i + each - 1]),
                )
                for i in range(0, RAGGED_ROWS, each)
            ]

        return [Way("copy", batches.marking_ragged(tokens), copy)]

    def ragged_second(self) -> list[Way]:
        return []

    def down(self) -> None:
        self._pool.shutdown()


if __name__ == "__main__":
    batches.main(Floor())
