"""`muster node` when something dies: who ends how, with which last line, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts import Hosts, python_with_ray
from replicas import SMALL, Replica, job
from running import BINARY, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

GONE = "the leader at host0:6380 is gone without a word: "
SLEEP = ("sleep", "1000")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    python_with_ray()
    with Hosts(3) as made:
        yield made


def pids(hosts: Hosts, host: int, program: str) -> list[int]:
    """Processes of a host by the name of what they run."""
    return [
        pid
        for pid, line in hosts.processes(host).items()
        if os.path.basename(line.split(" ")[0]) == program
    ]


def kill(hosts: Hosts, host: int, program: str, number: int = signal.SIGKILL) -> None:
    [pid] = pids(hosts, host, program)
    os.kill(pid, number)


#: How far the leader is when it dies, and how that is seen.
STAGES: dict[str, Callable[[Hosts, list[Replica]], object]] = {
    "ray starts": lambda hosts, job: eventually(lambda: bool(pids(hosts, 0, "gcs_server")), 60),
    "nodes join": lambda hosts, job: job[0].until("waiting"),
    "the command runs": lambda hosts, job: job[2].until("running"),
}
#: Who is killed, and what the front of rank 0 says then.
VICTIMS = ["front", "keeper", "both"]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("stage", STAGES)
def test_the_leader_is_killed(hosts: Hosts, stage: str, victim: str) -> None:
    with job(hosts) as start:
        count = 2 if stage == "nodes join" else 3  # one is missing: they wait
        replicas = [start(i, *SLEEP) for i in range(count)]
        STAGES[stage](hosts, replicas)
        keeper, front = replicas[0].keeper(), replicas[0].running.pid
        for pid in {"front": [front], "keeper": [keeper], "both": [keeper, front]}[victim]:
            os.kill(pid, signal.SIGKILL)
        code = replicas[0].code()
        if victim == "keeper":
            assert code == 137
            why = "the process that kept this replica was killed by SIGKILL; Ray and the command were ended"
            assert replicas[0].last == why
        else:
            assert code == -signal.SIGKILL
        if stage != "ray starts":
            for other in replicas[1:]:
                code, last = other.ended()
                if victim == "front":  # its keeper has told the others
                    why = "the leader ended: the leader's muster node was killed"
                    assert (code, last) == (1, why)
                else:
                    assert code == 1 and last.startswith((GONE, "lost raylet: ")), last
        else:  # nobody was there yet: they look for another until the deadline
            for other in replicas[1:]:
                other.signal(signal.SIGTERM)
                assert other.code() != 0


def test_the_leader_is_killed_while_it_says_farewell(hosts: Hosts) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        replicas[2].until("running")
        deaf = replicas[1].keeper()
        os.kill(deaf, signal.SIGSTOP)
        try:
            kill(hosts, 0, "sleep", signal.SIGTERM)
            assert replicas[2].ended()[0] == 143  # it has heard; the leader waits for the other
            for pid in (replicas[0].keeper(), replicas[0].running.pid):
                os.kill(pid, signal.SIGKILL)
            assert replicas[0].code() == -signal.SIGKILL
        finally:
            os.kill(deaf, signal.SIGCONT)
        code, last = replicas[1].ended()  # it may find the leader's word in its socket
        expected = {1: GONE, 143: "the leader ended: the command ended with killed by SIGTERM"}
        assert last.startswith(expected[code]), last


def test_the_leaders_host_loses_power() -> None:
    python_with_ray()
    with Hosts(2) as hosts, job(hosts) as start:
        flags = ("--lost-after", "6s")
        replicas = [start(i, *SLEEP, world=2, flags=flags) for i in range(2)]
        replicas[1].until("running")
        hosts.crash(0)
        code, last = replicas[1].ended()
        assert code == 1 and last.startswith((GONE + "no answer for ", "lost raylet: ")), last


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_a_raylet_is_lost(hosts: Hosts, number: int) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        replicas[2].until("running")
        kill(hosts, 1, "raylet", number)
        code, last = replicas[1].ended()
        assert code == 1 and last.startswith("lost raylet: this node's Ray ended: "), last
        replicas[0].until("failed", "rank 1 on host1 failed: lost raylet")
        replicas[0].signal(signal.SIGTERM)  # the others go on until then
        assert [replicas[i].code() for i in (0, 2)] == [143, 143]


@pytest.mark.parametrize("program", ["gcs_server", "raylet"])
def test_rays_head_is_lost(hosts: Hosts, program: str) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        replicas[0].until("command")
        kill(hosts, 0, program)
        code, last = replicas[0].ended()
        assert code == 1 and last.startswith("Ray's head ended while the command ran: "), last
        for other in replicas[1:]:
            code, why = other.ended()
            assert code == 1 and why.startswith((f"the leader ended: {last}", "lost raylet")), why


def test_a_replica_is_killed_and_another_takes_its_place(hosts: Hosts) -> None:
    with job(hosts) as start:
        leader, first = start(0, "true"), start(1, "true")
        leader.until("waiting", "2 of 3")
        os.kill(first.running.pid, signal.SIGKILL)
        assert first.code() == -signal.SIGKILL
        assert eventually(lambda: not hosts.processes(1), 30)
        again, last = start(1, "true"), start(2, "true")
        assert [r.ended() for r in (leader, again, last)] == [(0, "")] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=str)
def test_signals_to_the_leader(hosts: Hosts, number: signal.Signals) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        replicas[1].until("running")
        replicas[2].until("running")
        replicas[0].signal(number)
        why = f"the command ended with killed by {number.name}"
        assert replicas[0].ended() == (128 + number, why)
        for other in replicas[1:]:
            assert other.ended() == (128 + number, f"the leader ended: {why}")


def test_a_command_that_ends_by_itself_after_a_signal(hosts: Hosts) -> None:
    # Not one long sleep: Python does not hear a signal that comes as it begins.
    script = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('on', flush=True)\nwhile True: time.sleep(0.05)"
    with job(hosts) as start:
        replicas = [start(i, python_with_ray(), "-c", script, world=2) for i in range(2)]
        assert replicas[0].running.stdout is not None
        assert replicas[0].running.stdout.readline() == "on\n"
        replicas[1].until("running")
        replicas[0].signal(signal.SIGTERM)
        assert [replica.ended() for replica in replicas] == [(0, "")] * 2


def test_a_command_that_does_not_end_is_killed(hosts: Hosts) -> None:
    script = "trap '' TERM; echo on; while :; do sleep 1; done"
    with job(hosts) as start:
        alone = start(0, "bash", "-c", script, world=1, flags=("--stop-timeout", "2s"))
        assert alone.running.stdout is not None and alone.running.stdout.readline() == "on\n"
        alone.signal(signal.SIGTERM)
        assert alone.ended() == (137, "the command ended with killed by SIGKILL")


def test_a_signal_to_every_process_of_the_leaders_host(hosts: Hosts) -> None:
    """As a scheduler may send it, to Ray and the command too."""
    with job(hosts) as start:
        replicas = [start(i, *SLEEP, world=2) for i in range(2)]
        replicas[1].until("running")
        front = replicas[0].running.pid
        for pid in sorted(hosts.processes(0), key=lambda pid: pid != front):
            with contextlib.suppress(ProcessLookupError):  # another took it along
                os.kill(pid, signal.SIGTERM)
        assert replicas[0].ended() == (143, "the command ended with killed by SIGTERM")
        assert replicas[1].code() == 143


# Runs a command line on a terminal of its own, types ^C when it says "on", and
# exits with its code.
TERMINAL = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    before, said = said, said + part
    if b"on!" in said and b"on!" not in before:
        os.write(terminal, b"\\x03")
sys.stdout.write(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# Exits with how many SIGINTs it got.
COUNTS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("o" + "n!", flush=True)
signal.sigwait({signal.SIGINT})
raise SystemExit(10 + (signal.sigtimedwait({signal.SIGINT}, 3) is None))
"""


