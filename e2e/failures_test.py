"""A worker dies: what the error tells, what is restarted, what runs again and what never does."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from mortal import Mortal, Team
from muster import Cluster, ResourceManager, WorkerConfig
from roles import Caller
from running import BINARY, cluster, eventually, run, run_script, session


@pytest.fixture(scope="module", params=["1x4", "2x2+relay", "2x2+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    nodes = int(request.param[0])
    with session(request.param), ResourceManager(4 // nodes, nodes) as made:
        yield made


class Trace:
    """What the workers of a test did, by the lines that they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self, what: str) -> Counter[int]:
        """How often each rank ran something."""
        return Counter(rank for name, rank, _ in self._lines() if name == what)

    def _lines(self) -> list[tuple[str, int, int]]:
        path = self.folder / "trace"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, int(rank), int(pid)) for name, rank, pid in words]

    def order(self, rank: int) -> list[str]:
        return [name for name, at, _ in self._lines() if at == rank]

    def hold(self, what: str) -> None:
        (self.folder / f"hold-{what}").touch()

    def go_on(self, what: str) -> None:
        (self.folder / f"hold-{what}").unlink()

    def wait_for(self, what: str, ranks: int) -> None:
        assert eventually(lambda: len(self.runs(what)) == ranks, 30), self._lines()


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return Trace(tmp_path)


def kill(c: Cluster, rank: int) -> None:
    os.kill(c.workers[rank].pid, signal.SIGKILL)


def gone(error: BaseException, *words: str) -> muster.WorkerDiedError:
    assert isinstance(error, muster.WorkerDiedError)
    for word in words:
        assert word in str(error), word
    return error


def test_the_error_tells_all(rm: ResourceManager, trace: Trace) -> None:
    with cluster(Mortal, rm, name="frail", device_mapping="0-2", grace=1.0) as c:
        c.initialize(str(trace.folder))
        c.workers[1].call("talk", 60)
        trace.hold("step")
        ref = c.step(blocking=False)
        trace.wait_for("step", 3)
        kill(c, 1)
        with pytest.raises(muster.WorkerDiedError) as caught:
            muster.get(ref, timeout=30)
        error = gone(caught.value, "frail.step", "frail-1-G1", c.workers[1].node, "SIGKILL")
        assert (error.rank, error.worker, error.signal) == (1, "frail-1-G1", "SIGKILL")
        assert error.device == ("GPU 1")
        assert len(error.logs) == 50 and error.logs[-2:] == ["line 59", "in step"]
        assert len(error.others) == 1 and "ranks 0,2: in frail.step, called" in error.others[0]
        assert error.others[0] in str(error)
        with pytest.raises(muster.WorkerDiedError, match="SIGKILL") as later:
            c.read()
        assert later.value.logs == error.logs and later.value.others == error.others
        trace.go_on("step")


def test_the_error_has_the_printed_traceback(rm: ResourceManager, trace: Trace) -> None:
    with cluster(Mortal, rm, name="falls", world_size=1) as c:
        with pytest.raises(muster.WorkerDiedError, match="exit code 5") as caught:
            c.workers[0].call("fall")
        error = caught.value
        assert error.traceback.startswith("Traceback (most recent call last):")
        assert error.traceback.endswith("KeyError: 'no such key'") and error.exit_code == 5
        assert str(error).count("KeyError: 'no such key'") == 1, "told once"


