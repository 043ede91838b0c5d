"""Leases of objects in a store: how long bytes stay as they are, and what is left behind."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakestore import POISON, Stores

from muster import _errors, _leases, _objects, _store, _wire
from muster._objects import Stored
from muster._sources import Inline, Source

SIZE = 1 << 20


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores() as made:
        yield made


def put(seed: int, size: int = SIZE, what: str = "a test") -> Stored:
    """An object of the numbers that a seed gives."""
    source = _store.place(size, lambda out: np.copyto(out, content(seed, size)), what)
    assert isinstance(source, Stored)
    return source


def content(seed: int, size: int = SIZE) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def publish(source: Stored) -> int:
    """As if the head had been told of it: it is the head's to free from now on."""
    line = object()
    (reference,) = _objects.name([source], source.right.ledger, line, [])
    assert reference.new
    return source.right.object


def received(number: int, size: int = SIZE) -> Stored:
    """The object as it comes in a frame."""
    bufs: list[Any] = [_wire.Reference(number, 0, size)]
    ledger = _objects.ledger()
    assert ledger is not None
    _objects.claim(bufs, ledger)
    stored = bufs[0]
    assert isinstance(stored, Stored)
    return stored


def lent(source: Stored, stretches: int = 1) -> list[Stored]:
    """The object as it comes with a leg, in so many stretches."""
    ledger, account = _objects.ledger(), source.right.account
    assert ledger is not None
    size = source.nbytes // stretches
    bufs: list[Any] = [
        _wire.Reference(account.object, i * size, size, False, account.segment)
        for i in range(stretches)
    ]
    _objects.claim(bufs, ledger, leg=True)
    return bufs


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    """How many mappings of memfds there are."""
    return Path("/proc/self/maps").read_text().count("memfd:fake-store")


def test_what_is_put_is_read(stores: Stores) -> None:
    source = put(1)
    assert source.nbytes == SIZE and np.array_equal(source.root(), content(1))
    made = stores.store.objects[source.right.object]
    stores.store.wait_for(lambda: made.what == "a test")
    assert stores.store.clients[0].hello["holder"] == 1 << 32 | 5


def test_small_content_and_content_without_a_session_ride_in_frames(stores: Stores) -> None:
    small = _store.place(_store.INLINE - 1, lambda out: out.fill(3), "small")
    _objects.use(None)
    large = _store.place(SIZE, lambda out: out.fill(4), "large")
    for source, value in ((small, 3), (large, 4)):
        assert isinstance(source, Inline) and source.device_address() is None
        assert bytes(source.buffer()) == bytes([value]) * source.nbytes
        source.root()[0] = 9
    assert not stores.store.clients


def test_views_kept_over_recycles_read_their_own_bytes(stores: Stores) -> None:
    """Each step makes an object where one of a step before lay, if that is free."""
    chance = random.Random(3)
    kept: list[tuple[int, Any]] = []
    for step in range(300):
        number = publish(put(step))
        source = received(number)
        array: Any = source.root()
        stores.store.drop(number)
        del source
        if step % 3 == 0:
            kept.append((step, array[64:].view(np.uint32)[::2].reshape(2, -1)))
        del array
        if len(kept) > 20:
            kept.pop(chance.randrange(len(kept)))
    for seed, array in kept:
        expected = content(seed)[64:].view(np.uint32)[::2].reshape(2, -1)
        assert np.array_equal(array, expected)
    assert len(stores.store.segments) < 30, "segments are used again"


def test_what_came_with_a_leg_is_read_without_asking(stores: Stores) -> None:
    made = put(5)
    publish(made)
    (mine,), (other,) = lent(made), lent(made)
    one, two = mine.root(), other.root()
    assert np.array_equal(one, content(5)) and mine.root() is one
    one[:] = 0
    two[5] += 1
    assert two[6] == content(5)[6] and not one.any()
    (first, second), kept = lent(made, 2), mappings()
    halves = [np.frombuffer(view, np.uint8) for view in _objects.views([first, second])]
    assert np.array_equal(np.concatenate(halves), content(5)) and mappings() == kept + 1
    halves[0][0] ^= 1
    again = first.root()
    assert again[0] == content(5)[0], "a view of its own, while the first is held"
    assert not stores.store.views()
    del again, halves
    whole = _objects.views([first, second])
    assert bytes(whole[0]) + bytes(whole[1]) == content(5).tobytes(), (
        "a new view shows what was put"
    )
    del one, two, whole
    assert np.array_equal(mine.root(), content(5))
    del mine, other, first, second
    (fresh,) = lent(made)
    assert np.array_equal(fresh.root(), content(5)), "and so does the next leg"
    del fresh
    assert stores.ledger.given_back == [(made.right.object, 1)] * 4
    assert not stores.store.views()


