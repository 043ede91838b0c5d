"""Counts the processes below this one, to see that none is left."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

#: pid and start time, so that a pid used again is another process
Key = tuple[int, str]


def below() -> dict[Key, str]:
    """Every descendant of this process, by what it calls itself: head, worker, …"""
    found: dict[int, tuple[int, str]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        found[int(entry)] = int(fields[1]), fields[19]
    family = {os.getpid()}
    while grown := {pid for pid, (parent, _) in found.items() if parent in family} - family:
        family |= grown
    family.discard(os.getpid())
    return {(pid, found[pid][1]): _kind(pid) for pid in family}


def still_there(processes: dict[Key, str]) -> list[str]:
    """Those of them that have not ended, wherever they hang now."""
    return [kind for (pid, started), kind in processes.items() if _started(pid) == started]


def told(processes: dict[Key, str]) -> str:
    return ", ".join(
        f"{n} {kind}{'s' * (n > 1)}" for kind, n in Counter(processes.values()).items()
    )


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").split()
    except OSError:
        words = []
    return words[1] if words[:1] == ["muster"] and len(words) > 1 else "other"


def _started(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return stat[stat.rindex(")") + 2 :].split()[19]
