"""Cancelling calls: queued, running, done; and what a worker is good for after."""

from __future__ import annotations

import pytest
from runtime.harness import Agent, Peer, Worker


@pytest.fixture
def worker(boss: Agent, line: Peer) -> Worker:
    made = boss.fork(line, "samples:Plain")
    made.ready()
    return made


def cancel(worker: Worker, call: int) -> str:
    return str(worker.control.ask("cancel", {"call": call})["state"])


def test_a_running_call_is_interrupted_and_taints(worker: Worker) -> None:
    worker.calls.leg(1, "sleep", 60)
    assert worker.line() == "sleeping"
    assert cancel(worker, 1) == "interrupted"
    call, failure = worker.calls.result()
    assert (call, failure.code) == (1, "cancelled")
    tainted = worker.calls.call(2, "add", 1)
    assert tainted.code == "tainted"
    assert "actor-0" in tainted.message and "call 1" in tainted.message
    assert worker.control.ask("clear", {}) == {}
    assert worker.calls.call(3, "add", 1) == 2


def test_a_queued_call_never_begins(worker: Worker) -> None:
    worker.calls.leg(1, "sleep", 0.2)
    worker.calls.leg(2, "note", "never")
    worker.calls.leg(3, "note", "third")
    assert worker.line() == "sleeping"
    assert cancel(worker, 2) == "queued"
    assert worker.calls.result() == (1, "slept")
    call, failure = worker.calls.result()
    assert (call, failure.code) == (2, "cancelled")
    assert worker.calls.result() == (3, ["sleeping", "third"])  # and no taint


def test_a_call_that_has_not_come_yet(worker: Worker) -> None:
    assert cancel(worker, 1) == "queued"
    assert worker.calls.call(1, "note", "never").code == "cancelled"
    assert worker.calls.call(2, "note", "second") == ["second"]


def test_a_call_that_is_done(worker: Worker) -> None:
    assert worker.calls.call(1, "add", 1) == 2
    assert cancel(worker, 1) == "done"
    assert worker.calls.call(2, "add", 1) == 2


def test_a_method_that_catches_the_interrupt(worker: Worker) -> None:
    worker.calls.leg(1, "stubborn")
    assert worker.line() == "stubborn"
    assert cancel(worker, 1) == "interrupted"
    assert worker.calls.result() == (1, "caught it")
    assert worker.calls.call(2, "add", 1).code == "tainted"


def test_a_cancel_that_comes_as_the_method_goes_to_sleep(worker: Worker) -> None:
    worker.calls.leg(1, "sleep_when_signalled")
    assert worker.line() == "sleeping"
    assert cancel(worker, 1) == "interrupted"
    call, failure = worker.calls.result()
    assert (call, failure.code) == (1, "cancelled")


def test_late_cancels_hit_nothing(worker: Worker) -> None:
    """Cancels race with quick calls: each call is answered, and only by its own fate."""
    for call in range(1, 301):
        worker.calls.leg(call, "add", call)
        ident = worker.control.post("cancel", {"call": call})
        got, value = worker.calls.result()
        frame = worker.control.read()
        assert (got, frame.id) == (call, ident)
        if value != call + 1:
            assert value.code in ("cancelled", "tainted"), value
            worker.control.ask("clear", {})
    assert worker.calls.call(1000, "add", 1) == 2
