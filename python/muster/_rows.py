"""Handles: which rows of which blocks a batch is, and how that lies in a value.

A block is anything that has rows; here it is only compared by identity. Slicing,
picking and joining make new pieces and touch no row. The form of the pieces is
the one that the Go package `batch` makes, so that the same rows in the same
order give the same bytes. This module is pure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from ._errors import ProtocolError

MAX_ROWS = 1 << 32  # rows are named by 32 bits
_MIN_RUN = 8  # from here on a run is a range of its own: it is read by one copy

Rows = range | NDArray[np.uint32]
Index = NDArray[np.int64]


class Piece(NamedTuple):
    """Rows of one block: a range, or indices in the order in which they come."""

    block: Any
    rows: Rows


def count(pieces: Iterable[Piece]) -> int:
    """How many rows the pieces have."""
    return sum(len(piece.rows) for piece in pieces)


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """The same rows in their one form: neighbours as ranges, the rest as few lists.

    Without any rows one empty piece stays, for its types.
    """
    given = list(pieces)
    if len(given) == 1 and isinstance(given[0].rows, range):
        return given
    blocks: list[Any] = []
    numbers: dict[int, int] = {}
    which, first, length = [], [], []
    for block, rows in given:
        if not len(rows):
            continue
        number = numbers.setdefault(id(block), len(blocks))
        if number == len(blocks):
            blocks.append(block)
        if isinstance(rows, range):
            which.append(np.full(1, number))
            first.append(np.full(1, rows.start))
            length.append(np.full(1, len(rows)))
        else:
            which.append(np.full(len(rows), number))
            first.append(rows.astype(np.int64))
            length.append(np.ones(len(rows), np.int64))
    if not which:
        return [Piece(given[0].block, range(0))]
    return _form(blocks, np.concatenate(which), np.concatenate(first), np.concatenate(length))


def cut(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    """Rows start to (not included) stop."""
    found, at = [], 0
    for block, rows in pieces:
        lo, hi = max(start - at, 0), min(stop - at, len(rows))
        if lo < hi:
            found.append(Piece(block, rows[lo:hi]))
        at += len(rows)
    return join(found or [Piece(pieces[0].block, range(0))])


def pick(pieces: Sequence[Piece], indices: Index) -> list[Piece]:
    """The rows of these indices, in their order; they may repeat, and lie within bounds."""
    if not len(indices):
        return [Piece(pieces[0].block, range(0))]
    lengths = np.array([len(piece.rows) for piece in pieces])
    ends = np.cumsum(lengths)
    which = np.searchsorted(ends, indices, side="right")
    # An index becomes a row of a range, or a place among the rows of all lists.
    listed = [piece.rows for piece in pieces if not isinstance(piece.rows, range)]
    in_list = np.array([not isinstance(piece.rows, range) for piece in pieces])
    bases = np.array([r.start if isinstance(r, range) else 0 for _, r in pieces], np.int64)
    list_ends = np.cumsum(np.where(in_list, lengths, 0))
    bases[in_list] = (list_ends - lengths)[in_list]
    rows = indices + (bases - (ends - lengths))[which]
    if listed:
        there = in_list[which]
        rows[there] = np.concatenate(listed)[rows[there]]
    blocks: list[Any] = []
    numbers: dict[int, int] = {}
    for piece in pieces:
        if numbers.setdefault(id(piece.block), len(blocks)) == len(blocks):
            blocks.append(piece.block)
    which = np.array([numbers[id(piece.block)] for piece in pieces])[which]
    return _form(blocks, which, rows, np.ones(len(rows), np.int64))


def _form(blocks: list[Any], which: Index, first: Index, length: Index) -> list[Piece]:
    """Runs of rows, each of a block, as pieces."""
    begins = np.ones(len(which), bool)
    begins[1:] = (which[1:] != which[:-1]) | (first[1:] != first[:-1] + length[:-1])
    at = np.flatnonzero(begins)
    which, first, length = which[at], first[at], np.add.reduceat(length, at)
    long = length >= _MIN_RUN
    begins = np.ones(len(which), bool)
    begins[1:] = (which[1:] != which[:-1]) | long[1:] | long[:-1]
    at = np.flatnonzero(begins)
    # All rows of short runs, one after another, and where each run has its own.
    steps = np.where(long, 0, length)
    ends = np.cumsum(steps)
    short = np.repeat(first - (ends - steps), steps) + np.arange(ends[-1])
    listed = short.astype(np.uint32)
    found = []
    for lo, hi in zip(at.tolist(), [*at[1:].tolist(), len(which)], strict=True):
        block = blocks[which[lo]]
        if hi - lo == 1:
            start = int(first[lo])
            found.append(Piece(block, range(start, start + int(length[lo]))))
        else:
            found.append(Piece(block, listed[ends[lo] - steps[lo] : ends[hi - 1]]))
    return found


# --- what users say ---------------------------------------------------------------------


def indices(rows: Any, total: int) -> Index:
    """Indices from 0 of rows that are named by number, from the end too, or by a mask."""
    found = np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows)
    if found.ndim == 1 and not found.size:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "biu":
        raise TypeError(
            "rows of a batch are chosen by a column's name, a number, a slice, a list of numbers "
            f"or a mask, not by {rows!r}"
        )
    if found.dtype.kind == "b":
        if len(found) != total:
            raise IndexError(f"a mask of {len(found)} for {total} rows")
        return np.flatnonzero(found)
    lowest, highest = int(found.min()), int(found.max())
    if lowest < -total or highest >= total:
        wrong = highest if highest >= total else lowest
        raise IndexError(f"row {wrong} of a batch of {total} rows")
    found = found.astype(np.int64)
    return np.where(found < 0, found + total, found) if lowest < 0 else found


def weights(what: str, values: Any) -> NDArray[np.float64]:
    """What rows weigh: numbers, or the lengths of rows; of a text, its bytes in UTF-8."""
    found: Any = values
    if hasattr(values, "cpu"):
        found = values.detach().cpu().double().numpy()
    elif not isinstance(values, np.ndarray):
        found = list(values) if hasattr(values, "__iter__") else values
    elif values.dtype.kind in "OUST":
        found = values.tolist()
    if isinstance(found, list):
        if any(map(_has_length, found)):
            found = [_length(what, at, row) for at, row in enumerate(found)]
        found = np.array(found) if found else np.empty(0)
    found = np.asarray(found)
    if found.ndim != 1 or found.dtype.kind not in "biuf":
        raise TypeError(f"{what} is no number for each row, and no rows with lengths")
    made: NDArray[np.float64] = found.astype("<f8")
    if not (np.isfinite(made).all() and (made >= 0).all()):
        raise ValueError(f"{what}: weights are no negative numbers, infinities or NaN")
    return made


def _has_length(row: Any) -> bool:
    return hasattr(row, "__len__") and bool(getattr(row, "ndim", True))  # 0-d arrays have none


def _length(what: str, at: int, row: Any) -> int:
    if row is None:
        return 0
    if isinstance(row, str):
        return len(row if row.isascii() else row.encode("utf-8", "surrogatepass"))
    if _has_length(row):
        return len(row)
    raise TypeError(f"{what}: row {at} has no length, as the others have: {row!r}")


def groups(values: Any) -> NDArray[np.uint32]:
    """A number for each row, the same for equal values."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    numbers: dict[Any, int] = {}
    try:
        return np.array([numbers.setdefault(row, len(numbers)) for row in rows], "<u4")
    except TypeError as error:
        raise TypeError(f"rows are grouped by numbers, texts and the like: {error}") from None


