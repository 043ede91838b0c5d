"""Values that were put: snapshots whose large parts lie in a store once.

Such a value travels as a batch, so by reference, and arrives as itself.
It knows nothing of refs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _metas, _objects, _sources, _values

if TYPE_CHECKING:
    from ._batch import Batch

_COLUMN = "bytes"
_ALIGNED = 64  # where a part begins, as arrays want it
_WIDE = 4096  # bytes of a row, where one for each byte would be too many


class Closed:
    """Whether values that come here stay closed: so the one has it who only passes them on."""

    here = False


class Kept:
    """A value, encoded, with its large buffers in a batch: in the places of those are lengths."""

    __slots__ = ("_batch", "_body", "_parts")

    def __init__(self, body: bytes, parts: Sequence[Any], batch: Batch | None) -> None:
        self._body = body
        self._parts = parts
        self._batch = batch

    def open(self) -> Any:
        """The value, made anew: large parts over the shared memory, privately mapped, small ones
        copied, as torch wants to write."""
        data = memoryview(b"") if self._batch is None else _content(self._batch)
        views: list[Any] = []
        at = 0
        for part in self._parts:
            if type(part) is not int:
                views.append(bytearray(part))
                continue
            views.append(data[at : at + part])
            at += _aligned(part)
        return _values.decode(self._body, views)

    def small(self, most: int) -> tuple[bytes, list[bytes]] | None:
        """What it is made of, where that is no more than so many bytes and lies here."""
        if self._batch is not None or len(self._body) + sum(map(len, self._parts)) > most:
            return None
        return self._body, list(self._parts)

    def passed(self) -> Any:
        """What is sent in its place: it arrives as the value."""
        return self.open() if self._batch is None else self

    def __muster_batch__(self) -> Batch:
        assert self._batch is not None
        return self._batch

    @classmethod
    def __from_muster_batch__(cls, batch: Batch) -> Any:
        kept = cls(batch.meta["body"], batch.meta["parts"], batch)
        return kept if Closed.here else kept.open()

    def __reduce__(self) -> Any:
        return Kept.__from_muster_batch__, (self._batch,)


class Laid:
    """A value, encoded, some of whose buffers lay in a store already, as those of batches do."""

    __slots__ = ("_body", "_buffers")

    def __init__(self, body: bytes, buffers: Sequence[Any]) -> None:
        self._body = body
        self._buffers: list[Any] = [
            part if type(part) is _objects.Stored else bytes(memoryview(part).cast("B"))
            for part in buffers
        ]

    def open(self) -> Any:
        """The value, made anew: what is written to one is not seen in another."""
        buffers = [
            _own(part) if type(part) is _objects.Stored else bytearray(part)
            for part in self._buffers
        ]
        return _values.decode(self._body, buffers)

    passed = open


class Plain:
    """An object that is there, as it is."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self) -> Any:
        """The value itself."""
        return self._value

    passed = open


def keep(value: Any) -> Kept | Laid:
    """A snapshot of a value, written to the store."""
    buffers: list[Any] = []
    body = _values.encode(value, buffers)
    if any(type(part) is _objects.Stored for part in buffers):
        return Laid(body, buffers)
    views = [memoryview(part).cast("B") for part in buffers]
    large = [view for view in views if view.nbytes >= _objects.LARGE]
    try:
        import numpy
    except ImportError:
        large = []
    if not large:
        return Kept(body, [bytes(view) for view in views], None)
    from ._batch import Batch

    size = large[0].nbytes if len(large) == 1 else sum(_aligned(view.nbytes) for view in large)
    rows, width = shape_of(size)
    if len(large) == 1 and rows * width == size:
        data = numpy.frombuffer(large[0], numpy.uint8)
    else:
        data = numpy.empty(rows * width, numpy.uint8)
        at = 0
        for view in large:
            data[at : at + view.nbytes] = view
            at += _aligned(view.nbytes)
    parts = [view.nbytes if view.nbytes >= _objects.LARGE else bytes(view) for view in views]
    kind = f"{Kept.__module__}:{Kept.__qualname__}"
    batch = Batch({_COLUMN: data.reshape(rows, width)})
    batch = _metas.stand_for(batch, kind, {"body": body, "parts": parts})
    batch._encode([])  # into the store now: its maker may change the array
    return Kept(body, parts, batch)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def shape_of(size: int) -> tuple[int, int]:
    """Rows of a batch, and the bytes of each, that have room for so many bytes."""
    from ._rows import MAX_ROWS  # which needs numpy

    width = 1 if size <= MAX_ROWS else _WIDE
    return -(-size // width), width


def _content(batch: Batch) -> memoryview:
    """The large parts, in memory that nobody else has."""
    from ._blocks import Block

    ((block, rows),) = batch._live()[0].pieces
    data: memoryview = Block(None, _own(block.source)).read(_COLUMN, rows).reshape(-1).data
    return data


def _own(source: Any) -> Any:
    """The same content, to be mapped or copied once more."""
    if type(source) is _objects.Stored:
        return _objects.Stored(source.right, source.offset, source.nbytes)
    return _sources.Inline(source.buffer().toreadonly())
