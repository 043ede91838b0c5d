"""Any process is stopped (SIGSTOP) for a while: nothing is declared dead, all goes on after.

A few seconds stand for the minute that a debugger, a snapshot or an overloaded
machine takes: nothing in Muster counts seconds of silence between processes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest

import muster
from muster import Cluster, ResourceManager
from roles import Probe
from running import BINARY, cluster, run, session, stopped, titled

SECONDS = 2.0


VICTIMS: dict[str, Callable[[Cluster], list[int]]] = {
    "worker": lambda c: [c.workers[3].pid],
    "zygote": lambda _: titled("muster zygote"),
    "agent": lambda _: titled("muster agent"),
    "warden": lambda _: titled("muster warden"),
    "head": lambda _: titled("muster head"),
    "all of them": lambda c: [w.pid for w in c.workers] + titled("muster"),
}


@pytest.fixture(scope="module", params=["2x2", "2x2+relay", "2x2+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    with session(request.param), ResourceManager(2, 2) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Probe, rm, name="c", device_mapping="0-3", grace=0.5) as made:
        yield made


@pytest.mark.chaos
@pytest.mark.parametrize("victim", sorted(VICTIMS))
def test_it_goes_on_after_a_stop(rm: ResourceManager, c: Cluster, victim: str) -> None:
    before = c.execute_all_sync("pid", timeout=30)
    first = c.execute_all_async("pid")
    with stopped(*VICTIMS[victim](c)):
        under_way = c.execute_all_async("pid")
        _, waiting = muster.wait(under_way, num_returns=4, timeout=SECONDS)
        if victim in ("worker", "head", "all of them"):
            assert waiting, "what needs it waits"
        else:
            threading.Event().wait(SECONDS if not waiting else 0)
    assert muster.get(first, timeout=30) == before
    assert muster.get(under_way, timeout=30) == before, "the same processes"
    with cluster(Probe, rm, name="more", world_size=2) as more:
        assert len(more.execute_all_sync("pid", timeout=30)) == 2
    status = run(BINARY, "status", "--session", str(os.getpid()))
    assert status.returncode == 0 and "lost" not in status.stdout, status.stdout


@pytest.mark.chaos
def test_a_start_waits_for_a_zygote_that_is_stopped(rm: ResourceManager, c: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        with stopped(*VICTIMS["zygote"](c)):
            made: list[Cluster] = []
            starting = threading.Thread(
                target=lambda: made.append(
                    stack.enter_context(cluster(Probe, rm, name="slow", world_size=2))
                )
            )
            starting.start()
            starting.join(SECONDS)
            assert not made
        starting.join(30)
        assert len(made[0].execute_all_sync("pid", timeout=30)) == 2


@pytest.mark.chaos
def test_a_worker_that_is_stopped_is_told(c: Cluster) -> None:
    with stopped(*VICTIMS["worker"](c)):
        with pytest.raises(TimeoutError) as caught:
            c.execute_all_sync("pid", timeout=SECONDS)
        text = str(caught.value)
        assert "rank 3: it is stopped (SIGSTOP), and goes on with kill -CONT\n" in text
        assert "no answer within 2s from 1 of 4 ranks" in text
        told = run(BINARY, "stacks", "c", "--session", str(os.getpid())).stdout
        assert "rank 3: it is stopped (SIGSTOP)" in told
    assert len(c.execute_all_sync("pid", timeout=30)) == 4
