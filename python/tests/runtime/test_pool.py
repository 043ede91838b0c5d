"""A sync class with max_concurrency: calls on threads."""

from __future__ import annotations

import os
import signal

import pytest
from runtime.harness import Agent, Peer, Worker


@pytest.fixture
def worker(boss: Agent, line: Peer) -> Worker:
    made = boss.fork(line, "samples:Threaded", max_concurrency=3)
    made.ready()
    return made


def test_calls_run_at_once_each_with_its_number(worker: Worker) -> None:
    assert worker.description["serial"] is False
    for call in (1, 2, 3):
        worker.calls.leg(call, "meet")
    assert dict(worker.calls.result() for _ in range(3)) == {1: 1, 2: 2, 3: 3}


def test_no_more_than_the_limit(worker: Worker) -> None:
    for call in (1, 2, 3):
        worker.calls.leg(call, "spin")
    for _ in range(3):
        assert worker.line() == "spinning"
    worker.calls.leg(4, "quick", 4)
    worker.calls.leg(5, "quick", 5)
    assert worker.control.ask("cancel", {"call": 4})["state"] == "queued"
    assert worker.control.ask("cancel", {"call": 2})["state"] == "interrupted"
    answers = dict(worker.calls.result() for _ in range(3))
    assert answers[2].code == "cancelled"
    assert answers[4].code == "cancelled"
    assert answers[5].code == "tainted"
    worker.control.ask("clear", {})
    assert worker.calls.call(6, "quick", 6) == 6
    assert worker.control.ask("cancel", {"call": 6})["state"] == "done"


def test_late_cancels_hit_nothing(worker: Worker) -> None:
    for call in range(1, 201):
        worker.calls.leg(call, "quick", call)
        worker.control.post("cancel", {"call": call})
        got, value = worker.calls.result()
        worker.control.read()
        assert got == call
        if value != call:
            assert value.code in ("cancelled", "tainted"), value
        worker.control.ask("clear", {})
    assert worker.calls.call(1000, "quick", 1) == 1


def test_system_exit_in_a_thread_ends_the_process(worker: Worker) -> None:
    worker.calls.leg(1, "spin")
    assert worker.line() == "spinning"
    worker.calls.leg(2, "leave", 21)
    assert worker.exit() == 21


def test_sigterm_while_threads_run(worker: Worker) -> None:
    worker.calls.leg(1, "spin")
    assert worker.line() == "spinning"
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.exit() == 0, worker.output()


def test_sigterm_while_a_thread_starts(worker: Worker) -> None:
    worker.calls.call(1, "break_starts")
    worker.calls.leg(2, "spin")
    assert worker.line() == "spinning"
    worker.calls.leg(3, "spin")
    assert worker.exit() == 0, worker.output()
