"""Named services: made once however many ask, called by all, gone with their script."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
import parts
from muster import Batch, Cluster, ResourceManager, Service, WorkerConfig, _context
from running import BINARY, cluster, eventually, output_of, pool, run, run_script, session


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    with session("2x4"):
        yield


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for name in muster.list_services():
        muster.get_service(name).shutdown()


def test_any_class() -> None:
    svc = muster.service(parts.Counter, "counter", 5, step=2)
    assert isinstance(svc, Service)
    assert svc.add() == 7
    assert svc.add.remote(3).done() in (True, False)
    assert svc.call("add", times=0) == 13
    assert svc.call("pid") == svc.pid != os.getpid()
    assert (svc.name, svc.worker_name, svc.node) == ("counter", "counter", "node-0")
    assert svc.call("name") == "the class's own"
    assert os.path.basename(svc.log_file) == "counter.log"
    svc.shutdown()
    svc.shutdown()
    with pytest.raises(muster.NotFoundError, match="service counter is no more"):
        svc.add()


def test_gpus_that_are_chosen() -> None:
    def taker(name: str, gpus: float, **more: Any) -> Service:
        config = WorkerConfig(gpus=gpus, **more)
        return muster.service(parts.Counter, name, config=config, get_or_create=False)

    def seen(svc: Service) -> tuple[str, Any]:
        return svc.node, svc.environment("CUDA_VISIBLE_DEVICES")

    halves = [taker(f"half-{i}", 0.5, node="node-1") for i in range(3)]
    assert [seen(half) for half in halves] == [("node-1", "0"), ("node-1", "0"), ("node-1", "1")]
    assert [node["free"] for node in muster.nodes()] == [4, 2]
    with ResourceManager(4, 1) as rm:
        whole = taker("whole", 2, resource_manager=rm, device_mapping=[3, 1, 0])
        assert seen(whole) == ("node-0", "1,3")
        one = taker("one", 1, resource_manager=rm)
        assert seen(one) == ("node-0", "0")
        with pytest.raises(muster.ResourceError, match="device 0: one; device 1: whole"):
            taker("more", 2, resource_manager=rm, gpus_timeout=0)
        with pytest.raises(muster.PlacementError, match="there are 4 GPUs for it"):
            taker("more", 5, resource_manager=rm)
        with ResourceManager(1, 1) as other:
            assert seen(taker("either", 1, resource_manager=[rm, other])) == ("node-0", "2")
            assert taker("or", 1, resource_manager=[rm, other]).node == "node-1"
            with pytest.raises(muster.ResourceError, match="device 0: one"):
                taker("more", 1, resource_manager=[rm, other], gpus_timeout=0)
            with pytest.raises(ValueError, match="is a list"):
                taker("more", 1, resource_manager=[rm, other], device_mapping=[0])
    assert muster.list_services() == ["half-0", "half-1", "half-2"]  # the pool's went with it
    os.kill(halves[2].pid, signal.SIGKILL)
    large = taker("large", 3, node="node-1")  # as soon as that is known
    assert seen(large) == ("node-1", "1,2,3")
    for svc in (*halves, large):
        svc.shutdown()
    assert [node["free"] for node in muster.nodes()] == [4, 4]


def test_by_path_and_by_name() -> None:
    for path in ("parts.Counter", "parts:Counter"):
        svc = muster.service(path, "by-path", 1)
        assert svc.add() == 2
        assert muster.get_service("by-path") == svc
        assert muster.list_services() == ["by-path"]
        svc.shutdown()
    with pytest.raises(muster.NotFoundError, match='there is no service "by-path"'):
        muster.get_service("by-path")
    with pytest.raises(muster.WorkerImportError, match="did you mean 'Counter'"):
        muster.service("parts.Countr", "none")
    assert muster.list_services() == []


def test_a_name_is_taken_once() -> None:
    svc = muster.service(parts.Counter, "one", 1)
    again = muster.service(parts.Counter, "one", 100)
    assert again == svc and hash(again) == hash(svc)
    assert again.add() == 2
    with pytest.raises(ValueError, match='living service named "one"'):
        muster.service(parts.Counter, "one", get_or_create=False)
    with pool() as rm, pytest.raises(ValueError, match='live service named "one"'):
        Cluster("one", parts.Generator, rm, WorkerConfig(world_size=1))
    with pool() as rm, cluster(parts.Generator, rm, name="group", world_size=2):
        with pytest.raises(ValueError, match='live cluster named "group"'):
            muster.service(parts.Counter, "group")
        with pytest.raises(muster.NotFoundError):
            muster.get_service("group")


def test_many_ask_at_once() -> None:
    """From threads of the script and from workers, all in one moment: one is made."""
    start = threading.Barrier(4)
    found: list[Service] = []

    def ask() -> None:
        start.wait()
        found.append(muster.service(parts.Counter, "shared", 0))

    with pool() as rm, cluster(parts.Maker, rm, name="makers", world_size=4) as makers:
        refs = makers.execute_all_async("make", "shared", 0)
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found += muster.get(refs)
        assert len(found) == 8 and len(set(found)) == 1
        assert sorted(muster.get([svc.add.remote() for svc in found])) == list(range(1, 9))


def test_made_by_a_worker_it_lives_on() -> None:
    with pool() as rm, cluster(parts.Maker, rm, name="maker", world_size=1) as maker:
        svc = maker.workers[0].make("lasting", 7)
        assert svc.add() == 8
        assert maker.workers[0].here() == ["node-0"]
    assert muster.get_service("lasting").add() == 9
    assert svc.add() == 10


def test_what_it_is_made_with() -> None:
    """Arrays, batches, refs, handles and clusters reach the constructor."""
    counter = muster.service(parts.Counter, "inner", 3)
    big = np.arange(100_000.0)
    with pool() as rm, cluster(parts.Generator, rm, name="gen", world_size=1) as gen:
        svc = muster.service(
            parts.Keeper,
            "keeper",
            counter,
            gen,
            gen.workers[0],
            big,
            Batch({"x": np.arange(4)}),
            counter.add.remote(2),
            rm,
            named={1: (2, 3)},
        )
        assert svc.describe() == [
            "Service",
            "Cluster",
            "WorkerHandle",
            "ndarray",
            "Batch",
            "int",
            "ResourceManager",
            "dict",
        ]
        assert svc.call("call", 0, "add") == 6
        assert svc.call("call", 2, "generate", 4) == 40
        assert svc.call("call", 3, "sum") == big.sum()
    one = muster.service(parts.Keeper, "arrays", big, big[:10])
    assert one.sums() == [big.sum(), big[:10].sum()]


def test_constructor_fails() -> None:
    for _ in range(2):  # the name is free again
        with pytest.raises(ValueError, match="not made: for a reason") as caught:
            muster.service(parts.Refusing, "refusing", "for a reason")
        assert "Refusing" in str(caught.value) or "not made" in str(caught.value)
        assert isinstance(caught.value, muster.RemoteError)
        assert "__init__" in caught.value.traceback
    with pytest.raises(TypeError, match="stop"):
        muster.service(parts.Counter, "refusing", stop=1)
    assert muster.service(parts.Counter, "refusing").add() == 1


@contextlib.contextmanager
def interrupted(when: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C, as soon as something is so."""

    def interrupt() -> None:
        assert eventually(when)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        yield
    thread.join()