def test_restart_worker(rm: ResourceManager, trace: Trace) -> None:
    with cluster(
        Mortal, rm, name="phoenix", device_mapping="0-2", on_failure="restart_worker"
    ) as c:
        weights = np.ones(1_000_000)  # in the store, where nobody but the cluster keeps it
        c.initialize(str(trace.folder), weights)
        del weights
        before = [w.pid for w in c.workers]
        trace.hold("read")
        read = c.read(blocking=False)
        trace.wait_for("read", 3)
        step = c.step(blocking=False)
        rows = c.rows(["a", "b", "c"], blocking=False)
        kill(c, 1)
        with pytest.raises(muster.WorkerDiedError) as caught:
            muster.get(step, timeout=30)
        gone(caught.value, "phoenix.step", "SIGKILL")
        held = c.step("later", blocking=False)
        assert eventually(lambda: trace.runs("read")[1] == 2, 30)
        trace.go_on("read")
        assert muster.get(read, timeout=30) == [0, 1, 2]
        assert muster.get(rows, timeout=30) == [(0, "a"), (1, "b"), (2, "c")]
        assert muster.get(held, timeout=30) == [0, 1, 2]
        assert trace.runs("read") == {0: 1, 1: 2, 2: 1}, "the others did not run it again"
        assert trace.runs("initialize") == {0: 1, 1: 2, 2: 1}
        assert trace.runs("step")[1] == 0, "what is not idempotent never runs on the new one"
        assert trace.order(1) == ["initialize", "read", "initialize", "read", "rows", "later"]
        assert c.sums() == [1e6] * 3
        now = [w.pid for w in c.workers]
        assert [a == b for a, b in zip(before, now, strict=True)] == [True, False, True]
        assert c.workers[1].call("pid") == now[1]
        shown = json.loads(run(BINARY, "status", "--json", "--session", str(os.getpid())).stdout)
        told = next(s for s in shown[0]["clusters"] if s["name"] == "phoenix")
        assert (told["restarts"], told["workers"][1]["restarts"]) == (1, 1)
        assert "restarts" not in told["workers"][0]


def test_what_is_not_idempotent_runs_once(rm: ResourceManager, trace: Trace) -> None:
    with cluster(Mortal, rm, name="once", world_size=3, on_failure="restart_worker") as c:
        c.initialize(str(trace.folder))
        trace.hold("step")
        step, each = c.step(blocking=False), c.execute_all_async("read", "after")
        trace.wait_for("step", 3)
        kill(c, 0)
        with pytest.raises(muster.WorkerDiedError, match=r"once\.step.*SIGKILL"):
            muster.get(step, timeout=30)
        trace.go_on("step")
        assert muster.get(each, timeout=30) == [0, 1, 2], "the others ran on, and are fit for use"
        assert c.step("next") == [0, 1, 2]
        assert trace.runs("step") == {0: 1, 1: 1, 2: 1}
        assert trace.runs("after") == trace.runs("next") == {0: 1, 1: 1, 2: 1}


def test_restart_cluster(rm: ResourceManager, trace: Trace) -> None:
    with cluster(Team, rm, name="team", device_mapping="0-2", on_failure="restart_cluster") as c:
        c.initialize(str(trace.folder), np.full(500_000, 2.0))
        before = {w.pid for w in c.workers}
        trace.hold("reduce")
        reduced = c.reduce(blocking=False)
        trace.wait_for("reduce", 3)
        step = c.step(blocking=False)
        kill(c, 2)
        with pytest.raises(muster.WorkerDiedError, match=r"team\.step"):
            muster.get(step, timeout=30)
        later = c.step(blocking=False)
        assert eventually(lambda: trace.runs("reduce") == {0: 2, 1: 2, 2: 2}, 30)
        trace.go_on("reduce")
        assert muster.get(reduced, timeout=30) == [0, 1, 2]
        assert muster.get(later, timeout=30) == [0, 1, 2]
        assert c.sums() == [1e6] * 3
        assert before.isdisjoint(w.pid for w in c.workers)
        assert trace.runs("step") == {0: 1, 1: 1, 2: 1}
        assert trace.runs("initialize") == {0: 2, 1: 2, 2: 2}


def test_the_budget(rm: ResourceManager, trace: Trace) -> None:
    config = {"on_failure": "restart_worker", "max_restarts": 1, "restart_window": 120}
    with cluster(Mortal, rm, name="twice", world_size=2, **config) as c:
        c.initialize(str(trace.folder))
        kill(c, 0)
        assert eventually(lambda: trace.runs("initialize")[0] == 2, 30)
        assert c.read() == [0, 1]
        trace.hold("last")
        last = c.read("last", blocking=False)
        trace.wait_for("last", 2)
        kill(c, 1)
        with pytest.raises(muster.WorkerDiedError) as caught:
            muster.get(last, timeout=30)
        trace.go_on("last")
        gone(caught.value, "twice-1", "SIGKILL", "not restarted", "1 of 1 within 2 min")
        with pytest.raises(muster.WorkerDiedError, match=r"twice-1.*1 of 1 within 2 min"):
            c.read()
        assert trace.runs("last") == {0: 1, 1: 1}


