"""Programs beside a worker's object: their environment, output, end and exit code."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import Cluster, Program, WorkerConfig, WorkerDiedError, WorkerHandle
from running import eventually, output_of, run_script, session

SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); " + SLEEP
#: A program that has started another one, and says which.
PARENT = f"""
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {SLEEP!r}]).pid, flush=True)
{SLEEP}
"""
#: One whose child is deaf; it ends at once when it is told to.
LEAVES = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-uc", {DEAF!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
"""


class Server(muster.Worker):
    """Has programs beside it."""

    def __init__(self, worker_config: Any = None) -> None:
        super().__init__(worker_config)
        self.said: list[str] = []
        self.programs: list[Program] = []

    def start(self, source: str, **env: str) -> int:
        command = [sys.executable, "-uc", source]
        self.programs.append(Program(command, env=env, lines=self.said.append))
        return self.programs[-1].pid

    def printing(self, source: str) -> int:
        return Program([sys.executable, "-uc", source]).wait()

    def lines(self) -> list[str]:
        return list(self.said)

    def wait(self) -> list[int]:
        return [program.wait(30) for program in self.programs]

    def end(self) -> list[int]:
        return [program.end() for program in self.programs]

    def be(self, source: str) -> None:
        Program([sys.executable, "-uc", source]).lead()


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    with session("1x4"):
        yield


@pytest.fixture
def worker() -> Iterator[WorkerHandle]:
    config = WorkerConfig(world_size=1, env={"MINE": "1"})
    with Cluster("server", Server, worker_config=config) as server:
        yield server.workers[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(worker: WorkerHandle, source: str) -> tuple[int, str]:
    """A program that has said its first line: its process, and the line."""
    before = len(worker.lines())
    pid = worker.start(source)
    assert eventually(lambda: len(worker.lines()) > before)
    return pid, worker.lines()[before]


def test_its_environment_and_lines(worker: WorkerHandle) -> None:
    worker.set_env({"LATE": "2"})
    look = "import os, programs_test; print(*(os.environ.get(n) for n in ('MINE', 'LATE', 'OWN')))"
    worker.start(look, OWN="3")
    assert eventually(lambda: worker.lines() == ["1 2 3"]), worker.lines()
    assert worker.wait() == [0] and worker.end() == [0]
    assert worker.printing("print('as the worker prints')") == 0
    log = Path(worker.log_file)
    assert eventually(lambda: "as the worker prints" in log.read_text())


def test_it_is_ended_with_what_it_started(worker: WorkerHandle) -> None:
    first, below = started(worker, PARENT)
    deaf, _ = started(worker, DEAF)
    assert worker.end() == [-signal.SIGTERM, -signal.SIGKILL]
    assert not alive(first) and not alive(deaf)
    assert eventually(lambda: not alive(int(below)))


def test_it_ends_with_its_worker() -> None:
    with Cluster("server", Server, worker_config=WorkerConfig(world_size=1, grace=10)) as server:
        [worker] = server.workers
        programs = [started(worker, source)[0] for source in (PARENT, PARENT, DEAF)]
    assert not any(alive(pid) for pid in programs)


@pytest.mark.parametrize("rest", [SLEEP, "raise SystemExit(3)"], ids=["told", "by itself"])
def test_a_deaf_child_is_ended_with_it(rest: str) -> None:
    said: list[str] = []
    program = Program([sys.executable, "-uc", LEAVES + rest], lines=said.append)
    assert eventually(lambda: bool(said))
    child = int(said[0])
    if rest != SLEEP:
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert alive(child)
    assert program.end() == (-signal.SIGTERM if rest == SLEEP else 3)
    assert eventually(lambda: not alive(child))


def test_a_deaf_child_ends_with_the_worker(tmp_path: Path) -> None:
    source = f"""
import sys, threading
from muster import Program

said = threading.Event()
Program([sys.executable, "-uc", {LEAVES + SLEEP!r}], lines=lambda line: (print(line), said.set()))
said.wait(30)
"""
    path = os.environ.get("PYTHONPATH", "")
    child = int(output_of(run_script(tmp_path, source, PYTHONPATH=path)))
    assert eventually(lambda: not alive(child))


@pytest.mark.chaos
def test_it_ends_with_a_worker_that_is_killed(worker: WorkerHandle) -> None:
    pid, below = started(worker, PARENT)
    os.kill(worker.pid, signal.SIGKILL)
    assert eventually(lambda: not alive(pid) and not alive(int(below)))


@pytest.mark.parametrize(
    ("source", "code", "name"),
    [
        ("print('no model'); raise SystemExit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 11)", 0, "SIGSEGV"),
    ],
    ids=["code", "signal"],
)
def test_a_worker_that_it_leads(worker: WorkerHandle, source: str, code: int, name: str) -> None:
    with pytest.raises(WorkerDiedError) as died:
        worker.be(source)  # which may end before the worker has answered
        while True:
            worker.lines()
    assert (died.value.exit_code, died.value.signal or "") == (code, name)
    assert code != 7 or "no model" in died.value.logs


def test_what_is_no_program(worker: WorkerHandle) -> None:
    with pytest.raises(FileNotFoundError, match="no/such/program"):
        Program(["no/such/program"])


def test_a_fork_ends_none(tmp_path: Path) -> None:
    """Programs are of the process that started them, and go with it in a plain script too."""
    source = f"""
import atexit, os, sys
from muster import Program

program = Program([sys.executable, "-c", {SLEEP!r}])
if (child := os.fork()) == 0:
    sys.exit(0)  # which runs what is registered for the end
os.waitpid(child, 0)
print(program.poll(), program.pid)
"""
    path = os.environ.get("PYTHONPATH", "")
    state, pid = output_of(run_script(tmp_path, source, PYTHONPATH=path)).split()
    assert state == "None" and not alive(int(pid))


def test_it_is_a_popen() -> None:
    with Program([sys.executable, "-c", ""]) as program:
        assert isinstance(program, subprocess.Popen) and program.wait(30) == 0


def test_handles_of_high_numbers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:
            taken.append(os.dup(0))
        program = Program([sys.executable, "-c", SLEEP])
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        assert program.end() == -signal.SIGTERM
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_those_that_nobody_asked_are_let_go_of() -> None:
    first = Program([sys.executable, "-c", ""])
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    with Program([sys.executable, "-c", ""]):
        assert first.returncode == 0


def test_its_standard_library_is_its_own() -> None:
    said: list[str] = []
    Program(
        [sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"], lines=said.append
    ).wait()
    folders = {os.path.realpath(path) for path in said[0].split(os.pathsep)}
    own = os.path.dirname(os.path.realpath(os.__file__))
    assert not folders & {own, os.path.join(own, "lib-dynload")}
    assert folders >= {os.path.realpath(os.getcwd()), os.path.dirname(os.path.abspath(__file__))}
