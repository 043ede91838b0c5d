"""The muster command, typed as people type it, at scripts that really run."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import WorkerConfig

ROOT = Path(__file__).resolve().parent.parent
MUSTER = ROOT / "build/muster"

SCRIPT = """
import asyncio, os, sys, threading, time
import muster
from muster import Cluster, Dispatch, ResourceManager, Worker, WorkerConfig, register

class Actor(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def hello(self):
        print("hello from", self.rank, flush=True)
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL)
    def save(self):
        if self.rank == 2:
            self.wait_for_disk()

    def wait_for_disk(self):
        threading.Event().wait()

class Rollout(Worker):
    @register(Dispatch.ONE_TO_ALL)
    async def generate(self):
        await self.server()

    async def server(self):
        await asyncio.sleep(1000)

if __name__ == "__main__":
    rm = ResourceManager(num_gpus_per_node=4, num_nodes=2)
    actor = Cluster(name="actor_train", worker_cls=Actor, resource_manager=rm,
                    worker_config=WorkerConfig(device_mapping="0-7", tp=2))
    rollout = Cluster(name="rollout", worker_cls=Rollout, resource_manager=rm,
                      worker_config=WorkerConfig(world_size=2))
    pids = actor.hello()
    refs = [actor.save(blocking=False), rollout.generate(blocking=False)]
    print("up", *pids, flush=True)
    for line in sys.stdin:
        actor.workers[0].call("hello")  # line by line, as the test says
