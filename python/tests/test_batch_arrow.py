"""Tables, files and other people's types."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import check, same

from muster import Batch

pa = pytest.importorskip("pyarrow")


def sent(batch: Batch) -> Batch:
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    made: Batch = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    return made


@pytest.fixture
def batch() -> Batch:
    return Batch(
        {
            "ids": np.arange(12, dtype=np.int32).reshape(4, 3),
            "mask": np.array([[True, False], [True, True], [False, False], [True, False]]),
            "prompt": ["a", None, "c", "é"],
            "reply": [np.arange(n, dtype=np.int64) for n in (2, 0, 1, 3)],
            "image": [b"\x89PNG", b"", None, b"x"],
            "score": np.arange(4, dtype=np.float32),
            "when": np.arange(4).astype("<M8[us]"),
            "wave": np.ones(4, np.complex64),
            "done": [True, False, True, True],
        },
        meta={"step": 3},
    )


def test_types(batch: Batch) -> None:
    schema = batch.to_arrow().schema
    types = {field.name: field.type for field in schema}
    assert types["ids"] == pa.fixed_shape_tensor(pa.int32(), [3])
    assert types["mask"] == pa.fixed_shape_tensor(pa.bool8(), [2])
    assert types["prompt"] == pa.large_string() and types["image"] == pa.large_binary()
    assert types["reply"] == pa.large_list(pa.int64())
    assert types["score"] == pa.float32() and types["when"] == pa.timestamp("us")
    assert types["wave"] == pa.binary(8) and types["done"] == pa.bool8()
    assert schema.field("wave").metadata[b"muster.dtype"] == b"<c8"
    objects = Batch({"o": [{1}]}).to_arrow().schema.field("o")
    assert objects.type == pa.large_binary() and objects.metadata[b"muster.kind"] == b"object"


def addresses(table: Any) -> list[int]:
    found = []
    for column in table.columns:
        for chunk in column.chunks:
            storage = getattr(chunk, "storage", chunk)
            found += [buffer.address for buffer in storage.buffers() if buffer is not None]
    return found


def test_a_table_lies_over_the_same_memory(batch: Batch) -> None:
    back = sent(Batch(batch.drop("prompt", "image", "reply").repeat(10).to_dict()))
    for made in (back, back[1:3], Batch.concat([back[20:], back[:20]])):
        table = made.to_arrow()
        start = back["ids"].ctypes.data - 1
        assert all(start < address < start + 2048 for address in addresses(table))
    again = Batch.from_arrow(back.to_arrow())
    assert again["ids"].ctypes.data == back["ids"].ctypes.data
    local = np.arange(1000)
    assert addresses(Batch({"x": local}).to_arrow()) == [local.ctypes.data]


def test_a_table_holds_its_memory(batch: Batch) -> None:
    table = sent(batch).to_arrow()
    assert table["reply"].to_pylist() == [[0, 1], [], [0], [0, 1, 2]]
    assert table["prompt"].to_pylist() == batch["prompt"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_files(batch: Batch, suffix: str, tmp_path: Path) -> None:
    from pyarrow import feather, parquet

    path = tmp_path / f"x{suffix}"
    sent(batch).take([3, 0, 0, 2]).export(path)
    read = parquet.read_table if suffix == ".parquet" else feather.read_table
    back = Batch.from_arrow(read(path))
    check(back, batch.take([3, 0, 0, 2]).to_dict())
    assert back.meta == {"step": 3}


PLAIN: dict[str, tuple[Any, Any]] = {
    "bool": (np.array([True, False]), pa.bool_()),
    "bools in a list": ([True, False], pa.bool_()),
    "mask": (np.array([[True, False]] * 2), pa.list_(pa.bool_(), 2)),
    "matrix": (np.ones((2, 3, 4), np.float32), pa.list_(pa.list_(pa.float32(), 4), 3)),
    "ragged": ([np.ones((2, 3)), None], pa.large_list(pa.list_(pa.float64(), 3))),
    "ragged mask": ([np.array([True]), np.array([], bool)], pa.large_list(pa.bool_())),
    "text": (np.array(["é", "\0a"]), pa.large_string()),
    "text >": (np.array(["é", "abc"], ">U3"), pa.large_string()),
    "texts of a shape": (np.array([["a", "b"], ["", "c"]]), pa.list_(pa.large_string(), 2)),
    "ragged texts": (
        [np.array(["a", "bb"]), np.array(["c"], "<U2")],
        pa.large_list(pa.large_string()),
    ),
    "lone surrogate": (np.array(["\udc80", "a"]), pa.binary(4)),
    "bytes": (np.array([b"a\0b", b"c"]), pa.large_binary()),
    "days": (np.array(["2024-01-01", "NaT"], "<M8[D]"), pa.date32()),
    "far days": (np.array([1 << 40, "NaT"], "<M8[D]"), pa.int64()),
    "far seconds": (np.array([1 << 62, "NaT"], "<M8[s]"), pa.int64()),
    "time >": (np.array(["2024-01-01", "NaT"], ">M8[ms]"), pa.timestamp("ms")),
    "number >": (np.array([1, -2], ">i2"), pa.int16()),
    "nan >": (np.array([0x7FF0000000000123, 0xFFF8000000000456], ">u8").view(">f8"), pa.float64()),
    "nan": (np.array([0x7FF0000000000123, 0xFFF8000000000456], "<u8").view("<f8"), pa.float64()),
    "zeros": (np.array([0.0, -0.0]), pa.float64()),
    "half": (np.array([0x7E01, 0xFC00], "<u2").view("<f2"), pa.float16()),
    "complex": (np.ones(2, np.complex64), pa.binary(8)),
    "records": (np.zeros(2, [("a", "<i4"), ("b", "u1")]), pa.binary(5)),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_files_are_of_plain_types(case: str, suffix: str, tmp_path: Path) -> None:
    from pyarrow import feather, parquet

    value, expected = PLAIN[case]
    path = tmp_path / f"x{suffix}"
    half = sent(Batch({"x": value}))[1:]
    for given in (Batch({"x": value}), sent(Batch({"x": value})), Batch.concat([half, half])):
        given.export(path)
        read = (parquet.read_table if suffix == ".parquet" else feather.read_table)(path)
        if not case.startswith(("far", "lone")) or len({*given["x"].tolist()}) > 1:
            # Names of a list's elements differ between files.
            assert str(read.schema.field("x").type).replace("element:", "item:") == str(expected)
        check(Batch.from_arrow(read), {"x": given["x"]})


def test_rows_that_need_another_type_than_others(tmp_path: Path) -> None:
    given = np.array(["a", "\udc80"])
    whole = sent(Batch({"x": given}))
    batch = Batch.concat([whole[:1], whole[1:]])
    batch.export(tmp_path / "x.parquet")
    read = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "x.parquet")
    check(Batch.from_arrow(read), {"x": given})


def test_texts_that_were_put_in_are_not_cut() -> None:
    field = pa.field("x", pa.string(), metadata={"muster.dtype": "<U1", "muster.lib": "numpy"})
    table = pa.Table.from_arrays([pa.array(["a", "bcd"])], schema=pa.schema([field]))
    assert Batch.from_arrow(table)["x"].tolist() == ["a", "bcd"]


def test_files_that_cannot_be(batch: Batch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.parquet, \.arrow or \.feather"):
        batch.export(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=r"column 'x' has rows of shape .*Parquet cannot hold"):
        Batch({"x": np.zeros((2, 0))}).export(tmp_path / "x.parquet")
    Batch({"x": np.zeros((2, 0))}).export(tmp_path / "x.arrow")


NAT = np.array(["2024-01-01", "NaT", "2024-01-02"], "<M8[s]")
TIMES = {
    **{f"M8[{unit}]": NAT.astype(f"<M8[{unit}]") for unit in ("s", "ms", "us", "ns", "D", "h")},
    **{f"m8[{unit}]": (NAT - NAT[0]).astype(f"<m8[{unit}]") for unit in ("s", "ns", "D")},
    "big endian": NAT.astype(">M8[s]"),
    "25s": np.array([1, "NaT", 3], "<M8[25s]"),
    "no unit": np.array([1, "NaT", 3], "<m8"),
    "none of them": np.array(["NaT"] * 3, "<M8[us]"),
    "of a shape": np.stack([NAT, NAT[::-1]], axis=1),
}


@pytest.mark.parametrize("case", TIMES)
def test_nat_is_null(case: str, tmp_path: Path) -> None:
    from pyarrow import feather, parquet

    times = TIMES[case]
    given = {"t": times, "r": [times[:2], None, times[2:]], "s": list(times)}
    back = sent(Batch(given))
    table = back.to_arrow()
    table.validate(full=True)
    check(Batch.from_arrow(table), given)
    again = Batch.from_arrow(table)["t"]
    assert again.ctypes.data == back["t"].ctypes.data
    if case != "big endian":
        for flat in (table["t"].chunk(0), table["r"].chunk(0).values):
            inner = flat.storage.flatten() if case == "of a shape" else flat
            assert inner.null_count == np.isnat(times).sum()
    for suffix, read in ((".parquet", parquet.read_table), (".feather", feather.read_table)):
        back[1:].export(tmp_path / f"x{suffix}")
        read_back = Batch.from_arrow(read(tmp_path / f"x{suffix}"))
        check(read_back, {name: value[1:] for name, value in given.items()})


def test_nat_is_none_in_rows() -> None:
    days = [datetime.datetime(2024, 1, 1), None, datetime.datetime(2024, 1, 2)]
    assert Batch({"t": NAT}).to_arrow()["t"].to_pylist() == days
    assert Batch({"t": NAT[::2]}).to_arrow()["t"].null_count == 0


def test_metadata_that_the_type_does_not_fit() -> None:
    """As after a cast, which keeps the metadata: the table's own types hold."""
    given = Batch({"a": np.arange(3, dtype=np.int32), "t": NAT, "l": [1, 2, 3]}).to_arrow()
    schema = pa.schema(
        [("a", pa.float32()), ("t", pa.timestamp("ms")), ("l", pa.int16())], given.schema.metadata
    )
    cast = [column.cast(field.type) for column, field in zip(given.columns, schema, strict=True)]
    fields = [old.with_type(new.type) for old, new in zip(given.schema, schema, strict=True)]
    back = Batch.from_arrow(pa.Table.from_arrays(cast, schema=pa.schema(fields)))
    check(back, {"a": np.arange(3, dtype=np.float32), "t": NAT, "l": [1, 2, 3]})
    half = pa.array([1500, None], pa.timestamp("ms"))
    field = given.schema.field("t").with_type(half.type)
    found = Batch.from_arrow(pa.Table.from_arrays([half], schema=pa.schema([field])))["t"]
    assert same(found, np.array([1500, "NaT"], "<M8[ms]"))


