"""What is measured and how it is summed up: pure, values in, table out.

Owns the list of metrics, the cases that produce them and their ratios. It
starts nothing and reads no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEMS = ("muster", "ray", "monarch", "floor")
TITLES = {"muster": "Muster", "ray": "Ray", "monarch": "Monarch", "floor": "floor"}


@dataclass(frozen=True)
class Metric:
    """One figure; unit is "s", "/s" or "B", and only of "/s" is more better."""

    key: str
    label: str
    unit: str


def metrics(heavy: str) -> list[Metric]:
    """All figures, in the order in which they are shown; heavy is what is imported."""
    with_it = f"with {heavy or 'a heavy import'}"
    return [
        Metric("call.p50", "one small call, p50", "s"),
        Metric("call.p99", "one small call, p99", "s"),
        Metric("pipelined", "1,000 calls in flight", "/s"),
        Metric("threads.1", "calls from 1 thread", "/s"),
        Metric("threads.4", "calls from 4 threads", "/s"),
        Metric("threads.16", "calls from 16 threads", "/s"),
        Metric("fan.16", "broadcast and gather, 16 workers", "s"),
        Metric("fan.64", "broadcast and gather, 64 workers", "s"),
        Metric("fan.256", "broadcast and gather, 256 workers", "s"),
        Metric("up", "the system itself up", "s"),
        Metric("down", "the system itself down", "s"),
        Metric("start.16", "16 workers ready", "s"),
        Metric("start.64", "64 workers ready", "s"),
        Metric("start.256", "256 workers ready", "s"),
        Metric("stop.16", "16 workers gone", "s"),
        Metric("stop.64", "64 workers gone", "s"),
        Metric("stop.256", "256 workers gone", "s"),
        Metric("heavy.start.16", f"16 workers ready {with_it}", "s"),
        Metric("heavy.again.16", f"16 more, later, {with_it}", "s"),
        Metric("heavy.stop.16", f"16 workers gone {with_it}", "s"),
        Metric("heavy.start.64", f"64 workers ready {with_it}", "s"),
        Metric("heavy.stop.64", f"64 workers gone {with_it}", "s"),
        Metric("script.first", "python script.py to first result", "s"),
        Metric("script.whole", "python script.py to its end", "s"),
        Metric("memory.16.worker", "memory per worker, of 16", "B"),
        Metric("memory.64.worker", "memory per worker, of 64", "B"),
        Metric("heavy.memory.16.worker", f"memory per worker, of 16, {with_it}", "B"),
        Metric("memory.16.system", "memory of the system besides, at 16", "B"),
        Metric("memory.64.system", "memory of the system besides, at 64", "B"),
        Metric("heavy.memory.16.system", f"memory of the system besides, at 16, {with_it}", "B"),
    ]


@dataclass(frozen=True)
class Case:
    """One run of a driver: which of its cases, with what, how often, for how long."""

    name: str
    driver: str
    rounds: int
    limit: float
    parameters: dict[str, Any] = field(default_factory=dict)
    #: Which of a system's scripts it is a case of, SYSTEM_script.py, and who has that.
    script: str = "driver"
    systems: tuple[str, ...] = SYSTEMS
    #: Memory that it takes besides its workers, in bytes.
    needs: float = 0.0

    @property
    def workers(self) -> int:
        """The most workers that it has at a time."""
        wanted = self.parameters.get("workers", 1)
        return int(max(wanted) if isinstance(wanted, list) else wanted)

    @property
    def heavy(self) -> bool:
        return self.driver == "heavy"


def cases(quick: bool, heavy: Sequence[str]) -> list[Case]:
    """What is run, in order, each round; heavy names the modules, none to leave it out."""
    threads = [1, 4, 16]
    if quick:
        calls = {"calls": 3000, "seconds": 0.8, "flight": 1000, "batches": 10}
        return [
            Case("calls", "calls", 2, 60, {**calls, "threads": threads, "thread_seconds": 0.4}),
            Case("fan", "fan", 1, 120, {"workers": [16, 64], "calls": 500, "seconds": 0.8}),
            Case("first", "first", 2, 40),
        ]
    calls = {"calls": 10000, "seconds": 3.0, "flight": 1000, "batches": 30}
    found = [
        Case("calls", "calls", 7, 120, {**calls, "threads": threads, "thread_seconds": 1.0}),
        Case("first", "first", 7, 60),
        Case("fan", "fan", 5, 300, {"workers": [16, 64], "calls": 2000, "seconds": 2.0}),
        Case("fan 256", "fan", 2, 500, {"workers": [256], "calls": 500, "seconds": 3.0}),
    ]
    if heavy:
        modules = {"heavy": " ".join(heavy)}
        found += [
            Case("heavy 16", "heavy", 2, 400, {"workers": 16, "again": True, **modules}),
            Case("heavy 64", "heavy", 1, 500, {"workers": 64, "again": False, **modules}),
        ]
    return found


def record(lines: Iterable[bytes | str], began: float) -> dict[str, Any]:
    """A driver's lines as values; what is no line of ours is passed over."""
    values: dict[str, float] = {}
    parts: dict[str, dict[str, float]] = {}
    cpu: dict[str, float] = {}
    failure = ""
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "metric" in found:
            values[found["metric"]] = found["value"]
        elif "moment" in found:
            values[found["moment"]] = found["at"] - began
        elif "parts" in found:
            parts[found["parts"]] = found["values"]
        elif "cpu" in found:
            cpu |= found["cpu"]
        elif "failure" in found:
            failure = found["failure"]
    return {"values": values, "parts": parts, "cpu": cpu, "failure": failure}


