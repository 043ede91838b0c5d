"""How batches are measured, written once for every system.

A system says by which ways it can carry rows (`Carrier`); the loops, clocks and
checks are here. A way has a part that is prepared, without a clock, and a part
that is timed; what comes back is compared with what was marked (`loads`).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import footprint
import loads
import probe

WORKERS = 8
RAGGED_ROWS = 4096
#: Rounds of each way that are not counted: touched memory and open connections are its use.
WARM = 2


@dataclass(frozen=True)
class Way:
    """One way to carry rows: ``act(prepare(step))``, of which only ``act`` is timed."""

    name: str
    prepare: Callable[[int], Any]
    act: Callable[[Any], Any]


class Carrier(Protocol):
    """What a system does with batches. Ways that it has not are not in the lists."""

    def up(self, mib: int) -> None:
        """Start the system, and two groups of WORKERS workers, ready for batches of that size."""

    def pids(self) -> list[int]:
        """All workers."""

    def first(self, whole: loads.Matrix) -> list[Way]:
        """The script's matrix to the workers; ``prepare`` gives it marked, all look."""

    def second(self, rows: int) -> list[Way]:
        """Rows that the workers of one group made, that many each, to those of the other.

        The way that takes the least memory of the script comes last.
        """

    def gather(self, rows: int) -> list[Way]:
        """Rows that the workers made, that many each, into one matrix of the script."""

    def ragged_first(self, tokens: list[Any], prompts: list[str]) -> list[Way]:
        """As `first`, with ragged rows and texts."""

    def ragged_second(self) -> list[Way]:
        """As `second`, with ragged rows and texts of RAGGED_ROWS / WORKERS rows each."""

    def down(self) -> None:
        """Stop everything."""


def marking(whole: loads.Matrix) -> Callable[[int], loads.Matrix]:
    """Prepares a first hop: the matrix with the marks of the step."""

    def prepare(step: int) -> loads.Matrix:
        for rank, share in enumerate(loads.shares(whole, WORKERS)):
            loads.mark(share, step, rank)
        return whole

    return prepare


def seed_of(rank: int) -> int:
    """What the ragged rows of one worker are made from, in every step the same."""
    return 1000 + rank


# --- the loops ------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """How often a way is taken."""

    most: int
    seconds: float
    least: int = 3
    pause: float = 0.0  # before what is timed: workers that wait, as for others that compute

    def run(self, way: Way, check: Callable[[int, Any], None]) -> list[float]:
        """The times of all counted steps."""
        clock, step = time.perf_counter, 0
        times: list[float] = []
        end = float("inf")
        while len(times) < self.least or (len(times) < self.most and clock() < end):
            step += 1
            given = way.prepare(step)
            if self.pause:
                time.sleep(self.pause)
            before = clock()
            got = way.act(given)
            took = clock() - before
            check(step, got)
            del given, got
            if step > WARM:
                times.append(took)
            else:
                end = clock() + self.seconds
        return times


def _same(got: Any, wanted: Any, way: str) -> None:
    if got != wanted:
        raise AssertionError(f"{way}: the workers saw {got!r}, not {wanted!r}")


def _checks(name: str, rows: int) -> Callable[[int, Any], None]:
    def check(step: int, got: Any) -> None:
        wanted = [loads.marked(rows, step, rank) for rank in range(WORKERS)]
        _same([tuple(seen) for seen in got], wanted, name)

    return check


def _measure(
    results: probe.Results,
    prefix: str,
    ways: Sequence[Way],
    loop: Loop,
    check: Callable[[int, Any], None],
) -> None:
    for way in ways:
        gc.collect()
        times = loop.run(way, check)
        results.value(f"{prefix}.{way.name}", probe.percentile(times, 0.5))
        results.parts(f"{prefix}.{way.name}", {str(i): t for i, t in enumerate(times)})


