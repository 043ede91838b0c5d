"""Refs as futures of the standard library: filled whether or not anybody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fakehead import DEADLINE, FakeHead, Session, cluster_info, method, param

import muster


@pytest.fixture
def head() -> Iterator[FakeHead]:
    fake = FakeHead()
    info = cluster_info("actor", 1, method("step", "", param("x")))
    fake.verbs = {"cluster.describe": lambda _: info}
    with Session(fake):
        yield fake


def test_a_value_an_error_and_a_callback(head: FakeHead) -> None:
    worker = muster.get_cluster("actor").workers[0]
    futures = [worker.step.remote(n).future() for n in range(3)]
    calls = [head.next_call() for _ in range(3)]
    calls[2].answer("two")
    assert futures[2].result(DEADLINE) == "two"
    assert not futures[0].done()
    calls[0].fail(message="no")
    with pytest.raises(muster.MusterError, match="no"):
        futures[0].result(DEADLINE)
    calls[1].answer("one")
    assert asyncio.run(_awaited(futures[1])) == "one"


async def _awaited(future: object) -> object:
    return await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE)  # type: ignore[arg-type]


def test_beside_one_who_waits(head: FakeHead) -> None:
    worker = muster.get_cluster("actor").workers[0]
    ref = worker.step.remote(1)
    future = ref.future()
    head.next_call().answer("both")
    assert muster.get(ref, timeout=DEADLINE) == "both"
    assert future.result(DEADLINE) == "both"
    assert ref.future().result(DEADLINE) == "both"