def test_control_c_reaches_the_command_once(hosts: Hosts) -> None:
    python = python_with_ray()
    words: list[str | Path] = [BINARY, "node", "--rank", "0", "--world", "1", "--python", python]
    words += [f"--ray-flag={flag}" for flag in SMALL]
    typed: list[str | Path] = [python, "-c", TERMINAL, *words, "--", python, "-c", COUNTS]
    done = hosts.run(0, typed, timeout=200)
    assert done.returncode == 11, done.stdout + done.stderr
    assert "SIGINT: the command may take 30 s to end" in done.stdout
    assert eventually(lambda: not hosts.processes(0), 20)


@pytest.mark.parametrize("stage", ["seeking", "joined", "running"])
def test_a_signal_to_another_replica(hosts: Hosts, stage: str) -> None:
    with job(hosts) as start:
        if stage == "seeking":
            lone = start(1, *SLEEP)
            lone.until("waiting")
            lone.signal(signal.SIGTERM)
            assert lone.ended() == (143, "stopped by SIGTERM while seeking")
            return
        count = 3 if stage == "running" else 2
        replicas = [start(i, *SLEEP) for i in range(count)]
        replicas[1].until(stage)
        replicas[1].signal(signal.SIGHUP)
        assert replicas[1].ended() == (129, "stopped by SIGHUP while joined")
        replicas[0].until("failed", "rank 1 on host1 failed: stopped by SIGHUP")
        replicas[0].signal(signal.SIGTERM)
        assert [replicas[i].code() for i in range(count)] == [143, 129, 143][:count]


def test_what_the_command_leaves_is_ended(hosts: Hosts) -> None:
    script = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' >/dev/null 2>&1 & exit 7"
    with job(hosts) as start:  # looks that nothing is left
        alone = start(0, "bash", "-c", script, world=1)
        assert alone.ended() == (7, "the command ended with exit code 7")


def test_a_short_cut_is_not_noticed(hosts: Hosts) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP, world=2) for i in range(2)]
        replicas[1].until("running")
        hosts.link(1, up=False)
        try:  # until a look has failed, and one more
            replicas[1].until("suspect")
        finally:
            hosts.link(1, up=True)
        replicas[0].signal(signal.SIGTERM)
        assert [replica.code() for replica in replicas] == [143, 143]


def test_a_link_that_stays_down(hosts: Hosts) -> None:
    flags = ("--lost-after", "8s")
    with job(hosts) as start:
        replicas = [start(i, *SLEEP, world=2, flags=flags) for i in range(2)]
        replicas[1].until("running")
        hosts.link(1, up=False)
        try:
            code, last = replicas[1].ended()
            assert code == 1 and last.startswith((GONE + "no answer for ", "lost raylet: ")), last
            replicas[0].until("lost", "rank 1 on host1: it has not answered for 8 s")
        finally:
            hosts.link(1, up=True)
        replicas[0].signal(signal.SIGTERM)  # its command went on until now
        assert replicas[0].ended() == (143, "the command ended with killed by SIGTERM")
