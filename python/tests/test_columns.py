"""The layout of objects: byte for byte as docs/batches.md says."""

from __future__ import annotations

import random
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest
from schemas import DTYPES, RECORDS, TORCH, array, same, tensor

from muster import _columns, _drafts, _layout
from muster._columns import Fixed, Packed, Ragged


def content(columns: dict[str, Any], rows: int) -> Any:
    drafts = {name: _drafts.draft(name, _drafts.take(name, v)) for name, v in columns.items()}
    size, fill = _layout.layout(rows, drafts)
    made = np.full(size, 0xEE, np.uint8)
    fill(made)
    return made


def described(data: Any) -> Any:
    length = int.from_bytes(data[4:8].tobytes(), "little")
    return msgpack.unpackb(data[8 : 8 + length].tobytes())


def test_bytes_of_a_small_one() -> None:
    data = content({"x": np.array([1, 2], "<u2"), "t": ["a", None]}, 2)
    assert data[:4].tobytes() == b"MBT1"
    rows, columns = described(data)
    assert rows == 2
    assert columns == [
        ["x", "fixed", "<u2", [], "numpy", [[64, 4]]],
        ["t", "text", "", [], "list", [[128, 1], [192, 24], [256, 1]]],
    ]
    assert data[64:68].tobytes() == b"\x01\x00\x02\x00"
    assert data[128] == 0b01
    assert data[192:216].view("<i8").tolist() == [0, 1, 1]
    assert data[256:].tobytes() == b"a"
    header = 8 + int.from_bytes(data[4:8].tobytes(), "little")
    assert not data[header:64].any() and not data[68:128].any()  # nothing in between


@pytest.mark.parametrize(
    ("value", "kind", "type", "shape", "lib"),
    [
        (np.zeros((2, 3, 4), "<f4"), "fixed", "<f4", [3, 4], "numpy"),
        ([1, 2], "fixed", "<i8", [], "list"),
        ([True, False], "fixed", "|b1", [], "list"),
        ([1.5, 2.5], "fixed", "<f8", [], "list"),
        ([np.float32(1), np.float32(2)], "fixed", "<f4", [], "scalars"),
        ([1, 2.5], "object", "", [], "list"),
        ([1, True], "object", "", [], "list"),
        ([2**63, 1], "object", "", [], "list"),
        ([1, None], "object", "", [], "list"),
        (["a", None], "text", "", [], "list"),
        (["a", "\udc80"], "object", "", [], "list"),
        ([b"a", None], "bytes", "", [], "list"),
        ([[1], []], "ragged", "<i8", [], "list"),
        ([[1.5], None], "ragged", "<f8", [], "list"),
        ([[1], [2.5]], "object", "", [], "list"),
        ([[2**64], [1]], "object", "", [], "list"),
        ([[[1]], [[2]]], "object", "", [], "list"),
        ([np.zeros(2), np.zeros(3)], "ragged", "<f8", [], "numpy"),
        ([np.zeros((2, 5)), None], "ragged", "<f8", [5], "numpy"),
        ([np.zeros((2, 5)), np.zeros((2, 4))], "object", "", [], "list"),
        ([np.zeros(2), np.zeros(2, "<f4")], "object", "", [], "list"),
        ([np.array(1), np.array(2)], "object", "", [], "list"),
        ([np.array([None]), np.array([1])], "object", "", [], "list"),
        (np.array(["a", None], object), "text", "", [], "numpy"),
        (np.array([1, 2], object), "object", "", [], "numpy"),
        (np.array([[1, "a"], [2, None]], object), "object", "", [2], "numpy"),
        (np.zeros(2, RECORDS[0]), "fixed", '|V12:[["a", "<i4"], ["b", ">f8"]]', [], "numpy"),
        ([None, None], "object", "", [], "list"),
    ],
)
def test_kinds(value: Any, kind: str, type: str, shape: list[int], lib: str) -> None:
    data = content({"x": value}, 2)
    _, ((_, *found, spans),) = described(data)
    assert found == [kind, type, shape, lib]
    assert all(at % 64 == 0 for at, _ in spans)
    header = _layout.read_header(data)
    assert same(_layout.load(data, header, "x").value(), value)


