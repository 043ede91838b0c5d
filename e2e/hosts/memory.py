"""Hosts with little memory: a control group each, below that of the tests."""

from __future__ import annotations

import contextlib
import subprocess
import time
import unittest
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts.network import Host

MOUNTED = Path("/sys/fs/cgroup/memory")  # the kernel's first kind of them
PATIENCE = 10.0
# A host has a /sys of its own, without control groups. It gets to see its own one, as the root.
SHOW = """
cd /sys/fs/cgroup
mount -t tmpfs -o mode=755 groups .
cd /sys/fs/cgroup
mkdir all memory
mount -t cgroup -o memory all all
mount --bind "all/$0" memory
"""


class Memory:
    """The control groups of some hosts, by their index."""

    def __init__(self) -> None:
        self._groups: dict[int, Path] = {}

    def limit(self, host: Host, name: str, size: int) -> None:
        """Puts a host under a limit, before anything but its first process runs there."""
        own = own_group()
        if own is None:
            raise unittest.SkipTest("needs cgroups: memory has none of the first kind here")
        group = own / name
        try:
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(size))
            (group / "cgroup.procs").write_text(str(host.pid))
        except OSError as error:
            with contextlib.suppress(OSError):
                group.rmdir()
            raise unittest.SkipTest(f"needs cgroups: {error}") from None
        self._groups[host.index] = group
        inside = ["nsenter", "-t", str(host.pid), "-m", "--", "sh", "-e", "-c", SHOW]
        subprocess.run([*inside, str(group.relative_to(MOUNTED))], check=True)

    def entering(self, host: int) -> list[str]:
        """What a command line begins with, so that its program is under the limit."""
        if host not in self._groups:
            return []
        return ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(self._groups[host])]


def remove(run: str) -> None:
    """Removes the groups of a run's hosts, once the last process has left them."""
    own, deadline = own_group(), time.monotonic() + PATIENCE
    for group in own.glob(run + "-*") if own is not None else []:
        while group.exists():
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            if time.monotonic() > deadline:
                raise OSError(f"the control group {group} is still in use")
            time.sleep(0.02)


def own_group() -> Path | None:
    """The control group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds == "memory" and MOUNTED.is_dir():
            return MOUNTED / path.lstrip("/")
    return None