"""


def run(*args: str | Path, timeout: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
    """Type a command; MUSTER_PYTHON as the installed command sets it."""
    env = dict(os.environ, MUSTER_PYTHON=sys.executable) | more.pop("env", {})
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [MUSTER, *args], env=env, capture_output=True, text=True, timeout=timeout, **more
    )


class Script:
    """A script that has clusters, and calls under way that do not end."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [MUSTER, "run", "--virtual", "2x4", path],
            env=dict(os.environ, MUSTER_PYTHON=sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["up"], words
        self.workers = [int(word) for word in words[1:]]
        (self.status,) = self.json("status", "--session", str(self.process.pid))
        self.session = self.status["session"]
        self.head = self.status["head_pid"]

    @staticmethod
    def json(*args: str) -> Any:
        done = run(*args, "--json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def end(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)
            raise


@pytest.fixture
def path(tmp_path: Path) -> Path:
    script = tmp_path / "ppo.py"
    script.write_text(SCRIPT)
    return script


@pytest.fixture
def script(path: Path) -> Iterator[Script]:
    running = Script(path)
    yield running
    running.end()


# --- run ---------------------------------------------------------------------


def test_run_passes_on_arguments_and_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "args.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['MUSTER_VIRTUAL'])\nsys.exit(17)"
    )
    done = run("run", "--virtual", "4x8", script, "--virtual", "x", "--", "-h")
    assert done.stdout == "['--virtual', 'x', '--', '-h'] 4x8\n"
    assert done.returncode == 17


def test_run_takes_modules_and_standard_input(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "job.py").write_text("import sys; print('module', sys.argv[1:])")
    assert run("run", "-m", "pkg.job", "-x", cwd=tmp_path).stdout == "module ['-x']\n"
    assert run("run", "-", input="print('typed')", stdin=None).stdout == "typed\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_run_passes_on_signals(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "wait.py"
    # Not one long sleep: Python does not hear a signal that comes as it begins.
    script.write_text("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.05)")
    process = subprocess.Popen(
        [MUSTER, "run", script],
        env=dict(os.environ, MUSTER_PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(20) == -number
    process.stdout.close()


def test_run_without_the_package_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("import muster")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    done = run("run", "--python", bare, script, env={"MUSTER_PYTHON": "", "PYTHONPATH": ""})
    assert done.returncode == 1
    assert f"{bare} has no package muster: install it there" in done.stderr


# --- plan --------------------------------------------------------------------


def test_plan_knows_the_fields_of_worker_config(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("nodes: 1\ngpus_per_node: 0\nclusters: {a: {zzzzzzzzz: 1}}\n")
    done = run("plan", plan)
    assert done.returncode == 1
    told = done.stderr.strip().split("it has ")[1].split(", ")
    assert told == [field.name for field in dataclasses.fields(WorkerConfig)]


def test_plan_is_what_the_resource_manager_plans(tmp_path: Path) -> None:
    plan, script = tmp_path / "plan.yaml", tmp_path / "plan.py"
    clusters = {
        "actor": {"device_mapping": "0-7", "tp": 2, "strategy_args": {"x": 1}},
        "infer": {"device_mapping": [0, 1, 4, 5], "num_gpus_per_worker": 2},
        "engine": {
            "device_mapping": "0-7",
            "num_gpus_per_worker": 4,
            "strategy_args": {"strategy_config": {"tensor_parallel_size": 4}},
        },
        "ref": {"device_mapping": "4-7", "strategy_args": {"pipeline_model_parallel_size": 2}},
        "reward": {"world_size": 3},
    }
    plan.write_text(json.dumps({"nodes": 2, "gpus_per_node": 4, "clusters": clusters}))
    script.write_text(
        f"from muster import *\nif __name__ == '__main__':\n"
        f"    print(ResourceManager(4, 2).plan({clusters!r}))\n"
    )
    ours, theirs = run("plan", plan), run("run", "--virtual", "2x4", script)
    assert ours.returncode == 0, ours
    # The one is a pool that was reserved, of virtual GPUs; the rest is the same.
    assert ours.stdout.splitlines()[1:] == theirs.stdout.strip().splitlines()[1:], theirs


@pytest.mark.parametrize(
    "fields",
    [{"device_mapping": "0-99"}, {"device_mapping": "0-7", "tp": 3}, {"env": {"RANK": "1"}}],
)
def test_errors_of_a_plan_are_those_of_a_start(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields = fields if "device_mapping" in fields else {"world_size": 1, **fields}
    plan, script = tmp_path / "plan.yaml", tmp_path / "start.py"
    plan.write_text(json.dumps({"nodes": 2, "gpus_per_node": 4, "clusters": {"a": fields}}))
    script.write_text(
        f"from muster import *\nif __name__ == '__main__':\n    try:\n"
        f"        Cluster('a', Worker, ResourceManager(4, 2), WorkerConfig(**{fields!r}))\n"
        f"    except MusterError as error:\n        print(error)\n"
    )
    done = run("plan", plan)
    assert done.returncode == 1
    told = run("run", "--virtual", "2x4", script).stdout.strip()
    assert done.stderr.strip() == f"muster: {plan}:1: {told}"


# --- looking at running scripts ----------------------------------------------


def test_status_stacks_and_logs_of_a_running_script(script: Script) -> None:
    end = time.monotonic() + 30
    while True:  # the other ranks may take a moment to answer
        done = run("status")
        assert done.returncode == 0, done
        if "1 of 8 ranks: 2 " in done.stdout or time.monotonic() > end:
            break
    for words in (
        f"ppo.py, up .* session {script.session}",
        f"process {script.process.pid}, head {script.head}, virtual 2x4, logs in ",
        r"node-1 +up +4 virtual",
        r"actor_train +8 ready +dp=4 tp=2 +GPU 0-7",
        r"rollout +2 ready +dp=2 +CPU",
        r"actor_train\.save +[\d.]+ s +running +1 of 8 ranks: 2 +the script",
        r"rollout\.generate +[\d.]+ s +running +all 2 ranks +the script",
    ):
        assert re.search(words, done.stdout), (words, done.stdout)

    done = run("stacks", "actor_train")
    assert done.returncode == 0, done
    assert done.stdout.startswith("ranks 0-1,3-7: it is idle: it waits for a call\nrank 2 in ")
    assert "and 6 more of 8 workers at this place: ranks 0-1,3-7\n" in done.stdout
    hung = done.stdout.split("actor_train-2-G2 on node-0, process")[1]
    assert re.search(
        r"main thread \(most recent call first\):\n(.*\n)*.* in wait_for_disk\n.* in save", hung
    )
    assert "_runtime" not in done.stdout, "frames of Muster are nobody's business"
    assert re.search(
        r"task call \d+ generate (.*\n)+.* in server\n.* in generate",
        run("stacks", "rollout", "1").stdout,
    )
    (stack,) = script.json("stacks", "actor_train", "2")
    assert (
        stack["rank"] == 2
        and stack["pid"] == script.workers[2]
        and "wait_for_disk" in stack["text"]
    )

    assert run("logs", "actor_train/2-3").stdout == (
        "[actor_train-2-G2] hello from 2\n[actor_train-3-G3] hello from 3\n"
    )
    assert json.loads(run("logs", "--json", "actor_train-5-G1").stdout)["line"] == "hello from 5"
    assert run("logs", "rollout").stdout == ""


@pytest.mark.parametrize(
    ("typed", "code", "told"),
    [
        (
            ["stacks", "actor_trian"],
            3,
            "there is no cluster actor_trian; did you mean actor_train?",
        ),
        (
            ["stacks", "actor_train", "9"],
            3,
            "cluster actor_train has no rank 9; it has 8 ranks, 0 to 7",
        ),
        (
            ["logs", "critic"],
            3,
            "there is no cluster or worker critic; there are actor_train, rollout",
        ),
        (["logs", "actor_train/8"], 3, "cluster actor_train has no rank 8; it has 0-7"),
        (["status", "--session", "sft.py"], 3, "no running script is called sft.py; there are:"),
    ],
)
def test_mistakes_are_told(script: Script, typed: list[str], code: int, told: str) -> None:
    done = run(*typed)
    assert (done.returncode, done.stdout) == (code, "")
    assert f"muster: {told}" in done.stderr


def test_logs_are_followed_until_the_script_ends(script: Script) -> None:
    follow = subprocess.Popen(
        [MUSTER, "logs", "-f", "-n", "1", "actor_train/0"], stdout=subprocess.PIPE, text=True
    )
    assert follow.stdout is not None and script.process.stdin is not None
    assert follow.stdout.readline() == "[actor_train-0-G0] hello from 0\n"
    script.process.stdin.write("hello\n")
    script.process.stdin.flush()
    assert follow.stdout.readline() == "[actor_train-0-G0] hello from 0\n"
    script.end()
    assert follow.communicate(timeout=20)[0] == ""
    assert follow.returncode == 0
    done = run("logs", "--last", "-n", "1", "actor_train/7")
    assert done.stdout == "[actor_train-7-G3] hello from 7\n"


def test_a_dead_worker_is_shown(script: Script) -> None:
    os.kill(script.workers[3], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while "1 dead (actor_train-3-G3)" not in (shown := run("status").stdout):
        assert time.monotonic() < deadline, shown
    assert "7 ready" in shown


def test_several_scripts_have_to_be_told_apart(script: Script, path: Path) -> None:
    other = Script(path)
    try:
        assert run("status").stdout.count("ppo.py, up") == 2
        done = run("stacks", "actor_train")
        assert done.returncode == 2
        assert "2 scripts have a cluster actor_train; choose one with --session NAME" in done.stderr
        assert script.session in done.stderr and other.session in done.stderr
        assert run("logs").returncode == 2
        for name in (other.session, str(other.process.pid), str(other.head)):
            (stack,) = Script.json("stacks", "actor_train", "0", "--session", name)
            assert stack["pid"] == other.workers[0]
    finally:
        other.end()


def test_a_head_that_hangs_is_told(script: Script) -> None:
    os.kill(script.head, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = run("status")
        assert time.monotonic() - began < 10
        assert done.returncode == 1
        assert f"(process {script.head}) did not answer within 5s: it may be stopped" in done.stdout
        assert run("stacks", "actor_train").returncode == 1
    finally:
        os.kill(script.head, signal.SIGCONT)


def test_nothing_runs() -> None:
    for typed in (["status"], ["stacks", "actor_train"], ["logs", "--session", "4711"]):
        done = run(*typed)
        assert done.returncode == 3
        assert "no script of yours is running" in done.stderr


def test_completion_knows_clusters(script: Script) -> None:
    done = run("__complete", "stacks", "act")
    assert done.stdout.splitlines()[0] == "actor_train\t8 workers of ppo.py"
    done = run("__complete", "status", "--session", "")
    assert done.stdout.splitlines()[0].startswith(script.session)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_made(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert "muster" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


# --- doctor and version ------------------------------------------------------


def test_doctor_finds_what_is_there() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = {entry["what"]: entry for entry in json.loads(done.stdout)}
    assert found["Python"]["found"].startswith(sys.version.split()[0])
    assert found["muster"]["state"] == "ok"
    assert {"GPUs", "memory", "open files", "/dev/shm", "kernel", "sessions", "logs"} <= set(found)


def test_doctor_says_what_is_missing(tmp_path: Path) -> None:
    far = tmp_path / ("long-name-" * 10)
    done = run("doctor", "--workers", "100000000", env={"MUSTER_DIR": str(far)})
    assert done.returncode == 1
    assert re.search(r"missing +open files .*100000000 workers need", done.stdout)
    assert re.search(r"missing +sessions .* too long to hold sockets", done.stdout)
    assert "things that scripts need are missing" in done.stdout


def test_version() -> None:
    told = json.loads(run("version", "--json").stdout)
    assert run("version").stdout.startswith(
        f"muster {told['release']}, protocol {told['protocol']}"
    )


# --- progress ----------------------------------------------------------------

SLOW = """
import sys, time
from muster import Cluster, ResourceManager, Worker, WorkerConfig

class Slow(Worker):
    def __init__(self, config):
        super().__init__(config)
        print("loading", flush=True)
        if self.rank == 1:
            time.sleep(4.5)

if __name__ == "__main__":
    rm = ResourceManager(num_gpus_per_node=0, num_nodes=1)
    for name in ("slow", "quick"):
        Cluster(name=name, worker_cls=Slow if name == "slow" else Worker, resource_manager=rm,
                worker_config=WorkerConfig(world_size=2))
        print("made", name, flush=True)
"""
STILL = re.compile(r"muster: cluster slow: starting workers 1/2 \(\d+ s\), waiting for slow-1")


def test_progress_in_a_file_is_lines(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    lines = run("run", script).stderr.splitlines()
    slow = [line for line in lines if line.startswith("muster: cluster slow: ")]
    quick = [line for line in lines if line.startswith("muster: cluster quick: ")]
    assert slow[0] == "muster: cluster slow: starting workers 0/2, waiting for slow-0, slow-1"
    assert any(map(STILL.fullmatch, slow)), lines
    took = re.fullmatch(r"muster: cluster slow: ready 2/2 \((\d+) s\)", slow[-1])
    assert took and int(took[1]) >= 4, lines
    # A machine that is busy takes a second for the other, too, and then that is told.
    assert re.fullmatch(r"muster: cluster quick: ready 2/2( \(\d+ s\))?", quick[-1]), lines
    assert lines[-1] == quick[-1] and lines.index(quick[0]) > lines.index(slow[-1])
    assert not any("\x1b" in line or "\r" in line for line in lines)


def test_progress_on_a_terminal_is_one_line_that_goes(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env=dict(os.environ, TERM="xterm"),
    )
    os.close(terminal)
    data = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while chunk := os.read(controller, 4096):
            data += chunk
    os.close(controller)
    assert process.wait(20) == 0
    text = data.decode()
    assert STILL.search(text), text
    assert screen(text) == ["[slow-0] loading", "[slow-1] loading", "made slow", "made quick"]


def screen(text: str) -> list[str]:
    """What a terminal shows in the end, sorted where workers race."""
    lines = [line.split("\r\x1b[2K")[-1].rstrip("\r") for line in text.split("\n")]
    assert lines.pop() == "", "the last line is erased"
    return sorted(lines[:2]) + lines[2:]
