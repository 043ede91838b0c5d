"""An export writes a whole file or none, and says where."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from schemas import check

from muster import Batch

pa = pytest.importorskip("pyarrow")

SUFFIXES = [".parquet", ".arrow", ".feather"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file grows beyond 64 KiB, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    told = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, told)


def read(path: Path) -> Batch:
    from pyarrow import feather, parquet

    read_table = parquet.read_table if path.suffix == ".parquet" else feather.read_table
    return Batch.from_arrow(read_table(path, memory_map=False))


BIG = {"x": np.frombuffer(np.random.default_rng(0).bytes(1 << 20), np.int64)}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("there", [True, False])
def test_a_disk_that_is_full(suffix: str, there: bool, tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / f"x{suffix}"
    if there:
        Batch({"x": [1]}).export(path)
    with pytest.raises(OSError, match="the batch was not exported: File too large") as caught:
        Batch(BIG).export(path)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ([path.name] if there else [])
    if there:
        check(read(path), {"x": [1]})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_replaced_when_the_next_is_whole(suffix: str, tmp_path: Path) -> None:
    path, link = tmp_path / f"x{suffix}", tmp_path / f"link{suffix}"
    Batch({"x": [1]}).export(path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    link.symlink_to(path.name)
    Batch({"x": [2]}).export(link)
    check(read(path), {"x": [2]})
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    kept = path.open("rb")  # who reads the old one reads it to its end
    with kept:
        Batch(BIG).export(path)
        assert len(kept.read()) < 1 << 20
    check(read(path), BIG)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, link.name])


def test_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the batch was not exported") as caught:
        Batch({"x": [1]}).export(tmp_path / "none" / "x.parquet")
    assert caught.value.filename == str(tmp_path / "none" / "x.parquet")
    (tmp_path / "x.arrow").mkdir()
    with pytest.raises(IsADirectoryError, match="the batch was not exported") as folder:
        Batch({"x": [1]}).export(tmp_path / "x.arrow")
    assert folder.value.filename == str(tmp_path / "x.arrow")
    assert os.listdir(tmp_path) == ["x.arrow"] and not os.listdir(tmp_path / "x.arrow")
    os.mkfifo(tmp_path / "y.arrow")
    with pytest.raises(ValueError, match=r"y\.arrow' is none"):
        Batch({"x": [1]}).export(tmp_path / "y.arrow")


def test_what_the_format_cannot_hold_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    Batch({"x": [1]}).export(path)
    with pytest.raises(ValueError, match="Parquet cannot hold"):
        Batch({"x": np.zeros((2, 0))}).export(path)
    check(read(path), {"x": [1]})
    assert os.listdir(tmp_path) == ["x.parquet"]
