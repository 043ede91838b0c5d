"""Engines that the tests of `muster.compat.areal` host, found by their import paths."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import areal_platform


@dataclass
class Config:
    path: str = ""
    scale: int = 1
    sizes: tuple[int, ...] = (1, 2)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class ServerInfo:
    host: str
    port: int
    process: Any = None


class Plain:
    """An engine without a process group."""

    def __init__(self, config: Config | None = None, **given: Any) -> None:
        self.config = config or Config()
        self.given = given
        self.calls = 0
        if self.config.extra.get("refuse"):
            raise RuntimeError("no weights at " + self.config.path)
        print(f"{type(self).__name__} is made", flush=True)

    def add(self, a: int, b: int = 1) -> int:
        return (a + b) * self.config.scale

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return {"args": args, "kwargs": kwargs, "types": [type(a).__name__ for a in args]}

    def many(self, values: list[Any]) -> int:
        return len(values)

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def fail(self) -> None:
        self.calls += 1
        raise KeyError("no such row")

    def slow(self, seconds: float) -> int:
        self.calls += 1
        time.sleep(seconds)
        return self.calls

    def until(self, name: str) -> str:
        while name not in os.environ:
            time.sleep(0.01)
        return os.environ[name]

    def waits(self, timeout: float) -> float:
        return timeout

    def patience(self, timeout: float = 60.0) -> list[Any]:
        """How long it would wait, and what it was told when it was made."""
        return [timeout, self.given.get("timeout")]

    def env(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def pid(self) -> int:
        return os.getpid()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def die(self, code: int) -> None:
        print(f"leaving with {code}", flush=True)
        os._exit(code)

    def leave(self, code: int) -> None:
        raise SystemExit(code)

    def device(self) -> str:
        return areal_platform.current_platform.device()

    def server(self) -> ServerInfo:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        return ServerInfo("127.0.0.1", 1, process)

    def destroy(self) -> None:
        print("destroyed", flush=True)
        if self.config.path:
            with open(self.config.path, "a") as file:
                file.write(f"{os.getpid()} {self.given.get('label', '')}\n")


class Other(Plain):
    """Another, in the same worker."""


class Trainer:
    """What AReaL's TrainEngine is to a controller, with gloo: dp outside, tp inside."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.initialized = False
        self.platform = areal_platform.current_platform.device()

    def create_process_group(self, parallel_strategy: dict[str, int]) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.tp = parallel_strategy["tp"]
        self.rank = dist.get_rank()
        groups = [
            dist.new_group(list(range(first, first + self.tp)))
            for first in range(0, dist.get_world_size(), self.tp)
        ]
        heads = dist.new_group(list(range(0, dist.get_world_size(), self.tp)))
        self.context_and_model_parallel_group = groups[self.rank // self.tp]
        self.data_parallel_group = heads

    def initialize(self, ft_spec: Any = None) -> None:
        import torch

        self.weight = torch.full((2,), float(self.config.scale))
        self.initialized = True

    def is_data_parallel_head(self) -> bool:
        return bool(self.rank % self.tp == 0)

    def current_data_parallel_head(self) -> int:
        return int(self.rank - self.rank % self.tp)

    def train_batch(self, batch: list[dict[str, Any]], rate: float = 1.0) -> Any:
        """All ranks of a group have got the rows that its head was sent."""
        import torch
        import torch.distributed as dist

        total = torch.tensor(float(sum(row["ids"].sum() for row in batch)))
        everywhere = [torch.zeros(()) for _ in range(self.tp)]
        group = self.context_and_model_parallel_group
        dist.all_gather(everywhere, total, group=group)
        assert all(torch.equal(one, total) for one in everywhere), everywhere
        if self.is_data_parallel_head():
            dist.all_reduce(total, group=self.data_parallel_group)
            return [{"logp": row["ids"] * rate * self.weight[0], "total": total} for row in batch]
        return None

    def rows(self, count: int) -> Any:
        import torch

        return {"rows": [torch.ones(count)], "rank": self.rank}

    def version(self) -> int:
        return self.config.scale

    def destroy(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        if self.config.path:
            Path(self.config.path, f"destroyed-{self.rank}").touch()


class Inference:
    """What AReaL's InferenceEngine is to a controller: tasks that are told of when done."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.done: dict[int, Any] = {}
        self.server: subprocess.Popen[bytes] | None = None

    def launch_server(self, server_args: dict[str, Any]) -> ServerInfo:
        self.server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return ServerInfo("127.0.0.1", int(server_args["port"]), self.server)

    def initialize(self, engine_id: str, addr: str | None = None) -> None:
        self.engine_id = engine_id

    def submit(self, data: dict[str, Any], task_id: int, callback_addr: str) -> int:
        import json
        import urllib.request

        self.done[task_id] = {**data, "engine": self.engine_id}
        body = json.dumps({"task_id": task_id}).encode()
        urllib.request.urlopen(urllib.request.Request(callback_addr, body), timeout=10).read()
        return task_id

    def wait_for_task(self, task_id: int, timeout: float | None = None) -> Any:
        return self.done.pop(task_id, None)

    def destroy(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
