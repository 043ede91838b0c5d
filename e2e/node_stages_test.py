"""`muster node` when rank 0 dies between two stages, or comes again: exit code and last line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from hosts import Hosts, python_with_ray
from replicas import Replica, job
from running import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

GONE = "the leader at host0:6380 is gone without a word: "
SLEEP = ("sleep", "1000")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    python_with_ray()
    with Hosts(3) as made:
        yield made


def kill(leader: Replica) -> None:
    """Ends all of rank 0 at once."""
    for pid in (leader.keeper(), leader.running.pid):
        os.kill(pid, signal.SIGKILL)
    assert leader.code() == -signal.SIGKILL


def test_before_its_ray_is_up_and_nobody_comes_after_it(hosts: Hosts) -> None:
    with job(hosts) as start:
        others = [start(i, "true", flags=("--join-timeout", "20s")) for i in (1, 2)]
        leader = start(0, "true")
        for other in others:
            other.until("waiting", "its Ray is not up yet")
        kill(leader)
        for rank, other in enumerate(others, 1):
            why = (
                f"rank {rank} waited 20 s for the leader at host0:6380 in vain: connection refused"
            )
            assert other.ended() == (1, why)


def test_before_its_ray_is_up_and_another_takes_its_place(hosts: Hosts) -> None:
    with job(hosts) as start:
        others = [start(i, "true") for i in (1, 2)]
        leader = start(0, "true")
        for other in others:
            other.until("waiting", "its Ray is not up yet")
        kill(leader)
        assert eventually(lambda: not hosts.processes(0), 30)
        again = start(0, "true")
        assert [r.ended() for r in (again, *others)] == [(0, "")] * 3


def test_while_the_others_join(hosts: Hosts) -> None:
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        for other in replicas[1:]:
            other.until("joining")
        kill(replicas[0])
        for other in replicas[1:]:
            code, last = other.ended()
            assert code == 1, last
            assert last.startswith((GONE, "this node could not join Ray: ", "lost raylet: ")), last


def test_while_it_stops_its_command(hosts: Hosts) -> None:
    stubborn = "trap '' TERM; echo on; while :; do sleep 1; done"
    with job(hosts) as start:
        replicas = [start(i, "bash", "-c", stubborn) for i in range(3)]
        for other in replicas[1:]:
            other.until("running")
        out = replicas[0].running.stdout
        assert out is not None and out.readline() == "on\n"  # from now on TERM is nothing to it
        replicas[0].signal(signal.SIGTERM)
        replicas[0].until("signal", "SIGTERM: the command may take")
        kill(replicas[0])
        for other in replicas[1:]:
            code, last = other.ended()
            assert code == 1 and last.startswith((GONE, "lost raylet: ")), last


def test_it_is_started_anew_while_the_others_run(hosts: Hosts) -> None:
    """They do not join twice: their Ray is that of the first."""
    with job(hosts) as start:
        replicas = [start(i, *SLEEP) for i in range(3)]
        for other in replicas[1:]:
            other.until("running")
        kill(replicas[0])
        assert eventually(lambda: not hosts.processes(0), 30)
        again = start(0, *SLEEP, flags=("--join-timeout", "25s"))
        new = (
            "the leader at host0:6380 is another than the one that was joined: it was started anew"
        )
        for other in replicas[1:]:
            code, last = other.ended()
            assert code == 1 and last.startswith((GONE, new, "lost raylet: ")), last
        code, last = again.ended()
        assert code == 1 and "only 1 of 3 nodes joined" in last, last


def test_two_of_the_same_rank_find_the_leader_together(hosts: Hosts) -> None:
    """One is taken, the other refused, whichever came first."""
    with job(hosts) as start:
        twins = [start(i, "true", rank=1) for i in (1, 2)]
        for twin in twins:
            twin.until("waiting")
        leader = start(0, "true", flags=("--min-nodes", "2"))
        ends = sorted(twin.ended() for twin in twins)
        assert ends[0] == (0, "")
        code, last = ends[1]
        assert code == 1
        assert last.startswith("the leader refuses this replica: rank 1 on host"), last
        assert last.endswith("two replicas were given that rank"), last
        assert leader.ended() == (0, "")