def _hops(system: Carrier, results: probe.Results, p: dict[str, Any]) -> None:
    """One size: first hop, second hop, gather; then memory, without a clock."""
    mib = p["mib"]
    loop = Loop(p["most"], p["seconds"], pause=p.get("pause", 0.0))
    system.up(mib)
    rows = loads.rows_of(mib) // WORKERS
    seen = _checks(f"{mib} MiB", rows)
    second = system.second(rows)
    # Before all else: later the script has memory to hide such growth in. The last is the best.
    for way in reversed(second):
        _growth(results, mib, way, p["passes"])
    whole = loads.matrix(mib, WORKERS)
    first = system.first(whole)
    _measure(results, f"first.{mib}", first, loop, seen)
    _measure(results, f"second.{mib}", second, loop, seen)
    _memory(system, results, mib, [*first[:1], *second[-1:]])
    del whole, first

    def joined(step: int, got: Any) -> None:
        _same([loads.look(x) for x in loads.shares(got, WORKERS)], _wanted(rows, step), "gather")

    _measure(results, f"gather.{mib}", system.gather(rows), loop, joined)
    results.account()
    system.down()


def _wanted(rows: int, step: int) -> list[loads.Seen]:
    return [loads.marked(rows, step, rank) for rank in range(WORKERS)]


def _memory(system: Carrier, results: probe.Results, mib: int, ways: Sequence[Way]) -> None:
    """The most that each process has while rows go these ways."""
    with footprint.Watch(system.pids()) as watch:
        for way in ways:
            for step in range(1, 4):
                way.act(way.prepare(step))
    for role, value in watch.peaks().items():
        results.value(f"peak.{mib}.{role}", value)
    results.parts(f"peak.{mib}", watch.processes())


def _growth(results: probe.Results, mib: int, way: Way, passes: int) -> None:
    """The share of bytes passed from group to group by which the script's memory grows."""
    gc.collect()
    before = footprint.begin_peak()
    for step in range(passes):
        way.act(way.prepare(step))
    grown = footprint.peak() - before
    results.value(f"growth.{mib}.{way.name}", max(0.0, grown) / (passes * (mib << 20)))


def _ragged(system: Carrier, results: probe.Results, p: dict[str, Any]) -> None:
    """Ragged rows with texts: first and second hop."""
    loop = Loop(p["most"], p["seconds"], pause=p.get("pause", 0.0))
    system.up(64)
    each = RAGGED_ROWS // WORKERS
    tokens: list[Any] = []
    prompts: list[str] = []
    ends = []
    for rank in range(WORKERS):
        some, texts = loads.ragged(each, seed_of(rank))
        tokens += some
        prompts += texts
        ends.append((len(texts[0]), len(texts[-1])))

    def seen(step: int, got: Any) -> None:
        wanted = [
            (each, step * 64 + rank, -step * 64 - rank, *ends[rank]) for rank in range(WORKERS)
        ]
        _same([tuple(x) for x in got], wanted, "ragged")

    results.value("ragged.bytes", sum(t.nbytes for t in tokens) + sum(map(len, prompts)))
    _measure(results, "ragged.first", system.ragged_first(tokens, prompts), loop, seen)
    _measure(results, "ragged.second", system.ragged_second(), loop, seen)
    results.account()
    system.down()


def marking_ragged(tokens: list[Any]) -> Callable[[int], list[Any]]:
    """Prepares a first hop of ragged rows."""
    each = RAGGED_ROWS // WORKERS

    def prepare(step: int) -> list[Any]:
        for rank in range(WORKERS):
            loads.mark_ragged(tokens[rank * each : (rank + 1) * each], step, rank)
        return tokens

    return prepare


_CASES: dict[str, Callable[[Carrier, probe.Results, dict[str, Any]], None]] = {
    "hops": _hops,
    "ragged": _ragged,
}


def main(system: Carrier) -> None:
    """Runs the case that the command line names: SCRIPT CASE PARAMETERS-AS-JSON."""
    results = probe.Results(probe.private_output())
    try:
        _CASES[sys.argv[1]](system, results, json.loads(sys.argv[2]))
    except BaseException as e:
        results.failure(e)
        raise


def copying_threads() -> int:
    """How many threads Muster copies large rows with, and the floor as well."""
    return min(len(os.sched_getaffinity(0)), 16)