# --- how a batch wants to be cut ---------------------------------------------------------


class Cut(NamedTuple):
    """What the head goes by when it cuts a batch for ranks."""

    weights: NDArray[np.float64] | None = None
    groups: NDArray[np.uint32] | None = None
    multiple: int = 0

    def of(self, rows: slice | Index) -> Cut:
        """The cut of some of the rows."""
        return Cut(
            None if self.weights is None else self.weights[rows],
            None if self.groups is None else self.groups[rows],
            self.multiple,
        )

    def or_none(self) -> Cut | None:
        """The cut, unless it says nothing."""
        says = self.weights is not None or self.groups is not None or self.multiple > 1
        return self if says else None


def join_cuts(cuts: Sequence[Cut | None]) -> Cut | None:
    """The cut of batches one after another: what all of them say, else nothing.

    Groups of the same number are one group: they come of slices of one batch.
    """
    known = [one for one in cuts if one is not None]
    if not known or len(known) < len(cuts):
        return None
    weights = [one.weights for one in known if one.weights is not None]
    groups = [one.groups for one in known if one.groups is not None]
    multiples = {one.multiple for one in known}
    joined = Cut(
        np.concatenate(weights) if len(weights) == len(known) else None,
        np.concatenate(groups) if len(groups) == len(known) else None,
        multiples.pop() if len(multiples) == 1 else 0,
    )
    return joined.or_none()


