"""Who has which hosts, so that those of a run that was killed are cleared by the next.

A run holds a lock on a file of its own name. The kernel lets go of it when the
run ends, however it ends; who can lock the file of another is its heir.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from hosts import memory

LOCKS = Path("/run/muster-hosts")
#: Scratch folders lie here: short, for the sake of sockets' paths.
SCRATCH = Path("/tmp")
PREFIX = "mh-"


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


class Lock:
    """The name of a run, held for as long as this process lives."""

    def __init__(self) -> None:
        LOCKS.mkdir(mode=0o700, exist_ok=True)
        while True:
            self.name = PREFIX + secrets.token_hex(3)
            self._fd = os.open(LOCKS / self.name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if _lock(self._fd) and _same(self._fd, LOCKS / self.name):
                return
            os.close(self._fd)  # an heir was faster; take another name

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(LOCKS / self.name)
        os.close(self._fd)


def clear_dead_runs() -> list[str]:
    """Removes what runs left that did not end by themselves; returns their names."""
    cleared = []
    for path in sorted(LOCKS.glob(PREFIX + "*")) if LOCKS.is_dir() else []:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it has just ended, or has another heir
        try:
            if _lock(fd) and _same(fd, path):
                clear(path.name)
                path.unlink()
                cleared.append(path.name)
        finally:
            os.close(fd)
    return cleared


def clear(name: str) -> None:
    """Ends the processes of a run's hosts, and removes its namespaces and its scratch folder."""
    spaces = [n for n in namespaces() if n.startswith(name + "-")]
    deadline = time.monotonic() + 20
    while left := _inside(spaces):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        if time.monotonic() > deadline:
            raise OSError(f"processes of {name} do not end although they were killed: {left}")
        time.sleep(0.02)
    for space in spaces:
        ip("netns", "del", space, check=False)
    memory.remove(name)
    shutil.rmtree(SCRATCH / name, ignore_errors=True)


def namespaces() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list", check=False).stdout.splitlines()]


def _inside(spaces: list[str]) -> list[int]:
    """The processes in any of the network namespaces, zombies left out."""
    inodes = set()
    for space in spaces:
        with contextlib.suppress(OSError):
            inodes.add(os.stat(f"/run/netns/{space}").st_ino)
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                found.append(int(entry))
    return found


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(fd: int, path: Path) -> bool:
    """Whether the file that was opened still goes by that name."""
    try:
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
