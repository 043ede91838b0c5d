"""From init to shutdown, with a real head: scripts as users run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import muster
from muster import _embedded

PACKAGE = str(Path(muster.__file__).parent.parent)


def has_binary() -> bool:
    try:
        _embedded.find_binary()
    except muster.MusterError:
        return False
    return True


needs_binary = pytest.mark.skipif(not has_binary(), reason="needs binary: make build")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PACKAGE, "MUSTER_VIRTUAL": "1x2", **more}


def start(tmp_path: Path, text: str, *flags: str, **more: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, *flags, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )


def run(tmp_path: Path, text: str, *flags: str, **more: str) -> tuple[int, str, str]:
    process = start(tmp_path, text, *flags, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


WORKERS = """
import os, signal, sys, threading, time
import muster
from muster import Cluster, Dispatch, Worker, WorkerConfig, register

class W(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def who(self): return self.rank
    def say(self, text): print(text)
    def sleep(self, seconds): time.sleep(seconds)
"""


def test_the_import_is_cheap() -> None:
    heavy = "asyncio", "subprocess", "numpy", "cloudpickle", "inspect", "msgpack", "socket"
    code = f"import sys, muster; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_is_there() -> None:
    for name in muster.__all__:
        assert getattr(muster, name) is not None
    assert set(muster.__all__) <= set(dir(muster))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = muster.nothing


def test_a_missing_program_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_BINARY", str(tmp_path / "none"))
    with pytest.raises(muster.MusterError, match=r"MUSTER_BINARY is .* not a program"):
        muster.init()
    muster.shutdown()


def test_a_program_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "muster"
    program.write_text("#!/bin/sh\necho some trouble >&2\nexit 5\n")
    program.chmod(0o755)
    monkeypatch.setenv("MUSTER_BINARY", str(program))
    with pytest.raises(muster.HeadLostError, match=r"exit code 5[\s\S]*some trouble"):
        muster.init()


def test_an_address_without_a_head_is_told(tmp_path: Path) -> None:
    with pytest.raises(muster.MusterError, match="no head at"):
        muster.init(str(tmp_path))
    (tmp_path / "token").write_text("secret")
    with pytest.raises(muster.HeadLostError, match="no head answers at"):
        muster.init(str(tmp_path))
    with pytest.raises(ValueError, match="Give one of the two"):
        muster.init(str(tmp_path), virtual="1x1")


@needs_binary
def test_a_script_runs_and_its_output_is_whole(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        WORKERS
        + """
if __name__ == "__main__":
    c = Cluster("c", W, worker_config=WorkerConfig(world_size=2))
    print(c.who())
    c.execute_all_sync("say", "hello")
    c.shutdown()
    print("after", file=sys.stderr)
""",
    )
    assert (code, out) == (0, "[0, 1]\n"), err
    said, _, after = err.partition("after\n")
    assert {"[c-0] hello", "[c-1] hello"} <= set(said.splitlines())
    assert "hello" not in after


@needs_binary
def test_init_and_shutdown_in_any_number(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        WORKERS
        + """
if __name__ == "__main__":
    muster.shutdown()
    for virtual in ("1x2", "2x1"):
        muster.init(virtual=virtual)
        muster.init(virtual=virtual)
        muster.init()
        try:
            muster.init(virtual="3x3")
        except muster.MusterError as error:
            print("3x3" in str(error))
        c = Cluster("c", W)
        print(c.who())
        muster.shutdown()
        muster.shutdown()
        try:
            c.who()
        except muster.HeadLostError as error:
            print("shutdown() was called" in str(error))
""",
    )
    assert (code, out) == (0, "True\n[0]\nTrue\n" * 2), err


@needs_binary
def test_a_killed_head_is_followed_by_another(tmp_path: Path) -> None:
    code, out, err = run(
        tmp_path,
        WORKERS
        + """
if __name__ == "__main__":
    c = Cluster("c", W)
    from muster import _context
    head = _context.session().head.pid
    ref = c.execute_all_async("sleep", 0.5)
    os.kill(head, signal.SIGKILL)
    print(muster.get(ref), c.who())
    muster.shutdown()
    print(Cluster("c", W).who())
""",
    )
    assert (code, out) == (0, "[None] [0]\n[0]\n"), err
    assert "was killed by SIGKILL; a new one took over" in err


@needs_binary
def test_a_head_that_nobody_follows_is_told_with_what_was_tried(tmp_path: Path) -> None:
    """The program is gone, so that no other can be started."""
    program = tmp_path / "muster"
    program.write_bytes(Path(_embedded.find_binary()).read_bytes())
    program.chmod(0o755)
    code, out, err = run(
        tmp_path,
        WORKERS
        + """
if __name__ == "__main__":
    c = Cluster("c", W, worker_config=WorkerConfig(world_size=1, grace=1))
    from muster import _context
    os.unlink(os.environ["MUSTER_BINARY"])
    killed = time.monotonic()
    os.kill(_context.session().head.pid, signal.SIGKILL)
    try:
        c.execute_all_sync("sleep", 60)
    except muster.HeadLostError as error:
        print(time.monotonic() - killed < 5, "killed by SIGKILL" in str(error))
        print("cannot start" in str(error))
""",
        MUSTER_BINARY=str(program),
    )
    assert (code, out) == (0, "True True\nTrue\n"), err


@needs_binary
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_script_that_is_told_to_end_ends_by_that_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(
        tmp_path,
        WORKERS
        + """
if __name__ == "__main__":
    c = Cluster("c", W, worker_config=WorkerConfig(world_size=1, grace=1))
    print("ready", flush=True)
    c.execute_all_sync("sleep", 60)
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == -number, err


@needs_binary
def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        WORKERS
        + """
class Slow(W):
    def __init__(self, config):
        print("constructing")
        time.sleep(60)

if __name__ == "__main__":
    try:
        Cluster("c", Slow, worker_config=WorkerConfig(world_size=1, grace=0.5))
    except KeyboardInterrupt:
        print(Cluster("d", W).who())
""",
    )
    assert process.stderr is not None
    while "constructing" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[0]\n"), err


@needs_binary
@pytest.mark.parametrize("way", ["-c", "-"])
def test_classes_of_a_script_that_cannot_be_imported_travel_by_value(way: str) -> None:
    text = WORKERS + 'print(Cluster("c", W).who())'
    done = subprocess.run(
        [sys.executable, way, *([text] if way == "-c" else [])],
        input=text if way == "-" else None,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "[0]\n"), done.stderr


@needs_binary
def test_a_missing_guard_is_shown(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, WORKERS + 'Cluster("c", W)')
    assert code == 1
    assert 'if __name__ == "__main__":' in err
    assert "Cluster('c')" in err