# --- the value ---------------------------------------------------------------------------


class Handle(NamedTuple):
    """What the value of a batch says; blocks are numbers of its buffers."""

    rows: int
    parts: list[tuple[list[str], list[Piece]]]
    cut: Cut | None
    #: An encoded value, how many buffers it has, and the origin of its metrics.
    metas: list[tuple[bytes, int, int]]


def pack(handle: Handle, number: Callable[[Any], int] = int) -> bytes:
    """The bytes of a handle; ``number`` tells which buffer a block is."""
    parts = []
    for names, pieces in handle.parts:
        packed: list[Any] = []
        for block, rows in pieces:
            if isinstance(rows, range):
                packed.append([number(block), rows.start, rows.stop])
            else:
                packed.append([number(block), rows.astype("<u4", copy=False).tobytes()])
        parts.append([names, packed])
    cut = None
    if handle.cut is not None:
        weights, groups, multiple = handle.cut
        cut = [
            None if weights is None else weights.astype("<f8", copy=False).tobytes(),
            None if groups is None else groups.astype("<u4", copy=False).tobytes(),
            multiple,
        ]
    data: bytes = msgpack.packb(
        [handle.rows, parts, cut, [meta if meta[2] else meta[:2] for meta in handle.metas]],
        unicode_errors="surrogatepass",
    )
    return data


def unpack(payload: Any, nbufs: int) -> Handle:
    """The handle in these bytes, which has nbufs buffers; ProtocolError for what is none."""
    try:
        rows, parts, cut, metas = msgpack.unpackb(payload, unicode_errors="surrogatepass")
        handle = Handle(
            _number(rows, MAX_ROWS),
            [([_name(name) for name in names], [_piece(p) for p in ps]) for names, ps in parts],
            None if cut is None else _cut(*cut),
            [_meta(nbufs, *meta) for meta in metas],
        )
    except Exception as error:
        raise _malformed(f"{type(error).__name__}: {error}") from None
    objects = nbufs - sum(bufs for _, bufs, _ in handle.metas)
    if objects < 0:
        raise _malformed(f"its metas need {nbufs - objects} buffers of {nbufs}")
    seen: set[str] = set()
    for names, pieces in handle.parts:
        if not names or not pieces:
            raise _malformed("a part without columns or without pieces")
        shown = {name.partition("\0")[0] for name in names}
        if not seen.isdisjoint(shown) or len(shown) < len(names):
            raise _malformed(f"a column is there twice: {names}")
        seen.update(shown)
        if count(pieces) != rows:
            raise _malformed(f"columns {names} have {count(pieces)} rows instead of {rows}")
        if any(piece.block >= objects for piece in pieces):
            raise _malformed(f"columns {names} lie in a buffer that is none of its {objects}")
    weights, groups, _ = handle.cut or Cut()
    for label, per_row in (("weights", weights), ("groups", groups)):
        if per_row is not None and len(per_row) != rows:
            raise _malformed(f"there are {label} for {len(per_row)} rows of {rows}")
    return handle


def _meta(nbufs: int, value: Any, bufs: Any, *origin: Any) -> tuple[bytes, int, int]:
    if not origin:
        return bytes(value), _number(bufs, nbufs), 0
    (number,) = origin
    if _number(number, 2**64 - 1) == 0:
        raise ValueError("the origin of a meta is 0")
    return bytes(value), _number(bufs, nbufs), number


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(f"a malformed batch: {why}")


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def _name(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"the name of a column is {value!r}")
    return value


def _piece(value: Any) -> Piece:
    block = _number(value[0], 1 << 31)
    if len(value) == 2:
        return Piece(block, np.frombuffer(value[1], "<u4").astype(np.uint32, copy=False))
    _, start, stop = value
    if not 0 <= _number(start, MAX_ROWS) <= _number(stop, MAX_ROWS):
        raise ValueError(f"a piece from row {start} to {stop}")
    return Piece(block, range(start, stop))


def _cut(weights: Any, groups: Any, multiple: Any) -> Cut | None:
    multiple = _number(multiple, MAX_ROWS)
    made = Cut(
        None if weights is None else np.frombuffer(weights, "<f8"),
        None if groups is None else np.frombuffer(groups, "<u4"),
        0 if multiple == 1 else multiple,
    )
    return made.or_none()


def whole_number(method: str, n: Any) -> int:
    """The argument of a method of a batch that takes a count."""
    try:
        return operator.index(n)
    except TypeError:
        raise TypeError(f"b.{method}(n) takes a whole number, not {n!r}") from None
