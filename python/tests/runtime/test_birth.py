"""How workers come to be: forked and spawned, whose children, with what around them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from runtime.harness import DEADLINE, HERE, Agent, Peer, parent_of, runtime

from muster import _wire
from muster._runtime import title


def test_fork_makes_a_child_of_the_agent(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    ready = worker.ready()
    assert ready["pid"] == worker.pid == worker.control.hello["pid"]
    assert parent_of(worker.pid) == os.getpid()
    assert Path(f"/proc/{worker.pid}/cmdline").read_bytes() == b"muster worker actor-0\0"
    assert Path(f"/proc/{worker.pid}/comm").read_text() == "muster worker a\n"
    facts = worker.calls.call(1, "facts")
    assert facts["sid"] == facts["pid"] == worker.pid
    assert facts["stdin"] == ""


def test_the_zygote_is_named_and_reaps_the_process_between(boss: Agent, line: Peer) -> None:
    pid = boss.zygote_pid(line)
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"muster zygote\0"
    boss.fork(line, "samples:Plain").ready()
    below = [p for p in os.listdir("/proc") if p.isdigit() and _parent(int(p)) == pid]
    assert below == []


def _parent(pid: int) -> int:
    try:
        return parent_of(pid)
    except OSError:
        return -1


def test_environment_is_complete_before_user_code(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain", env={"CUDA_VISIBLE_DEVICES": "5"}, rank=1)
    worker.ready()
    facts = worker.calls.call(1, "facts")
    assert facts["env"] == facts["env_at_import"]
    assert facts["env"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert facts["env"]["RANK"] == "1"
    assert "FROM" not in facts["env"]  # of the zygote, not of the order
    assert facts["cwd"] == str(HERE)
    assert facts["before_super"] == (1, 2, "actor", 4711)
    assert facts["config"] == {"scale": 2}
    assert facts["name"] == "actor-1"


def test_forked_workers_have_random_numbers_of_their_own(boss: Agent, line: Peer) -> None:
    numbers = set()
    for rank in range(2):
        worker = boss.fork(line, "samples:Plain", rank=rank)
        worker.ready()
        numbers.add(worker.calls.call(1, "facts")["random"])
    assert len(numbers) == 2


def test_many_forks_in_one_go(boss: Agent, line: Peer) -> None:
    orders = [boss.order("samples:NoBase", rank=rank) for rank in range(8)]
    logs = []
    for order in orders:
        read, write = os.pipe()
        logs.append(read)
        line.post("fork", order, write)
        os.close(write)
    pids = [_wire.unpack(line.read().body)["pid"] for _ in orders]
    assert len(set(pids)) == 8
    for pid, log in zip(pids, logs, strict=True):
        boss.adopt(pid, log)
    controls = [boss.accept("control") for _ in orders]
    calls = [boss.accept("worker") for _ in orders]
    assert {peer.hello["pid"] for peer in controls} == set(pids)
    for peer in calls:
        assert peer.notice()[0] == "ready"
    for peer in controls + calls:
        peer.sock.close()


def test_spawn_is_the_same_with_an_interpreter_of_its_own(lone: Agent) -> None:
    pid, line = lone.python("spawn")
    assert line.ask("load", {"runtime": runtime(preload=["json.tool"])})["pid"] == pid
    worker = lone.make(line, "become", lone.order("samples:Plain", rank=1))
    assert worker.pid == pid
    worker.ready()
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"muster worker actor-1\0"
    facts = worker.calls.call(1, "facts")
    assert facts["env"] == facts["env_at_import"]
    assert facts["sid"] == pid
    assert worker.calls.call(2, "add", 1) == 2


def test_spawned_preload_that_fails_is_told(lone: Agent) -> None:
    _, line = lone.python("spawn")
    line.ask("load", {"runtime": runtime(preload=["no_such_module"])})
    worker = lone.make(line, "become", lone.order("samples:Plain"))
    failure = worker.failed()
    assert failure.code == "import"
    assert "'no_such_module'" in failure.message
    assert worker.exit() == 1


def test_output_goes_to_the_log_by_lines(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    worker.ready()
    assert worker.calls.call(1, "speak") is None
    assert [worker.line(), worker.line()] == ["out \\ud800 line", "err line"]


def test_orphans_fall_to_the_worker(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    worker.ready()
    worker.calls.call(1, "set_env", "WANT_PARENT", str(worker.pid))
    assert worker.calls.call(2, "orphan") == 7


def test_forks_of_users_lose_the_connections_and_signals(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    worker.ready()
    assert worker.calls.call(1, "fork_and_look") == 0
    assert worker.calls.call(2, "fork_twice") == 0


def test_a_users_fork_that_returns_ends_quietly(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    worker.ready()
    assert worker.calls.call(1, "fork_and_return") > 0
    assert "forked inside a method of actor-0" in worker.line()
    assert worker.calls.call(2, "add", 1) == 2


def test_stacks_without_the_interpreters_help(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Plain")
    worker.ready()
    worker.calls.leg(1, "sleep", 60)
    assert worker.line() == "sleeping"
    path = f"/proc/{worker.pid}/fd/{worker.control.hello['stacks_fd']}"
    for _ in range(2):
        with open(path, "r+b", buffering=0) as file:
            file.truncate(0)
            os.kill(worker.pid, signal.SIGRTMIN + 10)
            text = b""
            while not text.endswith(b"in <module>\n"):  # the deadline is the test's own
                text = os.pread(file.fileno(), 1 << 16, 0)
            assert b"in sleep\n" in text
            assert b"\0" not in text  # appended, not written behind a hole


def test_ends_with_its_agent(tmp_path: Path) -> None:
    """SIGKILL of the parent, which then says nothing, ends the worker."""
    script = (
        "import sys; from pathlib import Path; from runtime.harness import Agent\n"
        f"agent = Agent(Path({str(tmp_path)!r}))\n"
        "worker = agent.fork(agent.zygote(), 'samples:NoBase'); worker.ready()\n"
        "print(worker.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    pidfd = os.pidfd_open(pid)
    parent.kill()
    parent.communicate()
    assert select.select([pidfd], [], [], DEADLINE)[0], "the worker outlived its agent"
    os.close(pidfd)


def test_an_order_of_a_dead_agent_comes_to_nothing(boss: Agent, line: Peer) -> None:
    order = boss.order("samples:NoBase")
    order["agent_pid"] = 1
    log, write = os.pipe()
    pid = line.ask("fork", order, write)["pid"]
    os.close(write)
    assert boss.adopt(pid, log).exit() == 1


def test_zygote_refusals(lone: Agent) -> None:
    pid, line = lone.python()
    failed = line.ask("load", {"runtime": runtime(preload=["samples_broken"])})["error"]
    assert failed["code"] == "import"
    assert "'samples_broken'" in failed["message"]
    assert "ValueError: broken on purpose" in failed["message"]
    assert "samples_broken.py" in failed["traceback"]
    assert line.ask("dance", {})["error"]["code"] == "protocol"
    missing = line.ask("fork", lone.order("samples:Plain"))["error"]
    assert missing["code"] == "protocol"
    assert "actor-0" in missing["message"]
    os.kill(pid, signal.SIGINT)  # ignored
    assert line.ask("load", {"runtime": runtime()})["fork_safe"] is True
    line.sock.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_zygote_tells_of_threads(lone: Agent) -> None:
    _, line = lone.python()
    answer = line.ask("load", {"runtime": runtime(preload=["json", "samples_threads"])})
    assert answer["fork_safe"] is False
    assert "'samples_threads' started the thread 'left-over'" in answer["why"]


def test_no_process_to_be_had_is_a_limit(lone: Agent) -> None:
    _, line = lone.python()
    # A preload that makes fork fail, as at the limit of processes.
    line.ask("load", {"runtime": runtime(preload=["samples_no_fork"])})
    log, write = os.pipe()
    failed = line.ask("fork", lone.order("samples:Plain"), write)["error"]
    os.close(write)
    assert failed["code"] == "limit"
    assert "actor-0" in failed["message"]
    assert os.read(log, 1) == b""  # nobody kept the log's other end
    os.close(log)


def test_title_is_cut_to_the_room_there_is() -> None:
    assert title.fitted(b"muster worker a", 20) == b"muster worker a\0\0\0\0."
    assert title.fitted(b"muster worker abc", 10) == b"muster w\0."
    assert title.fitted(b"x", 1) == b""
