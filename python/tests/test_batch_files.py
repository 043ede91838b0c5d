"""An export writes a whole file or none, and says where."""

from __future__ import annotations

import datetime
import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import check, objects

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


def read(path: Path, pickle: bool = False) -> Batch:
    from pyarrow import feather, parquet

    read_table = parquet.read_table if path.suffix == ".parquet" else feather.read_table
    return Batch.from_arrow(read_table(path, memory_map=False), pickle=pickle)


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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_has_a_scheme_is_no_path(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Batch({"x": [1]}).export(f"file://{tmp_path}/x{suffix}")
    check(read(tmp_path / f"x{suffix}"), {"x": [1]})
    Batch({"x": [1]}).export(f"mock:///y{suffix}")  # a file system of Arrow's, in memory
    Batch({"x": [1]}).export(f"mock:///y{suffix}?option=a.b")
    with pytest.raises(ValueError, match="Unrecognized filesystem type in URI: nowhere://"):
        Batch({"x": [1]}).export(f"nowhere://bucket/z{suffix}")
    with pytest.raises(FileNotFoundError, match="the batch was not exported"):
        Batch({"x": [1]}).export(f"file://{tmp_path}/none/x{suffix}")
    with pytest.raises(ValueError, match=r"exported to \.parquet, \.arrow or \.feather, not 'mock"):
        Batch({"x": [1]}).export(f"mock:///y?option=a{suffix}")
    assert os.listdir(tmp_path) == [f"x{suffix}"]
    Path("a:").mkdir()
    Batch({"x": [2]}).export(f"a:/x{suffix}")
    check(read(tmp_path / "a:" / f"x{suffix}"), {"x": [2]})


class Apart(int):
    """Equal to an int, and none."""


LISTED: dict[str, tuple[list[Any], bool]] = {
    "numbers with holes": ([1, None, -3], True),
    "floats with holes": ([0.5, None, float("nan"), -0.0], True),
    "bools with holes": ([True, None], True),
    "dicts": ([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None], True),
    "turns": ([[{"role": "user", "text": "é"}], [], None], True),
    "lists of texts": ([["a", None], [], None], True),
    "lists of lists": ([[[1], []], [], None], True),
    "days": ([datetime.date(2024, 1, 1), None], True),
    "nothing": ([None, None], True),
    "bytes in dicts": ([{"image": b"\0"}, {"image": None}], True),
    "times": ([datetime.datetime(2024, 1, 1), None], False),
    "several types": ([1, 2.5, "x"], False),
    "other keys": ([{"a": 1}, {"b": 2}], False),
    "keys in another order": ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
    "empty dicts": ([{}, None], False),
    "tuples": ([(1,), (2,)], False),
    "sets": ([{1}, None], False),
    "large": ([1 << 80, None], False),
    "surrogates": (["\udc80", None], False),
    "a class of its own": ([Apart(1), None], False),
}


@pytest.mark.parametrize("case", LISTED)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_objects_that_files_have_a_type_for(case: str, suffix: str, tmp_path: Path) -> None:
    rows, plain = LISTED[case]
    path = tmp_path / f"x{suffix}"
    given = {"x": rows, "o": objects(rows)}
    bufs: list[Any] = []
    payload = Batch(given)._encode(bufs)
    for batch in (Batch(given), Batch._decode(payload, [memoryview(bytearray(b)) for b in bufs])):
        batch.export(path)
        if not plain:
            with pytest.raises(ValueError, match="column 'x' is pickled"):
                read(path)
        check(read(path, pickle=not plain), given)


def test_what_the_format_cannot_hold_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    Batch({"x": [1]}).export(path)
    with pytest.raises(ValueError, match="Parquet cannot hold"):
        Batch({"x": np.zeros((2, 0))}).export(path)
    check(read(path), {"x": [1]})
    assert os.listdir(tmp_path) == ["x.parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_meta_is_told_in_utf_8(suffix: str, tmp_path: Path) -> None:
    """As polars demands of Parquet, however the meta has to be kept."""
    meta = {"scores": np.arange(3), "raw": b"\xff\xfe", "text": "\u00e9", ("a", 1): {2}}
    batch, path = Batch({"x": np.arange(3)}, meta), tmp_path / f"x{suffix}"
    for key, value in batch.to_arrow().schema.metadata.items():
        assert key.decode() and value.decode()
    batch.export(path)
    back = read(path, pickle=True).meta
    assert back.pop("scores").tolist() == [0, 1, 2]
    assert back == {key: value for key, value in meta.items() if key != "scores"}