def percentile(values: Iterable[float], share: float) -> float:
    """The value that the given share of values does not exceed, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and spread of one figure over the rounds."""
    return {
        "median": percentile(values, 0.5),
        "p10": percentile(values, 0.1),
        "p90": percentile(values, 0.9),
        "n": len(values),
    }


def summaries(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """metric -> system -> median and spread, over all runs that gave a value."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for key, value in run["values"].items():
            values.setdefault(key, {}).setdefault(run["system"], []).append(value)
    return {
        key: {system: summary(found) for system, found in by_system.items()}
        for key, by_system in values.items()
    }


def ratio(metric: Metric, ours: float, theirs: float) -> float | None:
    """How many times better ours is than theirs; below 1 where it is worse."""
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if metric.unit == "/s" else theirs / ours


def ratios(
    wanted: Sequence[Metric], found: dict[str, dict[str, dict[str, float]]]
) -> dict[str, dict[str, float]]:
    """metric -> system -> how many times better Muster is than it."""
    table: dict[str, dict[str, float]] = {}
    for metric in wanted:
        by_system = found.get(metric.key, {})
        if "muster" not in by_system:
            continue
        for system in SYSTEMS[1:]:
            if system in by_system:
                value = ratio(metric, by_system["muster"]["median"], by_system[system]["median"])
                if value is not None:
                    table.setdefault(metric.key, {})[system] = value
    return table


#: Memory of a worker where this run has not measured it yet, in bytes.
ASSUMED = {"muster": 10e6, "floor": 5e6, "ray": 80e6, "monarch": 80e6}
ASSUMED_HEAVY = {"muster": 40e6, "floor": 40e6, "ray": 400e6, "monarch": 420e6}


def too_large(
    case: Case, system: str, found: dict[str, dict[str, dict[str, float]]], available: float
) -> str:
    """Why this case would not fit into memory; empty when it does.

    It goes by what the same system's workers took in this run, so cases with
    fewer workers have to come first.
    """
    if case.needs > available * 0.8:
        return f"left out: it may need {case.needs / 1e9:.0f} GB, {available / 1e9:.0f} GB are free"
    prefix, each = "memory", ASSUMED[system]
    if case.heavy:
        prefix, each = "heavy.memory", ASSUMED_HEAVY[system]
    for key, by_system in found.items():
        if key.startswith(prefix) and key.endswith(".worker") and system in by_system:
            each = by_system[system]["median"]
    needed = each * case.workers
    if needed < available * 0.8:
        return ""
    return (
        f"left out: {case.workers} workers of {each / 1e6:.0f} MB need {needed / 1e9:.0f} GB, "
        f"{available / 1e9:.0f} GB are free"
    )
