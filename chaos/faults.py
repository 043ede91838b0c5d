"""The processes of a round, and what is done to them.

Owns who is who below the script, by parents and command lines, and the signals.
What it did it gives back as a record; it decides nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chaos.plan import Fault


class Process(NamedTuple):
    """A line of the process table."""

    pid: int
    parent: int
    started: int
    state: str
    command: str


def table() -> dict[int, Process]:
    """Every process, by pid."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
            raw = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        fields = stat[stat.rindex(")") + 2 :].split()
        command = raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        pid = int(entry.name)
        found[pid] = Process(pid, int(fields[1]), int(fields[19]), fields[0], command)
    return found


def below(root: int, processes: dict[int, Process]) -> list[Process]:
    """All descendants of a process."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, todo = [], [root]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += [process.pid for process in mine]
    return found


class Cast:
    """Who plays which role: agents and wardens by node, once the teams are there."""

    def __init__(self, workers: dict[str, int]) -> None:
        """``workers`` has a worker's pid for each node's name."""
        processes = table()
        self.agents = {node: processes[pid].parent for node, pid in workers.items()}
        self.wardens = {node: processes[pid].parent for node, pid in self.agents.items()}

    def find(self, fault: Fault, worker: Callable[[str, int], int]) -> int:
        """The process that a fault means, 0 where there is none (any more)."""
        processes = table()
        node = f"node-{fault.node}"
        if fault.role == "script":
            return os.getpid()
        if fault.role == "head":
            return self.head()
        if fault.role == "zygote":
            agent = self.agents[node]
            mine = [p for p in processes.values() if p.parent == agent]
            return next((p.pid for p in mine if p.command == "muster zygote"), 0)
        if fault.role == "worker":
            pid = worker(fault.team, fault.rank)
        else:
            pid = (self.agents if fault.role == "agent" else self.wardens)[node]
        there = processes.get(pid)
        return pid if there and there.state != "Z" and there.command.startswith("muster ") else 0

    def head(self) -> int:
        """The head that this script started, 0 while there is none."""
        for process in table().values():
            if process.parent == os.getpid() and process.command.startswith("muster head"):
                return process.pid if process.state != "Z" else 0
        return 0


def carry_out(fault: Fault, pid: int) -> dict[str, Any]:
    """Do it to the process and tell what was done; a stop waits for its end."""
    done: dict[str, Any] = {"act": fault.act, "role": fault.role, "pid": pid}
    done |= {"team": fault.team, "rank": fault.rank, "node": fault.node, "hit": pid != 0}
    done["at"] = time.monotonic()  # before it: nothing that it causes is earlier
    if pid == 0:
        return done
    try:
        if fault.act == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault.role == "script":
            stop = f"kill -STOP {pid}; sleep {fault.seconds}; kill -CONT {pid}"
            subprocess.run(["sh", "-c", stop], check=True)
        else:
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(fault.seconds)
            finally:
                os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        done["hit"] = fault.act == "stop"  # it was there to be stopped, and ended meanwhile
    return done
