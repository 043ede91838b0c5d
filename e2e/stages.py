"""Stages of a pipeline that pass batches to each other, and a look into the stores."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from muster import Batch, Dispatch, Worker, register
from running import BINARY, output_of, run

MIB = 1 << 20


def stores() -> list[dict[str, Any]]:
    told = json.loads(output_of(run(BINARY, "store", "--json", virtual=None)))
    return [node for head in told for node in head["nodes"]]


def objects() -> list[dict[str, Any]]:
    gc.collect()
    return [o for node in stores() for o in node["objects"]]


def rows(n: int, width: int = 1024) -> Any:
    """n rows of 8 KiB, each full of its own number."""
    return np.repeat(np.arange(n, dtype=np.int64), width).reshape(n, width)


class Stage(Worker):
    """Makes, changes, keeps and loses batches."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.kept: list[Any] = []

    @register(Dispatch.DP_MP_COMPUTE)
    def echo(self, rows: Any) -> Any:
        return rows

    @register(Dispatch.DP_MP_COMPUTE)
    def double(self, rows: Batch) -> Batch:
        return Batch({"x": rows["x"] * 2}, meta={"rank": self.rank})

    @register(Dispatch.DP_MP_COMPUTE)
    def repeat(self, rows: Batch, times: Any) -> Batch:
        return rows.repeat(int(times[0]))

    @register(Dispatch.DP_MP_COMPUTE)
    def add(self, rows: Batch) -> Batch:
        return rows.with_columns({"rank": np.full(len(rows), self.rank)})

    @register(Dispatch.DP_MP_COMPUTE)
    def measure(self, rows: Batch) -> Batch:
        hist = np.ones((1, len(rows)))
        return rows.with_meta(metrics={"rows": len(rows), "acc": float(self.rank > 1), "h": hist})

    @register(Dispatch.DP_MP_COMPUTE)
    def note(self, rows: Batch) -> Batch:
        """Looks at the meta, and says something that is no metric."""
        rows.meta["seen"] = self.rank
        return rows

    @register(Dispatch.DP_MP_COMPUTE)
    def only_first(self, rows: Batch) -> Batch:
        return rows[:1]

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def look(self, rows: Batch) -> Any:
        """What this rank got: length, columns, meta, and the sum and ends of column x."""
        x = rows["x"] if "x" in rows.columns else np.zeros(0)
        ends = [x[0].tolist(), x[-1].tolist()] if len(x) else []
        return len(rows), rows.columns, dict(rows.meta), int(x.sum()), ends

    @register(Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def fed(self, rows: Batch) -> Any:
        return len(rows), rows.columns, dict(rows.meta), rows["x"].dtype.str

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def scribble(self, rows: Batch) -> int:
        """Writes into its rows, which nobody else may see."""
        x = rows["x"]
        x[...] = -1 - self.rank
        return int(x.sum())

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def keep(self, rows: Batch) -> int:
        self.kept.append(rows["x"])
        return len(rows)

    @register(Dispatch.ONE_TO_ALL)
    def keep_handle(self, rows: Batch) -> None:
        self.kept.append(rows)

    @register(Dispatch.ONE_TO_ALL)
    def sums(self) -> list[int]:
        return [int((k["x"] if isinstance(k, Batch) else k).sum()) for k in self.kept]

    @register(Dispatch.ONE_TO_ALL)
    def give_back(self, index: int) -> Any:
        return self.kept[index]

    @register(Dispatch.ONE_TO_ALL)
    def let_go(self) -> None:
        self.kept.clear()

    @register(Dispatch.ONE_TO_ALL)
    def make(self, rows: int, width: int = 1) -> Batch:
        return Batch({"x": np.full((rows, width), self.rank, np.int64)})

    @register(Dispatch.ONE_TO_ALL)
    def make_and_keep(self, rows: int, width: int, value: int) -> Batch:
        made = Batch({"x": np.full((rows, width), value, np.int64)})
        self.kept.append(made)
        return made

    @register(Dispatch.DP_MP_COMPUTE)
    def slow(self, rows: Batch, seconds: Any, folder: Any) -> Batch:
        """Tells when it begins and ends by files, and rank 0 waits to be let go on."""
        place = Path(folder[0])
        (place / f"begun-{self.cluster_name}-{self.rank}").touch()
        if self.rank == 0 and seconds[0]:
            deadline = time.monotonic() + seconds[0]
            while not (place / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        (place / f"done-{self.cluster_name}-{self.rank}").touch()
        return rows

    @register(Dispatch.ONE_TO_ALL)
    def large(self, value: Any) -> Any:
        """Any value that holds large buffers, and whether it can be written to."""
        if isinstance(value, np.ndarray):
            value[0] = value[0]
        return value

    @register(Dispatch.DP_MP_COMPUTE)
    def die(self, rows: Batch) -> Batch:
        if self.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    @register(Dispatch.ONE_TO_ALL)
    def die_writing(self, size: int) -> Any:
        """Killed in the middle of writing an object."""
        from muster import _store

        def fill(into: Any) -> None:
            into[: len(into) // 2] = 1
            os.kill(os.getpid(), signal.SIGKILL)

        return _store.place(size, fill, "half a batch")

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> dict[str, int]:
        """Resident bytes of this process's own, and its descriptors and mappings."""
        status = Path("/proc/self/status").read_text()
        anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
        maps = Path("/proc/self/maps").read_text().count("memfd:")
        return {"anonymous": anonymous, "fds": len(os.listdir("/proc/self/fd")), "maps": maps}
