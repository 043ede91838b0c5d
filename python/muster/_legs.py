"""One range of rows of one object: what ranks mostly get, from its bytes to an array in few steps.

A worker that has just woken up finds nothing of its code in the caches, so each
step that is not taken counts. All else goes the general way, by `_parts` and
`_blocks`, and so does whatever is wrong.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _layout, _objects
from ._blocks import Block
from ._columns import Array
from ._parts import Part
from ._rows import MAX_ROWS, Piece

_STR = {str}


class Range(NamedTuple):
    """Some columns of rows ``start`` to ``stop`` of an object."""

    names: tuple[str, ...]
    start: int
    stop: int


@lru_cache(maxsize=256)  # from step to step a rank gets the same rows of another object
def range_of(payload: bytes) -> Range | None:
    """What a handle says, if it is so simple; None where it is not, or something is wrong."""
    try:
        rows, [[names, [[block, start, stop]]]], cut, metas = msgpack.unpackb(
            payload, unicode_errors="surrogatepass"
        )
        simple = (
            not metas
            and cut is None
            and type(rows) is type(start) is type(stop) is type(block) is int
            and block == 0
            and 0 <= start <= stop <= MAX_ROWS
            and stop - start == rows
            and set(map(type, names)) == _STR
            and len(set(names)) == len(names)
            and "\0" not in "".join(names)
        )
    except Exception:
        return None
    return Range(tuple(names), start, stop) if simple else None


def read(rows: Range, source: _objects.Stored, name: str) -> Array | None:
    """A column of numbers; None where that takes more steps."""
    names, start, stop = rows
    memory = source.memory() if name in names else None
    if memory is None:
        return None
    return _layout.lent_rows(memory, source.offset, source.nbytes, name, start, stop)


def part_of(rows: Range, source: _objects.Stored) -> Part:
    """The same as parts are."""
    piece = Piece(Block(None, source), range(rows.start, rows.stop))
    return Part({name: name for name in rows.names}, [piece])