def test_a_start_that_is_interrupted(tmp_path: Path) -> None:
    """Nothing comes of it, now or later: no process, no name, no devices."""
    note = tmp_path / "made"
    with interrupted(note.exists):
        muster.service(parts.Endless, "one", note)
    assert eventually(lambda: not os.path.exists(f"/proc/{note.read_text()}"))
    assert muster.service(parts.Counter, "one").add() == 1
    with pool(4, 2):  # all there are
        asked = _context.connection()._pending
        with interrupted(lambda: bool(asked)):
            four = WorkerConfig(gpus=4)
            muster.service(parts.Counter, "two", config=four, get_or_create=False)
        assert eventually(lambda: muster.list_services() == ["one"] and not asked)
        with interrupted(lambda: bool(asked)):
            ResourceManager(4, 2, wait=True)
    assert [node["free"] for node in muster.nodes()] == [4, 4]
    assert muster.list_services() == ["one"]


def test_errors_of_methods() -> None:
    svc = muster.service(parts.Counter, "c")
    with pytest.raises(KeyError, match="why not") as caught:
        svc.fail("why not")
    assert isinstance(caught.value, muster.RemoteError)
    assert caught.value.worker == "c"
    with pytest.raises(AttributeError, match="did you mean 'add'"):
        svc.ad()
    with pytest.raises(AttributeError):
        svc._hidden()
    with pytest.raises(TypeError, match=r"add\(times=\.\.\.\)"):
        svc.add(1, 2)


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match="a name has 1 to 100"):
        muster.service(parts.Counter, "with/slash")
    with pytest.raises(ValueError, match="a service needs a name"):
        muster.service(parts.Counter, "")
    with pytest.raises(TypeError, match="a class, or a path"):
        muster.service(parts.Counter(), "object")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name is text"):
        muster.service(parts.Counter, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a service is one process"):
        muster.service(parts.Counter, "two", config=WorkerConfig(world_size=2))
    with pytest.raises(ValueError, match="WorkerConfig\\(resource_manager"):
        muster.service(parts.Counter, "gpu", config=WorkerConfig(device_mapping=[0]))
    with pytest.raises(ValueError, match="is a program"):
        muster.service("exec:/bin/true", "program")
    with pytest.raises(muster.ResourceError, match='there is no node "node-7"'):
        muster.service(parts.Counter, "far", config=WorkerConfig(node="node-7"))
    assert muster.list_services() == []


@pytest.mark.chaos
def test_killed() -> None:
    svc = muster.service(parts.Counter, "mortal", 1)
    os.kill(svc.pid, signal.SIGKILL)
    with pytest.raises(muster.WorkerDiedError, match="mortal on node-0 died: killed by SIGKILL"):
        for _ in range(100):
            svc.add()
    with pytest.raises(muster.NotFoundError):
        muster.get_service("mortal")
    assert muster.list_services() == []
    fresh = muster.service(parts.Counter, "mortal", 10)
    assert fresh != svc
    assert fresh.add() == 11
    with pytest.raises(muster.NotFoundError, match=r"service mortal is no more: .* had died"):
        svc.add()
    os.kill(fresh.pid, signal.SIGKILL)
    assert eventually(lambda: muster.list_services() == [])
    assert muster.service(parts.Counter, "mortal", 20, get_or_create=False).add() == 21


@pytest.mark.chaos
def test_restarted(capfd: pytest.CaptureFixture[str]) -> None:
    """With on_failure it is made again as it was, under its name, and is told of as what it is."""
    svc = muster.service(
        parts.Counter, "phoenix", 5, config=WorkerConfig(on_failure="restart_worker")
    )
    assert svc.add() == 6
    os.kill(svc.pid, signal.SIGKILL)
    assert eventually(lambda: _added(svc) == 6)
    assert muster.get_service("phoenix") == svc
    told = capfd.readouterr().err
    assert "[service phoenix] rank 0 died" in told and "cluster phoenix" not in told


def _added(svc: Service) -> int:
    try:
        return int(svc.add())
    except muster.WorkerDiedError:
        return 0


def test_config() -> None:
    config = WorkerConfig(env={"COLOUR": "blue", "RANK": "7"}, node="node-1")
    svc = muster.service(parts.Counter, "config", config=config)
    assert (svc.environment("COLOUR"), svc.environment("RANK"), svc.node) == ("blue", "7", "node-1")
    with ResourceManager(4, 2) as rm:
        config = WorkerConfig(device_mapping=[5, 6], resource_manager=rm)
        gpu = muster.service(parts.Counter, "gpu", config=config)
        assert gpu.environment("CUDA_VISIBLE_DEVICES") == "1,2"
        assert gpu.node == "node-1"


def test_handles_travel() -> None:
    svc = muster.service(parts.Counter, "pickled", 1)
    copy: Service = pickle.loads(pickle.dumps(svc))
    assert copy == svc and copy.name == "pickled" and copy.add() == 2
    keeper = muster.service(parts.Keeper, "holder", svc)
    assert keeper.call("call", 0, "add") == 3


def test_handles_of_an_earlier_session(tmp_path: Path) -> None:
    """They reach nobody, though another has the number."""
    script = """
import pickle
class Mine: pass
class Other:
    def add(self): return 1
if __name__ == "__main__":
    muster.init(virtual="1x1")
    old = pickle.dumps(muster.service(Mine, "mine"))
    muster.shutdown()
    muster.init(virtual="1x1")
    other, stale = muster.service(Other, "other"), pickle.loads(old)
    try:
        stale.call("add")
    except muster.NotFoundError as error:
        print(str(error)[:20])
    stale.shutdown()
    print(other.add())
"""
    done = run_script(tmp_path, script)
    assert output_of(done).splitlines() == ["cluster mine is no m", "1"]


@pytest.mark.parametrize(
    ("kind", "concurrency"), [(parts.Scheduler, 16), (parts.AsyncScheduler, None)]
)
def test_a_scheduler_that_holds_a_cluster(kind: Any, concurrency: int | None) -> None:
    """It calls workers, which call it back while its own call is out, and it answers others."""
    with pool() as rm, cluster(parts.Generator, rm, name="infer", world_size=2) as infer:
        svc = muster.service(
            kind, "scheduler", infer, config=WorkerConfig(max_concurrency=concurrency)
        )
        wanted = [i * 10 + i % 2 for i in range(20)]
        ref = svc.get_batch.remote(20)
        assert 0 <= svc.state() <= 20
        assert muster.get(ref, timeout=60) == wanted
        assert svc.state() == 20
        svc.shutdown()


def test_workers_that_call_workers() -> None:
    """Trainers push to inference workers by the handles that they were given."""
    with (
        ResourceManager(4, 2) as rm,
        cluster(parts.Trainer, rm, name="train", device_mapping="0-3") as train,
        cluster(parts.Generator, rm, name="infer", device_mapping="4-7") as infer,
    ):
        train.setup(infer.workers)
        assert sorted(rank for told in train.push(0.5) for rank in told) == [0, 1, 2, 3]
        assert infer.get_weights() == [0.5] * 4


def test_a_timeout_that_is_the_methods_own() -> None:
    waiter = muster.service(parts.Waiter, "waiter")
    for call in (waiter.wait, waiter.wait.remote):
        with pytest.raises(TypeError, match=r"Waiter\.wait\(\) has a parameter timeout of its own"):
            call(timeout=5)
    assert waiter.wait(5) == 5 and waiter.wait(5, timeout=30) == 5
    waiter.shutdown()


def test_called_back_while_it_waits() -> None:
    """A class that runs one call at a time cannot be; one that runs several can."""
    muster.service(parts.Back, "back")
    muster.service(parts.Pair, "pair", "back")
    with pytest.raises(muster.DeadlockError, match="would never end"):
        muster.get_service("pair").outer()
    muster.get_service("pair").shutdown()
    for kind, concurrency in ((parts.Pair, 4), (parts.AsyncPair, None)):
        config = WorkerConfig(max_concurrency=concurrency)
        pair = muster.service(kind, "pair", "back", config=config)
        assert pair.outer(timeout=30) == "back inner"
        pair.shutdown()


def test_a_stalled_loop_is_told_of() -> None:
    """A wait that blocks the loop, for who then calls back, fails at once; and it goes on."""
    muster.service(parts.Back, "back")
    pair = muster.service(parts.Stalling, "pair", "back")
    for method in ("outer", "later"):
        with pytest.raises(muster.DeadlockError, match="would never end"):
            pair.call(method)
        assert pair.inner() == "inner"


def test_one_that_asks_for_itself() -> None:
    with pytest.raises(muster.DeadlockError, match="asks for itself while it is made"):
        muster.service(parts.Narcissus, "narcissus")


@pytest.mark.parametrize("kind", [parts.Keeper, parts.AsyncKeeper])
def test_destroy_at_the_end(kind: Any, tmp_path: Path) -> None:
    said = tmp_path / "said"
    svc = muster.service(kind, "ending", farewell=str(said))
    svc.shutdown()
    assert said.read_text() == f"{kind.__name__}\n"
    svc = muster.service(parts.Keeper, "ending", farewell=str(said))
    ref = svc.stay.remote()
    svc.shutdown()  # inside a call
    assert said.read_text().splitlines() == [kind.__name__, "Keeper"]
    with pytest.raises(muster.WorkerDiedError):
        muster.get(ref)


def test_status() -> None:
    muster.service(parts.Counter, "shown")
    done = run(BINARY, "status", "--json", virtual=None)
    [view] = [s for s in json.loads(done.stdout) if s["owner_pid"] == os.getpid()]
    [found] = [c for c in view["clusters"] if c["name"] == "shown"]
    assert found["kind"] == "service"
    text = run(BINARY, "status", "--session", view["session"], virtual=None).stdout
    assert any(
        line.split() == ["shown", "ready", "on", "node-0", "parts.Counter", "CPU"]
        for line in text.splitlines()
    ), text


MAIN = """
class Local:
    def __init__(self, n):
        self.n = n
    def twice(self):
        return Pair(self.n, self.n)

class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

class Asks(Worker):
    def ask(self):
        return muster.service(Local, "local", 100).twice().a

if __name__ == "__main__":
    svc = muster.service(Local, "local", 4)
    pair = svc.twice()
    assert isinstance(pair, Pair), type(pair)
    with Cluster("asks", Asks, worker_config=WorkerConfig(world_size=1)) as asks:
        print(pair.a, asks.workers[0].ask())
"""


def test_classes_of_the_script(tmp_path: Path) -> None:
    assert output_of(run_script(tmp_path, MAIN)).split() == ["4", "4"]
    source = (
        "import muster\nclass A:\n    def f(self): return 3\nprint(muster.service(A, 'a').f())\n"
    )
    assert output_of(run(sys.executable, "-c", source)).strip() == "3"
