"""A node is lost: its agent or its warden is killed. The rest goes on, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

import muster
from muster import ResourceManager
from roles import Probe
from running import BINARY, below, cluster, eventually, run, session
from stuck import Team


@pytest.fixture(params=["2x2", "2x2+relay", "2x2+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    with session(request.param), ResourceManager(2, 2) as made:
        yield made


def above(pid: int) -> list[int]:
    """The parents of a worker up to this process: its agent, its warden, the head."""
    everything = below(os.getpid())
    chain = []
    while pid in everything:
        pid = everything[pid][0]
        chain.append(pid)
    return chain


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


KILLS: dict[str, Callable[[int, int], list[tuple[int, int]]]] = {
    "agent": lambda agent, warden: [(agent, signal.SIGKILL)],
    "warden": lambda agent, warden: [(warden, signal.SIGKILL)],
    "both": lambda agent, warden: [(agent, signal.SIGKILL), (warden, signal.SIGKILL)],
    "a stopped agent": lambda agent, warden: [(agent, signal.SIGSTOP), (agent, signal.SIGKILL)],
}


@pytest.mark.chaos
@pytest.mark.parametrize("victim", sorted(KILLS))
def test_the_rest_goes_on(rm: ResourceManager, victim: str) -> None:
    with (
        cluster(Team, rm, name="both", device_mapping="0-3", grace=0.5) as both,
        cluster(Probe, rm, name="left", device_mapping="0-1") as left,
        cluster(Probe, rm, name="right", device_mapping="2-3") as right,
    ):
        doomed = [w.pid for w in (*both.workers[2:], *right.workers)]
        agent, warden, *_ = above(right.workers[0].pid)
        ref = both.step(odd=9, blocking=False)  # hangs
        assert muster.wait([ref], timeout=0.1)[1]
        for pid, number in KILLS[victim](agent, warden):
            os.kill(pid, number)
        with pytest.raises(muster.NodeLostError, match="node-1") as caught:
            muster.get(ref, timeout=20)
        assert "both.step" in str(caught.value) and caught.value.node == "node-1"
        with pytest.raises(muster.NodeLostError, match="node-1"):
            right.execute_all_sync("pid", timeout=20)  # later calls too, for the same reason
        assert eventually(lambda: not any(map(lives, [*doomed, agent, warden]))), "nothing is left"

        assert len(left.execute_all_sync("pid", timeout=20)) == 2
        with cluster(Probe, rm, name="more", device_mapping="0-1") as more:
            assert len(more.execute_all_sync("pid", timeout=20)) == 2
        with pytest.raises(muster.NodeLostError, match="node-1"):
            with cluster(Probe, rm, name="none", device_mapping="2-3"):
                pass
        told = run(BINARY, "status", "--session", str(os.getpid())).stdout
        assert "node-1  lost" in told and "node-0  up" in told, told
