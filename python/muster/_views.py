"""Views: what was read of a batch and lies open in a store, until it is let go of (`_looks`).

A batch keeps the values of its columns. Views among them hold what they were made
over; such a value is let go of when nobody else has it and it is still as it was
made. What was written through it is not lost by that: it stays with its stretch.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _objects
from ._looks import ALONE, Stretch, references
from ._rows import Piece

if TYPE_CHECKING:
    from ._batch import Batch
    from ._parts import Part


def keep(batch: Batch, part: Part, name: str, value: Any) -> Any:
    """Keep a value that was read; it, or that of another thread that was quicker."""
    stretch = _stretch(part)
    if stretch is None:
        return batch._cache.setdefault(name, value)
    ledger = stretch.right.ledger
    with ledger.counting:  # while nobody lets go
        kept = batch._cache.setdefault(name, value)
        if kept is value and _of_views(value):
            batch._rows_made[name] = list(value)
        if not batch._looked:
            batch._looked = True
            ledger.looks.note(batch)
    return kept


def held(batch: Batch) -> None:
    """The blocks of a batch are kept open."""
    for part in batch._live():
        stretch = _stretch(part)
        if stretch is not None:
            batch._looked = True
            stretch.right.ledger.looks.note(batch)
            return


def _stretch(part: Part) -> _objects.Stored | None:
    """One of those that the rows lie in."""
    for block, _ in part.pieces:
        if type(block.source) is _objects.Stored:
            return block.source
    return None


def _of_views(value: Any) -> bool:
    """Whether it is a list, or an array of objects, of rows that are views."""
    if not isinstance(value, list) and not _is_array(value, objects=True):
        return False
    row = next((row for row in value if row is not None), None)
    return isinstance(row, np.ndarray) or hasattr(row, "data_ptr")


def _is_array(value: Any, objects: bool) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype == object) is objects


def let_go(batch: Batch, stretches: dict[int, Stretch]) -> bool:
    """Let go of what was read of a batch, where nobody else has it, and tell of what stretches;
    whether somebody has some of it."""
    batch._looked = False
    if batch._parts is None:
        return False
    for part in batch._live():
        for block, _ in part.pieces:
            stretch = block.let_go()
            if stretch is not None:
                stretches[id(stretch)] = stretch
        for name, stored in part.columns.items():
            if name in batch._cache and _let_go(batch, part, name, stored):
                batch._looked = True
    return batch._looked


def _let_go(batch: Batch, part: Part, name: str, stored: str) -> bool:
    """Let go of one column; whether somebody else has it."""
    cache, value = batch._cache, batch._cache[name]
    made = batch._rows_made.get(name)
    if made is not None:
        if not _same_rows(value, made):
            del batch._rows_made[name]  # from now on it is the batch's own
            return False
    elif not _as_made(value, part, stored):
        return False
    del cache[name], made
    if references(value) > ALONE:
        cache[name] = value
        return True
    batch._rows_made.pop(name, None)
    return False


def _same_rows(value: Any, made: list[Any]) -> bool:
    return (
        len(value) == len(made)
        and all(map(is_, value, made))
        and not any(getattr(row, "requires_grad", False) for row in made)
    )


def _as_made(value: Any, part: Part, stored: str) -> bool:
    """Whether it is an array or a tensor over a stretch, and nothing but its bytes was changed."""
    if not _is_array(value, objects=False) and not hasattr(value, "data_ptr"):
        return False
    some: list[Piece] = [piece for piece in part.pieces if len(piece.rows)] or part.pieces[:1]
    block, rows = some[0]
    if len(some) > 1 or type(rows) is not range or type(block.source) is not _objects.Stored:
        return False  # it was gathered, in memory of its own
    made = block.read(stored, rows)
    return type(value) is type(made) and _form(value) == _form(made)


def _form(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.__array_interface__, value.flags.writeable
    place = value.data_ptr(), value.shape, value.stride(), value.dtype
    return place, value.requires_grad, value.grad is None, vars(value)
