"""The classes of the teams. Each leg writes down when it began and when it ended.

What a leg writes goes out in one write before it goes on, so a process that is
killed in the next moment has told of it. Answers carry the number of the run
that made them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
import zlib
from typing import Any

import numpy as np

import muster
from chaos.plan import WAYS, grown
from muster import Batch, Dispatch, Worker, register

ALL, CUT = Dispatch.ONE_TO_ALL, Dispatch.DP_MP_COMPUTE
EACH = Dispatch.DP_MP_COMPUTE_COLLECT_ALL


class PlannedError(Exception):
    """Raised where the plan says so."""


class Leg:
    """One run of one call in this process: a line at its begin, one at its end."""

    def __init__(self, crew: Crew, call: str) -> None:
        self.crew, self.call = crew, call
        self.run = os.getpid() * 1_000_000 + next(crew.runs)

    def __enter__(self) -> Leg:
        self.crew.write("begin", call=self.call, run=self.run)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        how = kind.__name__ if kind else ""
        self.crew.write("end", call=self.call, run=self.run, raised=how)

    def says(self, value: Any) -> list[Any]:
        """The answer of this run."""
        return [self.call, self.crew.rank, self.run, value]


class Crew(Worker):
    """What the classes have in common."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.mark = ""
        self.runs = itertools.count()
        folder = worker_config.strategy_args["folder"]
        path = os.path.join(folder, f"legs-{self.cluster_name}-{self.rank}.jsonl")
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.write("born")

    def write(self, what: str, **more: Any) -> None:
        """Append a line to this rank's file."""
        line = {"at": time.monotonic(), "what": what, "team": self.cluster_name, **more}
        line |= {"rank": self.rank, "pid": os.getpid(), "mark": self.mark}
        os.write(self.file, json.dumps(line).encode() + b"\n")

    @register(ALL)
    def initialize(self, mark: str) -> str:
        """Be marked; a rank that is restarted has to be again."""
        self.mark = mark
        self.write("initialized")
        return mark

    # What the methods do, whether they are async or not.

    def do_note(self, call: str, value: Any) -> Any:
        with Leg(self, call) as leg:
            return leg.says(value)

    def do_rows(self, call: str, rows: list[Any]) -> Any:
        with Leg(self, call) as leg:
            return [[grown(row[0]), leg.run] for row in rows]

    def do_grow(self, call: str, rows: Batch) -> Batch:
        with Leg(self, call) as leg:
            runs = np.full(len(rows), leg.run, np.int64)
            return Batch({"x": grown(rows["x"]), "run": runs})

    def do_weigh(self, call: str, rows: Batch) -> Any:
        with Leg(self, call) as leg:
            x = np.ascontiguousarray(rows["x"])
            return leg.says([len(x), zlib.crc32(x.tobytes())])

    def do_fail(self, call: str, rank: int) -> Any:
        with Leg(self, call) as leg:
            if self.rank == rank:
                raise PlannedError(f"planned {call}")
            return leg.says(rank)

    def do_leave(self, call: str, rank: int, way: str) -> Any:
        with Leg(self, call) as leg:
            if self.rank != rank:
                return leg.says(rank)
            self.write("leaves", call=call, run=leg.run, code=WAYS[way])
            if way == "os._exit":
                os._exit(WAYS[way])
            sys.exit(WAYS[way])


class Sync(Crew):
    """One call at a time; with max_concurrency, several on threads."""

    @register(ALL)
    def note(self, call: str, value: Any) -> Any:
        return self.do_note(call, value)

    @register(ALL, idempotent=True)
    def note_again(self, call: str, value: Any) -> Any:
        return self.do_note(call, value)

    @register(CUT)
    def rows(self, call: str, rows: list[Any]) -> Any:
        return self.do_rows(call, rows)

    @register(CUT, idempotent=True)
    def rows_again(self, call: str, rows: list[Any]) -> Any:
        return self.do_rows(call, rows)

    @register(CUT)
    def grow(self, call: str, rows: Batch) -> Batch:
        return self.do_grow(call, rows)

    @register(CUT, idempotent=True)
    def grow_again(self, call: str, rows: Batch) -> Batch:
        return self.do_grow(call, rows)

    @register(EACH, idempotent=True)
    def weigh(self, call: str, rows: Batch) -> Any:
        return self.do_weigh(call, rows)

    @register(ALL)
    def fail(self, call: str, rank: int) -> Any:
        return self.do_fail(call, rank)

    @register(ALL)
    def leave(self, call: str, rank: int, way: str) -> Any:
        return self.do_leave(call, rank, way)

    @register(ALL)
    def linger(self, call: str, seconds: float) -> Any:
        with Leg(self, call) as leg:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.02))
            return leg.says(seconds)

    @register(ALL)
    def relay(self, call: str, team: str) -> Any:
        with Leg(self, call) as leg:
            return leg.says(muster.get_cluster(team).note(f"{call}.{self.rank}", self.rank))


class Async(Crew):
    """The same, side by side on an event loop."""

    @register(ALL)
    async def note(self, call: str, value: Any) -> Any:
        return self.do_note(call, value)

    @register(ALL, idempotent=True)
    async def note_again(self, call: str, value: Any) -> Any:
        return self.do_note(call, value)

    @register(CUT)
    async def rows(self, call: str, rows: list[Any]) -> Any:
        return self.do_rows(call, rows)

    @register(CUT, idempotent=True)
    async def rows_again(self, call: str, rows: list[Any]) -> Any:
        return self.do_rows(call, rows)

    @register(CUT)
    async def grow(self, call: str, rows: Batch) -> Batch:
        return self.do_grow(call, rows)

    @register(CUT, idempotent=True)
    async def grow_again(self, call: str, rows: Batch) -> Batch:
        return self.do_grow(call, rows)

    @register(EACH, idempotent=True)
    async def weigh(self, call: str, rows: Batch) -> Any:
        return self.do_weigh(call, rows)

    @register(ALL)
    async def fail(self, call: str, rank: int) -> Any:
        return self.do_fail(call, rank)

    @register(ALL)
    async def leave(self, call: str, rank: int, way: str) -> Any:
        return self.do_leave(call, rank, way)

    @register(ALL)
    async def linger(self, call: str, seconds: float) -> Any:
        with Leg(self, call) as leg:
            await asyncio.sleep(seconds)
            return leg.says(seconds)

    @register(ALL)
    async def relay(self, call: str, team: str) -> Any:
        with Leg(self, call) as leg:
            other = muster.get_cluster(team)
            return leg.says(await other.note(f"{call}.{self.rank}", self.rank, blocking=False))
