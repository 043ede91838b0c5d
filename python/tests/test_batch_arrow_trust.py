"""Who writes a table does not run code here: nothing of it is unpickled unasked, or imported."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import check

from muster import Batch

pa = pytest.importorskip("pyarrow")

RAN: list[str] = []


def ran(where: str) -> Any:
    RAN.append(where)
    return np.dtype("|V1")


class Trap:
    """What notes that it was unpickled."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return ran, (self.where,)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def typed(type: str, array: Any) -> Any:
    """A table of one column, said to be of that type."""
    field = pa.field("x", array.type, metadata={"muster.dtype": type, "muster.lib": "numpy"})
    return pa.Table.from_arrays([array], schema=pa.schema([field]))


def pickled_type() -> str:
    return "|V1:pickle:" + pickle.dumps(Trap("type")).hex()


BYTES = pa.array([b"a", b"b"], pa.binary(1))
TRAPS = {
    "type": typed(pickled_type(), BYTES),
    "type, no rows": typed(pickled_type(), BYTES.slice(0, 0)),
    "type, of a row": typed(pickled_type(), pa.array([[b"a"], []], pa.large_list(pa.binary(1)))),
    "type, of a shape": typed(
        pickled_type(), pa.FixedSizeListArray.from_arrays(BYTES, 1, mask=None)
    ),
    "type, of text": typed(pickled_type(), pa.array(["a", None])),
    "object": pa.table(
        [pa.array([pickle.dumps(Trap("object"))], pa.large_binary())],
        schema=pa.schema([pa.field("x", pa.large_binary(), metadata={"muster.kind": "object"})]),
    ),
    "meta": pa.table({"x": [1]}).replace_schema_metadata(
        {"muster.meta.pickle": pickle.dumps(Trap("meta"))}
    ),
}


class Dataset:
    """What Batch.of takes for a dataset."""

    features: Any = None

    def __init__(self, table: Any) -> None:
        self.table = table

    def with_format(self, format: str) -> Dataset:
        return self

    def __getitem__(self, key: slice) -> Any:
        return self.table


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_is_unpickled_unasked(trap: str, tmp_path: Path) -> None:
    from pyarrow import parquet

    table = TRAPS[trap]
    parquet.write_table(table, tmp_path / "x.parquet")
    read = parquet.read_table(tmp_path / "x.parquet")
    for take in (Batch.from_arrow, Batch.of):
        for given in (table, read):
            with pytest.raises(ValueError, match=r"pickled: Batch\.from_arrow\(table, pickle=True"):
                take(given)
    for made in (Batch.from_hf, Batch.of):
        with pytest.raises(ValueError, match="pickled"):
            made(Dataset(table))
    assert not RAN


def test_on_request_it_is() -> None:
    Batch.from_arrow(TRAPS["type"], pickle=True)
    Batch.from_arrow(TRAPS["object"], pickle=True)
    assert RAN == ["type", "object"]


def test_a_type_that_needs_pickle_comes_back() -> None:
    aligned = np.dtype([("a", "u1"), ("b", "<i4")], align=True)
    given = {"x": np.zeros(2, aligned)}
    table = Batch(given).to_arrow()
    assert b":pickle:" in table.schema.field("x").metadata[b"muster.dtype"]
    with pytest.raises(ValueError, match="the type of column 'x' is pickled"):
        Batch.from_arrow(table)
    check(Batch.from_arrow(table, pickle=True), given)


@pytest.mark.parametrize(
    "type",
    ["|O", '|V8:[["a", "|O"]]', "nonsense", "|V1:{", "|V1:7", "torch:load", "torch:__name__"],
)
def test_a_type_that_cannot_be(type: str) -> None:
    table = typed(type, pa.array([b"12345678"], pa.binary(8)))
    with pytest.raises(ValueError, match="column 'x' is said to be of type"):
        Batch.from_arrow(table)
    with pytest.raises(ValueError, match="column 'x' is said to be of type"):
        Batch.from_arrow(typed("|V1:pickle:00", BYTES), pickle=True)


def test_no_table_has_workers_import_a_class() -> None:
    meta = {"muster.class": "this:x"}
    refused = r"'muster\.class', which would have workers import 'this:x'"
    table = pa.table({"x": [1, 2]})
    plain = table.replace_schema_metadata({"muster.meta": json.dumps(meta)})
    for take in (Batch.from_arrow, Batch.of):
        with pytest.raises(ValueError, match=refused):
            take(plain)
    pickled = table.replace_schema_metadata({"muster.meta.pickle": pickle.dumps(meta)})
    with pytest.raises(ValueError, match=refused):
        Batch.from_arrow(pickled, pickle=True)
