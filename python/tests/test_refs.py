"""Refs, and the ways to wait for several."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakehead import DEADLINE, FakeHead

import muster
from muster import _values, _wire
from muster._client import Connection
from muster._refs import Ref, _Tally, parts_of

ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 1, None, 0, 0, 1)))


@pytest.fixture
def head() -> Iterator[FakeHead]:
    with FakeHead() as fake:
        yield fake


@pytest.fixture
def connection(head: FakeHead) -> Connection:
    return head.connect()


def start(connection: Connection, *args: Any) -> Ref:
    return connection.call(ROUTE, _values.encode_payload(args, {}, []), [])


def test_done_takes_in_what_has_arrived(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    assert not ref.done()
    head.next_call().answer(5)
    muster.wait([ref], timeout=DEADLINE)
    assert ref.done()
    assert "done" in repr(ref)
    assert muster.get(ref) == 5


def test_the_value_is_decoded_once(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    head.next_call().answer([1])
    assert muster.get(ref, DEADLINE) is muster.get(ref)


def test_what_follows_a_ref_is_done_also_where_somebody_has_taken_its_value(
    head: FakeHead, connection: Connection
) -> None:
    ref = start(connection)
    told: list[Any] = []
    ref.watch(lambda: told.append(muster.get(ref)))  # before those that follow are told
    one, two = parts_of(ref, 2)
    late = Ref(connection, 0)
    late.watch(lambda: told.append("late"))
    head.next_call().answer([1, 2])
    assert muster.get([one, two], DEADLINE) == [1, 2]
    late.follow(ref)
    assert late.done() and muster.get(late) == [1, 2] and told == [[1, 2], "late"]
    three = parts_of(ref, 3)
    assert all(part.failed() for part in three)
    with pytest.raises(muster.MusterError, match="2 values, where 3 values"):
        muster.get(three[0])


def test_an_error_is_raised_afresh_each_time(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    head.next_call().fail(message="broken", worker="w-0")
    caught = []
    for _ in range(2):
        with pytest.raises(muster.MusterError, match="broken") as info:
            muster.get(ref, DEADLINE)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert "failed" in repr(ref)


def test_get_keeps_the_shape(head: FakeHead, connection: Connection) -> None:
    refs = [start(connection) for _ in range(3)]
    calls = [head.next_call() for _ in refs]
    for number, got in reversed(list(enumerate(calls))):
        got.answer(number)
    assert muster.get(refs, DEADLINE) == [0, 1, 2]
    assert muster.get(tuple(refs)) == (0, 1, 2)
    assert muster.get([]) == []


def test_get_takes_the_same_ref_twice(head: FakeHead, connection: Connection) -> None:
    ref, other = start(connection), start(connection)
    head.next_call().answer(1)
    head.next_call().answer(2)
    assert muster.get([ref, other, ref], DEADLINE) == [1, 2, 1]


def test_get_of_several_fails_with_the_first_failure(
    head: FakeHead, connection: Connection
) -> None:
    refs = [start(connection) for _ in range(3)]
    calls = [head.next_call() for _ in refs]
    calls[1].fail(message="rank 1 raised")
    with pytest.raises(muster.MusterError, match="rank 1 raised"):
        muster.get(refs, DEADLINE)  # though the others never answer
    with pytest.raises(muster.MusterError, match="rank 1 raised"):
        muster.get(refs, DEADLINE)


def test_wait_returns_as_many_as_asked_for(head: FakeHead, connection: Connection) -> None:
    refs = [start(connection) for _ in range(3)]
    calls = [head.next_call() for _ in refs]
    calls[2].answer(2)
    assert muster.wait(refs, timeout=DEADLINE) == ([refs[2]], refs[:2])
    calls[0].answer(0)
    done, pending = muster.wait(refs, num_returns=2, timeout=DEADLINE)
    assert (done, pending) == ([refs[0], refs[2]], [refs[1]])
    assert muster.wait(refs, num_returns=3, timeout=0.01) == ([refs[0], refs[2]], [refs[1]])
    assert muster.wait(refs, num_returns=1) == ([refs[0]], [refs[1], refs[2]])


@pytest.mark.parametrize("number", [0, 4, True])
def test_wait_refuses_impossible_numbers(
    head: FakeHead, connection: Connection, number: int
) -> None:
    refs = [start(connection) for _ in range(3)]
    with pytest.raises(ValueError, match="num_returns"):
        muster.wait(refs, num_returns=number)


def test_as_completed_yields_in_the_order_of_answers(
    head: FakeHead, connection: Connection
) -> None:
    refs = [start(connection) for _ in range(3)]
    calls = [head.next_call() for _ in refs]
    order = muster.as_completed(refs, timeout=DEADLINE)
    for number in (1, 2, 0):
        calls[number].answer(number)
        assert next(order) is refs[number]
    assert list(order) == []


def test_as_completed_gives_up(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    with pytest.raises(TimeoutError, match=r"1 of the refs were not done after 0\.01 s"):
        list(muster.as_completed([ref], timeout=0.01))


def test_what_is_no_ref_is_told(head: FakeHead, connection: Connection) -> None:
    with pytest.raises(TypeError, match=r"get\(\) takes refs, not int"):
        muster.get(5)
    with pytest.raises(TypeError, match="one entry is int: 5"):
        muster.get([start(connection), 5])
    with pytest.raises(TypeError, match=r"wait\(\) takes refs"):
        muster.wait([5])  # type: ignore[list-item]


def test_the_same_call_may_count_more_than_once(head: FakeHead, connection: Connection) -> None:
    ref, other = start(connection), start(connection)
    tally = _Tally([ref, ref, other], 2, stop_at_failure=False)
    for one, watcher in tally.watchers():
        one.watch(watcher)
    head.next_call().answer(1)
    muster.get(ref, DEADLINE)
    assert tally.enough and not other.done()


def test_refs_of_ranks_are_answered_one_by_one(head: FakeHead, connection: Connection) -> None:
    refs = connection.split_call(ROUTE, _values.encode_payload((), {}, []), [], range(3))
    got = head.next_call()
    got.answer("two", rank=2)
    got.fail(rank=0, message="zero failed", worker="w-0")
    assert muster.get(refs[2], DEADLINE) == "two"
    with pytest.raises(muster.MusterError, match="zero failed"):
        muster.get(refs[0], DEADLINE)
    assert not refs[1].done()
    got.answer("one", rank=1)
    assert muster.get(refs[1], DEADLINE) == "one"
    assert not connection._pending


def test_an_error_of_the_whole_call_reaches_the_ranks_that_are_left(
    head: FakeHead, connection: Connection
) -> None:
    refs = connection.split_call(ROUTE, _values.encode_payload((), {}, []), [], range(2))
    got = head.next_call()
    got.answer("one", rank=1)
    got.fail(code="worker_died", message="w-0 died")
    assert muster.get(refs[1], DEADLINE) == "one"
    with pytest.raises(muster.WorkerDiedError):
        muster.get(refs[0], DEADLINE)


def test_cancel_asks_the_head(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    got = head.next_call()
    assert ref.cancel()
    frame = head.next_other()
    assert (frame.kind, frame.id, bytes(frame.body)) == (_wire.KIND_CANCEL, ref._id, b"\xc0")
    assert ref.cancel(kill=True)
    frame = head.next_other()
    assert (frame.kind, frame.id, bytes(frame.body)) == (_wire.KIND_CANCEL, ref._id, b"\xc3")
    got.fail(code="cancelled", message="cancelled by its caller")
    with pytest.raises(muster.CallCancelledError):
        muster.get(ref, DEADLINE)
    assert not ref.cancel()


def test_threads_wait_for_the_same_ref(head: FakeHead, connection: Connection) -> None:
    ref = start(connection)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(muster.get, ref, DEADLINE) for _ in range(4)]
        head.next_call().answer("shared")
        assert [each.result(DEADLINE) for each in waiting] == ["shared"] * 4


def test_parts_of_what_a_call_returns(head: FakeHead, connection: Connection) -> None:
    one, two = parts_of(start(connection), 2)
    got = head.next_call()
    assert not one.done() and muster.wait([one, two], timeout=0) == ([], [one, two])
    got.answer((1, [2]))
    assert muster.get([two, one], DEADLINE) == [[2], 1]
    failing = start(connection)
    early = parts_of(failing, 1)
    head.next_call().fail(message="broken")
    muster.wait([failing], timeout=DEADLINE)
    for part in (*early, *parts_of(failing, 1)):
        with pytest.raises(muster.MusterError, match="broken"):
            muster.get(part, DEADLINE)
    for value, told in (([1], "1 values"), ((1, 2, 3), "3 values"), (None, "None")):
        others = parts_of(start(connection), 2)
        head.next_call().answer(value)
        with pytest.raises(ValueError, match=f"returned {told}, where 2 values"):
            muster.get(others[0], DEADLINE)
