"""Workers that die at a bad moment, and leave a trace of every run in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from muster import Dispatch, Worker, register


class Mortal(Worker):
    """Writes a line per run of a method, and waits inside it while it is held."""

    folder: Path
    total: float = -1.0

    def _run(self, what: str) -> int:
        line = f"{what} {self.rank} {os.getpid()}\n".encode()
        trace = os.open(self.folder / "trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(trace, line)
        os.close(trace)
        print(f"in {what}", flush=True)
        deadline = time.monotonic() + 50
        while (self.folder / f"hold-{what}").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def initialize(self, folder: str, weights: Any = None) -> None:
        self.folder = Path(folder)
        if weights is not None:
            self.total = float(weights.sum())
        self._run("initialize")

    @register(Dispatch.ONE_TO_ALL, idempotent=True)
    def read(self, what: str = "read") -> int:
        return self._run(what)

    @register(Dispatch.ONE_TO_ALL)
    def step(self, what: str = "step") -> int:
        return self._run(what)

    @register(Dispatch.ONE_TO_ALL, idempotent=True)
    def sums(self) -> float:
        return self.total

    @register(Dispatch.DP_MP_COMPUTE, idempotent=True)
    def rows(self, batch: Any) -> Any:
        self._run("rows")
        return [(self.rank, row) for row in batch]

    def pid(self) -> int:
        return os.getpid()

    def talk(self, lines: int) -> None:
        for i in range(lines):
            print(f"line {i}", flush=True)

    def fall(self) -> None:
        """End as an uncaught exception in a thread of the user's would end it."""
        try:
            dict[str, int]()["no such key"]
        except KeyError:
            import traceback

            traceback.print_exc()
            os._exit(5)


class Team(Mortal):
    """Ranks that need each other in a method."""

    @register(Dispatch.ONE_TO_ALL, collective=True, idempotent=True)
    def reduce(self) -> int:
        return self._run("reduce")
