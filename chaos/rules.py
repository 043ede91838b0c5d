"""What Muster promises, held against what a round wrote down. Pure.

- **once**: no leg runs twice; of an idempotent call, not twice in one process, and
  in another only when the first one is gone.
- **order**: every process of a team sees the calls of a lane in the lane's order,
  and all its ranks see all calls in one order; where one runs at a time, they do
  not overlap.
- **answered**: every ref is answered once, and stays so.
- **values**: an answer is right, and was made by runs that really ended.
- **errors**: an error names something that happened: the planned exception, a
  cancel, a deadline, a death of that rank on that node, in that way, or the loss
  of that node. What may be run again does not fail by a death.
- **begun**: a process that replaced another was initialized as that was.
- **end**: nothing hangs, nothing stays in the stores, no port stays held.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.plan import Plan, Step

Line = dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold, and the lines that show it."""

    rule: str
    text: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.text}", *self.lines])


@dataclass(frozen=True)
class Death:
    """The end of a worker's process that the round itself brought about."""

    team: str
    rank: int
    node: str
    pid: int
    signal: str
    code: int
    at: float


class Facts:
    """What happened in a round: its plan, its log and what its workers wrote."""

    def __init__(self, plan: Plan, log: Sequence[Line], legs: Sequence[Line]) -> None:
        self.plan = plan
        self.log = sorted(log, key=lambda line: line["at"])
        self.legs = sorted(legs, key=lambda line: line["at"])
        self.places: dict[str, str] = {}
        for line in self.of("started"):
            self.places |= line["places"]
        self.begins = [leg for leg in self.legs if leg["what"] == "begin"]
        self.ends = {leg["run"]: leg for leg in self.legs if leg["what"] == "end"}
        self.lost = self._lost_nodes()
        self.deaths = [*self._killed(), *self._left()]

    def of(self, what: str) -> list[Line]:
        """The log's lines of one kind."""
        return [line for line in self.log if line["what"] == what]

    def faults(self, act: str, *roles: str) -> list[Line]:
        """What was done to processes of these roles."""
        return [f for f in self.of("fault") if f["act"] == act and f["role"] in roles and f["hit"]]

    def _killed(self) -> Iterator[Death]:
        for f in self.faults("kill", "worker"):
            node = self.places[f"{f['team']}/{f['rank']}"]
            yield Death(f["team"], f["rank"], node, f["pid"], "SIGKILL", 0, f["at"])

    def _left(self) -> Iterator[Death]:
        for leg in self.legs:
            if leg["what"] == "leaves":
                team, rank, pid, at = leg["team"], leg["rank"], leg["pid"], leg["at"]
                yield Death(team, rank, self.places[f"{team}/{rank}"], pid, "", leg["code"], at)

    def _lost_nodes(self) -> dict[str, float]:
        """When the agent or warden of a node was killed, by the node's name."""
        lost: dict[str, float] = {}
        for f in self.faults("kill", "agent", "warden"):
            lost.setdefault(f"node-{f['node']}", f["at"])
        return lost


def judge(plan: Plan, log: Sequence[Line], legs: Sequence[Line]) -> list[Broken]:
    """All rules that a round broke."""
    facts = Facts(plan, log, legs)
    rules = (once, order, overlaps, answers, values, errors, begun, endings)
    return [broken for rule in rules for broken in rule(facts)]


# --- legs ----------------------------------------------------------------------


def _step_of(facts: Facts, call: str) -> Step | None:
    """The planned step of a call; None for one that a worker made."""
    return facts.plan.steps.get(call)


def once(facts: Facts) -> Iterator[Broken]:
    """No leg runs twice."""
    runs: dict[tuple[str, str, int], list[Line]] = defaultdict(list)
    for leg in facts.begins:
        runs[leg["call"], leg["team"], leg["rank"]].append(leg)
    restarts = {t.name for t in facts.plan.teams if t.on_failure != "fail"}
    for (call, team, rank), several in runs.items():
        if len(several) == 1:
            continue
        step = _step_of(facts, call)
        pids = [leg["pid"] for leg in several]
        if step is None or not step.idempotent or team not in restarts:
            why = "and it is not idempotent" if team in restarts else "and nothing restarts"
        elif len(set(pids)) != len(pids):
            why = "twice in one process"
        else:
            continue
        text = f"{team}/{rank} ran call {call} {len(several)} times, {why}"
        yield Broken("once", text, shown(facts, call))