def test_what_was_lent_stays_good_when_the_session_is_over(stores: Stores) -> None:
    made = put(6)
    publish(made)
    (mine,) = lent(made)
    view = mine.root()
    del made, mine
    stores.ledger.retire()
    assert np.array_equal(view, content(6)) and mappings()
    del view
    assert not mappings()


def test_writes_are_local_and_end_with_the_view(stores: Stores) -> None:
    number = publish(put(5))
    mine, other = received(number), received(number)
    one = mine.root()
    one[:] = 0
    two = other.root()
    assert np.array_equal(two, content(5)), "what came in another frame has its own"
    two[5] += 1
    assert not one.any() and one is mine.root()
    del one, two
    again = mine.root()
    assert np.array_equal(again, content(5)), "a new view shows what was put"
    del again
    stores.store.drop(number)
    fresh = put(6)
    assert np.array_equal(fresh.root(), content(6)), "and nothing shows in the next object"


def test_a_lease_lasts_as_long_as_anything_made_over_the_bytes(stores: Stores) -> None:
    store = stores.store
    number = publish(put(7))
    source: Source | None = received(number)
    assert source is not None
    root: Any = source.root()
    store.drop(number)
    holders: list[Any] = [
        root[10:20],
        memoryview(root)[100:],
        np.frombuffer(root, ">i4")[1::7],
        root.reshape(2, -1).T,
        np.lib.stride_tricks.sliding_window_view(root, 4),
        np.ctypeslib.as_ctypes(root),
    ]
    source = root = None
    while holders:
        assert store.views() == 1
        holders.pop()
    store.wait_for(lambda: store.views() == 0 and number not in store.objects)


def test_steps_leave_nothing_behind(stores: Stores) -> None:
    """1,000 steps of a maker and a reader: descriptors, mappings and memory stay flat."""

    def step(seed: int) -> None:
        number = publish(put(seed, SIZE))
        array = received(number).root()
        array[7] += 1
        stores.store.drop(number)

    for seed in range(20):
        step(seed)
    gc.collect()
    before = descriptors(), mappings(), len(stores.store.segments)
    for seed in range(1000):
        step(seed % 50)
    gc.collect()
    assert (descriptors(), mappings(), len(stores.store.segments)) == before
    stores.store.wait_for(lambda: not stores.store.objects)


def test_segments_that_are_given_up_are_unmapped_and_closed(stores: Stores) -> None:
    store = stores.store
    kept = publish(put(0, SIZE))  # a second segment, of another size
    for seed in range(5):
        number = publish(put(seed, 8 * SIZE))
        endings: list[int] = []
        at = received(number).device_address()
        assert at is not None
        at[2].at_end(lambda endings=endings: endings.append(1))
        del at
        received(number, 8 * SIZE).root()[0] = 1
        stores.store.drop(number)
        stores.store.wait_for(lambda number=number: number not in stores.store.objects)
        stores.store.discard_idle()
        put(1, SIZE)  # its answer says what was given up
        assert endings == [1]
        store.wait_for(lambda: [*store.objects] == [kept])
        store.discard_idle()
    put(2, 2 * SIZE)
    store.wait_for(lambda: [*store.objects] == [kept])
    known = stores.ledger.stores.own()._segments
    assert len(known) == len(store.segments) == 2 and mappings() == 2


def test_a_device_reads_shared_memory_itself(stores: Stores) -> None:
    source = put(8)
    found = source.device_address()
    assert found is not None
    address, length, owner = found
    assert (address, owner.length) == (owner.address, length) and length >= source.nbytes
    import ctypes

    assert ctypes.string_at(address, SIZE) == content(8).tobytes()
    assert stores.store.views() == 1
    del owner, found
    stores.store.wait_for(lambda: stores.store.views() == 0)


def test_what_fill_raises_frees_the_object(stores: Stores) -> None:
    def fill(out: Any) -> None:
        out[:] = 1
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        _store.place(SIZE, fill, "never")
    put(1)
    stores.store.wait_for(lambda: len(stores.store.objects) <= 1)


