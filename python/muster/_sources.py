"""Sources: the content of one object, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy

    from ._shm import Mapping


class Source(Protocol):
    """The content of one object, wherever it lies."""

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""

    def root(self) -> numpy.ndarray[Any, Any]:
        """The content as a writable array of bytes; writes stay in this process. Of what lies in a
        store it is the same one for as long as it is held.

        The bytes are good for as long as this array, or anything made over it, lives.
        """

    @property
    def partial(self) -> bool:
        """Whether `need` has to be asked before a part of the root is read: the content lies on
        another node, and not all of it is here."""

    def need(self, spans: Sequence[tuple[int, int]]) -> None:
        """Wait until bytes of the content, from and (not included) to, are here. The root is
        held meanwhile."""

    def buffer(self) -> Any:
        """What stands for the content in the buffers of a frame; keep it until that is sent."""

    def device_address(self) -> tuple[int, int, Any] | None:
        """Address and length of a read-only shared mapping that begins with the content, and
        its owner, a `Window`; None for bytes that lie in no segment.

        Keep the owner for as long as the memory is read; what `need` brings here is there, too.
        The mapping outlives it, and is used again for later content: ``owner.at_end(callback)`` has the callback called before it goes.
        """


class Inline:
    """Bytes of a frame, or to be put into one."""

    __slots__ = ("_data", "nbytes")
    partial = False

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")
        self.nbytes = self._data.nbytes

    def root(self) -> numpy.ndarray[Any, Any]:
        """A copy, whatever they lie in: what is written to it is not what is sent."""
        import numpy

        made: numpy.ndarray[Any, Any] = numpy.frombuffer(self._data, numpy.uint8).copy()
        return made

    def need(self, spans: Sequence[tuple[int, int]]) -> None:
        """All are here."""

    def buffer(self) -> memoryview:
        """The bytes themselves."""
        return self._data

    def device_address(self) -> tuple[int, int, Any] | None:
        """None: they lie in no segment."""
        return None


class Window:
    """A shared, read-only mapping of a segment, and a lease of the object in it."""

    __slots__ = ("_lease", "_mapping", "address", "length")

    def __init__(self, mapping: Mapping, lease: object) -> None:
        self._mapping = mapping
        self._lease = lease
        self.address = mapping.address
        self.length = mapping.length

    def at_end(self, ending: Callable[[], None]) -> None:
        """Have ``ending`` called before the mapping goes, whenever that is."""
        self._mapping.at_end(ending)
