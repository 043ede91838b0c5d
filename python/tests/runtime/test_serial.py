"""A sync class: calls on the main thread, one after the other."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from runtime.harness import Agent, Failure, Informed, Peer, Worker

from muster import _errors, _values, _wire


@pytest.fixture
def worker(boss: Agent, line: Peer) -> Worker:
    made = boss.fork(line, "samples:Plain")
    made.ready()
    return made


def test_describes_itself(worker: Worker) -> None:
    assert worker.description["class"] == "samples.Plain"
    assert worker.description["serial"] is True
    assert worker.description["doc"] == "A sync class."
    methods = {m["name"]: m for m in worker.description["methods"]}
    assert methods["train"] == {
        "name": "train",
        "registered": True,
        "dispatch": "DP_MP_COMPUTE",
        "execute": "ALL",
        "collective": True,
        "idempotent": False,
        "on_timeout": "kill",
        "async": False,
        "params": [
            {"name": "rows", "kind": 0, "default": False},
            {"name": "rest", "kind": 2, "default": False},
            {"name": "flag", "kind": 3, "default": False},
            {"name": "other", "kind": 3, "default": True},
            {"name": "more", "kind": 4, "default": False},
        ],
        "custom": b"",
    }
    assert {"static", "named", "facts", "load_states"} <= set(methods)
    assert not {"not_a_method", "_private", "__init__"} & set(methods)
    assert methods["facts"]["registered"] is False


def test_calls_and_values(worker: Worker) -> None:
    calls = worker.calls
    assert calls.call(1, "add", 1, b=5) == 6
    assert calls.call(2, "static", 4) == 8
    assert calls.call(3, "named") == "Plain"
    assert calls.call(4, "which_call") == 4
    assert np.array_equal(calls.call(5, "array", 300_000), np.arange(300_000))
    assert calls.call(6, "total", np.zeros(1 << 20, dtype=np.int64)) == 1 << 20


def test_many_in_flight_are_answered_in_order(worker: Worker) -> None:
    for call in range(1, 101):
        worker.calls.leg(call, "add", call)
    for call in range(1, 101):
        assert worker.calls.result() == (call, call + 1)


def test_a_users_exception(worker: Worker) -> None:
    failure = worker.calls.call(1, "fail")
    assert isinstance(failure, Failure)
    assert failure.code == "user"
    assert (failure["worker"], failure["node"], failure["rank"]) == ("actor-0", "node-0", 0)
    assert (failure["cluster"], failure["method"]) == ("actor", "fail")
    assert "samples.py" in failure["traceback"]
    assert "CustomError: on purpose" in failure["traceback"]
    assert "serial.py" not in failure["traceback"]
    assert worker.calls.call(2, "add", 1) == 2


def test_keyboard_interrupt_is_the_users(worker: Worker) -> None:
    failure = worker.calls.call(1, "interrupt")
    assert (failure.code, "KeyboardInterrupt" in failure.message) == ("user", True)
    os.kill(worker.pid, signal.SIGINT)
    assert worker.calls.call(2, "add", 1) == 2


def test_unknown_method(worker: Worker) -> None:
    failure = worker.calls.call(1, "trian")
    assert failure.code == "not_found"
    assert "did you mean 'train'?" in failure.message
    assert isinstance(_errors.from_wire(failure), AttributeError)
    assert worker.calls.call(2, "_private").code == "not_found"


def test_a_result_that_cannot_be_encoded(worker: Worker) -> None:
    failure = worker.calls.call(1, "unencodable")
    assert failure.code == "encoding"
    assert "unencodable on actor-0" in failure.message
    assert "'deep'" in failure.message and "lock" in failure.message
    assert worker.calls.call(2, "add", 1) == 2


def test_a_result_over_the_limit(worker: Worker) -> None:
    failure = worker.calls.call(1, "huge")
    assert failure.code == "too_large"
    assert "huge on actor-0" in failure.message
    assert worker.calls.call(2, "add", 1) == 2


def test_arguments_that_cannot_be_decoded(worker: Worker) -> None:
    bufs: list[object] = []
    body = _values.encode(["add", 0, 1, [[_Local()], {}]], bufs)
    _wire.send_frame(
        worker.calls.sock, _wire.KIND_LEG, 1, body.replace(b"test_serial", b"test_gone_x"), bufs
    )
    _, failure = worker.calls.result()
    assert failure.code == "encoding"
    assert "arguments of add" in failure.message
    assert worker.calls.call(2, "add", 1) == 2


class _Local:
    pass


def test_rank_info_is_told_when_it_changes(worker: Worker) -> None:
    changed = worker.calls.call(1, "relayout", True)
    assert isinstance(changed, Informed)
    assert changed.info["dp_rank"] == 5
    assert not isinstance(worker.calls.call(2, "relayout", True), Informed)
    replaced = worker.calls.call(3, "relayout", False)
    assert (replaced.info["tp_size"], replaced.info["dp_rank"]) == (2, 0)
    assert worker.calls.call(4, "add", 1) == 2


def test_rank_info_that_is_none_fails_the_call_that_set_it(worker: Worker) -> None:
    failure = worker.calls.call(1, "bad_layout")
    assert failure.code == "layout"
    assert "bad_layout on actor-0" in failure.message
    assert worker.calls.call(2, "add", 1) == 2


def test_system_exit_ends_the_process_with_its_code(worker: Worker) -> None:
    worker.calls.leg(1, "leave", 17)
    assert worker.exit() == 17
    assert worker.output() == "finally ran\natexit ran\n"
    with pytest.raises(EOFError):
        worker.calls.read()


def test_sigterm_runs_finally(worker: Worker) -> None:
    worker.calls.leg(1, "sleep", 60)
    assert worker.line() == "sleeping"
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.exit() == 0


def test_sigterm_that_a_method_catches_ends_the_worker_after_it(worker: Worker) -> None:
    worker.calls.leg(1, "stubborn")
    assert worker.line() == "stubborn"
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.calls.result() == (1, "caught it")
    assert worker.exit() == 0


def test_a_signal_that_comes_as_the_worker_waits_for_calls_ends_it(worker: Worker) -> None:
    worker.calls.leg(1, "signalled_as_it_waits")
    assert worker.exit() == 0


@pytest.mark.parametrize("end", ["signal", "notice"])
def test_an_end_that_comes_as_a_method_goes_to_sleep(worker: Worker, end: str) -> None:
    worker.calls.leg(1, "sleep_when_signalled")
    assert worker.line() == "sleeping"
    if end == "signal":
        os.kill(worker.pid, signal.SIGTERM)
    else:
        worker.control.send(_wire.KIND_NOTICE, 0, ["shutdown", {}])
    assert worker.exit() == 0


def test_shutdown_by_the_agent(worker: Worker) -> None:
    worker.control.send(_wire.KIND_NOTICE, 0, ["shutdown", {}])
    assert worker.exit() == 0


def test_end_of_the_control_connection_ends_a_busy_worker(worker: Worker) -> None:
    worker.calls.leg(1, "sleep", 60)
    assert worker.line() == "sleeping"
    worker.control.sock.close()
    assert worker.exit() == 1


def test_ping_while_busy(worker: Worker) -> None:
    worker.calls.leg(1, "sleep", 60)
    assert worker.line() == "sleeping"
    assert worker.control.ask("ping", {}) == {}
    assert worker.control.ask("dance", {})["error"]["code"] == "protocol"
