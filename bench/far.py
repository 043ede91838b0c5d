"""The figures of several hosts: which there are, how they compare, and what was wanted of them.

Pure: values in, tables out. The cases themselves are in drivers/nodes.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Muster with TLS, as it is by default; the same without; Ray, which encrypts nothing.
SYSTEMS = ("muster", "plain", "ray", "floor")
TITLES = {"muster": "Muster", "plain": "Muster, plain", "ray": "Ray", "floor": "floor"}
MIB = 1024

Found = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Figure:
    """One row; unit is "s", "/s" (more is better) or "bytes": seconds for MIB."""

    key: str
    label: str
    unit: str


FIGURES = (
    Figure("call.p50", "one small call to another host, p50", "s"),
    Figure("call.p99", "one small call to another host, p99", "s"),
    Figure("pipelined", "1,000 calls in flight", "/s"),
    Figure("fan.48", "broadcast and gather, 48 workers on 3 hosts", "s"),
    Figure("ready.24", "python script.py to 24 workers on 3 hosts ready", "s"),
    Figure("again.24", "24 more in the same script", "s"),
    Figure("one.again", "1 GiB from host to host", "bytes"),
    Figure("one.first", "the first 1 GiB from host to host", "bytes"),
    Figure("all.again", "1 GiB from one host to the two others", "bytes"),
    Figure("streams.1", "1 GiB by one TCP stream", "bytes"),
    Figure("streams.4", "1 GiB by four TCP streams", "bytes"),
)


@dataclass(frozen=True)
class Case:
    """One run of a driver: with what, for how long at most, and whose."""

    name: str
    limit: float
    parameters: dict[str, Any] = field(default_factory=dict)
    systems: tuple[str, ...] = SYSTEMS


def cases() -> list[Case]:
    """What is run, in order, each round."""
    without_floor = SYSTEMS[:3]
    calls = {"calls": 5000, "seconds": 2.0, "flight": 1000, "batches": 10}
    return [
        Case("start", 90, {"workers": 24}, without_floor),
        Case("calls", 60, calls),
        Case("fan", 90, {"workers": 48, "calls": 1000, "seconds": 2.0}, without_floor),
        Case("bytes", 120, {"mib": MIB, "most": 5, "seconds": 6.0}),
    ]


def median(found: Found, key: str, system: str) -> float | None:
    """The figure, where there is one."""
    of = found.get(key, {}).get(system)
    return None if of is None else of["median"]


def compare(found: Found, figure: Figure, system: str) -> float | None:
    """How many times better than Ray a system is; below 1 where it is worse."""
    ours, theirs = median(found, figure.key, system), median(found, figure.key, "ray")
    if not ours or not theirs:
        return None
    return ours / theirs if figure.unit == "/s" else theirs / ours


@dataclass(frozen=True)
class Goal:
    """What was wanted: how many times Ray's speed, at least."""

    what: str
    key: str
    system: str
    wanted: float


GOALS = (
    Goal("a small call to another host", "call.p50", "muster", 8),
    Goal("a broadcast to 48 workers on 3 hosts", "fan.48", "muster", 12),
    Goal("1 GiB from host to host, with TLS", "one.again", "muster", 0.8),
    Goal("1 GiB from host to host, transport plain", "one.again", "plain", 2),
    Goal("24 workers on 3 hosts ready, once Ray is up", "ready.24", "muster", 3),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a goal."""

    goal: Goal
    value: float

    @property
    def met(self) -> bool:
        return self.value >= self.goal.wanted


def outcomes(found: Found) -> list[Outcome]:
    """Every goal whose figures are there."""
    by_key = {figure.key: figure for figure in FIGURES}
    known = []
    for goal in GOALS:
        value = compare(found, by_key[goal.key], goal.system)
        if value is not None:
            known.append(Outcome(goal, value))
    return known


def as_json(found: Found) -> list[dict[str, Any]]:
    """The goals for the file of results."""
    return [
        {"what": o.goal.what, "value": o.value, "wanted": o.goal.wanted, "met": o.met}
        for o in outcomes(found)
    ]
