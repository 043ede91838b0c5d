"""The machine under the benchmark: what it is, how busy it is, what runs on it.

Owns the look at /proc and the ending of what a driver left behind. It ends
nothing that is not a descendant of this process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
#: Above this share of busy CPU time the machine is not calm.
CALM = 0.10
#: Above this share used by others, a run counts as disturbed.
DISTURBED = 0.15


def describe() -> dict[str, Any]:
    """What a reader has to know to place the figures."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def available_memory() -> float:
    """Bytes that can be had without swapping, the cgroup's limit included."""
    found = float("inf")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found = float(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            found = min(found, float(limit) - used)
    except (OSError, ValueError):
        pass  # no cgroup v2 here, or no limit
    return found


def _ticks() -> tuple[float, float]:
    """Busy and all CPU time since boot; time taken by other machines is busy too."""
    fields = [float(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def busy(seconds: float) -> float:
    """The share of CPU time that is used, by anyone, over the next seconds."""
    busy_before, all_before = _ticks()
    time.sleep(seconds)
    busy_after, all_after = _ticks()
    return (busy_after - busy_before) / max(all_after - all_before, 1.0)


class Others:
    """CPU time that others used between the making of this and `share`.

    What is ours is what our children have used by the time they are collected, or
    what they told themselves, where that is more: Ray's daemon collects nobody.
    """

    def __init__(self) -> None:
        self._busy, self._all = _ticks()
        self._ours = self._children()

    def share(self, told: float) -> float:
        busy_now, all_now = _ticks()
        ours = max(self._children() - self._ours, told) * os.sysconf("SC_CLK_TCK")
        return max(0.0, busy_now - self._busy - ours) / max(all_now - self._all, 1.0)

    @staticmethod
    def _children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def wait_calm(
    limit: float,
    *,
    look: Callable[[float], float] = busy,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Waits until the machine is calm, at most limit seconds, and tells how it was.

    The load average is noted, but not waited for: it still tells of our own last
    run a minute later. What decides is the CPU time used in a second of looking.
    """
    began = clock()
    while True:
        share = look(1.0)
        waited = clock() - began
        if share <= CALM or waited >= limit:
            return {
                "loadavg": list(os.getloadavg()),
                "busy": round(share, 3),
                "waited": round(waited, 1),
                "calm": share <= CALM,
            }


def adopt_orphans() -> None:
    """From now on, what our descendants leave behind becomes our own child."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _table() -> dict[int, tuple[int, str, str]]:
    """pid -> parent, state, name."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:
                continue
            rest = stat[stat.rindex(")") + 2 :].split()
            found[int(entry)] = (
                int(rest[1]),
                rest[0],
                stat[stat.index("(") + 1 : stat.rindex(")")],
            )
    return found


def descendants() -> dict[int, str]:
    """Living processes below this one, by name; our own dead children are collected."""
    table = _table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, todo = {}, [os.getpid()]
    while todo:
        parent = todo.pop()
        for pid in children.get(parent, []):
            todo.append(pid)
            if table[pid][1] != "Z":
                found[pid] = table[pid][2]
            elif parent == os.getpid():
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass  # its Popen was quicker
    return found


def clear(grace: float) -> list[str]:
    """Waits for all descendants to end, kills those that do not; returns their names."""
    end = time.monotonic() + grace
    while (left := descendants()) and time.monotonic() < end:
        time.sleep(0.02)
    killed = sorted(left.values())
    for _ in range(50):  # what is killed may leave children to us in turn
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        left = descendants()
        if not left:
            break
    return killed
