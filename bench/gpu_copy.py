"""How fast a batch gets to a GPU: python bench/gpu_copy.py [--mib 1024] [--rounds 5]

Needs torch with CUDA and build/venv's muster (or an installed one). Puts one
column into the store of a session, as a first send does, and copies it: from
the registered mapping (`Batch.to_torch(device="cuda")`), from an ordinary view
of the same memory, and from memory that torch pinned, which is the ceiling.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import muster


def seconds(copy: Callable[[], Any], rounds: int) -> list[float]:
    """The time of each round, until the bytes are on the device."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        kept = copy()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        del kept
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="a batch to a GPU, by three ways")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU that torch can use")
    size = options.mib << 20
    rows = 4096
    muster.init()
    batch = muster.Batch({"x": np.ones((rows, size // rows // 4), np.float32)})
    batch._encode([])  # into the store, as when it is sent
    torch.ones(1, device="cuda")  # starts CUDA
    view = torch.from_numpy(batch["x"])
    expected = float(view[:8].double().sum())
    pinned = torch.ones(size // 4, dtype=torch.float32, pin_memory=True)

    def registered() -> Any:
        return batch.to_torch(device="cuda")["x"]

    times = {"registered, the first time": seconds(registered, 1)}
    times["registered"] = seconds(registered, options.rounds)
    times["unregistered"] = seconds(lambda: view.to("cuda"), options.rounds)
    times["pinned by torch"] = seconds(lambda: pinned.to("cuda", non_blocking=True), options.rounds)
    if float(registered()[:8].double().sum()) != expected:
        raise SystemExit("what arrived is not what was sent")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.mib} MiB")
    rates = {name: size / min(some) / 1e9 for name, some in times.items()}
    for name, rate in rates.items():
        print(f"  {name:28s}{rate:8.1f} GB/s")
    print(json.dumps({name: round(rate, 2) for name, rate in rates.items()}))
    muster.shutdown()


if __name__ == "__main__":
    main()
