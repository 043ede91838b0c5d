"""A class with coroutines: calls side by side on the main thread's event loop."""

from __future__ import annotations

import os
import signal
from time import monotonic

import numpy as np
import pytest
from runtime.harness import DEADLINE, Agent, Peer, Worker

from muster import _wire


@pytest.fixture
def worker(boss: Agent, line: Peer) -> Worker:
    made = boss.fork(line, "samples:Async")
    made.ready()
    return made


def test_coroutines_run_side_by_side(worker: Worker) -> None:
    assert worker.description["serial"] is False
    for call in (1, 2, 3):
        worker.calls.leg(call, "wait")
    worker.calls.leg(4, "open")
    answers = dict(worker.calls.result() for _ in range(4))
    # The sync call did not overtake the coroutines that came before it.
    assert answers == {1: 1, 2: 2, 3: 3, 4: ["wait", "wait", "wait", "open"]}


def test_tasks_tell_where_coroutines_wait(worker: Worker) -> None:
    assert worker.control.ask("tasks", {})["text"] == ""
    worker.calls.leg(7, "forever")
    assert worker.line() == "forever"
    lines: list[str] = []
    until = monotonic() + DEADLINE
    while len(lines) < 3 and monotonic() < until:  # it may not have come to wait yet
        lines = worker.control.ask("tasks", {})["text"].splitlines()
    title, innermost, outermost = lines
    assert title == "task call 7 forever (most recent call first):"
    assert innermost.startswith('  File "') and innermost.endswith(" in sleep")
    assert outermost.endswith(" in forever") and "samples.py" in outermost


def test_a_limit_of_one_is_serial(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Async", max_concurrency=1)
    worker.ready()
    assert worker.description["serial"] is True
    worker.calls.leg(1, "forever")
    worker.calls.leg(2, "echo", "second")
    assert worker.line() == "forever"
    assert worker.control.ask("cancel", {"call": 1})["state"] == "loop"
    assert worker.calls.result()[1].code == "cancelled"
    assert worker.calls.result() == (2, "second")


def test_cancel_does_not_taint(worker: Worker) -> None:
    worker.calls.leg(1, "forever")
    assert worker.line() == "forever"
    assert worker.control.ask("cancel", {"call": 1})["state"] == "loop"
    call, failure = worker.calls.result()
    assert (call, failure.code) == (1, "cancelled")
    assert worker.line() == "cleaned up"
    assert worker.calls.call(2, "echo", 1) == 1
    assert worker.control.ask("cancel", {"call": 2})["state"] == "done"
    assert worker.control.ask("cancel", {"call": 3})["state"] == "queued"
    assert worker.calls.call(3, "echo", 1).code == "cancelled"


def test_a_sync_method_that_blocks_the_loop_is_interrupted(worker: Worker) -> None:
    worker.calls.leg(1, "block")
    assert worker.line() == "blocking"
    assert worker.control.ask("cancel", {"call": 1})["state"] == "interrupted"
    assert worker.calls.result()[1].code == "cancelled"
    assert worker.calls.call(2, "echo", 1).code == "tainted"
    worker.control.ask("clear", {})
    assert worker.calls.call(3, "echo", 1) == 1


def test_errors_and_unknown_methods(worker: Worker) -> None:
    failure = worker.calls.call(1, "fail")
    assert (failure.code, failure["method"]) == ("user", "fail")
    assert "in a loop" in failure["traceback"]
    assert worker.calls.call(2, "ecko", 1).code == "not_found"
    assert worker.calls.call(3, "cancels_itself").code == "user"
    assert worker.calls.call(4, "hands_out", 5) == 5


@pytest.mark.parametrize("method", ["fail_with", "fail_inline_with"])
def test_what_failed_is_not_kept(worker: Worker, method: str) -> None:
    worker.calls.leg(1, method, np.zeros(4))
    assert worker.calls.result()[1].code == "user"
    assert worker.calls.call(2, "forgotten"), "without the garbage collector's help"


def test_system_exit_in_a_coroutine(worker: Worker) -> None:
    worker.calls.leg(1, "forever")
    assert worker.line() == "forever"
    worker.calls.leg(2, "leave", 19)
    assert worker.exit() == 19
    assert worker.output() == "cleaned up\n"
    with pytest.raises(EOFError):  # its end is what both callers hear of, not a CancelledError
        worker.calls.read()


@pytest.mark.parametrize("method", ["forever", "forever_and_a_bit"])
def test_sigterm_lets_coroutines_clean_up(worker: Worker, method: str) -> None:
    worker.calls.leg(1, method)
    assert worker.line() == "forever"
    assert worker.calls.call(2, "echo", 2) == 2  # it has come to wait by now
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.exit() == 0
    assert worker.output() == "cleaned up\n"


def test_a_big_reply_does_not_block_the_loop(worker: Worker) -> None:
    worker.calls.leg(1, "big", 32 << 20)  # nobody reads it
    worker.calls.leg(2, "forever")
    assert worker.line() == "forever"
    call, value = worker.calls.result()
    assert (call, len(value), int(np.sum(value))) == (1, 32 << 20, 0)
    assert worker.calls.call(3, "echo", 1) == 1


def test_shutdown_by_the_agent(worker: Worker) -> None:
    worker.control.send(_wire.KIND_NOTICE, 0, ["shutdown", {}])
    assert worker.exit() == 0


def test_a_signal_that_comes_as_the_loop_goes_to_sleep_ends_it(worker: Worker) -> None:
    worker.calls.leg(1, "signalled_as_it_waits")
    assert worker.exit() == 0
