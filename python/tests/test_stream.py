"""Copies past the caches: the same bytes as any copy, from its source, or none at all."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from muster import _shm, _stream

SOURCE = Path(_stream.__file__).with_suffix(".s")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    _stream.copier.cache_clear()
    yield
    _stream.copier.cache_clear()


@pytest.fixture
def stream() -> _stream.Copier:
    found = _stream.copier()
    if found is None:
        pytest.skip(f"needs streaming: {platform.machine()} has none here")
    return found


def test_code_is_what_its_source_says(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or not (shutil.which("as") and shutil.which("objcopy")):
        pytest.skip("needs binutils: as and objcopy, for x86-64")
    subprocess.run(["as", SOURCE, "-o", tmp_path / "o"], check=True)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", tmp_path / "o", tmp_path / "bytes"], check=True
    )
    assert (tmp_path / "bytes").read_bytes() == _stream._X86_64


@pytest.mark.parametrize("seed", range(30))
def test_all_bytes_and_no_others(
    seed: int, stream: _stream.Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(_stream, "PIECE", chance.choice([1, 1000, 16384, 100_000, 1 << 30]) + 63)
    jobs: list[tuple[int, int, int]] = []
    checks = []
    for _ in range(chance.randrange(5)):
        size = chance.choice([0, 0, 1, 2, 5]) * 16384 + chance.choice(
            [0, 1, 15, 63, 64, 65, 4095, 4096, 16383]
        )
        to, start = chance.randrange(130), chance.randrange(130)
        source = np.random.default_rng(seed).integers(0, 256, size + 300, np.uint8)
        target = np.full(size + 300, 7, np.uint8)
        jobs.append((target.ctypes.data + to, source.ctypes.data + start, size))
        checks.append((target, to, source, start, size))
    stream.copy(jobs, chance.choice([1, 2, 5]))
    for target, to, source, start, size in checks:
        assert np.array_equal(target[to : to + size], source[start : start + size])
        assert (target[:to] == 7).all() and (target[to + size :] == 7).all()


def test_it_needs_no_threads(stream: _stream.Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(place: int, *_: object) -> int:
        ctypes.c_ulong.from_address(place).value = 1234  # as the C library may
        return errno.EAGAIN

    monkeypatch.setattr(_stream, "_create", none_left)
    source = np.random.default_rng(0).integers(0, 256, 3 * _stream.PIECE, np.uint8)
    target = np.zeros_like(source)
    stream.copy([(target.ctypes.data, source.ctypes.data, len(source))], 8)
    assert np.array_equal(target, source)


def test_no_thread_is_left(stream: _stream.Copier) -> None:
    source = np.ones(64 * _stream.PIECE, np.uint8)
    target = np.zeros_like(source)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        stream.copy([(target.ctypes.data, source.ctypes.data, len(source))], 16)
    assert len(os.listdir("/proc/self/task")) == before


def test_large_copies_take_it(stream: _stream.Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    class Counting:
        def copy(self, jobs: Sequence[tuple[int, int, int]], threads: int) -> None:
            taken.extend(size for _, _, size in jobs)
            stream.copy(jobs, threads)

    monkeypatch.setattr(_stream, "copier", Counting)
    source = np.random.default_rng(0).integers(0, 256, _shm.PARALLEL, np.uint8)
    target = np.zeros_like(source)
    half = len(source) // 2
    _shm.copy_all([(target[:half], source[:half]), (memoryview(target.data)[half:], source[half:])])
    assert np.array_equal(target, source) and taken == [half, half]
    taken.clear()
    # Not where it may not be written to, where bytes lie apart, or where they are few, or many
    # times few.
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _shm.copy_all([(target, source)])
    apart = np.zeros((len(source), 2), np.uint8)[:, 0]
    _shm.copy_all([(apart, source)])
    assert np.array_equal(apart, source)
    target = np.zeros_like(source)
    _shm.copy_all([(target[:100], source[:100])])
    rows = zip(np.split(target, 1024), np.split(source, 1024), strict=True)
    _shm.copy_all(list(rows))
    assert np.array_equal(target, source) and not taken


@pytest.mark.parametrize("why", ["machine", "refused"])
def test_without_it_numpy_copies(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "machine":
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    else:
        monkeypatch.setattr(_shm, "_mmap", lambda *_: _shm._FAILED)
    assert _stream.copier() is None
    source = np.random.default_rng(0).integers(0, 256, _shm.PARALLEL, np.uint8)
    target = np.zeros_like(source)
    _shm.copy_all([(target, source)])
    assert np.array_equal(target, source)