def order(facts: Facts) -> Iterator[Broken]:
    """Processes see the order of each lane, and one order among them."""
    seen: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    kinds = {team.name: team.kind for team in facts.plan.teams}
    for leg in facts.begins:
        if kinds.get(leg["team"], "pool") != "pool":  # threads race for the file
            seen[leg["team"], leg["rank"], leg["pid"]].append(leg["call"])
    lanes = {s.call: (lane.name, i) for lane in facts.plan.lanes for i, s in enumerate(lane.steps)}
    for (team, rank, pid), calls in seen.items():
        latest: dict[str, tuple[int, str]] = {}
        for call in calls:
            if call not in lanes:
                continue
            lane, index = lanes[call]
            before = latest.get(lane, (-1, ""))
            if index < before[0]:
                text = f"{team}/{rank} (process {pid}) began {call} after {before[1]} of its lane"
                yield Broken("order", text, shown(facts, call) + shown(facts, before[1]))
            latest[lane] = max(before, (index, call))
    yield from _one_order(facts, seen)


def _one_order(facts: Facts, seen: dict[tuple[str, int, int], list[str]]) -> Iterator[Broken]:
    several = sorted(seen)
    for i, a in enumerate(several):
        for b in several[i + 1 :]:
            if a[0] != b[0]:
                continue
            both = set(seen[a]) & set(seen[b])  # one that ran twice counts once here
            mine = [call for call in dict.fromkeys(seen[a]) if call in both]
            theirs = [call for call in dict.fromkeys(seen[b]) if call in both]
            if mine != theirs:
                x, y = next((x, y) for x, y in zip(mine, theirs, strict=False) if x != y)
                text = f"{a[0]}/{a[1]} began {x} where {b[0]}/{b[1]} began {y}"
                yield Broken("order", text, shown(facts, x) + shown(facts, y))


def overlaps(facts: Facts) -> Iterator[Broken]:
    """A process of a sync class runs one call at a time."""
    serial = {team.name for team in facts.plan.teams if team.kind == "sync"}
    inside: dict[tuple[str, int, int], Line] = {}
    for leg in facts.legs:
        if leg["team"] not in serial or leg["what"] not in ("begin", "end"):
            continue
        who = leg["team"], leg["rank"], leg["pid"]
        if leg["what"] == "end":
            inside.pop(who, None)
            continue
        if who in inside:
            first = inside[who]["call"]
            text = f"{who[0]}/{who[1]} began {leg['call']} inside {first}"
            yield Broken("order", text, shown(facts, first) + shown(facts, leg["call"]))
        inside[who] = leg


def begun(facts: Facts) -> Iterator[Broken]:
    """No call runs in a process that was not initialized."""
    for leg in facts.begins:
        if not leg["mark"]:
            who = f"{leg['team']}/{leg['rank']} (process {leg['pid']})"
            text = f"{who} ran {leg['call']} before initialize"
            yield Broken("begun", text, shown(facts, leg["call"]))


# --- answers -------------------------------------------------------------------


def _parts(facts: Facts, step: Step) -> list[int]:
    """The refs that a call has: one, or one for each rank."""
    return list(range(facts.plan.team(step.team).world)) if step.how == "split" else [-1]


def answers(facts: Facts) -> Iterator[Broken]:
    """What was sent is answered once, and stays so."""
    got: dict[str, list[int]] = defaultdict(list)
    for line in facts.of("answer"):
        got[line["call"]].append(line["part"])
    for line in facts.of("sent"):
        call = line["call"]
        step = facts.plan.steps[call]
        refused = got[call] == [-1]  # a split call that could not even be sent
        if sorted(got[call]) != _parts(facts, step) and not refused:
            text = f"call {call} was answered for {got[call]} instead of {_parts(facts, step)}"
            yield Broken("answered", text, shown(facts, call))
    for line in facts.of("changed"):
        text = f"call {line['call']} was answered with {line['first']}, then with {line['again']}"
        yield Broken("answered", text, shown(facts, line["call"]))