@pytest.mark.parametrize("dtype", [*DTYPES, *RECORDS, "|S0", "<U0", "|V0"], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_every_dtype(dtype: Any, rows: int) -> None:
    rng = random.Random(1)
    for dims in ((), (3,), (0, 2)):
        if np.dtype(dtype).itemsize:
            value = array(rng, dtype, (rows, *dims))
        else:
            value = np.ndarray((rows, *dims), np.dtype(dtype), bytearray(1))
        data = content({"x": value}, rows)
        found = _layout.load(data, _layout.read_header(data), "x").value()
        assert same(found, value)


@pytest.mark.parametrize("name", TORCH)
def test_every_torch_dtype(name: str) -> None:
    pytest.importorskip("torch")
    rng = random.Random(2)
    for rows in (0, 1, 5):
        for dims in ((), (3,), (0, 2)):
            value = tensor(rng, name, (rows, *dims))
            data = content({"x": value, "r": [value] * 2 if rows == 2 else [value] * rows}, rows)
            header = _layout.read_header(data)
            assert header.columns["x"].lib == "torch"
            assert same(_layout.load(data, header, "x").value(), value)
            assert same(_layout.load(data, header, "r").value(), [value] * rows)


def test_other_types_of_records() -> None:
    aligned = np.dtype([("a", "u1"), ("b", "<f8")], align=True)
    value = np.zeros(2, aligned)
    data = content({"x": value}, 2)
    found: Any = _layout.load(data, _layout.read_header(data), "x").value()
    assert found.dtype == aligned and found.dtype.isalignedstruct


def test_numpys_strings() -> None:
    if not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"):
        pytest.skip("needs numpy: StringDType came with 2.0")
    value = np.array(["a", "long " * 10, ""], np.dtypes.StringDType())
    data = content({"x": value}, 3)
    found: Any = _layout.load(data, _layout.read_header(data), "x").value()
    assert found.dtype == value.dtype and found.tolist() == value.tolist()


def test_many_columns_move_the_first_buffer() -> None:
    value = {f"column {i}": np.full(2, i) for i in range(300)}
    data = content(value, 2)
    _, columns = described(data)
    assert columns[0][5][0][0] >= 8 + int.from_bytes(data[4:8].tobytes(), "little")
    header = _layout.read_header(data)
    for name, column in value.items():
        assert same(_layout.load(data, header, name).value(), column)


def test_large_rows_and_threads() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 255, (n, 1000), np.uint8) for n in (3000, 0, 7000, 1, 9000)]
    data = content({"x": rows, "s": rng.random((5, 4000))[:, ::2]}, 5)
    header = _layout.read_header(data)
    assert same(_layout.load(data, header, "x").value(), rows)


def test_what_lies_together_is_joined_uncopied() -> None:
    data = content({"x": [np.arange(n) for n in range(9)]}, 9)
    column = _layout.load(data, _layout.read_header(data), "x")
    assert isinstance(column, Ragged)
    made = _columns.joined([(column, range(2, 5)), (column, np.array([8, 0], np.uint32))])
    assert isinstance(made, Ragged)
    found = made.value()
    assert [len(row) for row in found] == [2, 3, 4, 8, 0]
    assert all(np.shares_memory(row, data) for row in found if len(row))


@pytest.mark.parametrize("pieces", [3, 400])
def test_gathering(pieces: int) -> None:
    rng = random.Random(pieces)
    data = np.arange(3000).reshape(1000, 3)
    columns = [Fixed("<i8", "numpy", data), Fixed("<i8", "numpy", data + 10_000)]
    some: list[Any] = []
    expected: list[Any] = []
    for _ in range(pieces):
        column = rng.choice(columns)
        if rng.random() < 0.5:
            start = rng.randrange(990)
            rows: Any = range(start, start + rng.randrange(3))
        else:
            rows = np.array([rng.randrange(1000) for _ in range(rng.randrange(4))], np.uint32)
        some.append((column, rows))
        expected += [column.data[row].tolist() for row in rows]
    made = _columns.joined(some)
    assert isinstance(made, Fixed) and made.data.tolist() == expected


def test_packed_rows() -> None:
    column = Packed.of("bytes", "list", [b"ab", None, b"", b"c"])
    assert column.value() == [b"ab", None, b"", b"c"]
    assert column.take(range(1, 4)).value() == [None, b"", b"c"]
    assert column.take(np.array([3, 1, 3], np.uint32)).value() == [b"c", None, b"c"]
    assert column.take(range(2, 4)).nbytes == 17
