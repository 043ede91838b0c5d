"""Mappings and copies, without a store."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster import _pages, _shm, _stream
from muster._errors import LimitError


def segment(size: int) -> _shm.Segment:
    fd = os.memfd_create("shm-test")
    os.ftruncate(fd, size)
    return _shm.Segment(fd)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:shm-test")


def test_mappings_show_the_same_memory_but_private_writes() -> None:
    made = segment(1 << 20)
    writing = made.writable(1000)
    np.frombuffer(_shm.view(writing.address, 1000, made), np.uint8)[:] = 7
    one, two = made.lend(), made.lend()
    views = [_shm.view(mapping.address, 1000, None) for mapping in (one, two)]
    assert all(bytes(view) == b"\7" * 1000 and not view.readonly for view in views)
    views[0][0] = 9
    assert views[1][0] == 7 and bytes(_shm.view(made.readable().address, 3, None)) == b"\7\7\7"
    made.wipe(one)
    assert views[0][0] == 7
    made.take_back(one)
    made.take_back(two)
    assert made.lend() is one and two.address == 0, "one is kept for the next"
    assert made.writable(1 << 20) is writing and made.readable() is made.readable()
    assert mappings() == 3
    endings: list[int] = []
    made.readable().at_end(lambda: endings.append(mappings()))
    made.close()
    assert mappings() == 1 and endings, "what is lent follows"
    made.take_back(one)
    assert mappings() == 0


def test_what_was_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = segment(1 << 20)
    np.frombuffer(_shm.view(made.writable(1 << 20).address, 1 << 20, made), np.uint8)[:] = 7
    mapping = made.lend()
    array = np.frombuffer(_shm.view(mapping.address, 1 << 20, made), np.uint8)
    assert array.sum() == 7 << 20
    known = not _pages.written(mapping.address, mapping.length)
    assert known or _pages._Kernel.pagemap is None, "else this kernel cannot tell"
    for at in (0, 12345, (1 << 20) - 1):
        array[at] = 9
        assert _pages.written(mapping.address, mapping.length)
        made.wipe(mapping)
        assert array[at] == 7 and _pages.written(mapping.address, mapping.length) != known
    monkeypatch.setattr(_pages._Kernel, "pagemap", None)
    assert _pages.written(mapping.address, mapping.length), "where nobody tells"


def test_a_forked_child_does_not_ask_about_its_parent() -> None:
    made = segment(1 << 16)
    mapping = made.lend()
    array = np.frombuffer(_shm.view(mapping.address, 1 << 16, made), np.uint8)
    _pages.written(mapping.address, mapping.length)
    child = os.fork()
    if not child:
        array[5] = 1
        os._exit(int(not _pages.written(mapping.address, mapping.length)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("size", [16 << 20, (40 << 20) + (64 << 10)])
def test_large_mappings_can_have_huge_pages(size: int) -> None:
    """They begin where such a page can, and what is written to one is told and stays private."""
    huge = 2 << 20
    made = segment(size)
    writing = made.writable(size)
    np.frombuffer(_shm.view(writing.address, size, made), np.uint8)[:] = 7
    # The next lie where one of an odd length has just been taken.
    mappings = [writing, made.lend(), made.lend(), made.readable()]
    assert [mapping.address % huge for mapping in mappings] == [0] * 4
    has = _shm._madvise(writing.address, size // huge * huge, 25) == 0  # MADV_COLLAPSE
    mapping = mappings[1]
    array = np.frombuffer(_shm.view(mapping.address, size, made), np.uint8)
    assert array.sum() == 7 * size
    if has and size % huge == 0:
        assert _mapped_huge(mapping.address) == size
    known = _pages._Kernel.pagemap is not None and not _pages.written(mapping.address, size)
    for at in (0, huge + 5, size - 1):
        array[at] = 9
        assert _pages.written(mapping.address, size)
        assert bytes(_shm.view(mappings[2].address + at, 1, made)) == b"\7"
        made.wipe(mapping)
        assert array[at] == 7 and _pages.written(mapping.address, size) != known
    del array
    for lent in mappings[1:3]:
        made.take_back(lent)
    made.close()


def _mapped_huge(address: int) -> int:
    """How many bytes of the mapping that begins there are seen in huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split("-")[0] == f"{address:x}":
            inside = True
        elif inside and line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


