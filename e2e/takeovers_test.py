"""A head is killed when others are, too: the next one goes on with what there was to do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import muster
from mortal import Mortal
from muster import Batch, Dispatch, register
from running import below, cluster, eventually, pool, session, titled
from stages import objects


def kill_head() -> None:
    os.kill(titled("muster head")[0], signal.SIGKILL)


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["restart_worker", "restart_cluster"])
@pytest.mark.parametrize("virtual", ["2x2", "2x2+relay", "2x2+net"])
def test_restarts_outlive_a_head(tmp_path: Path, how: str, virtual: str) -> None:
    with (
        session(virtual),
        pool(2, 2) as rm,
        cluster(Mortal, rm, name="phoenix", device_mapping="0-2", on_failure=how) as c,
    ):
        c.initialize(str(tmp_path), np.ones(1_000_000))  # which lies in the store
        first = c.execute_all_sync("pid")
        kill_head()
        os.kill(first[1], signal.SIGKILL)  # it is initialized as under the first head
        assert c.sums(timeout=30) == [1e6] * 3
        second = c.execute_all_sync("pid")
        assert second[1] != first[1]
        kill_head()  # who was restarted stays
        assert c.step(timeout=30) == [0, 1, 2]
        assert c.execute_all_sync("pid") == second
        held = tmp_path / "hold-held"
        held.touch()
        ref = c.step("held", blocking=False)
        assert eventually(lambda: "held 1" in (tmp_path / "trace").read_text(), 30)
        os.kill(second[1], signal.SIGKILL)
        with pytest.raises(muster.WorkerDiedError, match=r"phoenix-1-G1.*SIGKILL"):
            muster.get(ref, timeout=30)
        held.unlink()
        kill_head()  # while it is restarted
        assert c.sums(timeout=30) == [1e6] * 3
        assert c.execute_all_sync("pid")[1] not in (first[1], second[1])


@pytest.mark.chaos
def test_a_node_that_was_lost_is_not_waited_for(tmp_path: Path) -> None:
    with (
        session("2x2"),
        pool(2, 2) as rm,
        cluster(Mortal, rm, name="here", device_mapping="0-1") as here,
        cluster(Mortal, rm, name="there", device_mapping="2-3") as there,
    ):
        here.initialize(str(tmp_path))
        there.initialize(str(tmp_path))
        agent, _ = below(os.getpid())[there.workers[0].pid]  # its parent
        os.kill(agent, signal.SIGKILL)
        with pytest.raises(muster.NodeLostError, match="node-1"):
            while True:  # its workers may answer once more
                there.step(timeout=30)
        kill_head()
        assert here.step(timeout=10) == [0, 1]
        with pytest.raises(muster.NodeLostError, match="node-1"):
            there.sums(timeout=10)


class Busy(Mortal):
    """Does things while the head does not know yet who is back."""

    @register(Dispatch.ONE_TO_ALL)
    def ask(self, name: str) -> list[int]:
        """Call others, for the first time."""
        self._run("hold")
        (self.folder / "goes-on").touch()
        found: list[int] = muster.get_cluster(name).step()
        return found

    @register(Dispatch.ONE_TO_ALL)
    def make(self) -> Batch:
        """Make something that is then kept by others alone."""
        self._run("hold")
        (self.folder / "goes-on").touch()
        return Batch({"x": np.ones((256, 1024))})


@pytest.mark.chaos
@pytest.mark.parametrize("method", ["ask", "make"])
def test_what_comes_while_others_come_back(tmp_path: Path, method: str) -> None:
    with (
        session("2x2"),
        pool(2, 2) as rm,
        cluster(Mortal, rm, name="there", device_mapping="2-3") as there,
        cluster(Busy, rm, name="here", device_mapping="0") as here,
    ):
        there.initialize(str(tmp_path))
        here.initialize(str(tmp_path))
        agent, _ = below(os.getpid())[there.workers[0].pid]
        (tmp_path / "hold-hold").touch()
        ref = here.ask("there", blocking=False) if method == "ask" else here.make(blocking=False)
        assert eventually(lambda: "hold 0" in (tmp_path / "trace").read_text(), 30)
        os.kill(agent, signal.SIGSTOP)  # the next head waits for it
        try:
            kill_head()
            muster.wait([ref], timeout=0.3)  # which has the script start it
            (tmp_path / "hold-hold").unlink()
            assert eventually(lambda: (tmp_path / "goes-on").exists(), 30)
            muster.wait([ref], timeout=0.3)
        finally:
            os.kill(agent, signal.SIGCONT)
        got = muster.get(ref, timeout=20)
        assert got == [[0, 1]] if method == "ask" else got[0]["x"].sum() == 256 * 1024
        del got, ref
        assert eventually(lambda: not objects()), objects()


@pytest.mark.chaos
def test_who_dies_while_others_come_back(tmp_path: Path) -> None:
    with (
        session("2x2"),
        pool(2, 2) as rm,
        cluster(Mortal, rm, name="there", device_mapping="2-3") as there,
        cluster(Busy, rm, name="here", device_mapping="0") as here,
    ):
        there.initialize(str(tmp_path))
        here.initialize(str(tmp_path))
        (tmp_path / "hold-step").touch()
        ref = here.ask("there", blocking=False)  # which waits for what it has called
        assert eventually(lambda: "step 1" in (tmp_path / "trace").read_text(), 30)
        os.kill(here.workers[0].pid, signal.SIGSTOP)  # the next head waits for it
        kill_head()
        muster.wait([ref], timeout=0.3)
        os.kill(here.workers[0].pid, signal.SIGKILL)
        with pytest.raises(muster.WorkerDiedError, match=r"here-0-G0.*SIGKILL"):
            muster.get(ref, timeout=30)
