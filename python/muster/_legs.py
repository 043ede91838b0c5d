"""One range of rows of one object: what ranks mostly get, from its bytes to an array in few steps.

A worker that has just woken up finds nothing of its code in the caches, so each
step that is not taken counts. All else goes the general way, by `_parts` and
`_blocks`, and so does whatever is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _layout, _objects
from ._blocks import Block
from ._columns import Array
from ._parts import Part
from ._rows import MAX_ROWS, Piece

_STR = {str}


class One:
    """Some columns of rows ``start`` to ``stop`` of one object."""

    __slots__ = ("names", "source", "start", "stop")

    def __init__(self, names: list[str], source: _objects.Stored, start: int, stop: int) -> None:
        self.names = names
        self.source = source
        self.start = start
        self.stop = stop

    def read(self, name: str) -> Array | None:
        """A column of numbers; None where that takes more steps."""
        if name not in self.names:
            return None
        content = self.source.root()
        if self.source.partial:
            return None
        return _layout.plain_column(content, name, self.start, self.stop)

    def part(self) -> Part:
        """The same as parts are."""
        piece = Piece(Block(None, self.source), range(self.start, self.stop))
        return Part({name: name for name in self.names}, [piece])


def one_of(fields: list[Any], bufs: Sequence[Any]) -> One | None:
    """What a handle says, if it is so simple; None where it is not, or something is wrong."""
    rows, parts, cut, metas = fields
    if metas or cut is not None or len(parts) != 1 or len(bufs) != 1:
        return None
    names, pieces = parts[0]
    if len(pieces) != 1 or len(pieces[0]) != 3 or type(bufs[0]) is not _objects.Stored:
        return None
    block, start, stop = pieces[0]
    if (
        type(rows) is type(start) is type(stop) is int
        and block == 0
        and 0 <= start <= stop <= MAX_ROWS
        and stop - start == rows
        and set(map(type, names)) == _STR
        and len(set(names)) == len(names)
        and "\0" not in "".join(names)
    ):
        return One(names, bufs[0], start, stop)
    return None
