"""What holds for every Python test of the tree: nothing is left behind.

The pytest process makes itself a child subreaper, so whatever a test starts,
grandchildren that called setsid included, stays below it in the process tree
and can be found and told by name. Session folders go into a folder of this
test run's own, which has to be empty again after each test.

Skips are told as "needs WHAT: why" (pytest.importorskip does so in its own
words), of a test or of a whole file; where MUSTER_REQUIRE names WHAT (a list by
commas, as in .ci/run) such a skip is a failure, and so is one that does not say
what it needs. MUSTER_SKIPPED names a file in which each is noted, "WHAT TEST" on
a line, for who runs them where that is.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

PR_SET_CHILD_SUBREAPER = 36
# How long what is ending may take to be gone after a test.
GRACE_SECONDS = 10.0

ROOT = Path(__file__).resolve().parent

# Started in the background by a shell, the run ignores SIGINT, and so would every
# script that the tests start, also those that are to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Process(NamedTuple):
    """A process by pid and start time, so that a reused pid is another one."""

    pid: int
    started: int
    parent: int
    state: str

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.started

    def command(self) -> str:
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return "(gone)"
        return raw.replace(b"\0", b" ").decode(errors="replace").strip() or "(no command line)"


def _processes() -> dict[int, Process]:
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        pid = int(entry.name)
        found[pid] = Process(pid, int(fields[19]), int(fields[1]), fields[0])
    return found


def _below_us(spared: set[tuple[int, int]]) -> list[Process]:
    """All descendants, without those in spared and what is below them."""
    everything = _processes()
    children: dict[int, list[Process]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process)
    found, todo = [], [os.getpid()]
    while todo:
        for process in children.get(todo.pop(), []):
            if process.key not in spared:
                found.append(process)
                todo.append(process.pid)
    return found


def _reap(processes: list[Process]) -> list[Process]:
    """Collects our own dead children among processes; returns the living."""
    living = []
    for process in processes:
        if process.state != "Z":
            living.append(process)
        elif process.parent == os.getpid():
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass  # someone else collected it
    return living


def _named_memory() -> set[str]:
    try:
        return {name for name in os.listdir("/dev/shm") if "muster" in name}
    except OSError:
        return set()


def _sessions(base: Path) -> set[str]:
    """Folders of running heads; logs stay, by design."""
    return {str(p.relative_to(base)) for p in base.glob("muster-*/*") if p.name != "logs"}


@pytest.fixture(scope="session", autouse=True)
def _own_run() -> Iterator[Path]:
    """A base for session folders of this run's own; short, for sockets' sake."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    base = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))
    saved = os.environ.get("MUSTER_DIR")
    os.environ["MUSTER_DIR"] = str(base)
    yield base
    if saved is None:
        del os.environ["MUSTER_DIR"]
    else:
        os.environ["MUSTER_DIR"] = saved
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest, _own_run: Path) -> Iterator[None]:
    """Fails a test that leaves a process, a session folder or named memory.

    What wider fixtures started before the test, and what is below that, is
    theirs: it is looked at when the next test without it runs.
    """
    processes = {p.key for p in _below_us(set())}
    sessions, memory = _sessions(_own_run), _named_memory()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    pause = 0.005
    while True:
        left = _reap(_below_us(processes))
        folders = _sessions(_own_run) - sessions
        segments = _named_memory() - memory
        if not (left or folders or segments) or time.monotonic() > deadline:
            break
        time.sleep(pause)  # nothing tells of the end of a stranger's grandchild
        pause = min(pause * 2, 0.1)
    if left or folders or segments:
        lines = [f"process {p.pid}: {p.command()}" for p in left]
        lines += [f"session folder {name}" for name in sorted(folders)]
        lines += [f"/dev/shm/{name}" for name in sorted(segments)]
        for process in left:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        pytest.fail(
            f"{request.node.nodeid} left behind, {GRACE_SECONDS:g} s after its end:\n  "
            + "\n  ".join(lines),
            pytrace=False,
        )


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the tree."""
    return ROOT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip that may not be one into a failure."""
    return _held_to_what_is_required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for files that skip as a whole, before they have tests."""
    return _held_to_what_is_required((yield))


_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def _held_to_what_is_required(report: _Report) -> _Report:
    required = {w for w in os.environ.get("MUSTER_REQUIRE", "").split(",") if w}
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        needs = re.search(r"needs (\w+):|could not import '(\w+)", reason)
        _note_skipped(needs and (needs[1] or needs[2]), report.nodeid)
        if required and (needs is None or required & set(needs.groups())):
            report.outcome = "failed"
            report.longrepr = (
                f"{reason}\nskipped, but may not be: MUSTER_REQUIRE={','.join(sorted(required))}"
            )
    return report


def _note_skipped(what: str | None, test: str) -> None:
    if path := os.environ.get("MUSTER_SKIPPED"):
        with open(path, "a") as file:  # one write each: lines of several processes stay whole
            file.write(f"{what} {test}\n")