def test_metadata_of_others() -> None:
    field = pa.field("x", pa.int64(), metadata={b"\xff": b"\xfe"})
    table = pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field], {b"\xff": b"\xfe"}))
    assert Batch.from_arrow(table)["x"].tolist() == [1]


def test_objects_are_only_rebuilt_on_request() -> None:
    table = Batch({"o": [{1}, {2}]}).to_arrow()
    with pytest.raises(ValueError, match=r"column 'o' is pickled: .*pickle=True"):
        Batch.from_arrow(table)
    assert Batch.from_arrow(table, pickle=True)["o"] == [{1}, {2}]
    table = Batch({"x": [1]}, meta={"loss": float("nan")}).to_arrow()
    assert np.isnan(Batch.from_arrow(table).meta["loss"])
    table = Batch({"x": [1]}, meta={"k": (1, 2)}).to_arrow()
    with pytest.raises(ValueError, match="the meta of this table is pickled"):
        Batch.from_arrow(table)
    assert Batch.from_arrow(table, pickle=True).meta == {"k": (1, 2)}


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, 2], pa.int16()), np.array([1, 2], np.int16)),
        (pa.array([1, None]), [1, None]),
        (pa.array([1.5, None]), [1.5, None]),
        (pa.array([True, False]), np.array([True, False])),
        (pa.array([True, None]), [True, None]),
        (pa.array(["a", None]), ["a", None]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (
            pa.DictionaryArray.from_arrays([1, None, 0], pa.array(["a", "é"], pa.string_view())),
            ["é", None, "a"],
        ),
        (pa.array([1.5, 2.5, 1.5]).dictionary_encode(), np.array([1.5, 2.5, 1.5])),
        (pa.array([b"a", None]), [b"a", None]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        (pa.array([[1], None, []]), [np.array([1]), None, np.array([], np.int64)]),
        (pa.array([[1, None]]), [[1, None]]),
        (pa.array([["a"], []]), [["a"], []]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), np.array([[1, 2], [3, 4]], np.int8)),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
        (pa.array([{"a": 1}, None]), [{"a": 1}, None]),
        (pa.array([datetime.date(2024, 1, 1)]), [datetime.date(2024, 1, 1)]),
        (pa.array([0, None], pa.timestamp("s")), np.array([0, "NaT"], "<M8[s]")),
        (pa.array([None, None]), [None, None]),
        (pa.array(np.array([0.5], np.float16)), np.array([0.5], np.float16)),
    ],
)
def test_other_peoples_arrays(array: Any, expected: Any) -> None:
    twice = pa.chunked_array([array.slice(0, 1), array.slice(1)])
    padded = pa.concat_arrays([array, array]).slice(len(array))
    for given in (array, twice, padded, pa.chunked_array([array])):
        table = pa.table({"x": given})
        assert same(Batch.from_arrow(table)["x"], expected)
        assert same(sent(Batch({"x": given}))["x"], expected)


