"""Runs rounds as processes of their own, and sees what they leave behind.

This process makes itself a child subreaper, so that whatever a round starts stays
below it. A port or memory without a name has a process that holds it: where no
process is left, none is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from chaos import plan as planning
from chaos import rules
from chaos.faults import Process, below, table
from chaos.play import read

PR_SET_CHILD_SUBREAPER = 36
ROOT = Path(__file__).resolve().parent.parent
#: Seconds that what is ending may take to be gone.
GRACE = 10.0
#: What is told of a round that broke a rule, in its folder.
REPORT = "broken.txt"


@dataclass
class Outcome:
    """How a round went."""

    plan: planning.Plan
    folder: Path
    broken: list[rules.Broken]
    seconds: float
    sent: int
    failed: int
    faults: int

    def __str__(self) -> str:
        state = f"{len(self.broken)} RULES BROKEN" if self.broken else "ok"
        return (
            f"seed {self.plan.seed}: {self.plan.shape}, {len(self.plan.teams)} teams, "
            f"{self.sent} calls ({self.failed} failed as they may), {self.faults} faults, "
            f"{self.seconds:.1f} s: {state}"
        )

    def report(self) -> str:
        """For people: what broke, what was planned, how to do it again."""
        lines = [str(self), "", "the plan:", *("  " + line for line in self.plan.describe()), ""]
        lines += [f"broken: {broken}" for broken in self.broken[:8]]
        if len(self.broken) > 8:
            lines.append(f"and {len(self.broken) - 8} more")
        hang = self.folder / "hang.txt"
        if hang.exists() and (text := hang.read_text(errors="replace").strip()):
            lines += ["", text, "", "the last lines of the log:"]
            log = (self.folder / "log.jsonl").read_text().splitlines()
            lines += [line[:300] for line in log[-15:]]
        output = (self.folder / "output.txt").read_text(errors="replace").strip()
        if output:
            lines += ["", "what the script wrote:", *output.splitlines()[-30:]]
        lines += ["", f"all of it is in {self.folder}"]
        lines.append(f"again: make chaos SEED={self.plan.seed} ROUNDS=1")
        return "\n".join(lines)


def run_round(seed: int, folder: Path, seconds: float = 120.0) -> Outcome:
    """Play the round of a seed, with its files in a folder, for so long at most."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    clear(folder)
    plan = planning.make(seed)
    steps = [f"{lane.name}: {step}" for lane in plan.lanes for step in lane.steps]
    (folder / "plan.txt").write_text("\n".join([*plan.describe(), "", *steps]) + "\n")
    before = {key(process) for process in below(os.getpid(), table())}
    memory = named_memory()
    base = Path(tempfile.mkdtemp(prefix="mc-", dir="/tmp"))  # short, for sockets' sake
    spill = folder / "spill"
    spill.mkdir()
    env = {k: v for k, v in os.environ.items() if k not in ("MUSTER_VIRTUAL", "MUSTER_ADDRESS")}
    env |= {"MUSTER_DIR": str(base), "MUSTER_LOG_DIR": str(folder / "logs")}
    env |= {"MUSTER_SPILL_DIR": str(spill), "PYTHONFAULTHANDLER": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    began = time.monotonic()
    late = False
    with open(folder / "output.txt", "wb") as output:
        command = [sys.executable, "-m", "chaos.play", str(seed), str(folder)]
        script = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
        try:
            script.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            script.send_signal(signal.SIGABRT)  # which has it tell its stacks
            script.wait()
    took = time.monotonic() - began
    log = read(folder / "log.jsonl")
    legs = [line for path in sorted(folder.glob("legs-*.jsonl")) for line in read(path)]
    broken = rules.judge(plan, log, legs)
    if late:
        broken.insert(0, rules.Broken("end", f"the round was not over after {seconds:g} s"))
    broken += [rules.Broken("left", text) for text in left(before, base, spill, memory)]
    shutil.rmtree(base, ignore_errors=True)
    answers = [line for line in log if line["what"] == "answer"]
    failed = sum(line["error"] is not None for line in answers)
    hits = sum(line["what"] == "fault" and line["hit"] for line in log)
    sent = sum(line["what"] == "sent" for line in log)
    outcome = Outcome(plan, folder, broken, took, sent, failed, hits)
    if broken:
        (folder / REPORT).write_text(outcome.report() + "\n")
    return outcome


def clear(folder: Path) -> None:
    """Make a folder empty. One of a broken round is kept beside it, with a number: the same seed
    seldom does the same twice."""
    if (folder / REPORT).exists():
        number = 1
        while (kept := folder.with_name(f"{folder.name}-broken-{number}")).exists():
            number += 1
        folder.rename(kept)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def key(process: Process) -> tuple[int, int]:
    """A process for good: pids are used again."""
    return process.pid, process.started


def named_memory() -> set[str]:
    """What of ours has a name in shared memory: nothing ever does."""
    return {name for name in os.listdir("/dev/shm") if "muster" in name}


def left(before: set[tuple[int, int]], base: Path, spill: Path, memory: set[str]) -> list[str]:
    """What a round left behind, after a while; processes among it are ended."""
    deadline = time.monotonic() + GRACE
    while True:
        processes = _reaped([p for p in below(os.getpid(), table()) if key(p) not in before])
        found = [f"process {p.pid}: {p.command}" for p in processes]
        found += [f"session folder {p.name}" for p in base.glob("muster-*/*") if p.name != "logs"]
        found += [f"spilled {p.name}" for p in spill.iterdir()]
        found += [f"/dev/shm/{name}" for name in named_memory() - memory]
        if not found or time.monotonic() > deadline:
            break
        time.sleep(0.02)  # nothing tells of the end of a stranger's grandchild
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return found


def _reaped(processes: list[Process]) -> list[Process]:
    """Collects our own dead children among them; gives the others."""
    living = []
    for process in processes:
        if process.state == "Z" and process.parent == os.getpid():
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass
        else:
            living.append(process)
    return living
