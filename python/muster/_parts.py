"""Parts: columns of a batch that lie side by side, and the rows they are.

A batch is a list of parts with the same number of rows. Selecting, renaming,
joining and uniting parts touches no row; making them ready to be sent writes
what is not in a store yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _blocks, _rows
from ._blocks import Block
from ._rows import Piece

_MANY = 16  # from here on, blocks that ride in frames are put together before they are sent


class Part(NamedTuple):
    """Columns (as they are called, and as they are called in their blocks) of some rows."""

    columns: dict[str, str]
    pieces: list[Piece]


def select(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The named columns, in that order."""
    where = {name: part for part in parts for name in part.columns}
    found: list[Part] = []
    last = None
    for name in names:
        part = where[name]
        if part is not last:
            found.append(Part({}, part.pieces))
            last = part
        found[-1].columns[name] = part.columns[name]
    return found


def rename(parts: Sequence[Part], names: Mapping[str, str]) -> list[Part]:
    """The same columns under other names."""
    return [
        Part({names.get(name, name): at for name, at in part.columns.items()}, part.pieces)
        for part in parts
    ]


def remade(parts: Sequence[Part], make: Callable[[list[Piece]], list[Piece]]) -> list[Part]:
    """The same columns of other rows."""
    return [Part(part.columns, make(part.pieces)) for part in parts]


def same_rows(a: Part, b: Part, name: str) -> bool:
    """Whether a column is the very same in both."""
    return (
        a.columns[name] == b.columns[name]
        and len(a.pieces) == len(b.pieces)
        and all(
            p.block is q.block and type(p.rows) is type(q.rows) and np.array_equal(p.rows, q.rows)
            for p, q in zip(a.pieces, b.pieces, strict=True)
        )
    )


def check_columns(batches: Sequence[Sequence[str]]) -> None:
    """ValueError where batches that are to be put together have not the same columns."""
    first = list(batches[0])
    for at, columns in enumerate(batches):
        lacks, extra = sorted({*first} - {*columns}), sorted({*columns} - {*first})
        if lacks or extra:
            says = [f"lacks {lacks}"] * bool(lacks) + [f"has {extra}"] * bool(extra)
            raise ValueError(
                "batches with different columns cannot be put together: the first has "
                f"{first}, number {at} {' and '.join(says)}: select the same columns of each"
            )


def concat(batches: Sequence[Sequence[Part]]) -> list[Part]:
    """The rows of several one after another; all have the same columns, in any grouping."""
    names = [name for part in batches[0] for name in part.columns]
    wheres = [{name: part for part in parts for name in part.columns} for parts in batches]
    found: list[Part] = []
    before: list[Part] = []
    for name in names:
        parts = [_as_stored(where, name, wheres[0][name].columns[name]) for where in wheres]
        if not before or any(p is not q for p, q in zip(parts, before, strict=True)):
            pieces = [piece for part in parts for piece in part.pieces]
            found.append(Part({}, _rows.join(pieces)))
            before = parts
        found[-1].columns[name] = wheres[0][name].columns[name]
    return found


def _as_stored(where: Mapping[str, Part], name: str, stored: str) -> Part:
    """The part that has a column, called as it is in the first batch's blocks.

    Where another name was given to only one of them, the column is read.
    """
    part = where[name]
    if part.columns[name] == stored:
        return part
    value = _blocks.value_of(name, part.columns[name], part.pieces)
    block = Block({stored: value}, None)
    return Part({name: stored}, [Piece(block, range(_rows.count(part.pieces)))])


def content(rows: int, parts: Sequence[Part]) -> np.ndarray[Any, Any]:
    """All columns as one object in memory of this process."""
    columns = {
        name: _blocks.column_of(name, stored, part.pieces, "on")
        for part in parts
        for name, stored in part.columns.items()
    }
    return _blocks.content_of(rows, columns)


# --- making ready ------------------------------------------------------------------------


def stored(parts: Sequence[Part], pickle: str) -> list[Part]:
    """The same rows, all of them in objects.

    A given block is written whole where the batch has all its columns and half of its rows or
    more: what else is made of it then refers to the same object. Else only what the batch has of
    it is written, together with the rest of that kind.
    """
    used: dict[int, set[str]] = {}  # columns by block
    for part in parts:
        for block in {id(piece.block): piece.block for piece in part.pieces}:
            used.setdefault(block, set()).update(part.columns.values())
    return [_stored_part(part, used, pickle) for part in parts]


def _stored_part(part: Part, used: Mapping[int, set[str]], pickle: str) -> Part:
    counts: dict[int, int] = {}
    blocks: dict[int, Block] = {}
    for block, rows in part.pieces:
        blocks[id(block)] = block
        counts[id(block)] = counts.get(id(block), 0) + len(rows)
    given = [block for block in blocks.values() if block.local]
    riding = [block for block in blocks.values() if block.local or block.inline]
    apart: set[int] = set()  # blocks whose rows are written anew
    if len(riding) >= _MANY:
        apart = {id(block) for block in riding}
    for block in given:
        if id(block) in apart:
            continue
        all_columns = used[id(block)] == set(block.names())
        if all_columns and 2 * counts[id(block)] >= block.rows():
            block.freeze(pickle)
        else:
            apart.add(id(block))
    if not apart:
        return part
    moved: dict[int, list[np.ndarray[Any, Any]]] = {}
    for block, rows in part.pieces:
        if id(block) in apart:
            moved.setdefault(id(block), []).append(np.asarray(rows))
    taken: list[Piece] = []  # each row of those blocks once
    starts: dict[int, tuple[int, Any]] = {}
    at = 0
    for key, its in moved.items():
        rows = np.unique(np.concatenate(its)).astype(np.uint32)
        starts[key] = at, rows
        taken += _rows.join([Piece(blocks[key].unwritten(), rows)])
        at += len(rows)
    made = _written(part.columns, taken, at, pickle)
    pieces = []
    for block, rows in part.pieces:
        if id(block) not in apart:
            pieces.append(Piece(block, rows))
            continue
        start, known = starts[id(block)]
        now = start + np.searchsorted(known, np.asarray(rows))
        pieces.append(Piece(made, now.astype(np.uint32)))
    return Part(part.columns, _rows.join(pieces))


def _written(columns: Mapping[str, str], pieces: list[Piece], rows: int, pickle: str) -> Block:
    drafts = {
        stored: _blocks.column_of(name, stored, pieces, pickle) for name, stored in columns.items()
    }
    return _blocks.place(rows, drafts)


def wire_names(columns: Mapping[str, str]) -> list[str]:
    """Columns as they are named to others: by both names, where these differ."""
    return [name if name == at else f"{name}\0{at}" for name, at in columns.items()]


def from_wire(names: Iterable[str]) -> dict[str, str]:
    """The same, read."""
    found = {}
    for name in names:
        shown, _, stored = name.partition("\0")
        found[shown] = stored or shown
    return found
