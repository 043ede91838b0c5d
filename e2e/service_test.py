"""A head of its own, as a service manager runs it: killed, started again, and not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

import muster
from running import (
    BINARY,
    IMPORTS,
    below,
    cluster,
    environment,
    eventually,
    output_of,
    pool,
    run_script,
    small_disk,
)
from witness import Witness, runs

SCRIPT = (
    IMPORTS
    + """
class Calm(Worker):
    def initialize(self, *args):
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def until(self, path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return os.getpid()

if __name__ == "__main__":
    muster.init(address=sys.argv[1])
    rm = ResourceManager(num_gpus_per_node=2, num_nodes=2)
    c = Cluster(name="calm", worker_cls=Calm, resource_manager=rm,
                worker_config=WorkerConfig(device_mapping="0-3", grace=1.0))
    pids = c.execute_all_sync("initialize")
    ref = c.until(sys.argv[2], blocking=False)
    print("up", *pids, flush=True)
    try:
        print("same", muster.get(ref) == pids, flush=True)
    except muster.MusterError as error:
        print("error", type(error).__name__, str(error).splitlines()[0], flush=True)
"""
)


class Head:
    """`muster head --name calm`, under whoever keeps it running."""

    def __init__(self, grace: str = "30") -> None:
        self.env = environment(None, MUSTER_HEAD_GRACE=grace)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [str(BINARY), "head", "--name", "calm", "--virtual", "2x2"],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first == "head of session calm\n", (first, self.process.communicate())
        self.address = self.process.stdout.readline().split('"')[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=20)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head()
    yield made
    made.kill()


@pytest.fixture
def hasty() -> Iterator[Head]:
    """One that is not waited for long."""
    made = Head(grace="0.5")
    yield made
    made.kill()


@contextmanager
def attached(head: Head, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A script that waits in a call until the file is there."""
    path, gate = folder / "script.py", folder / "gate"
    path.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(path), head.address, str(gate)],
        env=head.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            assert script.stdout is not None
            line = script.stdout.readline()
            assert line.startswith("up"), (line, script.communicate(timeout=20))
            yield script, gate
        finally:
            script.kill()


@pytest.mark.chaos
def test_started_again_under_its_name(head: Head, tmp_path: Path) -> None:
    """Twice: the call that was under way is answered by the third."""
    with attached(head, tmp_path) as (script, gate):
        for _ in range(2):
            head.kill()
            head.start()
        gate.touch()
        out, err = script.communicate(timeout=40)
        assert out == "same True\n", (out, err)
    head.stop()


@pytest.mark.chaos
def test_deadlines_pass_while_there_is_none(head: Head, tmp_path: Path) -> None:
    """A call that was made too late for the next head ends with its deadline, and never runs;
    one that runs ends with it, too."""
    muster.init(address=head.address)
    try:
        with pool(2, 2) as rm, cluster(Witness, rm, name="w", device_mapping="0-3") as c:
            c.begin(str(tmp_path))
            runs_on = c.until("gate", "held", blocking=False, timeout=3.0)
            assert eventually(lambda: all(runs(tmp_path, "w", 4)))
            head.kill()
            late = c.step("late", blocking=False, timeout=0.2)
            after = c.step("after", blocking=False)
            over = monotonic() + 3.0
            assert eventually(lambda: monotonic() > over)
            head.start()
            for ref in (runs_on, late):
                with pytest.raises(muster.DeadlineError, match=r"w\.(until|step)"):
                    muster.get(ref, 30)
            (tmp_path / "gate").touch()
            assert muster.get(after, 30) == [("after", rank) for rank in range(4)]
        assert runs(tmp_path, "w", 4) == [["gate", "after"]] * 4
    finally:
        muster.shutdown()
    head.stop()


@pytest.mark.chaos
def test_nobody_starts_it_again(hasty: Head, tmp_path: Path) -> None:
    """After the grace all has gone by itself, and the name is free for a new session."""
    with attached(hasty, tmp_path) as (script, _):
        parts = below(hasty.process.pid)
        assert sum("muster warden" in line for _, line in parts.values()) == 2, parts
        hasty.kill()
        out, err = script.communicate(timeout=40)
        assert out.startswith("error HeadLostError"), (out, err)
    folder = Path(hasty.address).parent
    assert eventually(lambda: not folder.exists(), 20)
    assert eventually(lambda: not any(running(pid) for pid in parts), 20)
    hasty.start()
    hasty.stop()


FULL = """
class Calm(Worker):
    def work(self):
        return self.rank

if __name__ == "__main__":
    muster.init(virtual="1x2")
    rm = ResourceManager(num_gpus_per_node=2, num_nodes=1)
    with open(os.path.join(os.environ["MUSTER_DIR"], "filler"), "wb", 0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError as error:
            print(error.strerror)
    size = int(sys.argv[1])
    c = Cluster(name="calm", worker_cls=Calm, resource_manager=rm,
                worker_config=WorkerConfig(device_mapping="0-1", env={"LARGE": "x" * size}))
    print(c.execute_all_sync("work"))
    here = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    for pid in open(here).read().split():
        if b"muster\\0head" in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(int(pid), 9)
    try:
        print(c.execute_all_sync("work"))
    except muster.MusterError as error:
        print("error", type(error).__name__, error)
"""


@pytest.mark.chaos
def test_a_full_disk(disk: Path, tmp_path: Path) -> None:
    """Room was set aside for what is written down; beyond it, that it is not is told, once."""
    finished = run_script(tmp_path, FULL, "10", MUSTER_DIR=str(disk))
    assert output_of(finished) == "No space left on device\n[0, 1]\n[0, 1]\n", finished.stderr
    (disk / "filler").unlink()
    finished = run_script(tmp_path, FULL, "3000000", MUSTER_DIR=str(disk))
    told = output_of(finished)
    assert told.startswith("No space left on device\n[0, 1]\nerror HeadLostError"), told
    assert "is not complete: its head could not write it to the end" in told
    warning = "the journal of this session cannot be written (no room is left on the disk"
    assert finished.stderr.count(warning) == 1, finished.stderr


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk("6m") as path:
        yield path


def running(pid: int) -> bool:
    """Not one that only waits to be reaped, by whoever runs the tests."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.chaos
def test_two_of_one_name(head: Head) -> None:
    second = subprocess.run(
        [str(BINARY), "head", "--name", "calm"],
        env=head.env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode != 0
    assert f"has a head already: process {head.process.pid}" in second.stderr
    assert os.path.exists(head.address)
    head.stop()
