"""Engines of AReaL's own two kinds, for its real controllers: gloo, and no models."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

_api: Any = import_module("areal.api")  # found where AReaL is installed


def _complete(cls: Any) -> Any:
    """Leave out what these tests do not call."""
    for name in getattr(cls, "__abstractmethods__", ()):
        setattr(cls, name, lambda self, *args, **kwargs: None)
    cls.__abstractmethods__ = frozenset()
    return cls


@_complete
class Train(_api.TrainEngine):  # type: ignore[misc]
    """dp outside, tp inside."""

    initialized = False

    def __init__(self, config: Any) -> None:
        self.config = config
        self.number = 0

    def create_process_group(self, parallel_strategy: Any = None) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.rank, self.tp = dist.get_rank(), parallel_strategy.tp_size
        groups = [
            dist.new_group(list(range(first, first + self.tp)))
            for first in range(0, dist.get_world_size(), self.tp)
        ]
        self.context_and_model_parallel_group = groups[self.rank // self.tp]

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        self.initialized = True

    def is_data_parallel_head(self) -> bool:
        return bool(self.rank % self.tp == 0)

    def current_data_parallel_head(self) -> int:
        return int(self.rank - self.rank % self.tp)

    def double(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        import torch
        import torch.distributed as dist

        total = torch.stack([row["input_ids"].sum() for row in rows]).sum().float()
        all_of_it = [torch.zeros(()) for _ in range(self.tp)]
        dist.all_gather(all_of_it, total, group=self.context_and_model_parallel_group)
        assert all(float(one) == float(total) for one in all_of_it), "all have the head's rows"
        return [{**row, "input_ids": row["input_ids"] * 2} for row in rows]

    def set_version(self, version: int) -> None:
        self.number = version

    def get_version(self) -> int:
        return self.number

    def fail(self) -> None:
        raise RuntimeError("out of memory, say")

    def destroy(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
            print(f"train {os.environ['RANK']} destroyed", flush=True)


@_complete
class Inference(_api.InferenceEngine):  # type: ignore[misc]
    """A server that does nothing, and tasks that are done at once."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.done: dict[int, Any] = {}
        self.server: subprocess.Popen[bytes] | None = None

    def launch_server(self, server_args: Any) -> Any:
        self.server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return _api.LocalInfServerInfo(host="127.0.0.1", port=1, process=self.server)

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        pass

    def submit(self, data: Any, task_id: int, callback_addr: str, **kwargs: Any) -> int:
        requests: Any = import_module("requests")
        import torch

        def work() -> None:
            ids = torch.full((1, 4), data["n"])
            self.done[task_id] = {"input_ids": ids, "attention_mask": torch.ones(1, 4)}
            requests.post(callback_addr, json={"task_id": task_id})

        threading.Thread(target=work).start()
        return task_id

    def wait_for_task(self, task_id: int, **kwargs: Any) -> Any:
        return self.done.pop(task_id, None)

    def destroy(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
            self.server = None
            print("server ended", flush=True)
