"""How fast a batch gets to a GPU: python bench/gpu_copy.py [--mib 1024] [--rounds 5]

Needs torch with CUDA and build/venv's muster (or an installed one). A batch goes
to a worker with a GPU of its own, which copies it there: from the registered
mapping of the store (`Batch.to_torch(device="cuda")`), from an ordinary view of
the same memory, and from memory that torch pinned, which is the ceiling. After
that, steps with other rows in recycled memory, each looked at on the GPU, as
batches and as the DataProtos of `muster.compat.roll`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import muster
from muster import Batch, Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register


class Copier(Worker):
    """Has a GPU and copies to it."""

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def measure(self, batch: Batch, rounds: Any) -> dict[str, Any]:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("this needs a GPU that torch can use")
        torch.ones(1, device="cuda")  # starts CUDA
        view = torch.from_numpy(batch["x"])
        pinned = torch.ones(view.numel(), dtype=torch.float32, pin_memory=True)

        def registered() -> Any:
            return batch.to_torch(device="cuda")["x"]

        size = view.numel() * 4
        times = {"registered, the first time": seconds(torch, registered, 1)}
        times["registered"] = seconds(torch, registered, rounds)
        times["unregistered"] = seconds(torch, lambda: view.to("cuda"), rounds)
        times["pinned by torch"] = seconds(
            torch, lambda: pinned.to("cuda", non_blocking=True), rounds
        )
        rates = {name: size / min(some) / 1e9 for name, some in times.items()}
        where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        return {"rates": rates, "where": where}

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def sums(self, batch: Batch) -> tuple[float, float, float]:
        """The sum of all rows, and the ends, as the GPU has them; and how long the copy took."""
        import torch

        begin = time.perf_counter()
        x = batch.to_torch(device="cuda")["x"]
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        return float(x.double().sum()), float(x[0, 0] + x[-1, -1]), took

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def proto_sums(self, proto: Any) -> tuple[float, float, float]:
        """The same of a DataProto; then once more, when a tensor of it was written to."""
        import torch

        begin = time.perf_counter()
        x = proto.to("cuda").batch["x"]
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        total, ends = float(x.double().sum()), float(x[0, 0] + x[-1, -1])
        back = proto.to("cpu")
        back.batch["x"][0, 0] += 1
        if float(back.to("cuda").batch["x"][0, 0]) != float(x[0, 0]) + 1:
            raise RuntimeError("what was written to a DataProto did not get to the GPU")
        return total, ends, took


def seconds(torch: Any, copy: Callable[[], Any], rounds: int) -> list[float]:
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


def proto_of(x: Any) -> Any:
    """The rows as ROLL's users have them."""
    import torch

    from muster.compat.roll import DataProto

    return DataProto.from_dict(tensors={"x": torch.from_numpy(x)})


def steps(x: Any, send: Callable[[], Any], count: int) -> float:
    """The best rate of some steps with rows of their own, all of which have to arrive."""
    rates: list[float] = []
    for step in range(count):
        x[...] = step
        x[0, 0] = -step
        ((total, ends, took),) = send()
        if total != step * (x.size - 2) or ends != 0:
            raise SystemExit(f"step {step}: what arrived is not what was sent: {total}, {ends}")
        rates.append(x.nbytes / took / 1e9)
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description="a batch to a GPU, by three ways")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    rows, width = 4096, (options.mib << 20) // 4096 // 4
    with (
        ResourceManager(1, 1) as rm,
        Cluster(
            name="copier",
            worker_cls=Copier,
            resource_manager=rm,
            worker_config=WorkerConfig(device_mapping="0", startup_timeout=120),
        ) as copier,
    ):
        x = np.ones((rows, width), np.float32)
        (told,) = copier.measure(Batch({"x": x}), muster.Broadcast(options.rounds))
        print(f"{told['where']}, {options.mib} MiB, in a worker")
        for name, rate in told["rates"].items():
            print(f"  {name:28s}{rate:8.1f} GB/s")
        for name, send in (
            ("each step's own batch", lambda: copier.sums(Batch({"x": x}))),
            ("each step's own DataProto", lambda: copier.proto_sums(proto_of(x))),
        ):
            rate = told["rates"][name] = steps(x, send, options.steps)
            print(f"  {name:28s}{rate:8.1f} GB/s, all {options.steps} right")
        print(json.dumps({name: round(rate, 2) for name, rate in told["rates"].items()}))
    muster.shutdown()


if __name__ == "__main__":
    main()