def values(facts: Facts) -> Iterator[Broken]:
    """Answers are right, and made by runs that ended."""
    for line in facts.of("answer"):
        if line["error"] is not None:
            continue
        call = line["call"]
        if not line["right"]:
            yield Broken("values", f"call {call}: {line['why']}", shown(facts, call))
            continue
        for run in line["runs"]:
            end = facts.ends.get(run)
            if end is None or end["call"] != call or end["raised"] or end["at"] > line["at"]:
                text = f"call {call} was answered by run {run}, which did not end before"
                yield Broken("values", text, shown(facts, call))


# --- errors --------------------------------------------------------------------


def _reach(facts: Facts, step: Step) -> list[Step]:
    """The step and those whose answers it was given as futures."""
    found = [step]
    while found[-1].source and found[-1].future:
        found.append(facts.plan.steps[found[-1].source])
    return found


def errors(facts: Facts) -> Iterator[Broken]:
    """Errors are those that the round brought about."""
    for line in facts.of("answer"):
        if line["error"] is None:
            continue
        step = facts.plan.steps[line["call"]]
        why = objection(facts, step, line["error"], line["at"])
        if why:
            first = line["error"]["text"].strip().splitlines() or [""]
            told = f"{line['error']['kind']}: {first[0]}"
            text = f"call {step.call} failed, {why}: {told}"
            yield Broken("errors", text, shown(facts, step.call))
    for line in facts.of("trouble"):
        yield Broken("errors", "the script itself failed", tuple(line["error"]["text"].split("\n")))


def objection(facts: Facts, step: Step, error: Line, at: float) -> str:
    """Why an error of a call may not be; nothing where it may."""
    near = _reach(facts, step)
    code = error["code"]
    if code == "user":
        planned = [f"planned {s.call}" for s in near if s.method == "fail"]
        named = any(plan in error["text"] for plan in planned)
        return "" if named else "with an exception that nobody planned"
    if code == "cancelled":
        cancelled = {line["call"] for line in facts.of("cancel")}
        return "" if cancelled & {s.call for s in near} else "and nobody cancelled it"
    if code == "timeout":
        return "" if any(s.timeout for s in near) else "and it has no deadline"
    if code == "tainted":
        return _taint_objection(facts, error, at)
    if code == "worker_died":
        return _death_objection(facts, near, error, at)
    if code == "node_lost":
        return _node_objection(facts, error, at)
    if code == "deadlock":
        return _cycle_objection(facts, step)
    if code == "startup" and step.method == "spell":
        killed = [f["pid"] for f in facts.faults("kill", "zygote") if f["at"] <= at]
        named = any(f"(pid {pid}," in error["text"] for pid in killed)
        return "" if named else "and no zygote that it names was killed"
    return "in a way that nothing in this round explains"


def _cycle_objection(facts: Facts, step: Step) -> str:
    """Calls go from earlier teams to later ones; a future that goes the same way can close a
    cycle: the call is behind one that waits for what comes after its own caller."""
    teams = [team.name for team in facts.plan.teams]
    futures = [s for s in facts.plan.steps.values() if s.future]
    ways = [(teams.index(facts.plan.steps[s.source].team), teams.index(s.team)) for s in futures]
    if step.method == "relay" and any(source < target for source, target in ways):
        return ""
    return "and nothing waits for it"


def _taint_objection(facts: Facts, error: Line, at: float) -> str:
    """A rank is tainted by a cancel of what it runs: its caller's, or with the death of the
    caller, or of another rank that is not restarted, as none is whose node is lost."""
    team = error["cluster"]
    cancels = [facts.plan.steps[line["call"]] for line in facts.of("cancel") if line["at"] <= at]
    losers = {s.team for s in facts.plan.steps.values() if s.inner == team}
    losers |= {team} if facts.plan.team(team).on_failure == "fail" else set()
    cancelled = any(s.team == team for s in cancels)
    if cancelled or _lost(facts, team) or any(_died(facts, t) for t in losers):
        return ""
    return f"and nothing of {team} was cancelled"


