"""How several hosts are measured, written once for every system.

A system says how it starts workers on three hosts, calls them, and carries rows
from host to host (`Nodes`); the loops, clocks and checks are here. The script runs
on the first host. That workers are where they are said to be is checked.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import probe
from loads import Matrix, rows_of

HOSTS = 3
#: Of each host, by name.
GPUS = 8
#: A row in so many is marked: one a MiB.
MARKED = 256
#: Steps with bytes that are not counted; the first of them is a figure of its own.
WARM = 2

#: Rows, the marks of all marked rows (least and most), and that of the end.
Seen = tuple[int, float, float, float]


class Nodes(Protocol):
    """What a system does over several hosts, each as its own documentation recommends."""

    def up(self) -> None:
        """Start the system in this script; its nodes are there already."""

    def start(self, workers: int) -> Any:
        """Workers, as many on each host; the first is on the script's."""

    def hosts(self, group: Any) -> list[str]:
        """The name of each worker's host."""

    def broadcast(self, group: Any) -> list[object]:
        """Call all workers with TOKEN and gather what they return."""

    def one(self) -> Any:
        """A group of one worker, on the second host."""

    def caller(self, group: Any) -> Callable[[], object]:
        """A function that calls the only worker with TOKEN and waits."""

    def pipeline(self, group: Any, calls: int) -> list[object]:
        """Send calls to the only worker before waiting for any."""

    def carry(self) -> Any:
        """Workers that carry rows: one that makes them on the second host, one that takes
        them on the third, and one on each host."""

    def make(self, carriers: Any, rows: int, step: int) -> Any:
        """Have the maker make rows, and wait for them, without fetching them."""

    def take(self, carriers: Any, made: Any) -> Seen:
        """Have the taker look at all that was made."""

    def take_all(self, carriers: Any, made: Any) -> list[Seen]:
        """Have the worker of each host look at all that was made."""

    def stop(self, group: Any) -> None:
        """Have the workers of `start` or `one` end; it need not wait for them."""

    def down(self) -> None:
        """Leave; the nodes stay."""


class Rows:
    """What a maker has: rows that are made once, and marked anew for each step."""

    def __init__(self) -> None:
        self._rows: Matrix = np.ones((0, 1024), np.float32)

    def marked(self, rows: int, step: int) -> Matrix:
        if len(self._rows) != rows:
            self._rows = np.ones((rows, 1024), np.float32)
        self._rows[::MARKED, 0] = step
        self._rows[-1, -1] = -step
        return self._rows


def look(rows: Matrix) -> Seen:
    """What a worker does with rows; each MiB of them is looked at."""
    marks = rows[::MARKED, 0]
    return len(rows), float(marks.min()), float(marks.max()), float(rows[-1, -1])


def _check(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def _placed(system: Nodes, group: Any, workers: int) -> None:
    names = system.hosts(group)
    each = workers // HOSTS
    _check([names.count(name) for name in dict.fromkeys(names)], [each] * HOSTS, str(names))
    _check(names[0], socket.gethostname(), "the host of the first worker")


def _start(system: Nodes, results: probe.Results, p: dict[str, Any]) -> None:
    """Workers ready on all hosts: from the start of the script, and once more."""
    workers = p["workers"]
    system.up()
    group = system.start(workers)
    answers = system.broadcast(group)
    results.moment(f"ready.{workers}")
    _check(answers, [probe.TOKEN] * workers, "the workers returned")
    _placed(system, group, workers)
    began = time.perf_counter()
    group = system.start(workers)
    answers = system.broadcast(group)
    results.value(f"again.{workers}", time.perf_counter() - began)
    _check(answers, [probe.TOKEN] * workers, "the workers returned")
    system.down()


def _calls(system: Nodes, results: probe.Results, p: dict[str, Any]) -> None:
    """One worker of another host: single calls, and calls in flight."""
    system.up()
    group = system.one()
    call = system.caller(group)
    _check(call(), probe.TOKEN, "the worker returned")
    if system.hosts(group) == [socket.gethostname()]:
        raise AssertionError("the worker is on the script's own host")
    times = probe.sample(call, p["calls"], p["seconds"])
    results.value("call.p50", probe.percentile(times, 0.50))
    results.value("call.p99", probe.percentile(times, 0.99))
    flight = p["flight"]
    _check(system.pipeline(group, flight), [probe.TOKEN] * flight, "the worker returned")
    times = probe.sample(lambda: system.pipeline(group, flight), p["batches"], p["seconds"])
    results.value("pipelined", flight / probe.percentile(times, 0.50))
    system.stop(group)
    system.down()


def _fan(system: Nodes, results: probe.Results, p: dict[str, Any]) -> None:
    """A broadcast to workers of all hosts."""
    workers = p["workers"]
    system.up()
    group = system.start(workers)
    _check(system.broadcast(group), [probe.TOKEN] * workers, "the workers returned")
    _placed(system, group, workers)
    times = probe.sample(lambda: system.broadcast(group), p["calls"], p["seconds"])
    results.value(f"fan.{workers}", probe.percentile(times, 0.50))
    system.stop(group)
    system.down()


def _bytes(system: Nodes, results: probe.Results, p: dict[str, Any]) -> None:
    """Rows from one host to another, and to all. The making of them is not timed."""
    rows = rows_of(p["mib"])
    system.up()
    carriers = system.carry()

    def one(made: Any) -> list[Seen]:
        return [system.take(carriers, made)]

    def each(made: Any) -> list[Seen]:
        return system.take_all(carriers, made)

    for name, takers, take in (("one", 1, one), ("all", HOSTS, each)):
        times: list[float] = []
        step, end = 0, float("inf")
        while len(times) < 3 or (len(times) < p["most"] and time.perf_counter() < end):
            step += 1
            made = system.make(carriers, rows, step)
            before = time.perf_counter()
            seen = take(made)
            took = time.perf_counter() - before
            wanted = (rows, float(step), float(step), -float(step))
            _check([tuple(s) for s in seen], [wanted] * takers, "the takers saw")
            del made, seen
            gc.collect()
            if step == 1:
                results.value(f"{name}.first", took)
            if step <= WARM:
                end = time.perf_counter() + p["seconds"]
            else:
                times.append(took)
        results.value(f"{name}.again", probe.percentile(times, 0.5))
        results.parts(f"{name}.again", {str(i): t for i, t in enumerate(times)})
    system.down()


_CASES: dict[str, Callable[[Nodes, probe.Results, dict[str, Any]], None]] = {
    "start": _start,
    "calls": _calls,
    "fan": _fan,
    "bytes": _bytes,
}


def main(system: Nodes) -> None:
    """Runs the case that the command line names: DRIVER CASE PARAMETERS-AS-JSON."""
    results = probe.Results(probe.private_output())
    try:
        _CASES[sys.argv[1]](system, results, json.loads(sys.argv[2]))
    except BaseException as e:
        results.failure(e)
        raise
