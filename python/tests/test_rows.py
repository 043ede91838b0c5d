from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster import _metas, _rows
from muster._batch import Batch
from muster._errors import ProtocolError
from muster._parts import Part, from_wire
from muster._rows import Cut, Piece

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "batch" / "testdata" / "handles.json").read_text()
)
HANDLES = {vector["name"]: vector for vector in VECTORS if "handle" in vector}


class Named:
    """A block in a store, by the name of its buffer."""

    local = inline = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = self

    def buffer(self) -> str:
        return self.name


def loaded(vector: dict[str, Any], blocks: dict[str, Named]) -> Batch:
    """The batch of a vector; buffers of one name are one block."""
    handle = _rows.unpack(bytes.fromhex(vector["payload"]), len(vector["buffers"]))
    made = [blocks.setdefault(name, Named(name)) for name in vector["buffers"]]
    parts = [
        Part(from_wire(names), [Piece(made[p.block], p.rows) for p in pieces])
        for names, pieces in handle.parts
    ]
    at = len(made) - sum(n for _, n, _ in handle.metas)
    metas = []
    for value, n, origin in handle.metas:
        names = tuple(block.name for block in made[at : at + n])
        metas.append(_metas.Meta.came(value, names, origin))
        at += n
    return Batch._of(handle.rows, parts, handle.cut, metas)


def written(batch: Batch) -> tuple[str, list[str]]:
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    return payload.hex(), bufs


@pytest.mark.parametrize("vector", HANDLES.values(), ids=lambda v: str(v["name"]))
def test_golden_handles(vector: dict[str, Any]) -> None:
    blocks: dict[str, Named] = {}
    batch = loaded(vector, blocks)
    assert len(batch) == vector["handle"]["rows"]
    named = [name for part in vector["handle"]["parts"] for name in part["columns"]]
    assert batch.columns == [name.partition("\0")[0] for name in named]
    assert written(batch) == (vector["payload"], vector["buffers"])
    for made in vector.get("makes", ()):
        if "slice" in made:
            start, stop = made["slice"]
            result = batch[start:stop]
        elif "take" in made:
            result = batch.take(made["take"])
        elif "select" in made:
            result = batch.select(*made["select"])
        else:
            others = [loaded(HANDLES[name], blocks) for name in made["concat"]]
            result = Batch.concat([batch, *others])
        assert written(result) == (made["payload"], made["buffers"]), made


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if "refused" in v], ids=lambda v: str(v["name"])
)
def test_golden_refusals(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="a malformed batch"):
        _rows.unpack(bytes.fromhex(vector["payload"]), len(vector["buffers"]))


def expand(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(piece.block, int(row)) for piece in pieces for row in piece.rows]


def some_pieces(rng: random.Random) -> list[Piece]:
    pieces = []
    for _ in range(rng.randrange(1, 6)):
        block = rng.choice("abc")
        if rng.random() < 0.5:
            start = rng.randrange(20)
            pieces.append(Piece(block, range(start, start + rng.randrange(15))))
        else:
            rows = [rng.randrange(12) for _ in range(rng.randrange(9))]
            pieces.append(Piece(block, np.array(rows, np.uint32)))
    return pieces


@pytest.mark.parametrize("seed", range(200))
def test_pieces_against_lists(seed: int) -> None:
    rng = random.Random(seed)
    pieces = some_pieces(rng)
    rows = expand(pieces)
    joined = _rows.join(pieces)
    assert expand(joined) == rows and _rows.count(joined) == len(rows)
    start, stop = sorted(rng.randrange(len(rows) + 1) for _ in range(2))
    assert expand(_rows.cut(pieces, start, stop)) == rows[start:stop]
    if rows:
        picked = [rng.randrange(len(rows)) for _ in range(rng.randrange(30))]
        found = _rows.pick(pieces, np.array(picked, np.int64))
        assert expand(found) == [rows[i] for i in picked]
        # The form is one: what was picked, cut and joined again is the same.
        at = rng.randrange(len(picked) + 1)
        again = _rows.join(
            [*_rows.cut(found, 0, at), *_rows.cut(found, at, len(picked))],
        )
        assert _rows.pack(handle(again)) == _rows.pack(handle(found))


def handle(pieces: list[Piece]) -> _rows.Handle:
    numbered = [Piece(ord(piece.block) - ord("a"), piece.rows) for piece in pieces]
    return _rows.Handle(_rows.count(pieces), [(["x"], numbered)], None, [])


def test_long_handles_take_few_steps() -> None:
    rng = np.random.default_rng(0)
    blocks = [Piece(name, range(10_000)) for name in "abcdefgh"]
    order = rng.permutation(80_000)
    shuffled = _rows.pick(blocks, order)
    assert _rows.count(shuffled) == 80_000
    back = _rows.pick(shuffled, np.argsort(order))
    assert back == blocks


def test_a_handle_keeps_its_cut() -> None:
    cut = Cut(np.array([1.5, 2.0]), np.array([7, 7], np.uint32), 2)
    payload = _rows.pack(_rows.Handle(2, [], cut, [(b"\x80", 0, 0), (b"\x80", 0, 2**64 - 1)]))
    back = _rows.unpack(payload, 0)
    assert back.cut is not None and back.metas == [(b"\x80", 0, 0), (b"\x80", 0, 2**64 - 1)]
    assert back.cut.weights is not None and back.cut.weights.tolist() == [1.5, 2.0]
    assert back.cut.groups is not None and back.cut.groups.tolist() == [7, 7]
    assert back.cut.multiple == 2
