"""The script of one round: makes the teams, plays the lanes, lets faults come.

``python -m chaos.play SEED FOLDER``. What it does and gets it writes to
FOLDER/log.jsonl, a line each, for the rules; what it finds hanging it looks into
before it gives up (exit code 3).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import muster
from chaos import plan as planning
from chaos.faults import Cast, carry_out
from chaos.plan import BATCHES, LISTS, Lane, Plan, Step, Team
from chaos.workers import Async, Sync
from muster import Batch, Broadcast, Cluster, Ref, ResourceManager, WorkerConfig, _context
from muster._embedded import find_binary

#: Seconds in which any one call is answered, whatever faults there are, on a busy machine.
PATIENCE = 30.0
#: Seconds in which what nobody has any more is gone from the stores.
STORE_PATIENCE = 15.0
HUNG = 3
MARK = "as told"


class Log:
    """Lines of JSON, each on disk before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, what: str, **more: Any) -> None:
        line = {"at": time.monotonic(), "what": what, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def told(error: BaseException) -> dict[str, Any]:
    """An error as the rules want it."""
    names = ("code", "cluster", "rank", "worker", "node", "signal", "exit_code")
    ours = isinstance(error, muster.MusterError)
    about = {name: getattr(error, name) for name in names} if ours else {"code": ""}
    text = str(error) if ours else "".join(traceback.format_exception(error))
    return {**about, "kind": type(error).__name__, "text": text}


class Round:
    """One round under way."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.log = Log(folder / "log.jsonl")
        self.teams: dict[str, Cluster] = {}
        self.begun = 0
        self.changed = threading.Condition()
        self.busy: dict[str, tuple[str, float]] = {}  # lane -> what it waits for, since when

    # --- teams ---------------------------------------------------------------

    def start(self) -> Cast:
        muster.init(virtual=self.plan.shape, log_to_stderr=False, progress=False)
        self.pool = ResourceManager(self.plan.gpus, self.plan.nodes)
        for team in self.plan.teams:
            self.teams[team.name] = made = self.make(team)
            made.initialize(MARK)
        workers = [w for made in self.teams.values() for w in made.workers]
        places = {f"{w._cluster.name}/{w.rank}": w.node for w in workers}
        self.log.say("started", places=places)
        return Cast({worker.node: worker.pid for worker in workers})

    def make(self, team: Team) -> Cluster:
        return Cluster(
            name=team.name,
            worker_cls=Async if team.kind == "async" else Sync,
            resource_manager=self.pool,
            worker_config=WorkerConfig(
                device_mapping=list(team.devices),
                tp=team.tp,
                max_concurrency=4 if team.kind == "pool" else None,
                on_failure=team.on_failure,
                max_restarts=team.max_restarts,
                grace=2.0,
                strategy_args={"folder": str(self.folder)},
            ),
        )

    def pid_of(self, team: str, rank: int) -> int:
        """The newest process of a rank, by what it wrote down itself."""
        path = self.folder / f"legs-{team}-{rank}.jsonl"
        pids = [r["pid"] for r in read(path) if r["what"] == "born"]
        return pids[-1] if pids else 0

    # --- faults --------------------------------------------------------------

    def make_trouble(self, cast: Cast) -> None:
        for fault in self.plan.faults:
            with self.changed:
                while self.begun < fault.after:
                    self.changed.wait()
            time.sleep(fault.delay)
            pid = cast.find(fault, self.pid_of)
            self.log.say("fault", plan=str(fault), **carry_out(fault, pid))

    # --- lanes ---------------------------------------------------------------

    def count(self, steps: int = 1) -> None:
        with self.changed:
            self.begun += steps
            self.changed.notify_all()

    @contextlib.contextmanager
    def waiting(self, lane: str, what: str) -> Iterator[None]:
        self.busy[lane] = what, time.monotonic()
        try:
            yield
        finally:
            self.busy.pop(lane, None)

    def hung(self) -> list[str]:
        late = time.monotonic() - PATIENCE
        return [f"{lane}: {what}" for lane, (what, at) in list(self.busy.items()) if at < late]


class Player:
    """Plays one lane."""

    def __init__(self, round_: Round, lane: Lane) -> None:
        self.round = round_
        self.lane = lane
        self.pending: list[tuple[Step, list[Ref]]] = []
        self.refs: dict[str, Ref] = {}  # of calls, for those that take them as arguments
        self.values: dict[str, Any] = {}  # answers, for the same

    def play(self) -> None:
        try:
            if self.lane.kind == "loop":
                asyncio.run(self._play_on_loop())
            else:
                for step in self.lane.steps:
                    self.begin(step)
                    if step.gather:
                        self.gather(step.gather)
                self.gather("get")
        finally:
            self.round.count(len(self.lane.steps))  # faults do not wait for a lane that failed
            self.refs.clear()
            self.values.clear()
            self.pending.clear()

    async def _play_on_loop(self) -> None:
        for step in self.lane.steps:
            self.begin(step)
            if step.gather:
                await self.gather_on_loop()
        await self.gather_on_loop()

    def begin(self, step: Step) -> None:
        self.round.count()
        try:
            with self.round.waiting(self.lane.name, f"making {step}"):
                call = self.prepare(step)
        except LookupError:
            self.round.log.say("skipped", call=step.call)
            return
        log = self.round.log
        log.say("sent", call=step.call, lane=self.lane.name, plan=str(step))
        try:
            with self.round.waiting(self.lane.name, f"making {step}"):
                made = call()
        except Exception as error:
            log.say("answer", call=step.call, part=-1, error=told(error))
            return
        if step.how == "ref":
            self.refs[step.call] = made
            self.pending.append((step, [made]))
        elif step.how == "split":
            self.pending.append((step, made))
        else:
            self.answer(step, -1, made)
        if step.cancel:
            muster.wait([made], timeout=step.cancel)
            log.say("cancel", call=step.call)
            made.cancel()

    # --- making a call -------------------------------------------------------

    def prepare(self, step: Step) -> Callable[[], Any]:
        """The call, ready to be made; LookupError where what it needs never came."""
        team = self.round.teams.get(step.team)
        call = step.call
        more: dict[str, Any] = {"timeout": step.timeout} if step.timeout else {}
        if step.how in ("block", "ref") and step.method != "spell":
            more["blocking"] = step.how == "block"
        if step.method == "spell":
            return lambda: self.spell(step)
        assert team is not None
        if step.method in LISTS + BATCHES:
            rows = self.argument(step)
            return lambda: getattr(team, step.method)(Broadcast(call), rows, **more)
        args: tuple[Any, ...] = (call, call)
        if step.method in ("note", "note_again"):
            if step.how == "split":
                return lambda: team.execute_all_async(step.method, *args)
            if step.how == "rank":
                return lambda: team.workers[step.rank].call(step.method, *args)
        elif step.method == "linger":
            args = (call, step.seconds)
        elif step.method == "fail":
            args = (call, step.rank)
        elif step.method == "leave":
            args = (call, step.rank, step.way)
        elif step.method == "relay":
            args = (call, step.inner)
        return lambda: getattr(team, step.method)(*args, **more)

    def argument(self, step: Step) -> Any:
        if step.source and step.future:
            return self.refs[step.source]
        if step.source:
            if step.source not in self.values:
                self.gather("get")  # on a loop too: blocking is legal there
            rows = self.values[step.source]
            return rows[len(rows) // 2 :] if step.half else rows
        rows = planning.first_rows(step)
        if step.method in LISTS:
            return [[int(row), 0] for row in rows]
        return Batch({"x": rows, "run": np.zeros(len(rows), np.int64)})

    def spell(self, step: Step) -> Any:
        """A team that lives for one call."""
        name = f"spell-{step.call}"
        config = WorkerConfig(
            world_size=step.size, strategy_args={"folder": str(self.round.folder)}, grace=2.0
        )
        with Cluster(name, Sync, self.round.pool, config) as made:
            made.initialize(MARK)
            return made.note(step.call, step.call)

    # --- answers -------------------------------------------------------------

    def gather(self, way: str) -> None:
        pending, self.pending = self.pending, []
        whose = {id(ref): (step, ref) for step, refs in pending for ref in refs}
        refs = [ref for _, refs in pending for ref in refs]
        with self.round.waiting(self.lane.name, f"{way} {[s.call for s, _ in pending]}"):
            if way == "wait" and refs:
                muster.wait(refs, num_returns=len(refs))
            if way == "as_completed":
                for ref in muster.as_completed(refs):
                    step, _ = whose.pop(id(ref))
                    self.take(step, ref)
            for step, ref in whose.values():
                self.take(step, ref)

    async def gather_on_loop(self) -> None:
        pending, self.pending = self.pending, []
        refs = [ref for _, refs in pending for ref in refs]
        with self.round.waiting(self.lane.name, f"await {[s.call for s, _ in pending]}"):
            await asyncio.gather(*map(_awaited, refs), return_exceptions=True)
            for step, several in pending:
                for ref in several:
                    self.take(step, ref)

    def take(self, step: Step, ref: Ref) -> None:
        """A ref's answer; asked twice, as it has to stay the same."""
        part = ref._rank
        try:
            value = muster.get(ref)
        except Exception as error:
            first, again = told(error), None
            try:
                muster.get(ref)
            except Exception as second:
                again = told(second)
            if again is None or again["text"] != first["text"]:
                self.round.log.say("changed", call=step.call, first=first, again=again)
            self.round.log.say("answer", call=step.call, part=part, error=first)
            return
        if muster.get(ref) is not value:
            self.round.log.say("changed", call=step.call, first="a value", again="another")
        self.answer(step, part, value)

    def answer(self, step: Step, part: int, value: Any) -> None:
        try:  # rows are read here for the first time
            right, why, runs = self.check(step, part, value)
        except muster.MusterError as error:
            self.round.log.say("answer", call=step.call, part=part, error=told(error))
            return
        self.round.log.say(
            "answer", call=step.call, part=part, right=right, why=why, runs=runs, error=None
        )
        if step.method in LISTS + BATCHES and step.method != "weigh":
            self.values[step.call] = value

    def check(self, step: Step, part: int, value: Any) -> tuple[bool, str, list[int]]:
        """Whether an answer is right, else why not, and the runs that made it."""
        plan = self.round.plan
        if step.method in LISTS + BATCHES and step.method != "weigh":
            if step.method in LISTS:
                rows, runs = [r[0] for r in value], [r[1] for r in value]
            else:
                rows, runs = value["x"], value["run"].tolist()
            wanted = planning.answered(plan, step)
            if len(rows) != len(wanted):
                return False, f"{len(rows)} rows instead of {len(wanted)}", []
            right = planning.digest(rows) == planning.digest(wanted)
            return right, "" if right else "rows have other values", sorted(set(runs))
        return self.check_ranks(step, part, value)

    def check_ranks(self, step: Step, part: int, value: Any) -> tuple[bool, str, list[int]]:
        """The same for answers of one element per rank."""
        plan = self.round.plan
        said = [value] if part >= 0 or step.how == "rank" else value
        if step.method == "spell":
            world = step.size
        else:
            team = plan.team(step.team)
            world = team.world
        ranks = list(range(world))
        if part >= 0 or step.how == "rank":
            ranks = [max(part, step.rank)]
        wanted: dict[int, Any] = {}
        if step.method == "weigh":
            cut = planning.parts(planning.given(plan, step), plan.team(step.team))
            wanted = {r: [len(cut[r]), planning.digest(cut[r])] for r in ranks}
        elif step.method == "relay":
            inner = plan.team(step.inner)
            for rank, leg in zip(ranks, said, strict=False):
                call = f"{step.call}.{rank}"
                told_ = [[one[0], one[1], one[3]] for one in leg[3]]
                if told_ != [[call, r, rank] for r in range(inner.world)]:
                    return False, f"rank {rank} got {told_} from {step.inner}", []
        else:
            what = {"linger": step.seconds, "leave": step.rank, "fail": step.rank}
            wanted = dict.fromkeys(ranks, what.get(step.method, step.call))
        got = [[one[0], one[1]] for one in said]
        if got != [[step.call, rank] for rank in ranks]:
            return False, f"answers of {got} instead of ranks {ranks} of call {step.call}", []
        for rank, one in zip(ranks, said, strict=True):
            if rank in wanted and one[3] != wanted[rank]:
                return False, f"rank {rank} said {one[3]} instead of {wanted[rank]}", []
        return True, "", [one[2] for one in said]


async def _awaited(ref: Ref) -> Any:
    return await ref


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, without one that is not complete."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


# --- the round ---------------------------------------------------------------


def ask(*command: str, seconds: float = 10.0) -> str:
    """What the muster command says."""
    try:
        done = subprocess.run(
            [find_binary(), *command], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"muster {' '.join(command)}: no answer in {seconds:g} s"
    return done.stdout + done.stderr


def look_into(round_: Round, hung: list[str]) -> None:
    """Write down all there is to see of a round that hangs."""
    round_.log.say("hang", lanes=hung)
    with open(round_.folder / "hang.txt", "w", encoding="utf-8") as out:
        out.write("\n".join(["hangs in:", *hung, "", ask("status")]) + "\n")
        for team in round_.teams:
            out.write(f"--- muster stacks {team}\n{ask('stacks', team)}\n")
        session = _context.session()
        if session is not None and session.head is not None:
            out.write("\n".join(["--- last lines of the head", *session.head.last_words(), ""]))
        out.write("--- threads of the script\n")
        out.flush()
        faulthandler.dump_traceback(out, all_threads=True)


def stored(round_: Round) -> list[Any]:
    """What lies in the stores once everything was released, after a while."""
    deadline = time.monotonic() + STORE_PATIENCE
    while True:
        gc.collect()
        with round_.waiting("end", "muster store"):
            text = ask("store", "--json")
        try:
            nodes = [node for head in json.loads(text) for node in head["nodes"]]
        except ValueError:
            return [text]
        left = [thing for node in nodes for thing in node["objects"]]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)  # nothing tells of it


def held_ports(cast: Cast) -> dict[str, int]:
    """How many ports the agents of the nodes hold: sockets of theirs that are neither unix ones
    nor listen, nor are connected, as those of nodes on other machines are."""
    others: set[str] = set()
    for name, column in (("unix", 6), ("tcp", 9), ("tcp6", 9)):
        with contextlib.suppress(OSError):
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
            others.update(line.split()[column] for line in lines)
    held = {}
    for node, agent in cast.agents.items():
        count = 0
        with contextlib.suppress(OSError):  # one that was killed holds nothing
            for entry in os.scandir(f"/proc/{agent}/fd"):
                with contextlib.suppress(OSError):
                    kind, _, inode = os.readlink(entry.path).partition(":")
                    count += kind == "socket" and inode.strip("[]") not in others
        held[node] = count
    return held


def end(round_: Round, cast: Cast) -> None:
    """Release and stop everything in order, and write down what is left."""
    round_.log.say("stored", objects=stored(round_))
    with round_.waiting("end", "stopping the teams"):
        for made in round_.teams.values():
            made.shutdown()
    round_.teams.clear()
    round_.log.say("ports", held=held_ports(cast))
    with round_.waiting("end", "shutdown"):
        muster.shutdown()
    round_.log.say("ended")


def main(seed: int, folder: Path) -> int:
    """Play the round of a seed."""
    plan = planning.make(seed)
    round_ = Round(plan, folder)
    with open(folder / "hang.txt", "w", encoding="utf-8") as out:
        # Lanes are watched below; the start is made by this thread itself.
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True, file=out)
        try:
            cast = round_.start()
        except Exception as error:
            round_.log.say("trouble", error=told(error))
            return 1
        faulthandler.cancel_dump_traceback_later()
    *lanes, last = [Player(round_, lane) for lane in plan.lanes]
    in_threads(round_, lambda: round_.make_trouble(cast), *(lane.play for lane in lanes))
    in_threads(round_, last.play)
    in_threads(round_, lambda: end(round_, cast))
    return 0


def in_threads(round_: Round, *what: Callable[[], None]) -> None:
    """Have all of it done side by side, as long as nothing of it hangs."""

    def do(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            round_.log.say("trouble", error=told(error))

    threads = [threading.Thread(target=do, args=(one,), daemon=True) for one in what]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            if hung := round_.hung():
                look_into(round_, hung)
                os._exit(HUNG)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
