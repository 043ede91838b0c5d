"""Memory of the script and of every process below it, as /proc tells it.

Shared memory is counted once: each process by its proportional share (PSS), and
in the sum by the segments that any of them has open, since memory that nobody
has mapped at the moment is in no process's share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import probe

#: Between two looks; one takes milliseconds for each process with much mapped.
PERIOD = 0.05


def begin_peak() -> float:
    """Forgets the most that this process had; returns what it has."""
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    return _status("VmRSS")


def peak() -> float:
    """The most resident memory of this process since `begin_peak`, in bytes."""
    return _status("VmHWM")


def _status(name: str, pid: int | str = "self") -> float:
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith(name + ":"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass  # it has just ended
    return 0.0


def segments(pids: Iterable[int]) -> float:
    """Shared memory that these processes have open, each segment once, in bytes."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            entries = list(os.scandir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has just ended
        for entry in entries:
            try:
                if os.readlink(entry.path).startswith(("/memfd:", "/dev/shm/")):
                    at = os.stat(entry.path)
                    found[at.st_dev, at.st_ino] = at.st_blocks * 512
            except OSError:
                pass  # closed meanwhile
    return float(sum(found.values()))


def shares(pid: int) -> dict[str, float]:
    """Pss and its kinds, in bytes; nothing of a process that has ended."""
    found: dict[str, float] = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                if line.startswith("Pss"):
                    name, value = line.split()[:2]
                    found[name.rstrip(":")] = float(value) * 1024
    except OSError:
        pass
    return found


class Watch:
    """Looks at all processes over and over, in a thread, while its block runs."""

    def __init__(self, workers: list[int]) -> None:
        self._workers = set(workers)
        self._most: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._all = 0.0
        self._shared = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(PERIOD):
            self._look()

    def _look(self) -> None:
        pids = [os.getpid(), *probe.descendants(os.getpid())]
        total = shared = segments(pids)
        for pid in pids:
            found = shares(pid)
            if not found:
                continue
            self._names.setdefault(pid, self._role(pid))
            self._most[pid] = max(self._most.get(pid, 0.0), found["Pss"])
            total += found["Pss"] - found.get("Pss_Shmem", 0.0)
        self._all = max(self._all, total)
        self._shared = max(self._shared, shared)

    def _role(self, pid: int) -> str:
        if pid == os.getpid():
            return "script"
        return "worker" if pid in self._workers else probe.name_of(pid)

    def peaks(self) -> dict[str, float]:
        """The most of the script, of the largest worker, of the rest, and of all at once."""
        by_role: dict[str, list[float]] = {"script": [], "worker": [], "system": []}
        for pid, most in self._most.items():
            role = self._names[pid]
            by_role[role if role in by_role else "system"].append(most)
        return {
            "script": sum(by_role["script"]),
            "worker": max(by_role["worker"], default=0.0),
            "system": sum(by_role["system"]),
            "shared": self._shared,
            "all": self._all,
        }

    def processes(self) -> dict[str, float]:
        """The most of every process, by name and pid."""
        return {f"{self._names[pid]} {pid}": most for pid, most in self._most.items()}