def _died(facts: Facts, team: str) -> bool:
    """Whether anything of a team died."""
    return any(d.team == team for d in facts.deaths) or _lost(facts, team)


def _lost(facts: Facts, team: str) -> bool:
    """Whether a node of a team was lost."""
    nodes = {node for name, node in facts.places.items() if name.startswith(f"{team}/")}
    return bool(nodes & set(facts.lost))


def _death_objection(facts: Facts, near: list[Step], error: Line, at: float) -> str:
    who = error["cluster"], error["rank"]
    deaths = [d for d in facts.deaths if (d.team, d.rank) == who and d.at <= at]
    if not deaths:
        return f"and {who[0]}/{who[1]} did not die"
    pid = re.search(r"process (\d+)", error["text"])
    for d in deaths:
        same = (d.node, d.signal, d.code) == (error["node"], error["signal"], error["exit_code"])
        if same and (pid is None or int(pid[1]) == d.pid):
            break
    else:
        return f"and {who[0]}/{who[1]} died otherwise: {deaths}"
    teams = {s.team for s in near} | {s.inner for s in near if s.inner}
    if who[0] not in teams:
        return f"and has nothing to do with {who[0]}"
    return _again_objection(facts, near, error)


def _again_objection(facts: Facts, near: list[Step], error: Line) -> str:
    """What may be run again on a restarted rank does not fail by its death."""
    if not all(s.idempotent for s in near):
        return ""
    team = facts.plan.team(error["cluster"])
    if team.on_failure == "fail":
        return ""
    deaths = [d for d in facts.deaths if d.team == team.name]
    if _lost(facts, team.name) or len(deaths) > team.max_restarts:
        return ""
    return f"and it is idempotent, on a team with {team.on_failure}"


def _node_objection(facts: Facts, error: Line, at: float) -> str:
    named = {error["node"]} if error["node"] else set()
    named |= {f"node-{n}" for n in re.findall(r"\bnode[ -](\d+)", error["text"])}
    if not named:
        return "and names no node"
    if not any(facts.lost.get(node, at + 1) <= at for node in named):
        return f"and {' and '.join(sorted(named))} was not lost"
    return ""


# --- the end -------------------------------------------------------------------


def endings(facts: Facts) -> Iterator[Broken]:
    """The round came to its end, and left nothing where it could have."""
    for line in facts.of("hang"):
        yield Broken("end", "hangs", tuple(line["lanes"]))
    for line in facts.of("stored"):
        if line["objects"]:
            told = tuple(str(thing) for thing in line["objects"][:10])
            text = f"{len(line['objects'])} objects in the stores, of which nobody has handles"
            yield Broken("end", text, told)
    for line in facts.of("ports"):
        if any(line["held"].values()):
            yield Broken("end", f"ports are held without teams: {line['held']}")
    if not facts.of("ended") and not facts.of("hang"):
        last = tuple(str(line) for line in facts.log[-5:])
        yield Broken("end", "the script ended before its time", last)


def shown(facts: Facts, call: str) -> tuple[str, ...]:
    """The lines about a call, in short, by time."""
    start = facts.log[0]["at"] if facts.log else 0.0
    lines = [
        line
        for line in sorted([*facts.log, *facts.legs], key=lambda line: line["at"])
        if line.get("call") == call or line["what"] == "fault"
    ]
    return tuple(_short(line, start) for line in lines[:40])


def _short(line: Line, start: float) -> str:
    at = f"{line['at'] - start:8.3f}"
    if "team" in line and line["what"] != "fault":
        who = f"{line['team']}/{line['rank']} process {line['pid']}"
        more = f" {line['raised']}" if line.get("raised") else ""
        return f"{at} {who} {line['what']} {line.get('call', '')} run {line.get('run', '')}{more}"
    rest = {k: v for k, v in line.items() if k not in ("at", "what", "error", "runs")}
    if line["what"] == "fault":
        rest = {"plan": line["plan"], "pid": line["pid"], "hit": line["hit"]}
    error = line.get("error")
    if error:
        rest["error"] = f"{error['kind']}: {error['text'].strip().splitlines()[:1]}"
    return f"{at} {line['what']} " + ", ".join(f"{k} {v}" for k, v in rest.items())