def test_a_mapping_that_cannot_be_is_an_error() -> None:
    fd = os.memfd_create("shm-test")
    os.ftruncate(fd, 1)
    with pytest.raises(LimitError, match=r"cannot map .* shared memory"):
        _shm.Mapping(fd, 1 << 60, 1, 1)
    os.close(fd)


def test_views_of_any_length() -> None:
    made = segment(1 << 16)
    mapping = made.lend()
    for length in (0, 1, 2, 3, 4095, 4096, 65535, 65536):
        view = _shm.view(mapping.address, length, made)
        assert len(view) == view.nbytes == length and view.format == "B"
    made.take_back(mapping)
    made.close()


@pytest.mark.parametrize("seed", range(12))
def test_copies_of_any_shape(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(_shm, "PARALLEL", chance.choice([0, 10_000, 1 << 30]))
    monkeypatch.setattr(_shm, "_STREAM_JOB", chance.choice([1, 10_000]))
    monkeypatch.setattr(_stream, "PIECE", chance.choice([100, 50_000]))
    monkeypatch.setattr(_shm, "_MOST_THREADS", chance.choice([1, 2, 4, 7]))
    affinity = set(range(chance.choice([1, 2, 8])))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: affinity)
    sizes = [chance.choice([0, 1, 63, 1000, 100_000]) for _ in range(chance.randrange(8))]
    sources = [np.random.default_rng(seed).integers(0, 256, n, np.uint8) for n in sizes]
    targets: list[Any] = [np.zeros(n, np.uint8) for n in sizes]
    kinds: list[Any] = [chance.choice([np.asarray, memoryview]) for _ in sizes]
    _shm.copy_all([(kind(t), kind(s)) for kind, t, s in zip(kinds, targets, sources, strict=True)])
    assert all(map(np.array_equal, targets, sources))


@pytest.mark.parametrize(
    ("ranks", "cores", "threads"),
    [("", 2, 2), ("1", 4, 4), ("8", 2, 1), ("8", 16, 2), ("2", 64, 6), ("-1", 4, 4), ("x", 1, 1)],
)
def test_ranks_of_a_node_share_its_cores(
    ranks: str, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(cores))
    assert _shm._threads(6) == threads


def test_copies_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "numpy")
    target = bytearray(5)
    _shm.copy_all([(memoryview(target), b"hello")])
    assert target == b"hello"


def test_an_error_in_any_thread_is_raised_when_all_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_shm, "PARALLEL", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    with pytest.raises(ValueError, match="6 bytes do not fit into 5"):
        _shm.copy_all([(np.zeros(5, np.uint8), np.zeros(6, np.uint8))])
    constant = np.zeros(1 << 20, np.uint8)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _shm.copy_all([(constant, np.zeros(1 << 20, np.uint8))])


def test_nothing_is_written_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shm, "PARALLEL", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    source = np.ones(64 << 20, np.uint8)

    class Stop(BaseException):
        pass

    def stop(_number: int, _frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    hit = 0
    try:
        for delay in np.linspace(1e-4, 2e-2, 15):
            target = np.zeros(64 << 20, np.uint8)
            try:
                signal.setitimer(signal.ITIMER_REAL, float(delay))
                _shm.copy_all([(target, source)])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                hit += 1
                target[:] = 2  # as who gets the memory next
                assert (target == 2).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hit


def test_a_share_that_was_taken_meanwhile_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take shares while the one that waits for them looks for the next: each is copied
    once, however they get in between."""
    monkeypatch.setattr(_shm, "PARALLEL", 0)
    monkeypatch.setattr(_shm, "_MOST_THREADS", 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        source = np.arange(4096, dtype=np.uint8)
        for _ in range(2000):
            target = np.zeros_like(source)
            _shm.copy_all([(target, source)])
            assert (target == source).all()
    finally:
        sys.setswitchinterval(interval)