def test_an_object_that_nobody_was_told_of_is_freed(stores: Stores) -> None:
    source = put(1)
    view = source.root()
    number = source.right.object
    del source
    assert np.array_equal(view, content(1))
    del view
    stores.store.wait_for(lambda: number not in stores.store.objects)
    assert not stores.ledger.given_back


def test_a_full_store_says_so(stores: Stores) -> None:
    stores.store.budget = 4 * SIZE
    kept = [put(seed) for seed in range(4)]
    with pytest.raises(MemoryError, match="is full") as caught:
        put(9)
    assert isinstance(caught.value, _errors.StoreFullError)
    kept.pop()
    put(9)


def test_what_is_gone_or_too_short_is_an_error(stores: Stores) -> None:
    with pytest.raises(LookupError, match="no such object"):
        received(7 << 32 | 99).root()
    source = put(1)
    long = received(publish(source), SIZE + 1)
    with pytest.raises(_errors.ProtocolError, match=f"{SIZE + 1} bytes from 0 on.*{SIZE} bytes"):
        long.root()
    stores.store.wait_for(lambda: stores.store.views() == 0)


def test_many_objects_of_several_stores_are_opened_together() -> None:
    with Stores(3) as stores:
        numbers = []
        for node in range(3):
            ledger = stores.ledger
            ledger.stores._node = node
            numbers += [publish(put(node * 10 + n, 1 << 16)) for n in range(5)]
        assert [number >> 48 for number in numbers] == [0] * 5 + [1] * 5 + [2] * 5
        sources = [received(number, 1 << 16) for number in numbers]
        views = _objects.views([*sources, *sources])
        for index, view in enumerate(views):
            index %= 15
            seed = index // 5 * 10 + index % 5
            assert bytes(view) == content(seed, 1 << 16).tobytes()
        for store in stores.nodes:
            assert [verb for verb, _ in store.requests].count("open") == 1
            assert store.views() == 5
        del views, view
        for store in stores.nodes:
            store.wait_for(lambda store=store: store.views() == 0)


def test_hundreds_of_objects_at_once(stores: Stores) -> None:
    numbers = [publish(put(n, 1 << 16)) for n in range(450)]
    views = _objects.views([received(number, 1 << 16) for number in numbers])
    assert all(bytes(v) == content(n, 1 << 16).tobytes() for n, v in enumerate(views))
    assert [verb for verb, _ in stores.store.requests].count("open") == 3


def test_threads_share_a_store(stores: Stores) -> None:
    store = stores.store

    def work(thread: int) -> bool:
        chance = random.Random(thread)
        kept: list[tuple[int, Any]] = []
        for step in range(60):
            seed = thread * 1000 + step
            number = publish(put(seed, 1 << 17))
            array = received(number, 1 << 17).root()
            store.drop(number)
            kept.append((seed, array))
            if len(kept) > 3:
                seed, array = kept.pop(chance.randrange(4))
                if not np.array_equal(array, content(seed, 1 << 17)):
                    return False
                array[:] = thread
            del array
        return all(np.array_equal(array, content(seed, 1 << 17)) for seed, array in kept)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))
    gc.collect()
    store.wait_for(lambda: not store.objects)
    assert len(store.clients) == 1


def test_cycles_are_collected_wherever_the_collector_runs(stores: Stores) -> None:
    """Finalizers run inside requests too, when the collector happens to run there."""
    store = stores.store
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for seed in range(200):
            number = publish(put(seed, 1 << 16))
            cycle: list[Any] = [received(number, 1 << 16).root()]
            cycle.append(cycle)
            store.drop(number)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    put(0)
    store.wait_for(lambda: store.views() == 0)


def test_many_segments_raise_the_limit_of_open_files(stores: Stores) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 60, before[1]))
        kept = [put(n, 1 << 16) for n in range(200)]
        assert len({source.right.object for source in kept}) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_no_open_files_are_left(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_leases, "make_room", lambda _fd: None)
    numbers = [publish(put(n, 1 << 16)) for n in range(100)]
    _objects.use(None)
    stores.ledger.retire()
    reader = _objects.use(stores.welcome)  # as another process, without descriptors yet
    assert reader is not None
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    sources = [received(number, 1 << 16) for number in numbers]
    sources[0].root()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, before[1]))
        with pytest.raises(OSError, match="no open files are left for the shared memory"):
            _objects.views(sources)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    gc.collect()
    stores.store.wait_for(lambda: stores.store.views() == 0)
    assert all(
        bytes(view) == content(n, 1 << 16).tobytes()
        for n, view in enumerate(_objects.views(sources))
    )
    reader.retire()


