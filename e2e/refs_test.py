"""Futures, sync and in event loops, with threads and with several loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import muster
from muster import Cluster, ResourceManager
from roles import Gate, Loop, Order
from running import cluster, session


@pytest.fixture(scope="module", params=["1x8", "2x4+relay", "2x4+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    nodes = int(request.param[0])
    with session(request.param), ResourceManager(8 // nodes, nodes) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    """Four ranks; gates open and close from the side, so nothing depends on time."""
    with cluster(Gate, rm, name="gate", world_size=4, max_concurrency=8) as made:
        yield made


@pytest.fixture
def shut(c: Cluster) -> Iterator[Cluster]:
    """The same with its gates closed; they are opened afterwards."""
    c.close()
    yield c
    c.open()


def test_done_and_get_twice(shut: Cluster) -> None:
    ref = shut.through(1, blocking=False)
    assert ref.done() is False
    shut.open()
    assert muster.get(ref) == [1, 1, 1, 1]
    assert ref.done() is True
    assert muster.get(ref) == [1, 1, 1, 1]
    assert muster.get([ref, ref]) == [[1, 1, 1, 1]] * 2


def test_get_a_list_and_a_tuple_and_nothing(c: Cluster) -> None:
    refs = [c.through(i, blocking=False) for i in range(5)]
    assert muster.get(refs) == [[i] * 4 for i in range(5)]
    assert list(muster.get(tuple(refs))) == [[i] * 4 for i in range(5)]
    assert muster.get([]) == []
    with pytest.raises(TypeError):
        muster.get(5)


def test_an_error_each_time(c: Cluster) -> None:
    ref = c.fail("gone wrong", blocking=False)
    for _ in range(3):
        with pytest.raises(LookupError, match="gone wrong") as caught:
            muster.get(ref)
        assert isinstance(caught.value, muster.MusterError)
    assert ref.done()


def test_get_with_a_timeout(shut: Cluster) -> None:
    ref = shut.through(1, blocking=False)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        muster.get(ref, timeout=0.3)
    assert 0.2 < time.monotonic() - began < 10
    assert isinstance(caught.value, muster.MusterError)


def test_wait(shut: Cluster) -> None:
    slow = [shut.through(i, blocking=False) for i in range(2)]
    fast = [shut.fast(i, blocking=False) for i in range(2)]
    done, pending = muster.wait([*slow, *fast], num_returns=2, timeout=30)
    assert (done, pending) == (fast, slow)
    done, pending = muster.wait(slow, timeout=0.1)
    assert (done, pending) == ([], slow)
    shut.open()
    assert muster.wait(slow, num_returns=2, timeout=30) == (slow, [])


def test_as_completed(shut: Cluster) -> None:
    slow = shut.through("slow", blocking=False)
    fast = shut.fast("fast", blocking=False)
    failed = shut.fail("failed", blocking=False)
    muster.wait([failed])
    order = muster.as_completed([slow, fast, failed], timeout=30)
    assert {next(order), next(order)} == {fast, failed}
    shut.open()
    assert list(order) == [slow]


def test_as_completed_with_a_timeout(shut: Cluster) -> None:
    with pytest.raises(TimeoutError):
        list(muster.as_completed([shut.through(1, blocking=False)], timeout=0.1))


def test_cancel_a_coroutine(rm: ResourceManager) -> None:
    """A loop's task is cancelled, and the worker is as good as before."""
    with cluster(Loop, rm, name="loop", world_size=2) as loop:
        ref = loop.wait_for_it(blocking=False)
        assert loop.execute_all_sync("sync_one") == [0, 1]  # it is inside by now
        assert ref.cancel()
        with pytest.raises(muster.MusterError, match="cancel"):
            muster.get(ref, timeout=30)
        assert ref.done()
        assert loop.execute_all_sync("sync_one", timeout=30) == [0, 1]


def test_cancel_before_it_began(rm: ResourceManager) -> None:
    with cluster(Order, rm, name="order", world_size=1) as order:
        first = order.execute_rank_zero_async("linger", 0.5)
        queued = order.note("never", blocking=False)
        after = order.note("after", blocking=False)
        assert queued.cancel()
        with pytest.raises(muster.MusterError, match="cancel"):
            muster.get(queued)
        assert muster.get([first, after], timeout=30) == [None, ["after"]]
        assert order.execute_rank_zero_sync("noted") == ["after"]


def test_cancel_what_runs_in_the_main_thread(rm: ResourceManager) -> None:
    with cluster(Order, rm, name="order", world_size=1) as order:
        ref = order.execute_rank_zero_async("linger", 60)
        began = time.monotonic()
        assert ref.cancel()
        with pytest.raises(muster.MusterError, match="cancel"):
            muster.get(ref, timeout=30)
        assert time.monotonic() - began < 10


