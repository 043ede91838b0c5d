"""make soak: many steps of large batches, after which nothing has grown.

Each step sends the script's matrix to one cluster, which gives back rows that it
made itself; those go to a second cluster by reference, and the script reads a
small column. Memory, descriptors, mappings and segments of every process are
taken after a warm-up and at the end, printed side by side, and compared.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import muster
from muster import Batch, Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register

WORKERS = 8
WIDTH = 1024
#: Steps before the first look: caches fill, each process meets each segment, and the head,
#: which lets 16 MB of garbage come together (GOGC is 400), has collected it once.
WARM = 400
#: What every process may have more at the end than after the warm-up.
SLACK = {"rss": 8 << 20, "fds": 2, "segments": 2, "mappings": 8}


class Step(Worker):
    """The worker of both clusters."""

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> int:
        return os.getpid()

    @register(Dispatch.DP_MP_COMPUTE)
    def generate(self, batch: Batch) -> Batch:
        x = batch["x"]
        x[0, 0] += 1  # stays here
        return Batch({"y": x, "row": np.arange(len(x))})

    @register(Dispatch.DP_MP_COMPUTE)
    def train(self, batch: Batch) -> Batch:
        y = batch["y"]
        return Batch({"seen": np.array([y[0, 0]]), "rows": np.array([len(y)])})


@dataclass(frozen=True)
class Looked:
    """One process at one moment."""

    rss: int  # what is its own: shared memory is counted in the machine's
    fds: int
    segments: int  # descriptors of shared memory
    mappings: int


def look(pid: int) -> Looked:
    """A process as /proc has it."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = sum(
        int(line.split()[1]) << 10
        for line in status.splitlines()
        if line.startswith(("RssAnon:", "RssFile:"))
    )
    fds = segments = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue  # closed meanwhile
        fds += 1
        segments += target.startswith("/memfd:") or target.endswith(" (deleted)")
    mappings = Path(f"/proc/{pid}/maps").read_text().count("\n")
    return Looked(own, fds, segments, mappings)


def descendants(root: int) -> list[int]:
    """All processes below this one."""
    found, todo = [], [root]
    while todo:
        for thread in os.scandir(f"/proc/{todo.pop()}/task"):
            below = Path(thread.path, "children").read_text().split()
            found += [int(pid) for pid in below]
            todo += [int(pid) for pid in below]
    return found


def name(pid: int) -> str:
    """What a process calls itself."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return " ".join(w.decode(errors="replace") for w in words[:2])[:24].strip()


def shared(pids: Iterable[int]) -> int:
    """Shared memory that these processes have open, each segment once."""
    found = {}
    for pid in pids:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(entry.path).startswith("/memfd:"):
                    at = os.stat(entry.path)
                    found[at.st_ino] = at.st_blocks * 512
            except OSError:
                pass  # closed meanwhile
    return sum(found.values())


def steps(count: int, first: int, mib: int, makers: Cluster, takers: Cluster) -> None:
    """Runs that many steps and checks what comes of each."""
    whole = np.ones(((mib << 20) // (WIDTH * 4), WIDTH), np.float32)
    each = len(whole) // WORKERS
    for step in range(first, first + count):
        whole[::each, 0] = step
        out = takers.train(makers.generate(Batch({"x": whole})))
        seen, rows = out["seen"], out["rows"]
        if not (seen == step + 1).all() or not (rows == each).all() or len(rows) != WORKERS:
            raise AssertionError(f"step {step}: {seen} of {rows} rows")
        if sys.stderr.isatty() and step % 10 == 0:
            print(f"\rstep {step}", end="", file=sys.stderr, flush=True)


def soak(count: int, mib: int, say: Callable[[str], None]) -> list[str]:
    """All of it; returns what has grown."""
    muster.init()
    resources = ResourceManager(0, 1)
    makers, takers = (
        Cluster(
            name=which,
            worker_cls=Step,
            resource_manager=resources,
            worker_config=WorkerConfig(world_size=WORKERS),
        )
        for which in ("generate", "train")
    )
    workers = {pid: f"generate-{i}" for i, pid in enumerate(makers.process())}
    workers |= {pid: f"train-{i}" for i, pid in enumerate(takers.process())}

    def everyone() -> dict[int, Looked]:
        gc.collect()
        return {pid: look(pid) for pid in [os.getpid(), *descendants(os.getpid())]}

    steps(WARM, 1, mib, makers, takers)
    start, began = everyone(), time.monotonic()
    shared_start = shared(start)
    steps(count, WARM + 1, mib, makers, takers)
    took = time.monotonic() - began
    end = everyone()
    shared_end = shared(end)
    say(f"{count} steps of {mib} MiB, there and on: {took:.0f} s, {took / count * 1e3:.0f} ms each")
    say(f"{'':<24}{'memory MB':>20}{'descriptors':>16}{'segments':>14}{'mappings':>16}")
    grown = []
    for pid in [*(start.keys() - workers.keys()), *workers]:
        before, after = start[pid], end.get(pid)
        label = "script" if pid == os.getpid() else workers.get(pid) or name(pid)
        if after is None:
            grown.append(f"{label} has ended")
            continue
        say(
            f"{label:<24}{before.rss / 1e6:>10.1f}{after.rss / 1e6:>10.1f}"
            f"{before.fds:>8}{after.fds:>8}{before.segments:>7}{after.segments:>7}"
            f"{before.mappings:>8}{after.mappings:>8}"
        )
        for field, slack in SLACK.items():
            a, b = getattr(before, field), getattr(after, field)
            if b > a + slack:
                grown.append(f"{label}: {field} from {a} to {b}")
    say(f"{'shared memory':<24}{shared_start / 1e6:>10.1f}{shared_end / 1e6:>10.1f}")
    if shared_end > shared_start + (mib << 20):
        grown.append(f"shared memory: from {shared_start} to {shared_end}")
    grown += [f"{name(pid)} is new" for pid in end.keys() - start.keys()]
    muster.shutdown()
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=256, help="bytes of a step, in MiB")
    options = parser.parse_args()
    grown = soak(options.steps, options.mib, lambda text: print(text, flush=True))
    if grown:
        sys.exit("grown:\n  " + "\n  ".join(grown))
    print("nothing has grown")


if __name__ == "__main__":
    main()