# --- the end ---------------------------------------------------------------------------------


def test_views_outlive_the_session_and_the_store(stores: Stores) -> None:
    store = stores.store
    number = publish(put(1))
    source = received(number)
    array = source.root()
    unread = received(publish(put(2)))
    _objects.use(None)
    stores.ledger.retire()
    elsewhere = Stored(_objects.Right(stores.ledger, 5 << 48), 0, 8)
    for late in unread, elsewhere:
        with pytest.raises(_errors.ReleasedError, match="a session that muster"):
            late.root()
    store.drop(number)
    assert store.views() == 1, "the lease holds as long as somebody looks"
    assert np.array_equal(array, content(1))
    del array
    store.wait_for(lambda: number not in store.objects)
    assert source.right.object == number


def test_rows_that_nobody_looked_at_are_gone_with_the_session(stores: Stores) -> None:
    """Also where the connection is still there, because other rows are looked at by it."""
    looked_at, other = received(publish(put(1))), received(publish(put(2)))
    array = looked_at.root()
    _objects.use(None)
    stores.ledger.retire()
    stores.store.close()
    with pytest.raises(_errors.ReleasedError, match="a session that muster"):
        other.root()
    assert np.array_equal(array, content(1))
    stores.nodes.clear()


def test_a_store_that_ends_is_told_and_views_stay(stores: Stores) -> None:
    source = put(1)
    array = source.root()
    stores.store.close()
    assert np.array_equal(array, content(1))
    with pytest.raises(_errors.NodeLostError, match=r"store of node 0.*(hung up|reset|pipe)"):
        put(2)
    with pytest.raises(_errors.NodeLostError, match="cannot be reached at"):
        put(2)
    del array
    assert np.array_equal(np.zeros(1), [0])
    stores.nodes.clear()


def test_a_wrong_token_is_refused(stores: Stores) -> None:
    stores.ledger.stores._token = "guessed"
    with pytest.raises(_errors.AuthError, match="wrong token"):
        put(1)


def in_child(what: Any, meanwhile: Any = None) -> int:
    """Run something in a forked child that ends as any Python does, and something here
    meanwhile; the child's exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # one that hangs ends, too
        code = 1
        try:
            code = 0 if what() else 2
        finally:
            gc.collect()
            os._exit(code)
    if meanwhile is not None:
        meanwhile()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_gives_nothing_back(stores: Stores) -> None:
    store = stores.store
    number = publish(put(1))
    held: list[Any] = [received(number), put(2)]
    held.append(held[0].root())
    before, given_back = dict(store.objects), [*stores.ledger.given_back]

    def child() -> bool:
        stores.ledger.abandon()  # what the SDK does after a fork
        same = np.array_equal(held[2], content(1))
        held.clear()
        gc.collect()
        return same and stores.ledger.given_back == given_back

    assert in_child(child) == 0
    put(3)
    assert store.objects.keys() >= before.keys() and store.views() == 1
    assert np.array_equal(held[2], content(1))
    held[2][:3] = 0
    assert len(store.clients) == 1


def test_poison_shows() -> None:
    """The fake store does what these tests rest on: a view without a lease is overwritten."""
    with Stores() as stores:
        number = publish(put(1))
        source = received(number)
        array = source.root()
        with stores.store.changed:
            stores.store.objects[number].views.clear()
        stores.store.drop(number)
        assert (array == POISON).all()
        with stores.store.changed:  # as the lease is closed after this
            from fakestore import Object

            segment = next(iter(stores.store.segments.values()))
            obj = Object(number, segment, stores.store.clients[0], views={0: 1}, sealed=True)
            stores.store.objects[number] = obj
        del array


def test_threads_end_leases_while_others_ask(stores: Stores) -> None:
    store = stores.store
    stop = threading.Event()
    errors: list[BaseException] = []

    def churn(seed: int) -> None:
        try:
            while not stop.is_set():
                number = publish(put(seed, 1 << 16))
                roots = [received(number, 1 << 16).root() for _ in range(4)]
                store.drop(number)
                assert all(np.array_equal(root, content(seed, 1 << 16)) for root in roots)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for seed in range(100):
        assert np.array_equal(put(seed, 1 << 16).root(), content(seed, 1 << 16))
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not errors
    gc.collect()
    store.wait_for(lambda: not store.objects)
