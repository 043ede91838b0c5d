"""Large values of any kind: they lie in shared memory, and nobody has to say so."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster import Cluster, Dispatch, PerRank, ResourceManager, Worker, register
from running import cluster, eventually, session
from stages import MIB, objects


class Large(Worker):
    """Gets, keeps, makes and passes on large values."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.kept: deque[Any] = deque()

    @register(Dispatch.ONE_TO_ALL)
    def back(self, value: Any) -> Any:
        return value

    @register(Dispatch.DP_MP_COMPUTE)
    def rows(self, rows: list[Any]) -> list[Any]:
        return [row + self.rank for row in rows]

    @register(Dispatch.DP_MP_COMPUTE)
    def same(self, rows: list[Any]) -> list[Any]:
        return rows

    @register(Dispatch.ONE_TO_ALL)
    def size(self, value: Any) -> int:
        return len(value)

    @register(Dispatch.ONE_TO_ALL)
    def total(self, value: Any) -> tuple[int, int]:
        return value.nbytes, int(value.sum())

    @register(Dispatch.ONE_TO_ALL)
    def scribble(self, value: Any) -> int:
        value[:] = self.rank
        return int(value.sum())

    @register(Dispatch.ONE_TO_ALL)
    def keep(self, value: Any, most: int) -> list[int]:
        self.kept.append(value)
        while len(self.kept) > most:
            self.kept.popleft()
        return [int(kept[0]) if (kept == kept[0]).all() else -1 for kept in self.kept]

    @register(Dispatch.ONE_TO_ALL)
    def make(self, size: int, value: int) -> Any:
        return np.full(size, value, np.uint8)

    @register(Dispatch.ONE_TO_ALL)
    def usage(self) -> tuple[int, int]:
        gc.collect()
        return usage()

    @register(Dispatch.ONE_TO_ALL)
    def ask(self, name: str, value: Any) -> Any:
        """Passes what it got to another cluster, and gives back what that says."""
        return muster.get_cluster(name).back(value)[0]

    @register(Dispatch.ONE_TO_ALL)
    def fork(self, value: Any) -> Any:
        """A child that ends as any process does gives nothing back that is its parent's."""
        pid = os.fork()
        if pid == 0:
            fine = bool((value == value[0]).all())
            del value
            gc.collect()
            os._exit(0 if fine else 1)
        assert os.waitpid(pid, 0)[1] == 0
        return value

    @register(Dispatch.ONE_TO_ALL)
    def wait(self, value: Any, folder: str) -> int:
        Path(folder, f"begun-{self.rank}").touch()
        while True:
            time.sleep(0.01)


class LargePool(Large):
    """The same on threads."""


class LargeLoop(Large):
    """The same on an event loop."""

    @register(Dispatch.ONE_TO_ALL)
    async def later(self, value: Any) -> Any:
        return value


def usage() -> tuple[int, int]:
    """Descriptors of this process, and by how much it has more mappings than it may keep: two
    of each segment, one to write by and one to read by."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    segments = sum("memfd:muster" in link for link in links)
    maps = Path("/proc/self/maps").read_text().count("memfd:muster")
    return len(links), max(0, maps - 2 * segments)


@pytest.fixture(scope="module", params=["1x2", "2x1", "2x1+relay", "2x1+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    nodes = int(request.param[0])
    with session(request.param), ResourceManager(2 // nodes, nodes) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Large, rm, name="large", device_mapping="0-1") as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "c" in request.fixturenames:
        request.getfixturevalue("c").keep(np.zeros(1), 0)
        assert eventually(lambda: not objects()), objects()


class Sample:
    """What only pickle can send."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sample) and same(self.held, other.held)

    __hash__ = None  # type: ignore[assignment]


VALUES: dict[str, Any] = {
    "array": np.arange(MIB),
    "fortran": np.asfortranarray(np.arange(MIB).reshape(1024, 1024)),
    "bytes": os.urandom(MIB),
    "nested": {"a": [np.ones(MIB), {"b": (np.zeros(MIB), b"x" * MIB)}], "small": np.arange(3)},
    "pickled": [{1: {np.float32(2): np.arange(MIB)}}, {"deep": [[[np.arange(MIB, dtype=">f4")]]]}],
    "many": [np.full(50_000, n) for n in range(60)],
    "at the limit": [bytes(256 << 10), bytes((256 << 10) - 1), np.zeros(256 << 10, np.uint8)],
    "empty": [np.zeros((0, 5)), np.zeros(MIB)],
    "text": ["ä" * MIB, {"a": ("b" * MIB, "\udc80" * MIB)}, {"k" * MIB: "short"}],
    "texts": [{"n": n, "text": str(n) * 20_000} for n in range(500)],
    "a bytearray and views": [bytearray(MIB), memoryview(bytes(MIB)), memoryview(bytearray(MIB))],
    "an object": [Sample("a" * MIB, np.arange(MIB), [b"x" * MIB])],
}


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        order = a.flags.f_contiguous == b.flags.f_contiguous
        return a.dtype == b.dtype and order and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", VALUES)
def test_there_and_back(c: Cluster, name: str) -> None:
    back = c.back(VALUES[name])
    assert len(back) == 2 and all(same(VALUES[name], value) for value in back)


