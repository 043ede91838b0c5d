"""Small looks at large batches: what is read of them; and what is asked for wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from schemas import same

from muster import Batch, _objects, _shm


class Far:
    """An object on another node, which counts the bytes that are asked for."""

    partial = True

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(bytearray(data), np.uint8)
        self.nbytes = len(data)
        self.asked: set[int] = set()  # chunks

    def root(self) -> Any:
        return self._data

    def need(self, spans: Sequence[tuple[int, int]]) -> None:
        for start, stop in spans:
            self.asked.update(range(start // _shm.CHUNK, -(-stop // _shm.CHUNK)))

    def device_address(self) -> None:
        return None


ROWS = 2000
GIVEN: dict[str, Any] = {
    "x": np.arange(ROWS * 4000, dtype=np.float32).reshape(ROWS, 4000),  # 8 chunks
    "t": ["é" * (5 * n) for n in range(ROWS)],  # 5 chunks
    "r": [np.arange(n % 900) for n in range(ROWS)],
    "n": list(range(ROWS)),
}


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> tuple[Batch, list[Far]]:
    """Two objects' rows, one after another."""
    sources: list[Far] = []

    def made(buf: Any) -> Far:
        sources.append(Far(bytes(buf)))
        return sources[-1]

    bufs: list[Any] = []
    payload = Batch(GIVEN)._encode(bufs)
    monkeypatch.setattr(_objects, "from_buffer", made)
    parts = [Batch._decode(payload, bufs) for _ in range(2)]
    assert all(source.nbytes > 12 * _shm.CHUNK for source in sources)
    return Batch.concat(parts), sources


def test_sizes_are_told_without_rows(far: tuple[Batch, list[Far]]) -> None:
    batch, sources = far
    local = Batch(GIVEN)
    assert batch.nbytes == 2 * local.nbytes
    assert batch[[5, 7, 5, ROWS]].nbytes == sum(local[[n]].nbytes for n in (5, 7, 5, 0))
    # Where rows begin is the beginning of a column: of a few chunks those of its rows are near.
    assert all(len(source.asked) <= 4 for source in sources)


@pytest.mark.parametrize("column", ["t", "r"])
def test_lengths_are_told_without_rows(far: tuple[Batch, list[Far]], column: str) -> None:
    batch, sources = far
    cut, known = batch.balanced(column)._cut, Batch(GIVEN).balanced(column)._cut
    assert cut is not None and known is not None
    assert cut.weights is not None and known.weights is not None
    assert cut.weights.tolist() == known.weights.tolist() * 2
    assert all(len(source.asked) <= 2 for source in sources)


def test_a_row_is_read_alone(far: tuple[Batch, list[Far]]) -> None:
    batch, (one, other) = far
    for at in (-1, 2 * ROWS - 1):
        row = batch[at]
        assert list(row) == list(GIVEN)
        assert all(same(row[name], GIVEN[name][-1]) for name in GIVEN)
    assert not one.asked - {0} and len(other.asked) <= 7
    with pytest.raises(IndexError, match="row 4000 of a batch of 4000 rows"):
        batch[2 * ROWS]


def test_a_row_shows_what_was_written() -> None:
    bufs: list[Any] = []
    payload = Batch({"x": np.ones((4, 2)), "t": ["a"] * 4})._encode(bufs)
    batch = Batch._decode(payload, bufs)
    batch[2]["x"][:] = 7
    assert batch["x"][2].tolist() == [7, 7] and batch[2]["t"] == "a"
    batch["x"][1] = 5
    assert batch[1]["x"].tolist() == [5, 5]
    gathered = batch[[1, 0]]
    gathered["x"][0] = 3
    assert gathered[0]["x"].tolist() == [3, 3] and batch[1]["x"].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda b: b.repeat(1.5), r"b.repeat\(n\) takes a whole number, not 1.5"),
        (lambda b: b.multiple_of(1.5), r"b.multiple_of\(n\) takes a whole number"),
        (lambda b: b.chunk("2"), r"b.chunk\(n\) takes a whole number, not '2'"),
        (lambda b: b.split(2.0), r"b.split\(n\) takes a whole number"),
        (lambda b: b.select(["x"]), r"a column is named by a str, not by \['x'\]"),
        (lambda b: b.drop(5), "a column is named by a str, not by 5"),
        (lambda b: Batch.concat((b, b.to_dict())), "number 1 is a dict: take muster.get"),
        (lambda b: Batch.concat(b), "number 0 is a dict"),
        (lambda b: Batch(b), "a dict of columns, not of a muster"),
        (lambda b: b.balanced(5), "the weights is no number for each row"),
        (lambda b: b.balanced(["a", 1, "b"]), "row 1 has no length, as the others have: 1"),
    ],
)
def test_what_is_asked_for_wrongly(wrong: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        wrong(Batch({"x": [1, 2, 3]}))


def test_weights_of_many_kinds() -> None:
    batch = Batch(
        {
            "u": np.array(["a", "éé", ""]),
            "t": np.array(["a", "éé", ""], np.dtypes.StringDType()),
            "s": np.array([b"a", b"bbbb", b""]),
            "l": ["a", "éé", None],
        }
    )
    bufs: list[Any] = []
    came = Batch._decode(batch._encode(bufs), bufs)
    for one in (batch, came):
        for by in (*one.columns, range(3), (1, 4, 0), iter([1, 4, 0])):
            cut = one.balanced(by)._cut
            assert cut is not None and cut.weights is not None
            assert cut.weights.tolist() == ([0, 1, 2] if isinstance(by, range) else [1, 4, 0])


def test_no_columns_and_all() -> None:
    batch = Batch({"x": [1, 2, 3], "y": ["a", "b", "c"]})
    assert dict(batch) == {**batch} == {"x": [1, 2, 3], "y": ["a", "b", "c"]}
    none = batch.select()
    assert len(none) == 3 and list(none) == [{}, {}, {}] and none[1] == {}
    assert len(Batch.concat([none, none])) == 6 and len(Batch.concat([Batch(), none])) == 3
    assert batch.repeat(0)["x"] == [] and batch.repeat(np.int64(2))["x"] == [1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="repeated -1 times"):
        batch.repeat(-1)
