"""Tensors, and the DataProto of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas import same

from muster import Batch, _columns

torch = pytest.importorskip("torch")


def sent(batch: Batch) -> Batch:
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    made: Batch = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    return made


def test_tensors_of_every_column() -> None:
    batch = Batch(
        {
            "n": np.arange(3),
            "t": torch.ones(3, dtype=torch.bfloat16),
            "big": np.arange(3, dtype=">f4"),
            "l": [1, 2, 3],
            "ll": [[1], [], [2, 3]],
            "r": [np.ones(2, np.float32), None, np.ones(1, np.float32)],
            "text": ["a", "b", "c"],
            "o": [{1}, 2, None],
            "when": np.zeros(3, "<M8[s]"),
            "h": np.array([1, 2, 3], object),
        }
    )
    for one in (batch, sent(batch)):
        found = one.to_torch()
        assert list(found) == ["n", "t", "big", "l", "ll", "r"]
        assert found["n"].dtype == torch.int64 and found["t"].dtype == torch.bfloat16
        assert found["big"].tolist() == [0, 1, 2] and found["l"].tolist() == [1, 2, 3]
        assert [row.tolist() for row in found["ll"]] == [[1], [], [2, 3]]
        assert found["r"][0].dtype == torch.float32 and found["r"][1] is None
        for name in ("text", "o", "when"):
            with pytest.raises(TypeError, match=f"column '{name}' has no tensors"):
                one.to_torch(columns=[name])
    back = sent(batch)
    back.to_torch()["n"][:] = 7  # the same memory
    assert back["n"].tolist() == [7, 7, 7]


def test_no_rows_have_types() -> None:
    """A rank that gets no rows has the columns that the others have."""
    whole = Batch(
        {
            "x": np.arange(4),
            "l": [[1], [], [2], [3]],
            "r": [np.arange(2, dtype=np.int32)] * 4,
            "s": [torch.arange(2)] * 4,
            "n": [1, 2, 3, 4],
            "f": [np.float32(1)] * 4,
            "t": ["a"] * 4,
            "o": [{1}, 2, None, 3],
        }
    )
    came = sent(whole)
    for none in (whole[:0], came[:0], sent(whole[:0]), sent(came[4:]), came[[]]):
        found = none.to_torch()
        assert {name: type(value) for name, value in found.items()} == {
            name: type(value) for name, value in came[:1].to_torch().items()
        }
        assert found["n"].dtype == torch.int64 and found["f"].dtype == torch.float32
        assert found["l"] == [] and none.to_torch(columns=["r"]) == {"r": []}
        with pytest.raises(TypeError, match="column 't' has no tensors: text"):
            none.to_torch(columns=["t"])
        for name, array in none.to_numpy().items():
            assert len(array) == 0
            assert name == "o" or array.dtype == came[:1].to_numpy()[name].dtype
    assert Batch({"x": []}).to_torch() == {} and Batch({"x": []}).to_numpy()["x"].shape == (0,)


def test_rows_without_elements() -> None:
    """np.array([]) is of floats, and torch.tensor([]) too, whatever the others are."""
    ints: list[Any] = [np.arange(3), np.ones((2, 4), np.int32)]
    given: list[Any]
    for one in ints:
        for rows in ([one, np.array([])], [np.array([]), None, one], [np.array([]), one[:0]]):
            batch = Batch({"r": rows})
            for found in (batch.to_torch()["r"], sent(batch).to_torch()["r"]):
                there = [row for row in found if row is not None]
                assert {row.dtype for row in there} == {torch.from_numpy(one).dtype}
                assert [len(row) for row in there] == [len(r) for r in rows if r is not None]
        tensor = torch.from_numpy(one)
        for given in ([tensor, torch.tensor([])], [torch.tensor([]), tensor.bfloat16()]):
            batch = Batch({"r": given})
            assert same(sent(batch)["r"], given)  # as it was
            for found in (batch.to_torch()["r"], sent(batch).to_torch()["r"]):
                assert {row.dtype for row in found} == {row.dtype for row in given if len(row)}
                assert [len(row) for row in found] == [len(row) for row in given]
    mixed = Batch({"r": [np.arange(2), np.ones(2)]})  # these have elements
    assert mixed.to_torch() == {} and same(sent(mixed)["r"], mixed["r"])


def test_tensors_of_one_number() -> None:
    numbers = [torch.tensor(n, dtype=torch.bfloat16) for n in (1, 2, 3)]
    ragged = [torch.arange(2), torch.arange(0), None]
    batch = Batch(
        {
            "n": numbers,
            "o": _columns.as_objects(numbers),
            "r": _columns.as_objects(ragged),
            "mixed": [torch.tensor(1), torch.tensor(1.5), torch.tensor(2)],
        }
    )
    pytest.importorskip("pyarrow")
    for one in (batch, sent(batch), Batch.from_arrow(batch.to_arrow(), pickle=True)):
        for name in batch.columns:
            assert same(one[name], batch[name])
        found = one.to_torch()
        assert list(found) == ["n", "o", "r"]
        assert found["n"].tolist() == found["o"].tolist() == [1, 2, 3]
        assert found["n"].dtype == found["o"].dtype == torch.bfloat16
        assert [None if row is None else row.tolist() for row in found["r"]] == [[0, 1], [], None]
        assert one.to_numpy()["n"].tolist() == [1, 2, 3]
    assert repr(sent(batch)) == repr(batch)
    assert repr(batch) == (
        "Batch(3 rows: n torch bfloat16, o torch bfloat16, r torch int64[*], mixed object)"
    )


def test_arrays_of_tensors() -> None:
    found = Batch(
        {
            "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "tiny": torch.tensor([1.5, -2.0]).to(torch.float8_e5m2),
            "r": [torch.arange(2), None],
            "l": [[1], [2, 3]],
            "s": [np.float32(1), np.float32(2)],
            "n": [1, 2],
            "t": ["a", None],
        }
    ).to_numpy()
    assert found["half"].dtype == np.float32 and found["half"].tolist() == [1.5, -2.0]
    assert found["tiny"].tolist() == [1.5, -2.0]
    assert found["r"].dtype == object and found["r"][0].tolist() == [0, 1]
    assert found["l"][1].tolist() == [2, 3] and found["t"].tolist() == ["a", None]
    assert found["s"].dtype == np.float32 and found["n"].dtype == np.int64


def test_what_tensors_lose() -> None:
    grad = torch.ones(3, requires_grad=True)
    batch = Batch({"g": grad, "c": torch.ones(3, dtype=torch.complex64).conj()})
    assert not batch["g"].requires_grad and batch["g"].data_ptr() == grad.data_ptr()
    assert sent(batch)["c"].tolist() == [1 - 0j] * 3
    nested = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    assert [row.tolist() for row in sent(Batch({"x": nested}))["x"]] == [[0, 1], [0, 1, 2]]
    with pytest.raises(TypeError, match="dense and not quantized"):
        Batch({"x": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="0-d tensor"):
        Batch({"x": torch.tensor(1)})


def test_rows_by_tensors() -> None:
    batch = Batch({"x": torch.arange(5)})
    assert batch[torch.tensor([4, 0])]["x"].tolist() == [4, 0]
    assert batch[torch.tensor([True, False, True, False, False])]["x"].tolist() == [0, 2]
    assert batch.balanced(torch.arange(5))._cut is not None
    assert batch.balanced("x")._cut is not None and batch.grouped("x")._cut is not None
    assert batch[::-1]["x"].tolist() == [4, 3, 2, 1, 0]


def test_one_row_by_a_tensor() -> None:
    """A tensor of one element is a number to Python, and here a mask or a list of rows."""
    batch = Batch({"x": np.arange(3)})
    assert batch[torch.tensor([2])]["x"].tolist() == [2]
    one = batch[1:2]
    assert one[torch.tensor([True])]["x"].tolist() == [1]
    assert len(one[torch.tensor([False])]) == 0
    assert batch[torch.tensor(2)] == {"x": 2}


def test_rows_of_types_that_torch_does_not_index() -> None:
    raw = torch.arange(8, dtype=torch.uint8).reshape(4, 2)
    for name in ("bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "bits8", "uint4"):
        if hasattr(torch, name):
            dtype = getattr(torch, name)
            batch = Batch({"x": raw.view(dtype)})
            for one in (batch, sent(batch)):
                found = one[[3, 0, 3]]["x"]
                assert found.dtype == dtype
                assert torch.equal(found.view(torch.uint8), raw[[3, 0, 3]])


def test_decoding_is_without_copies() -> None:
    back = sent(Batch({"x": torch.arange(50).reshape(10, 5), "r": [torch.arange(4)] * 10}))
    assert back["x"].data_ptr() == back["x"].data_ptr()
    assert back[2:]["x"].data_ptr() == back["x"].data_ptr() + 2 * 5 * 8
    back["x"][:] = 1  # no other than legal
    assert back["r"][3].untyped_storage().data_ptr() == back["r"][0].untyped_storage().data_ptr()


def test_rows_can_be_written_to_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.full((3,), 2.0))
    back = sent(Batch({"r": [torch.ones(3), torch.ones(2)], "n": [torch.tensor(1.0)] * 2}))
    for row in (*back["r"], *back["n"]):
        row.mul_(weight.sum())
        assert row.requires_grad and row.unique().tolist() == [6]


def test_fields_of_records() -> None:
    records = np.zeros(4, [("a", "<i4"), ("b", "u1")])  # five bytes from one to the next
    assert Batch({"a": records["a"]}).to_torch()["a"].tolist() == [0] * 4


class DataProto:
    """As others have it."""

    def __init__(self, batch: Any, non_tensor_batch: Any, meta_info: Any) -> None:
        self.batch = batch
        self.non_tensor_batch = non_tensor_batch
        self.meta_info = meta_info


def test_dataproto() -> None:
    names = np.array(["a", None, "c"], object)
    images = np.empty(3, object)
    images[:] = [np.zeros(2), np.zeros(3), np.zeros(0)]
    given = DataProto(
        {"ids": torch.arange(6).reshape(3, 2), "mask": torch.ones(3, dtype=torch.bool)},
        {"name": names, "image": images, "n": np.arange(3)},
        {"step": 1},
    )
    for batch in (Batch.from_dataproto(given), Batch.of(given), sent(Batch.of(given))):
        assert batch.meta == {"step": 1} and len(batch) == 3
        back = batch.to_dataproto(DataProto)
        # A dict, or a TensorDict where somebody has imported that.
        assert [*back.batch.keys()] == ["ids", "mask"] and same(
            back.batch["ids"], given.batch["ids"]
        )
        for name, value in given.non_tensor_batch.items():
            assert same(back.non_tensor_batch[name], value)
        assert back.meta_info == {"step": 1}
    only = Batch.of(DataProto(None, {}, {"a": 1}))
    assert len(only) == 0 and only.meta == {"a": 1}
    texts = Batch({"t": ["a", "b"]}).to_dataproto(DataProto)
    assert texts.non_tensor_batch["t"].dtype == object
    with pytest.raises(ValueError, match="both tensors and not: 'x'"):
        Batch.of(DataProto({"x": torch.ones(1)}, {"x": np.ones(1)}, {}))


def test_of_anything() -> None:
    batch = Batch({"x": [1]})
    assert Batch.of(batch) is batch
    assert Batch.of({"x": [1, 2]})["x"] == [1, 2]
    assert Batch.of([{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])["y"] == ["a", "b"]
    with pytest.raises(ValueError, match="row 1 has"):
        Batch.of([{"x": 1}, {"y": 1}])
    for wrong in (5, [], [1], "x", None):
        with pytest.raises(TypeError, match="no batch can be made of"):
            Batch.of(wrong)


def test_tensordicts() -> None:
    tensordict = pytest.importorskip("tensordict")
    given = tensordict.TensorDict({"x": torch.arange(3), "m": torch.ones(3, 2)}, batch_size=[3])
    for batch in (Batch(given), Batch.of(given), sent(Batch(given)), Batch().with_columns(given)):
        assert batch.columns == ["x", "m"] and same(batch["x"], given["x"])
    for wrong in ([1], 5, "x"):
        with pytest.raises(TypeError, match="made of a dict of columns, not of a"):
            Batch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_of_bfloat16(suffix: str, tmp_path: Path) -> None:
    """float32 in the file, and as they were on the way back; not where others were put in."""
    pa: Any = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    bits = torch.tensor([0x3FC0, 0x7F81, -1, -0x8000], dtype=torch.int16)
    given = {
        "x": bits.view(torch.bfloat16),
        "r": [torch.ones(2, 1, dtype=torch.bfloat16), None] * 2,
    }
    path = tmp_path / f"x{suffix}"
    sent(Batch(given)).export(path)
    table = (parquet.read_table if suffix == ".parquet" else feather.read_table)(path)
    assert table.schema.field("x").type == pa.float32()
    assert table["x"][0].as_py() == 1.5
    back = Batch.from_arrow(table)
    assert same(back["x"], given["x"]) and same(back["r"], given["r"])
    other = table.select(["x"]).set_column(
        0, table.schema.field("x"), pa.array([0.1] * 4, pa.float32())
    )
    assert same(Batch.from_arrow(other)["x"], torch.full((4,), 0.1))
