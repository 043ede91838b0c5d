"""Rude ways to end a script: whatever ends, and however, nothing is left.

Each case runs a real script with a cluster whose workers have children of their
own, some of which called setsid; then something ends. The conftest's fixture
fails a case that leaves a process, a session folder or memory behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from running import BINARY, commands, eventually, titled

# How long the workers' children sleep: nothing else runs this command.
LONG = f"1000.{os.getpid()}"

SCRIPT = '''
import os, subprocess, sys, time
import muster
from muster import Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register

class Rude(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def port(self):
        return int(os.environ["MASTER_PORT"])

    @register(Dispatch.ONE_TO_ALL)
    def spawn(self):
        """Children of every sort: plain, in a session of its own, and orphaned there."""
        long = os.environ["LONG"]
        subprocess.Popen(["sleep", long])
        subprocess.Popen(["sleep", long], start_new_session=True)
        subprocess.Popen(["sh", "-c", f"setsid sleep {long} & exit"]).wait()
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def hang(self):
        while True:
            time.sleep(1000)

    @register(Dispatch.ONE_TO_ALL)
    def stubborn(self):
        """Catches all there is to catch."""
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

if __name__ == "__main__":
    busy, ending = sys.argv[1], sys.argv[2]
    rm = ResourceManager(num_gpus_per_node=2, num_nodes=2)
    c = Cluster(name="rude", worker_cls=Rude, resource_manager=rm,
                worker_config=WorkerConfig(device_mapping="0-3", grace=1.0))
    pids, port = c.spawn(), c.port()[0]
    ref = getattr(c, busy)(blocking=False) if busy != "idle" else None
    print("up", port, *pids, flush=True)
    if ending == "ask":
        sys.exit(sys.stdin.readline())
    if ending == "return":
        sys.exit(0)
    if ending == "raise":
        raise RuntimeError("on purpose")
    if ending == "_exit":
        os._exit(3)
    try:
        muster.get(ref) if ref else c.execute_all_sync("hang")
    except muster.MusterError as error:
        print("error", type(error).__name__, str(error).splitlines()[0], flush=True)
        sys.exit(4)
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rude.py"
    path.write_text(SCRIPT)
    return path


class Run:
    """A script that is up: its workers run, and have left children everywhere."""

    def __init__(self, script: Path, busy: str, ending: str, virtual: str = "2x2") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), busy, ending],
            env=dict(os.environ, MUSTER_VIRTUAL=virtual, LONG=LONG),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if line[:1] != ["up"]:
            self.process.kill()
            raise AssertionError(f"{line}, {self.process.communicate()}")
        self.port, *self.workers = (int(word) for word in line[1:])
        # Once a head was killed, these are not below the script any more.
        self.started = {who: self.find(f"muster {who}") for who in ("warden", "agent")}

    def find(self, title: str) -> list[int]:
        return titled(title, self.process.pid)

    def kill(self, *victims: str) -> None:
        """Parts of it, all at the same moment as far as they can tell."""
        pids = [pid for who in victims for pid in self.pids(who)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # who is left ends the others, too
                os.kill(pid, signal.SIGKILL)

    def pids(self, who: str) -> list[int]:
        if who == "script":
            return [self.process.pid]
        return self.started.get(who) or self.find(f"muster {who}")

    def end(self, timeout: float = 20) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


@pytest.mark.parametrize("busy", ["idle", "hang", "stubborn"])
@pytest.mark.parametrize("ending", ["return", "raise", "_exit"])
def test_script_ends(script: Path, busy: str, ending: str) -> None:
    code, out, err = Run(script, busy, ending).end()
    assert code == {"return": 0, "raise": 1, "_exit": 3}[ending], (out, err)


@pytest.mark.chaos
@pytest.mark.parametrize("busy", ["idle", "hang"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_script_is_signalled(script: Path, busy: str, number: signal.Signals) -> None:
    run = Run(script, busy, "wait")
    run.process.send_signal(number)
    code, out, err = run.end()
    assert code in ((-number,) if number != signal.SIGINT else (1, 130, -number)), (out, err)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err


def head(run: Run) -> int:
    (pid,) = run.find("muster head")
    return pid


VICTIMS: dict[str, Callable[[Run], int]] = {
    "warden": lambda run: run.find("muster warden")[0],
    "agent": lambda run: run.find("muster agent")[0],
    "worker": lambda run: run.workers[0],
}


@pytest.mark.chaos
@pytest.mark.parametrize("relay", ["", "+relay", "+net"])
@pytest.mark.parametrize("victim", sorted(VICTIMS))
def test_part_is_killed(script: Path, victim: str, relay: str) -> None:
    run = Run(script, "hang", "wait", "2x2" + relay)
    started = time.monotonic()
    os.kill(VICTIMS[victim](run), signal.SIGKILL)
    assert run.process.stdout is not None
    line = run.process.stdout.readline()
    took = time.monotonic() - started
    code, out, err = run.end()
    assert line.startswith("error"), (line, out, err)
    assert code == 4
    expected = "WorkerDiedError" if victim == "worker" else "NodeLostError"
    assert expected in line, (line, took)
    if victim == "worker":
        assert "SIGKILL" in line


def replace_head(run: Run) -> None:
    old = head(run)
    os.kill(old, signal.SIGKILL)
    assert eventually(lambda: run.find("muster head") not in ([], [old]))


@pytest.mark.chaos
@pytest.mark.parametrize("relay", ["", "+relay", "+net"])
@pytest.mark.parametrize("then", ["script", "agent", "warden"])
def test_head_is_killed(script: Path, then: str, relay: str) -> None:
    """Another takes its place, with the same workers, and so does one after that.

    What ends then is seen to by a head that started none of it.
    """
    run = Run(script, "hang", "wait", "2x2" + relay)
    for _ in range(2):
        replace_head(run)
    assert all(alive(pid) for pid in run.workers)
    run.kill(then)
    code, out, err = run.end(60)
    if then != "script":
        assert code == 4 and "NodeLostError" in out, (code, out, err)
    assert eventually(lambda: not strays() and is_free(run.port)), strays()


@pytest.mark.chaos
def test_zygote_is_killed(script: Path) -> None:
    """Workers do not depend on the zygote: the script goes on, and ends cleanly."""
    run = Run(script, "hang", "wait")
    for pid in run.find("muster zygote"):
        os.kill(pid, signal.SIGKILL)
    run.process.send_signal(signal.SIGTERM)
    run.end()


@pytest.mark.chaos
def test_script_is_killed_while_workers_start(script: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(script), "idle", "wait"],
        env=dict(os.environ, MUSTER_VIRTUAL="2x2", LONG=LONG),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "starting workers" in line:
            break
    process.kill()
    process.communicate(timeout=20)


def is_free(port: int) -> bool:
    """A bind without SO_REUSEADDR, which a port that is held refuses."""
    with socket.socket() as plain:
        try:
            plain.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def start_another() -> None:
    """A head of its own, whose start clears what others left."""
    with subprocess.Popen(
        [BINARY, "head", "--virtual", "1x1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().startswith("head of session")
        gone = eventually(lambda: not strays())
        other.send_signal(signal.SIGINT)
        _, err = other.communicate(timeout=20)
        assert gone, (strays(), err)
        assert other.returncode == 0, err


def strays() -> list[str]:
    """What the workers of a script started and left."""
    return [command for _, command in commands().values() if command == f"sleep {LONG}"]


@pytest.mark.chaos
@pytest.mark.parametrize(
    "victims",
    [
        ("script", "head"),
        ("script", "warden"),
        ("script", "head", "agent"),
        ("script", "head", "warden"),
        ("script", "head", "agent", "warden"),
    ],
    ids="+".join,
)
def test_several_are_killed(script: Path, victims: tuple[str, ...]) -> None:
    """With the wardens and who would clear after them killed, the next start does."""
    run = Run(script, "stubborn", "wait")
    assert strays()
    run.kill(*victims)
    run.end()
    if {"head", "warden"} <= set(victims):
        # What is left may be ended by any head of this user that starts; this one is ours.
        assert eventually(lambda: not any(alive(pid) for pid in run.workers))
        start_another()
    assert eventually(lambda: not strays() and is_free(run.port)), strays()


def alive(pid: int) -> bool:
    """Not one that only waits to be reaped: those have no command line."""
    return commands().get(pid, (0, ""))[1] != ""


@pytest.mark.chaos
@pytest.mark.parametrize(
    "victims",
    [("head", "agent"), ("head", "warden"), ("agent", "warden"), ("head", "agent", "warden")],
    ids="+".join,
)
def test_all_but_the_script_is_killed(script: Path, victims: tuple[str, ...]) -> None:
    """The script hears of it, and when it has ended, nothing is left."""
    run = Run(script, "hang", "wait")
    run.kill(*victims)
    code, out, err = run.end(60)
    assert code == 4 and out.startswith("error"), (code, out, err)
    if {"head", "warden"} <= set(victims):
        start_another()
    assert eventually(lambda: not strays() and is_free(run.port)), strays()


@pytest.mark.chaos
@pytest.mark.parametrize("part", ["warden", "agent", "zygote", "worker"])
def test_head_is_killed_while_all_starts(script: Path, part: str) -> None:
    """At the first sight of each part: the next head goes on from there."""
    process = subprocess.Popen(
        [sys.executable, str(script), "idle", "ask"],
        env=dict(os.environ, MUSTER_VIRTUAL="2x2", LONG=LONG),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: titled(f"muster {part}", process.pid) != [], 30)
        (head,) = titled("muster head", process.pid)
        os.kill(head, signal.SIGKILL)
        out, err = process.communicate("that is all", timeout=40)
        assert process.returncode == 1 and "that is all" in err, (out, err)
        assert out.startswith("up"), (out, err)
    finally:
        process.kill()
        process.communicate(timeout=20)