def test_lists_are_cut_and_joined(c: Cluster) -> None:
    rows = [np.full(100_000, n) for n in range(7)]
    back = c.rows(rows)
    assert [int(row[0]) for row in back] == [0, 1, 2, 3, 5, 6, 7]
    for count, size in ((7, MIB), (700, 20_000)):
        texts = [chr(97 + n % 26) * size for n in range(count)]
        assert c.same(texts) == texts
    each = c.back(PerRank([np.zeros(MIB), np.ones(MIB)]))
    assert [float(value.sum()) for value in each] == [0, MIB]


def test_results_are_writable_and_ones_own(c: Cluster) -> None:
    value = np.zeros(MIB)
    one, two = c.back(value)
    one += 1
    assert not two.any() and not value.any() and float(one.sum()) == MIB
    assert c.scribble(value) == [0, MIB] and not value.any()


def test_futures_pass_large_values_on(c: Cluster) -> None:
    ref = c.make(MIB, 3, blocking=False)
    chained = c.workers[0].call("total", c.workers[1].make.remote(MIB, 5))
    assert chained == (MIB, 5 * MIB)
    assert [value[-1] for value in muster.get(ref)] == [3, 3]
    unread = [c.make(MIB, n, blocking=False) for n in range(5)]
    muster.wait(unread, num_returns=5)
    assert len(objects()) > 0
    del unread


def test_more_than_a_frame_holds(rm: ResourceManager, c: Cluster) -> None:
    size = (1 << 30) + MIB
    value = np.ones(size, np.uint8)
    assert c.workers[0].call("total", value) == (size, size)
    del value
    made = c.workers[1].call("make", size, 7)
    assert made.nbytes == size and int(made[::4096].sum()) == 7 * len(made[::4096])


def test_views_kept_over_recycles_read_their_own_bytes(c: Cluster) -> None:
    mine: deque[tuple[int, Any]] = deque()
    for step in range(120):
        assert (
            c.keep(np.full(MIB, step % 250, np.uint8), 4)
            == [[n % 250 for n in range(max(0, step - 3), step + 1)]] * 2
        )
        value = c.workers[0].call("make", MIB, step % 250)
        if step % 10 == 0:
            mine.append((step % 250, value))
    assert all((value == step).all() for step, value in mine)


def test_steps_leave_nothing_behind(c: Cluster) -> None:
    def step(n: int) -> None:
        value = np.full(4 * MIB, n % 250, np.uint8)
        assert all((back == n % 250).all() for back in c.back(value))

    def used(steps: int) -> list[tuple[int, int]]:
        for n in range(steps):
            step(n)
        gc.collect()
        return [usage(), *c.usage()]

    # The later something is given back, the more segments there are, of which each process opens
    # those that it meets: first until all have met them.
    before, now = used(10), used(50)
    for _ in range(12):
        if all(then <= fds for (fds, _), (then, _) in zip(before, now, strict=True)):
            break
        before, now = now, used(50)
    for (fds, _), (then, more) in zip(now, used(150), strict=True):
        assert then <= fds + 4 and more == 0, "not all had seen each of the few segments before"
    assert eventually(lambda: not objects()), objects()


def test_a_worker_passes_on_what_it_got(rm: ResourceManager, c: Cluster) -> None:
    with cluster(Large, rm, name="asker", device_mapping="0-1") as asker:
        for n in range(30):
            answers = asker.ask("large", np.full(MIB, n, np.uint8))
            assert [int(a[0]) for a in answers] == [n, n]
            del answers


def test_a_child_of_a_worker_gives_nothing_back(c: Cluster) -> None:
    for n in range(5):
        for value in c.fork(np.full(MIB, n, np.uint8)):
            assert (value == n).all()


def test_threads_of_a_controller(c: Cluster) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in range(10):
                value = np.full(MIB, seed * 10 + n, np.uint8)
                assert all((back == seed * 10 + n).all() for back in c.back(value))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("kind", [LargePool, LargeLoop])
def test_other_ways_to_run_calls(rm: ResourceManager, kind: type[Large]) -> None:
    extra = {"max_concurrency": 4} if kind is LargePool else {}
    with cluster(kind, rm, name="other", device_mapping="0-1", **extra) as other:
        refs = [other.back(np.full(MIB, n, np.uint8), blocking=False) for n in range(20)]
        for n, pair in enumerate(muster.get(refs)):
            assert all((value == n).all() for value in pair)
        if kind is LargeLoop:
            assert [int(v[0]) for v in other.later(np.ones(MIB, np.uint8))] == [1, 1]
        del refs, pair
        gc.collect()
        assert eventually(lambda: not objects()), objects()
        assert other.keep(np.full(MIB, 3, np.uint8), 1) == [[3], [3]]
        assert len({o["object"] for o in objects()}) == 1
        assert other.keep(np.zeros(1), 0) == [[], []]
        assert eventually(lambda: not objects()), objects()


def test_calls_that_fail_give_all_back(rm: ResourceManager, c: Cluster, tmp_path: Path) -> None:
    with pytest.raises(muster.MusterError):
        c.rows([np.ones(MIB), "no array"])
    with cluster(Large, rm, name="stuck", device_mapping="0-1") as stuck:
        with pytest.raises(muster.DeadlineError):
            stuck.wait(np.ones(MIB), str(tmp_path), timeout=1)
        with pytest.raises(muster.CallCancelledError):
            ref = stuck.wait(np.ones(MIB), str(tmp_path), blocking=False)
            ref.cancel()
            muster.get(ref)
    gc.collect()
    assert eventually(lambda: not objects()), objects()
