"""Crews, services that end with their handle, and workers that are killed by one."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
import parts
import sharers
from muster import Crew, WorkerConfig, _crew
from muster._service import create
from roles import Order
from running import cluster, eventually, pool, session


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    with session("1x2"):
        yield


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert tasks() == []


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(most=2)
    yield made
    made.shutdown()


@pytest.fixture
def gate() -> Iterator[Any]:
    made = muster.service(sharers.Slow, "gate")
    yield made
    made.shutdown()


def test_functions_of_all_kinds(crew: Crew) -> None:
    offset = 3
    refs = [crew.run(sharers.square, i, plus=1) for i in range(5)]
    assert muster.get(refs) == [1, 2, 5, 10, 17]
    assert muster.get(crew.run(lambda x: x + offset, 4)) == 7
    assert muster.get(crew.run(sharers.slowly, 9)) == 9
    assert muster.get(crew.run(functools.partial(sharers.square, plus=2), 3)) == 11
    assert muster.get(crew.run(sharers.Squared(), 4)) == 16
    assert muster.get(crew.run(sharers.square, crew.run(sharers.square, 2))) == 16
    with pytest.raises(ZeroDivisionError):
        muster.get(crew.run(sharers.broken))
    assert muster.get(crew.run(max, 1, 2)) == 2  # whose signature nobody knows


def test_arguments_that_do_not_fit(crew: Crew) -> None:
    """As with methods, that is told at once, and nothing runs."""
    with pytest.raises(TypeError, match=r"square\(\) cannot be called so: .*'minus'"):
        crew.run(sharers.square, 1, minus=2)
    with pytest.raises(muster.MusterError, match="missing a required argument: 'x'"):
        crew.run(sharers.square)
    assert tasks() == []


def test_as_many_as_there_is_to_do(crew: Crew, gate: Any) -> None:
    one = muster.get(crew.run(sharers.where))
    assert muster.get(crew.run(sharers.where)) == one
    busy = [crew.run(sharers.where, gate) for _ in range(5)]
    assert not any(ref.done() for ref in busy)
    assert len(tasks()) == 2
    gate.let()
    assert len(set(muster.get(busy))) == 2
    with pytest.raises(ValueError, match="one member at least"):
        Crew(most=0)


def test_one_that_dies_is_replaced(crew: Crew) -> None:
    with pytest.raises(muster.WorkerDiedError):
        muster.get(crew.run(sharers.crash))
    assert muster.get(crew.run(sharers.square, 3)) == 9


def tasks() -> list[str]:
    return [name for name in muster.list_services() if name.startswith("task-")]


def test_what_cannot_be_sent_is_not_counted(crew: Crew, gate: Any) -> None:
    one = muster.get(crew.run(sharers.where))
    dead = gate.leave.remote()
    muster.wait([dead])
    with pytest.raises(muster.EncodingError):
        crew.run(sharers.square, threading.Lock())
    with pytest.raises(muster.WorkerDiedError, match="gate"):
        crew.run(sharers.square, dead)
    assert muster.get(crew.run(sharers.where)) == one
    devices = Crew(WorkerConfig(gpus=1))
    for given in (threading.Lock(), dead):
        with pytest.raises((muster.EncodingError, muster.WorkerDiedError)):
            devices.run(sharers.square, given)
    assert eventually(lambda: muster.nodes()[0]["free"] == 2)


def test_what_a_function_called_dies_alone(crew: Crew, gate: Any) -> None:
    one = muster.get(crew.run(sharers.where))
    with pytest.raises(muster.WorkerDiedError, match="gate"):
        muster.get(crew.run(sharers.leaves, gate))
    assert muster.get(crew.run(sharers.where)) == one
    with pytest.raises(muster.NotFoundError, match="nobody"):
        muster.get(crew.run(sharers.seeks, "nobody"))
    assert muster.get(crew.run(sharers.where)) == one


def test_others_do_not_wait_while_a_process_is_made(
    gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def make(cls: type, name: str, config: WorkerConfig) -> muster.Service:
        if tasks():
            asked.set()
            go_on.wait(30)
        return create(cls, name, config=config)

    monkeypatch.setattr(_crew, "create", make)
    crew, found = Crew(most=2), list[Any]()
    first = crew.run(sharers.where, gate)
    other = threading.Thread(target=lambda: found.append(crew.run(sharers.square, 3)))
    other.start()
    try:
        assert asked.wait(30)
        gate.let()
        one = muster.get(first)
        assert muster.get(crew.run(sharers.where)) == one
        assert not go_on.is_set() and not found
    finally:
        go_on.set()
        other.join()
        assert muster.get(found) == [9]
        crew.shutdown()


def test_one_for_all_who_ask() -> None:
    shared = Crew.shared()
    pid, _ = muster.get(shared.run(sharers.where))
    assert Crew.shared(WorkerConfig()) is shared
    assert muster.get(Crew.shared({}).run(sharers.where))[0] == pid
    with pool(1) as rm, pool(1) as other:
        several = [
            Crew.shared(WorkerConfig(resource_manager=one, gpus=0.5)) for one in (rm, other, rm)
        ]
        assert several[0] is several[2] and several[1] not in (several[0], shared)
    shared.shutdown()


def test_one_that_is_cancelled_goes_on(crew: Crew) -> None:
    pid, _ = muster.get(crew.run(sharers.where))
    ref = crew.run(sharers.spin)
    assert muster.wait([ref], timeout=0.3) == ([], [ref])
    ref.cancel()
    with pytest.raises(muster.CallCancelledError):
        muster.get(ref)
    assert muster.get(crew.run(sharers.where))[0] == pid


def test_gpus_are_given_back(gate: Any) -> None:
    crew = Crew(WorkerConfig(gpus=1))
    busy = [crew.run(sharers.where, gate) for _ in range(4)]
    assert [node["free"] for node in muster.nodes()] == [0]
    gate.let()
    assert {visible for _, visible in muster.get(busy)} == {"0", "1"}
    assert eventually(lambda: muster.nodes()[0]["free"] == 2)


def test_a_service_ends_with_its_handle(gate: Any) -> None:
    def there() -> bool:
        gc.collect()
        return "held" in muster.list_services()

    held = muster.service(sharers.Slow, "held", 1).end_with_handle()
    ref = held.add.remote(1)
    del held
    assert there()  # it has a call to answer
    muster.get_service("held").let()
    assert muster.get(ref) == 2
    del ref
    assert eventually(lambda: not there())
    sent = muster.service(sharers.Slow, "held", 1).end_with_handle()
    gate.let()
    muster.get(gate.awaited.remote([muster.put([sent])]))
    del sent
    assert there() and there()
    muster.get_service("held").shutdown()


def test_a_service_ends_while_only_calls_are_made(gate: Any) -> None:
    def held() -> tuple[Any, int]:
        made = muster.service(parts.Counter, "held").end_with_handle()
        return made, made.call("pid")

    one, pid = held()
    del one
    gc.collect()
    gate.let()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    one, pid = held()
    ref = one.add.remote()
    del one
    gc.collect()
    assert muster.get(ref) == 1  # and with it the last that holds the handle is gone
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_process_that_is_killed() -> None:
    config = {"on_failure": "restart_worker"}
    with pool() as rm, cluster(Order, rm, name="order", world_size=2, **config) as made:
        pid = made.workers[1].pid
        made.workers[1].kill_process()
        assert made.workers[1].note(1) == 1
        assert made.workers[1].pid != pid
        assert muster.get_worker("order-1") == made.workers[1]
        made.workers[1].kill_process(final=True, why="the test")
        with pytest.raises(muster.WorkerDiedError, match="the test, by the script"):
            made.workers[1].note(2)
        assert made.workers[0].note(3) == 3
        assert muster.get_worker("order-0").note(4) == 4
        for name in ("order-1", "order-2", "order", "other-0"):
            with pytest.raises(LookupError, match="no living worker"):
                muster.get_worker(name)
    made.workers[0].kill_process()  # all of it has ended


def test_a_name_that_is_taken() -> None:
    svc = muster.service(parts.Counter, "taken")
    with pytest.raises(muster.NameTakenError):
        muster.service(parts.Counter, "taken", get_or_create=False)
    svc.shutdown()
