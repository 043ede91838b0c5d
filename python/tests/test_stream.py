"""Copies past the caches: the same bytes as any copy, from its source, or none at all."""

from __future__ import annotations

import platform
import random
import shutil
import subprocess
from collections.abc import Iterator
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
def copy() -> _stream.Copy:
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


@pytest.mark.parametrize("seed", range(20))
def test_all_bytes_and_no_others(seed: int, copy: _stream.Copy) -> None:
    chance = random.Random(seed)
    blocks = chance.choice([0, 0, 1, 2, 5])
    size = blocks * 16384 + chance.choice([0, 1, 15, 63, 64, 65, 4095, 4096, 16383])
    to, start = chance.randrange(130), chance.randrange(130)
    source = np.random.default_rng(seed).integers(0, 256, size + 300, np.uint8)
    target = np.full(size + 300, 7, np.uint8)
    copy(target[to:].ctypes.data, source[start:].ctypes.data, size)
    assert np.array_equal(target[to : to + size], source[start : start + size])
    assert (target[:to] == 7).all() and (target[to + size :] == 7).all()


def test_large_copies_take_it(monkeypatch: pytest.MonkeyPatch, copy: _stream.Copy) -> None:
    taken = []

    def counting(target: int, source: int, size: int) -> None:
        taken.append(size)
        copy(target, source, size)

    monkeypatch.setattr(_stream, "copier", lambda: counting)
    source = np.random.default_rng(0).integers(0, 256, _shm.STREAM, np.uint8)
    target = np.zeros_like(source)
    _shm.copy_all([(target, source)])
    assert np.array_equal(target, source) and sum(taken) == len(source)
    taken.clear()
    # Not where it may not be written to, where bytes lie apart, where memory comes from the
    # kernel as it is written to, or where they are few.
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _shm.copy_all([(target, source)])
    apart = np.zeros((len(source), 2), np.uint8)[:, 0]
    _shm.copy_all([(apart, source)])
    assert np.array_equal(apart, source)
    _shm.copy_all([(np.empty_like(source), source)], touched=False)
    _shm.copy_all([(np.empty(100, np.uint8), source[:100])])
    assert not taken


@pytest.mark.parametrize("why", ["machine", "refused"])
def test_without_it_numpy_copies(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "machine":
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    else:
        monkeypatch.setattr(_shm, "_mmap", lambda *_: _shm._FAILED)
    assert _stream.copier() is None
    source = np.random.default_rng(0).integers(0, 256, _shm.STREAM, np.uint8)
    target = np.zeros_like(source)
    _shm.copy_all([(target, source)])
    assert np.array_equal(target, source)
