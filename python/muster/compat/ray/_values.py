"""Values as refs hold them: a snapshot whose large parts lie in shared memory once.

`put` makes one; passing its ref on sends a handle. It knows nothing of refs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import _context, _objects, _values

_COLUMN = "bytes"


@dataclass(frozen=True)
class Kept:
    """A value, encoded: its large buffers are batches, which move by reference."""

    body: bytes
    buffers: list[Any]

    def open(self) -> Any:
        """The value: large parts over the shared memory, small ones copied, as torch wants to
        write."""
        views = [
            bytearray(part) if type(part) is bytes else part[_COLUMN].data for part in self.buffers
        ]
        return _values.decode(self.body, views)


@dataclass(frozen=True)
class Plain:
    """A value that holds batches: those are by reference already."""

    value: Any

    def open(self) -> Any:
        """The value itself."""
        return self.value


@dataclass(frozen=True)
class Failure:
    """In the place of a value: the error that its getter is to see."""

    error: BaseException

    def open(self) -> Any:
        """Raise it."""
        raise self.error


Box = Kept | Plain | Failure


def boxed(value: Any) -> Box:
    """A snapshot of a value."""
    _context.connection("ray.put()")  # large parts go into its store
    buffers: list[Any] = []
    body = _values.encode(value, buffers)
    if any(type(part) is _objects.Stored for part in buffers):
        return Plain(value)
    return Kept(body, [_stored(part) for part in buffers])


def unboxed(value: Any) -> Any:
    """What a box holds; all else as it is."""
    return value.open() if isinstance(value, (Kept, Plain, Failure)) else value


def _stored(part: Any) -> Any:
    view = memoryview(part).cast("B")
    if view.nbytes < _objects.LARGE:
        return bytes(view)
    try:
        from ... import Batch
    except ImportError:  # no numpy
        return bytes(view)
    import numpy

    batch = Batch({_COLUMN: numpy.frombuffer(view, numpy.uint8)})
    batch._encode([])  # into the store now: its maker may change the array
    return batch