def test_cancel_after_the_answer(c: Cluster) -> None:
    ref = c.fast(1, blocking=False)
    muster.get(ref)
    assert not ref.cancel()
    assert muster.get(ref) == [1] * 4


def test_execute_all_async_has_a_ref_a_rank(shut: Cluster) -> None:
    refs = shut.execute_all_async("rank_waits", 2)
    done, pending = muster.wait(refs, num_returns=3, timeout=30)
    assert (done, pending) == ([refs[0], refs[1], refs[3]], [refs[2]])
    shut.open()
    assert muster.get(refs) == [0, 1, 2, 3]


def test_one_rank_fails_and_the_others_answer(c: Cluster) -> None:
    refs = c.execute_all_async("rank_fails", 2)
    assert [muster.get(refs[r]) for r in (0, 1, 3)] == [0, 1, 3]
    with pytest.raises(ValueError, match="rank 2"):
        muster.get(refs[2])
    with pytest.raises(ValueError, match="rank 2"):
        muster.get(refs)


def test_await(c: Cluster) -> None:
    async def main() -> Any:
        assert await c.fast(1, blocking=False) == [1] * 4
        assert await c.execute_rank_zero_async("fast", 2) == 2
        return await asyncio.gather(*c.execute_all_async("fast", 3))

    assert asyncio.run(main()) == [3] * 4


def test_await_an_error(c: Cluster) -> None:
    async def main() -> None:
        with pytest.raises(LookupError, match="gone wrong"):
            await c.fail("gone wrong", blocking=False)

    asyncio.run(main())


def test_gather_while_the_loop_runs_on(shut: Cluster) -> None:
    async def opens() -> None:
        await shut.open(blocking=False)

    async def main() -> Any:
        ticks = 0
        waiting = asyncio.gather(*[shut.through(i, blocking=False) for i in range(3)])
        while ticks < 5:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not waiting.done()
        await opens()
        return await asyncio.wait_for(waiting, 30)

    assert asyncio.run(main()) == [[0] * 4, [1] * 4, [2] * 4]


def test_sync_calls_inside_a_running_loop(c: Cluster) -> None:
    async def main() -> None:
        pending = c.fast("future", blocking=False)
        assert c.fast("sync") == ["sync"] * 4
        assert muster.get(c.fast("get", blocking=False)) == ["get"] * 4
        assert await pending == ["future"] * 4

        async def inner(i: int) -> Any:
            return c.fast(i), await c.fast(i, blocking=False)

        got = await asyncio.gather(*[inner(i) for i in range(10)])
        assert got == [([i] * 4, [i] * 4) for i in range(10)]

    asyncio.run(main())


def test_several_loops_one_after_another(c: Cluster) -> None:
    left_over = c.fast("before", blocking=False)
    for i in range(5):

        async def main(i: int = i) -> Any:
            return await c.fast(i, blocking=False)

        assert asyncio.run(main()) == [i] * 4

    async def last() -> Any:
        return await left_over

    assert asyncio.run(last()) == ["before"] * 4


def test_a_ref_made_in_one_loop_and_awaited_in_the_next(shut: Cluster) -> None:
    async def make() -> Any:
        ref = shut.through("over", blocking=False)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_of(ref), 0.05)
        return ref

    async def _of(ref: Any) -> Any:
        return await ref

    ref = asyncio.run(make())
    shut.open()
    assert asyncio.run(_of(ref)) == ["over"] * 4


def test_threads(c: Cluster) -> None:
    def work(n: int) -> Any:
        return [c.fast((n, i)) for i in range(25)]

    with ThreadPoolExecutor(8) as pool:
        for n, got in enumerate(pool.map(work, range(8))):
            assert got == [[(n, i)] * 4 for i in range(25)]


def test_threads_and_loops_together(c: Cluster) -> None:
    failures: list[BaseException] = []

    def looping(n: int) -> None:
        async def main() -> None:
            for i in range(10):
                got = await asyncio.gather(
                    c.fast((n, i), blocking=False), c.execute_rank_zero_async("fast", i)
                )
                assert list(got) == [[(n, i)] * 4, i]

        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    def plain(n: int) -> None:
        try:
            for i in range(25):
                assert c.fast((n, i)) == [(n, i)] * 4
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=target, args=(n,)) for n in range(4) for target in (looping, plain)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_many_refs_that_nobody_asks(c: Cluster) -> None:
    for i in range(300):
        c.fast(i, blocking=False)
    assert c.fast("after") == ["after"] * 4


def test_a_future_of_a_failed_call_as_argument(c: Cluster) -> None:
    with pytest.raises(LookupError, match="first cause"):
        c.fast(c.fail("first cause", blocking=False))
