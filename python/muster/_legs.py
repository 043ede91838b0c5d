"""One range of rows of one object: what ranks mostly get, from its bytes to an array in few steps.

A worker that has just woken up finds nothing of its code in the caches, so each
step that is not taken counts. All else goes the general way, by `_parts` and
`_blocks`, and so does whatever is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _layout, _objects
from ._blocks import Block
from ._columns import Array
from ._endings import nobody
from ._parts import Part
from ._rows import MAX_ROWS, Piece, malformed

_STR = {str}
_new = tuple.__new__
_unpackb = msgpack.unpackb


class One(NamedTuple):
    """Some columns of rows ``start`` to ``stop`` of one object."""

    names: list[str]
    source: _objects.Stored
    start: int
    stop: int

    def read(self, name: str) -> Array | None:
        """A column of numbers; None where that takes more steps."""
        names, source, start, stop = self
        if name not in names:
            return None
        content = source.root()
        if source.lease is not nobody:  # not all of it is here
            return None
        return _layout.plain_rows(content, None, name, start, stop)

    def part(self) -> Part:
        """The same as parts are."""
        piece = Piece(Block(None, self.source), range(self.start, self.stop))
        return Part({name: name for name in self.names}, [piece])


def unpack(payload: Any, bufs: Sequence[Any]) -> tuple[One | None, Any]:
    """What a handle says, if it is so simple; None where it is not, or something is wrong. And its
    fields, which nobody has checked then; ProtocolError for what is no msgpack."""
    try:
        fields = _unpackb(payload, unicode_errors="surrogatepass")
    except Exception as error:
        raise malformed(error) from None
    if len(bufs) != 1 or type(fields) is not list or len(fields) != 4:
        return None, fields
    rows, parts, cut, metas = fields
    if metas or cut is not None or len(parts) != 1 or type(bufs[0]) is not _objects.Stored:
        return None, fields
    names, pieces = parts[0]
    if len(pieces) != 1 or len(pieces[0]) != 3:
        return None, fields
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
        return _new(One, (names, bufs[0], start, stop)), fields
    return None, fields
