"""What of a value is too much for the body of a frame.

Arrays are buffers of their own, and so are long bytes and pickles. Text, and what is
neither long nor short, lies in the body: there it is packed fastest, and most values
are small. A body that has become large is looked through, and where long text made it
so, or much that is not short, the value is encoded once more, with that in buffers:
those go into a store. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from . import _records

OUT_OF_BAND = 256 << 10  # bytes and text of at least this size become a buffer of the frame
_CROWD = 8 << 20  # in a body beyond that,
_MIDDLING = 16 << 10  # so do those from here on

_NUMBERS = frozenset((type(None), bool, int, float, complex))
_TEXTS = frozenset((str, bytes, bytearray))
_LISTS = frozenset((list, tuple, set, frozenset))
_KNOWN = _NUMBERS | _TEXTS | _LISTS | {dict}
_MAX_LEVELS = 1000

#: With which bytes msgpack begins what is long: text; text, bytes and extensions.
_HEADS = (b"\xdb", b"\xda", b"\xc5", b"\xc6", b"\xc8", b"\xc9")

#: Whether there is nothing but numbers of these types.
only_numbers = _NUMBERS.issuperset


def least(body: bytes, level: Iterable[Iterable[Any]]) -> int:
    """From which size on text and bytes have to leave a body; 0 where all can stay. ``level`` has
    what the value is made of, as ``[value]`` has."""
    size, heads = (_MIDDLING, _HEADS) if len(body) > _CROWD else (OUT_OF_BAND, _HEADS[:1])
    if len(body) < OUT_OF_BAND or not any(head in body for head in heads):
        return 0
    return size if _holds(size, level) else 0


def long(item: Any, size: int) -> bool:
    """Whether text or bytes take so many bytes on the wire."""
    count = len(item)
    if count >= size:
        return True
    if type(item) is not str or 4 * count < size or item.isascii():
        return False
    return len(item.encode("utf-8", "surrogatepass")) >= size


def _holds(size: int, level: Iterable[Iterable[Any]]) -> bool:
    """Whether text or bytes of that size are in these iterables, however deep, or may be in what
    only pickle knows. It goes level by level, as `_values` does."""
    for _ in range(_MAX_LEVELS):
        kinds = set(map(type, chain.from_iterable(level)))
        if kinds <= _NUMBERS:
            return False
        items = [*chain.from_iterable(level)]
        if not kinds.isdisjoint(_TEXTS):
            for item in items:
                if type(item) in _TEXTS and 4 * len(item) >= size and long(item, size):
                    return True
        records = {kind for kind in kinds - _KNOWN if hasattr(kind, "__dataclass_fields__")}
        if size < OUT_OF_BAND and kinds - _KNOWN - records:
            return True  # longer ones are out of the way already
        below: dict[int, Iterable[Any]] = {}  # by identity, as lists may share and contain lists
        if not kinds.isdisjoint(_LISTS):
            below = {id(item): item for item in items if type(item) in _LISTS}
        if dict in kinds:
            below |= {id(item): item.values() for item in items if type(item) is dict}
        for record in items if records else ():
            fields = _records.fields_of(record) if type(record) in records else None
            if fields is not None:
                below[id(record)] = fields.values()
        if not below:
            return False
        level = tuple(below.values())
    return False