def test_columns_of_one_name() -> None:
    table = pa.Table.from_arrays([pa.array([n]) for n in range(4)], names=["x", "y", "x", "y"])
    for take in (Batch.from_arrow, Batch.of):
        with pytest.raises(ValueError, match="several columns called 'x', 'y': rename them"):
            take(table)


def test_what_makes_tables() -> None:
    table = pa.table({"x": [1, 2]})
    for given in (table, table.to_batches()[0]):
        assert Batch.from_arrow(given)["x"].tolist() == [1, 2]
        assert Batch.of(given)["x"].tolist() == [1, 2]
    empty = pa.table({"x": pa.array([], pa.int32())})
    assert Batch.from_arrow(empty)["x"].dtype == np.int32
    assert len(Batch.from_arrow(pa.schema([("x", pa.large_string())]).empty_table())) == 0


class Dataset:
    """As much of datasets.Dataset as matters here."""

    features: Any = None

    def __init__(self, table: Any, format: str | None = None) -> None:
        self.table = table
        self.format = format

    def with_format(self, format: str) -> Dataset:
        return Dataset(self.table, format)

    def __getitem__(self, key: slice) -> Any:
        assert self.format == "arrow"
        return self.table.slice(0)


def test_datasets(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Dataset(pa.table({"text": ["a", "b"], "label": [0, 1]}))
    for made in (Batch.from_hf(given), Batch.of(given)):
        assert made["text"] == ["a", "b"] and made["label"].tolist() == [0, 1]
    module: Any = type(pa)("datasets")
    module.Dataset = Dataset
    monkeypatch.setitem(__import__("sys").modules, "datasets", module)
    table = Batch.concat([batch[:1], batch[1:]]).to_hf().table
    assert not table.schema.metadata
    assert table["mask"].to_pylist() == batch["mask"].tolist()
    assert table["ids"].to_pylist() == batch["ids"].tolist()
    assert table["done"].type == pa.bool_()
    assert table["reply"].to_pylist() == [[0, 1], [], [0], [0, 1, 2]]
    plain: dict[str, list[Any]] = {
        "holes": [1, None, 3],
        "structs": [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None],
        "texts": [["a", "b"], [], None],
    }
    again = Batch.from_arrow(pa.table(plain)).to_hf().table
    assert {name: again[name].to_pylist() for name in plain} == plain
    mixed: dict[str, list[Any]] = {
        "numbers": [1, 2.5, None],
        "keys": [{"a": 1}, {"b": 2}, {}],
        "tuples": [(1,), [1], None],
        "large": [2**80, 1, 2],
        "odd": ["\udc80", 1, None],
        "arrays": [np.zeros(2, "<M8"), np.zeros(2), None],  # ended pyarrow's process
    }
    kept = Batch(mixed).to_hf().table
    assert all(pa.types.is_large_binary(kept[name].type) for name in mixed), kept.schema
