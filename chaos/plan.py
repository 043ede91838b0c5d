"""What a round does, derived from its seed and nothing else. Pure.

Teams are clusters. Lanes are threads (or event loops) of the script, each with
steps that it makes in order; a step is one call. Faults come when so many steps
have begun. The values of all answers follow from the plan: rows pass through
`grown` once per call, so what is right is known beforehand.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODULUS = 2_147_483_647
WIDTH = 128  # numbers in a row of a batch: 1 KiB

#: How a worker leaves by itself, and its exit code.
WAYS = {"os._exit": 17, "sys.exit": 23}

SHAPES = ("1x2", "1x4", "2x2", "2x2+relay", "2x2+net", "4x2", "4x8")

#: Faults and how often they come.
WEIGHTS = {
    ("kill", "worker"): 6,
    ("stop", "worker"): 4,
    ("kill", "agent"): 1,
    ("stop", "agent"): 3,
    ("kill", "warden"): 1,
    ("stop", "warden"): 1,
    ("kill", "zygote"): 2,
    ("stop", "zygote"): 1,
    ("kill", "head"): 5,
    ("stop", "head"): 3,
    ("stop", "script"): 2,
}
#: A round is short, and an embedded head is started anew ten times a minute at most.
MOST_HEADS = 2

#: Methods and how often they are called.
METHODS = {
    "note": 8,
    "note_again": 6,
    "rows": 5,
    "rows_again": 4,
    "grow": 4,
    "grow_again": 3,
    "weigh": 4,
    "linger": 4,
    "fail": 2,
    "relay": 3,
    "leave": 0.5,
    "spell": 0.7,
}
LISTS = ("rows", "rows_again")
BATCHES = ("grow", "grow_again", "weigh")


@dataclass(frozen=True)
class Team:
    """A cluster: its class, its ranks and what happens when one of them dies."""

    name: str
    kind: str  # sync, async or pool
    devices: tuple[int, ...]
    tp: int = 1
    on_failure: str = "fail"
    max_restarts: int = 8

    @property
    def world(self) -> int:
        return len(self.devices)

    @property
    def dp(self) -> int:
        return self.world // self.tp


@dataclass(frozen=True)
class Step:
    """One call. What does not concern its method is left at nothing."""

    call: str
    team: str
    method: str
    how: str = "block"  # block, ref, split or rank
    rank: int = -1  # the one that is called, fails or leaves
    size: int = 0  # rows
    source: str = ""  # the call whose answer is its argument
    future: bool = False  # as a ref, or as the value
    half: bool = False  # only the second half of it
    seconds: float = 0.0  # that it lingers
    timeout: float = 0.0
    cancel: float = 0.0  # seconds after which it is cancelled
    inner: str = ""  # the team that it calls in turn
    way: str = ""  # how it leaves
    gather: str = ""  # afterwards, what is not answered yet is waited for: get, wait, as_completed

    @property
    def idempotent(self) -> bool:
        return self.method.endswith("_again") or self.method == "weigh"

    def __str__(self) -> str:
        parts = [f"{self.call} {self.team}.{self.method} {self.how}"]
        if self.rank >= 0:
            parts.append(f"rank {self.rank}")
        if self.source:
            kind = "future" if self.future else "value"
            parts.append(f"{'half of ' if self.half else ''}{kind} {self.source}")
        elif self.size:
            parts.append(f"{self.size} rows")
        for name in ("seconds", "timeout", "cancel", "inner", "way", "gather"):
            if getattr(self, name):
                parts.append(f"{name} {getattr(self, name)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Lane:
    """Steps that one thread of the script makes, in order."""

    name: str
    kind: str  # thread or loop
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Fault:
    """Something done to a process when ``after`` steps have begun, and ``delay`` later."""

    after: int
    delay: float
    act: str  # kill or stop
    role: str  # worker, agent, warden, zygote, head or script
    team: str = ""
    rank: int = -1
    node: int = -1
    seconds: float = 0.0  # that it is stopped

    def __str__(self) -> str:
        whom = {"worker": f"{self.team}/{self.rank}", "head": "", "script": ""}
        target = whom.get(self.role, f"of node-{self.node}")
        for_long = f" for {self.seconds} s" if self.seconds else ""
        return f"after {self.after} steps: {self.act} {self.role} {target}{for_long}".rstrip()


@dataclass(frozen=True)
class Plan:
    """All that a round does."""

    seed: int
    shape: str
    nodes: int
    gpus: int
    teams: tuple[Team, ...]
    lanes: tuple[Lane, ...]
    faults: tuple[Fault, ...]
    steps: Mapping[str, Step] = field(repr=False, default_factory=dict)

    def team(self, name: str) -> Team:
        return next(team for team in self.teams if team.name == name)

    def describe(self) -> list[str]:
        """The plan in short, a line each."""
        lines = [f"seed {self.seed}: {self.shape}"]
        lines += [
            f"team {t.name}: {t.kind}, GPUs {t.devices}, tp={t.tp}, {t.on_failure}"
            for t in self.teams
        ]
        for lane in self.lanes:
            methods = [f"{s.method}{'!' if s.gather else ''}" for s in lane.steps]
            lines.append(f"lane {lane.name} ({lane.kind}): {' '.join(methods)}")
        return lines + [str(fault) for fault in self.faults]


def make(seed: int, weights: Mapping[tuple[str, str], float] = WEIGHTS) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"muster chaos {seed}")
    shape = rng.choice(SHAPES)
    nodes, gpus = (int(n) for n in shape.partition("+")[0].split("x"))
    teams = _teams(rng, nodes * gpus)
    lanes = tuple(_lane(rng, i, teams) for i in range(rng.randint(2, 4)))
    total = sum(len(lane.steps) for lane in lanes)
    faults = _faults(rng, weights, teams, nodes, total)
    last = tuple(Step(f"last-{t.name}", t.name, "note_again") for t in teams)
    lanes = (*lanes, Lane("last", "thread", last))
    steps = {step.call: step for lane in lanes for step in lane.steps}
    return Plan(seed, shape, nodes, gpus, teams, lanes, faults, steps)


def _teams(rng: random.Random, devices: int) -> tuple[Team, ...]:
    """The first spans all nodes, so that every one of them has a worker."""
    kinds = ["sync", "async", "pool", "sync"]
    policies = ["fail", "restart_worker", "restart_cluster", "restart_worker"]
    rng.shuffle(kinds)
    rng.shuffle(policies)
    teams = []
    for i in range(rng.randint(3, 4)):
        if i == 0:
            chosen = list(range(0, devices, max(1, devices // 8)))
        else:
            chosen = sorted(rng.sample(range(devices), rng.randint(1, min(4, devices))))
        tp = 2 if len(chosen) % 2 == 0 and rng.random() < 0.3 else 1
        teams.append(Team(f"team{i}", kinds[i], tuple(chosen), tp, policies[i]))
    return tuple(teams)


def _lane(rng: random.Random, number: int, teams: tuple[Team, ...]) -> Lane:
    kind = rng.choice(("thread", "thread", "loop"))
    steps: list[Step] = []
    for i in range(rng.randint(20, 40)):
        steps.append(_step(rng, f"{number}-{i}", teams, steps))
    return Lane(f"lane{number}", kind, tuple(steps))


def _step(rng: random.Random, call: str, teams: tuple[Team, ...], before: list[Step]) -> Step:
    method = rng.choices(list(METHODS), list(METHODS.values()))[0]
    at = rng.randrange(len(teams))
    if method == "relay":  # calls go one way, so that none waits for itself
        at = rng.randrange(len(teams) - 1)
    team = teams[at]
    how = rng.choice(("block", "ref", "ref", "ref"))
    gather = rng.choice(("get", "wait", "as_completed")) if rng.random() < 0.3 else ""
    it: dict[str, Any] = {"call": call, "team": team.name, "method": method, "gather": gather}
    if method in ("note", "note_again"):
        how = rng.choice(("block", "ref", "split", "rank"))
        if how == "rank":
            it["rank"] = rng.randrange(team.world)
    elif method in LISTS + BATCHES:
        it |= _argument(rng, method, before)
    elif method == "linger":
        how = rng.choice(("block", "ref"))
        it["seconds"] = rng.choice((0.05, 0.3, 0.8))
        chance = rng.random()
        if chance < 0.3:
            it["timeout"] = rng.choice((0.1, 0.4, 2.0))
        elif chance < (0.6 if team.kind == "async" else 0.35):  # others are tainted by it
            how, it["cancel"] = "ref", rng.choice((0.001, 0.05, 0.2))
    elif method == "fail":
        it["rank"] = rng.randrange(team.world)
    elif method == "leave":
        it |= {"rank": rng.randrange(team.world), "way": rng.choice(list(WAYS))}
    elif method == "relay":
        it["inner"] = rng.choice(teams[at + 1 :]).name
    elif method == "spell":
        how, it["size"] = "block", rng.randint(1, 2)
    return Step(how=how, **it)


def _argument(rng: random.Random, method: str, before: list[Step]) -> dict[str, Any]:
    """What a step is given: rows of its own, or what an earlier one answered."""
    givers = LISTS if method in LISTS else ("grow", "grow_again")
    sources = [s for s in before[-8:] if s.method in givers]
    if sources and rng.random() < 0.6:
        source = rng.choice(sources)
        future = source.how == "ref" and rng.random() < 0.6
        half = not future and rng.random() < 0.4
        return {"source": source.call, "future": future, "half": half}
    if method in LISTS:
        return {"size": rng.choice((1, 5, 64, 1000))}
    return {"size": rng.choice((1024, 1024, 2048, 4096, 4096, 16384, 32768))}


def _faults(
    rng: random.Random,
    weights: Mapping[tuple[str, str], float],
    teams: tuple[Team, ...],
    nodes: int,
    steps: int,
) -> tuple[Fault, ...]:
    found = []
    heads = 0
    for after in sorted(rng.randrange(1, steps) for _ in range(rng.randint(3, 7))):
        act, role = rng.choices(list(weights), list(weights.values()))[0]
        heads += (act, role) == ("kill", "head")
        if heads > MOST_HEADS:
            act = "stop"
        it: dict[str, Any] = {"delay": round(rng.uniform(0, 0.05), 3), "act": act, "role": role}
        if role == "worker":
            team = rng.choice(teams)
            it |= {"team": team.name, "rank": rng.randrange(team.world)}
        elif role in ("agent", "warden", "zygote"):
            it["node"] = rng.randrange(nodes)
        if act == "stop":
            it["seconds"] = round(rng.uniform(0.1, 2.0), 2)
        found.append(Fault(after=after, **it))
    return tuple(found)


# --- what is right -----------------------------------------------------------


def grown(x: Any) -> Any:
    """What a call makes of a number, or of an array of them."""
    return (x * 3 + 1) % MODULUS


def first_rows(step: Step) -> Any:
    """The rows that a step without a source is given, as an array."""
    start = zlib.crc32(step.call.encode())
    count = step.size * (1 if step.method in LISTS else WIDTH)
    rows = (start + np.arange(count, dtype=np.int64)) % MODULUS
    return rows if step.method in LISTS else rows.reshape(step.size, WIDTH)


def given(plan: Plan, step: Step) -> Any:
    """The rows that a step is given, as an array."""
    if not step.source:
        return first_rows(step)
    rows = answered(plan, plan.steps[step.source])
    return rows[len(rows) // 2 :] if step.half else rows


def answered(plan: Plan, step: Step) -> Any:
    """The rows that a step of lists or batches answers with, as an array."""
    return grown(given(plan, step))


def digest(rows: Any) -> int:
    """A number that stands for rows."""
    return zlib.crc32(np.ascontiguousarray(rows, dtype=np.int64).tobytes())


def parts(rows: Any, team: Team) -> list[Any]:
    """What each rank of a team gets of rows that are cut by dp rank."""
    cut = np.array_split(rows, team.dp)
    return [cut[rank // team.tp] for rank in range(team.world)]