class Frail(Mortal):
    """Can only be made once."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        try:
            (Path(worker_config.env["MADE_IN"]) / f"made-{self.rank}").touch(exist_ok=False)
        except FileExistsError:
            raise RuntimeError("the checkpoint is gone") from None


def test_a_restart_that_fails(rm: ResourceManager, trace: Trace) -> None:
    config = {
        "on_failure": "restart_worker",
        "max_restarts": 2,
        "env": {"MADE_IN": str(trace.folder)},
    }
    with cluster(Frail, rm, name="once", world_size=2, **config) as c:
        c.initialize(str(trace.folder))
        trace.hold("read")
        refs = [c.read(blocking=False) for _ in range(3)]
        trace.wait_for("read", 2)
        kill(c, 0)
        for ref in refs:
            with pytest.raises(muster.WorkerDiedError) as caught:
                muster.get(ref, timeout=30)
            gone(
                caught.value,
                "once-0",
                "SIGKILL",
                "restarting rank 0 failed",
                "2 of 2",
                "the checkpoint is gone",
            )
        trace.go_on("read")
        with pytest.raises(muster.WorkerDiedError, match="the checkpoint is gone"):
            c.step()


def test_calls_of_other_workers_wait(rm: ResourceManager, trace: Trace) -> None:
    with (
        cluster(Mortal, rm, name="server", world_size=2, on_failure="restart_worker") as server,
        cluster(Caller, rm, name="client", world_size=1) as client,
    ):
        server.initialize(str(trace.folder))
        trace.hold("read")
        through = client.execute_rank_zero_async("through", server, "read")
        trace.wait_for("read", 2)
        kill(server, 0)
        assert eventually(lambda: trace.runs("read")[0] == 2, 30)
        trace.go_on("read")
        assert muster.get(through, timeout=30) == [0, 1]
        assert client.execute_rank_zero_sync("through", server, "step") == [0, 1]


def test_it_ends_while_it_restarts(rm: ResourceManager, trace: Trace) -> None:
    with cluster(Mortal, rm, name="ends", world_size=2, on_failure="restart_cluster") as c:
        c.initialize(str(trace.folder))
        ref = c.read(blocking=False)
        muster.get(ref, timeout=30)
        kill(c, 0)
        c.shutdown()
        with pytest.raises(muster.MusterError):
            c.read()


def test_what_cannot_be(rm: ResourceManager) -> None:
    for config, word in (
        ({"on_failure": "retry"}, "on_failure"),
        ({"max_restarts": 0}, "max_restarts"),
        ({"restart_window": -1.0}, "restart_window"),
    ):
        with pytest.raises(ValueError, match=word):
            Cluster("no", Mortal, rm, WorkerConfig(world_size=1, **config))
    with pytest.raises(ValueError, match=r"Team\.reduce is registered collective=True"):
        Cluster("no", Team, rm, WorkerConfig(world_size=2, on_failure="restart_worker"))
    with cluster(Team, rm, name="no", world_size=1, on_failure="restart_cluster") as c:
        assert c.world_size == 1


def test_what_is_said(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
import signal
from mortal import Mortal

if __name__ == "__main__":
    with Cluster("actor", Mortal, None, WorkerConfig(world_size=2, on_failure="restart_worker")) as c:
        c.initialize(sys.argv[1])
        os.kill(c.workers[1].pid, signal.SIGKILL)
        c.workers[0].call("pid")
        while c.read() != [0, 1] or c._describe()["restarts"] == 0:
            pass
        print("done")
""",
        str(tmp_path),
        virtual="1x2",
        PYTHONPATH=str(Path(__file__).parent),
    )
    assert done.returncode == 0, done.stderr
    assert (
        "[cluster actor] rank 1 died (SIGKILL); restarting it, 1 of 3 within 10 min" in done.stderr
    )
    assert "rank 1 restarted 1/1" in done.stderr
