"""Objects as this process knows them: bytes at hand, or a right to bytes in a store.

Owns what a value is made over: `Inline` bytes that came in a frame or go into
one, and `Stored` ranges of objects. How a store is talked to is `_store`'s, how
memory is mapped is `_shm`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy


class Source(Protocol):
    """The content of one object, wherever it lies."""

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""

    def root(self) -> numpy.ndarray[Any, Any]:
        """The content as a writable array of bytes; writes stay in this process.

        The bytes are good for as long as this array, or anything made over it, lives.
        """

    def buffer(self) -> Any:
        """What stands for the content in the buffers of a frame; keep it until that is sent."""

    def device_address(self) -> tuple[int, int, Any] | None:
        """Address and length of a read-only shared mapping that begins with the content, and
        its owner, a `_shm.Mapping`; None for bytes that lie in no segment.

        ``owner.at_end(callback)`` has the callback called before the mapping goes.
        """


class Inline:
    """Bytes of a frame, or to be put into one."""

    __slots__ = ("_data", "nbytes")

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")
        self.nbytes = self._data.nbytes

    def root(self) -> numpy.ndarray[Any, Any]:
        """The bytes as a writable array; what cannot be written to is copied."""
        import numpy

        data: Any = bytearray(self._data) if self._data.readonly else self._data
        return numpy.frombuffer(data, numpy.uint8)

    def buffer(self) -> memoryview:
        """The bytes themselves."""
        return self._data

    def device_address(self) -> tuple[int, int, Any] | None:
        """None: they lie in no segment."""
        return None


def from_buffer(buf: Any) -> Source:
    """The source that an element of a frame's buffers stands for."""
    return Inline(buf)


def place_inline(size: int, fill: Callable[[Any], None]) -> Source:
    """Content that rides in frames: small, or made where there is no store."""
    import numpy

    data = bytearray(size)
    fill(numpy.frombuffer(data, numpy.uint8))
    return Inline(data)
