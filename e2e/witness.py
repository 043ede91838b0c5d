"""Workers that write down what they run, so that nothing can run twice unseen."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from muster import Cluster, Dispatch, Worker, register

PATIENCE = 50.0  # seconds that a method waits for a file at most


class Witness(Worker):
    """Each run is a line in a file of its rank's."""

    folder: Path

    @register(Dispatch.ONE_TO_ALL)
    def begin(self, folder: str) -> int:
        self.folder = Path(folder)
        return os.getpid()

    def _note(self, what: Any) -> None:
        with open(self.folder / f"{self.cluster_name}-{self.rank}", "ab", 0) as trace:
            trace.write(f"{what}\n".encode())

    @register(Dispatch.ONE_TO_ALL)
    def step(self, what: Any) -> tuple[Any, int]:
        self._note(what)
        return what, self.rank

    @register(Dispatch.ONE_TO_ALL)
    def until(self, gate: str, what: Any = None) -> tuple[Any, int]:
        """Wait for a file."""
        self._note(gate)
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / gate).exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return what, self.rank

    @register(Dispatch.DP_MP_COMPUTE)
    def rows(self, rows: list[Any]) -> list[Any]:
        self._note(rows)
        return [(self.rank, row) for row in rows]

    def ask(self, inner: Cluster, gate: str) -> Any:
        """Call others from inside a call, before and while they wait."""
        self._note("ask")
        before = inner.step(("before", self.rank))
        held = inner.until(gate, ("held", self.rank))
        return before, held, inner.step(("after", self.rank))


class Quick(Witness):
    """The same on an event loop."""

    @register(Dispatch.ONE_TO_ALL)
    async def wait(self, gate: str, what: Any) -> tuple[Any, int]:
        self._note(what)
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / gate).exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        return what, self.rank


def runs(folder: Path, cluster: str, ranks: int) -> list[list[str]]:
    """What each rank has run, in its order."""
    found = []
    for rank in range(ranks):
        path = folder / f"{cluster}-{rank}"
        found.append(path.read_text().splitlines() if path.exists() else [])
    return found
