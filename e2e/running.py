"""Running things from the outside: scripts as a user starts them, and what runs below them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
from muster import Cluster, ResourceManager, WorkerConfig

HERE = Path(__file__).resolve().parent
BINARY = HERE.parent / "build" / "muster"
#: Where the package is that is tested here.
PACKAGE = str(Path(muster.__file__).parents[1])

# What the scripts of these tests start with.
IMPORTS = """
import os, sys, time
import muster
from muster import (Broadcast, Cluster, Dispatch, Execute, PerRank, ResourceManager, Worker,
                    WorkerConfig, register)
"""


def environment(virtual: str | None = "1x8", **extra: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("MUSTER_VIRTUAL", "PYTHONPATH")}
    if virtual is not None:
        env["MUSTER_VIRTUAL"] = virtual
    return {**env, **extra}


def run(
    *command: str | Path,
    cwd: Path | None = None,
    stdin: str = "",
    virtual: str | None = "1x8",
    timeout: float = 60,
    **extra: str,
) -> subprocess.CompletedProcess[str]:
    """A program run to its end, with what it wrote."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        env=environment(virtual, **extra),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )


def run_script(
    folder: Path, source: str, *args: str, name: str = "script.py", **how: Any
) -> subprocess.CompletedProcess[str]:
    """A script in a file, run as `python script.py`."""
    path = folder / name
    path.write_text(IMPORTS + source)
    return run(sys.executable, path, *args, **how)


def output_of(finished: subprocess.CompletedProcess[str]) -> str:
    """Its stdout, where it ended well."""
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes that are stopped meanwhile, and surely not afterwards."""
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A disk of a size, as "256k", with nothing on it yet."""
    import pytest  # workers import this module, and have no use for it

    if os.geteuid() != 0:
        pytest.skip("needs root: a small disk has to be mounted")
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))
    if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()) != 0:
        path.rmdir()
        pytest.skip(f"needs mounts: {os.strerror(ctypes.get_errno())}")
    try:
        yield path
    finally:
        libc.umount2(os.fsencode(path), 2)
        path.rmdir()


@contextlib.contextmanager
def session(virtual: str | None = "1x8") -> Iterator[None]:
    """A head of this process's own."""
    muster.init(virtual=virtual)
    try:
        yield
    finally:
        muster.shutdown()


@contextlib.contextmanager
def pool(gpus: int = 0, nodes: int = 1) -> Iterator[ResourceManager]:
    with ResourceManager(gpus, nodes) as rm:
        yield rm


@contextlib.contextmanager
def cluster(
    worker_cls: Any, rm: ResourceManager, name: str = "c", **config: Any
) -> Iterator[Cluster]:
    with Cluster(
        name=name,
        worker_cls=worker_cls,
        resource_manager=rm,
        worker_config=WorkerConfig(**config),
    ) as made:
        yield made


def commands() -> dict[int, tuple[int, str]]:
    """Every process: its parent and its command line, as ps shows it."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            raw = Path("/proc", entry, "cmdline").read_bytes()
            found[int(entry)] = parent, raw.rstrip(b"\0").replace(b"\0", b" ").decode()
    return found


def below(root: int) -> dict[int, tuple[int, str]]:
    """The descendants of root, as commands() tells them."""
    everything, found, todo = commands(), {}, [root]
    while todo:
        above = todo.pop()
        for pid, (parent, command) in everything.items():
            if parent == above:
                found[pid] = parent, command
                todo.append(pid)
    return found


def titled(title: str, root: int | None = None) -> list[int]:
    """The descendants of root, else of this process, whose command line begins with title.

    Whoever was forked just now bears its parent's until it becomes something else:
    such a one is not meant.
    """
    found = below(root or os.getpid())
    return [
        pid
        for pid, (parent, command) in found.items()
        if command.startswith(title) and command != found.get(parent, (0, ""))[1]
    ]


def eventually(what: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether it becomes true in time, for what nothing tells of."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
