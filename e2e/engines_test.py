"""Engines: further objects in a worker, called as calls are."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
import parts
from muster import Batch, Cluster, WorkerConfig, WorkerHandle
from running import BINARY, eventually, run, session


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    with session("1x4"):
        yield


@pytest.fixture
def worker() -> Iterator[WorkerHandle]:
    with Cluster("host", muster.Worker, worker_config=WorkerConfig(world_size=2)) as host:
        yield host.workers[1]


def test_made_called_and_ended(worker: WorkerHandle) -> None:
    engine = worker.create_engine("parts.Model", "trainer", 3, name="t")
    other = worker.create_engine("parts:Model", "server/0", size=5)
    assert worker.call_engine("trainer", "forward", 2) == 6
    assert engine.forward(4) == 12
    assert muster.get([other.forward.remote(n) for n in range(3)]) == [0, 5, 10]
    assert engine.where() == (worker.pid, "t")
    assert worker.engines() == {"trainer": "parts.Model", "server/0": "parts.Model"}
    assert worker.engine("trainer") == engine
    worker.destroy_engine("trainer")
    with pytest.raises(muster.NotFoundError, match="there is no engine 'trainer'"):
        engine.forward(1)
    worker.create_engine(parts.Model, "trainer", 1)  # a class, and the name is free again
    assert worker.engine("trainer").forward(9) == 9


def test_by_the_same_code_as_calls(worker: WorkerHandle) -> None:
    """Batches and arrays by reference, refs as arguments, deadlines, pickled handles."""
    engine = worker.create_engine("parts.Model", "m", 2)
    big = np.ones(200_000)
    assert engine.forward(big).sum() == 400_000
    assert engine.forward(engine.forward.remote(engine.forward.remote(1))) == 8
    assert pickle.loads(pickle.dumps(engine)).forward(3) == 6
    with pytest.raises(TypeError, match=r"patience\(\) has a parameter timeout of its own"):
        worker.call_engine("m", "patience", timeout=3)
    assert engine.patience() == 60 and engine.patience(3) == engine.patience(3, timeout=30) == 3
    keeper = worker.create_engine("parts.Keeper", "k", Batch({"x": np.arange(3)}))
    assert keeper.describe() == ["Batch"]
    with pytest.raises(muster.DeadlineError, match="stay"):
        keeper.stay(timeout=0.2)
    os.kill(worker.pid, signal.SIGKILL)


def test_errors(worker: WorkerHandle) -> None:
    engine = worker.create_engine("parts.Model", "m", 2)
    with pytest.raises(RuntimeError, match="out of ideas") as caught:
        engine.fail()
    assert isinstance(caught.value, muster.RemoteError)
    assert caught.value.worker == "host-1"
    with pytest.raises(AttributeError, match="did you mean 'forward'"):
        engine.forwrd(1)
    with pytest.raises(TypeError, match="forward"):
        engine.forward()
    with pytest.raises(ValueError, match="an engine 'm' already"):
        worker.create_engine("parts.Model", "m", 2)
    with pytest.raises(ValueError, match="cannot be an engine's name"):
        worker.create_engine("parts.Model", "muster", 2)
    with pytest.raises(muster.WorkerImportError, match="did you mean 'Model'"):
        worker.create_engine("parts.Mode", "x")
    with pytest.raises(muster.WorkerImportError, match="'Model' is no path of a class"):
        worker.create_engine("Model", "x")
    with pytest.raises(muster.WorkerImportError, match="there is no module 'nowhere'"):
        worker.create_engine("nowhere.Thing", "x")
    with pytest.raises(ValueError, match="not made: no"):
        worker.create_engine("parts.Refusing", "x", "no")
    with pytest.raises(TypeError, match="size"):
        worker.create_engine("parts.Model", "x")
    with pytest.raises(AttributeError):
        worker.call_engine("m", "_hidden")
    with pytest.raises(muster.NotFoundError, match="did you mean 'm'"):
        worker.call_engine("mm", "forward", 1)
    assert worker.engines() == {"m": "parts.Model"}


def test_environment(worker: WorkerHandle) -> None:
    engine = worker.create_engine("parts.Model", "m", 1)
    worker.set_env({"PART": "one"})
    assert engine.visible() == "one" == worker.env()["PART"]
    worker.set_env({"PART": None})
    assert engine.visible() is None
    with pytest.raises(TypeError, match="both sides must be text"):
        worker.set_env({"PART": ["x"]})  # type: ignore[dict-item]


def test_environment_while_a_call_runs(worker: WorkerHandle) -> None:
    engine = worker.create_engine("parts.Model", "m", 1)
    waiting = engine.until.remote("GO", timeout=60)
    assert "GO" not in worker.env()
    worker.set_env({"GO": "on"})
    assert muster.get(waiting) == "on"
    worker.set_env({"GO": None, "ODD": "\udcff"})  # which is no text, so it waits for its turn
    assert worker.env()["ODD"] == "\udcff" and "GO" not in worker.env()


@pytest.mark.parametrize("concurrency", [None, 4])
def test_coroutines_in_a_sync_worker(concurrency: int | None) -> None:
    config = WorkerConfig(world_size=1, max_concurrency=concurrency)
    with Cluster("sync", muster.Worker, worker_config=config) as host:
        engine = host.workers[0].create_engine("parts.Model", "m", 5)
        refs = [engine.later.remote(n) for n in range(6)]
        assert muster.get(refs) == [5, 6, 7, 8, 9, 10]
        gate = host.workers[0].create_engine("parts.Gate", "gate")
        if concurrency:
            waiting = [gate.wait.remote() for _ in range(2)]
            gate.let()
            assert muster.get(waiting, timeout=30) == ["through"] * 2
        else:
            gate.let()
            assert gate.wait() == "through"


def test_coroutines_meet_in_an_async_worker() -> None:
    with Cluster("loop", parts.AsyncHost, worker_config=WorkerConfig(world_size=1)) as host:
        gate = host.workers[0].create_engine("parts.Gate", "gate")
        waiting = [gate.wait.remote() for _ in range(10)]
        assert host.workers[0].ping() == "pong"
        gate.let()
        assert muster.get(waiting, timeout=30) == ["through"] * 10
        cancelled = host.workers[0].create_engine("parts.Gate", "other").wait.remote()
        assert cancelled.cancel()
        with pytest.raises(muster.CallCancelledError):
            muster.get(cancelled, timeout=30)


def test_a_service_has_engines_too() -> None:
    svc = muster.service(parts.Counter, "with-engines", 1)
    svc.create_engine("parts.Model", "m", 2)
    assert svc.engine("m").where()[0] == svc.pid
    assert svc.add() == 2
    svc.shutdown()


@pytest.mark.chaos
def test_made_by_the_worker_itself() -> None:
    """What initialize makes is there again in a new process of the rank."""
    config = WorkerConfig(world_size=2, on_failure="restart_worker")
    with Cluster("own", parts.Host, worker_config=config) as host:
        host.initialize(7)
        assert host.through(2) == [21, 21]
        assert host.workers[0].engine("own").forward(1) == 7
        os.kill(host.workers[0].pid, signal.SIGKILL)
        assert eventually(lambda: _through(host))
        assert host.workers[0].engines() == {"own": "parts.Model"}


def _through(host: Any) -> bool:
    try:
        return bool(host.through(2) == [21, 21])
    except muster.WorkerDiedError:
        return False


@pytest.mark.parametrize("kind", [muster.Worker, parts.AsyncHost])
def test_destroyed_at_the_end(kind: Any, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with Cluster("ends", kind, worker_config=WorkerConfig(world_size=1)) as host:
        worker = host.workers[0]
        worker.create_engine("parts.Keeper", "a", farewell=str(said))
        worker.create_engine("parts.AsyncKeeper", "b", farewell=str(said))
        worker.create_engine("parts.Closing", "c", str(said))
        worker.create_engine("parts.Keeper", "d", farewell=str(said))
        worker.destroy_engine("d")
        assert said.read_text() == "Keeper\n"
    assert said.read_text().split() == ["Keeper", "Closing", "AsyncKeeper", "Keeper"]


def test_status(worker: WorkerHandle) -> None:
    worker.create_engine("parts.Model", "seen", 1)

    def shown() -> list[Any]:
        views = json.loads(run(BINARY, "status", "--json", virtual=None).stdout)
        [view] = [s for s in views if s["owner_pid"] == os.getpid()]
        return [w.get("engines") for c in view["clusters"] for w in c["workers"]]

    assert shown() == [None, [{"name": "seen", "class": "parts.Model"}]]
    text = run(BINARY, "status", virtual=None).stdout
    assert "seen" in text and "parts.Model" in text


def test_engines_are_made_side_by_side(worker: WorkerHandle) -> None:
    """Two who make one name at once: one does, the other is told."""
    made: list[Any] = []
    start = threading.Barrier(2)

    def make() -> None:
        start.wait()
        try:
            made.append(worker.create_engine("parts.Model", "one", 1))
        except ValueError as error:
            made.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, ValueError) for one in made) == 1
