"""Decoding: the values in a body, which `_values` has put there.

Arrays are made over the buffers of a frame without a copy. What lies in a store
is opened when it is decoded, batches when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _arrays, _objects, _pickling, _records, _wire
from ._errors import EncodingError, MusterError, ProtocolError
from ._extensions import (
    BATCH,
    BIG_INT,
    BROADCAST,
    BYTEARRAY,
    BYTES,
    COMPLEX,
    DATACLASS,
    FIRST_COUNT,
    FROZENSET,
    FUTURE,
    FUTURE_MARK,
    LONG_BYTEARRAY,
    MAX_NESTED,
    NDARRAY,
    PER_RANK,
    PICKLE,
    RANGE,
    SCALAR,
    SET,
    TENSOR,
    TEXT,
    TUPLE,
    TWO_FLOATS,
)
from ._marks import Broadcast, FutureMark, PerRank

_unpackb = msgpack.unpackb


def decode(body: Any, bufs: Sequence[Any] = ()) -> Any:
    """The value in a body. Arrays lie over bufs, uncopied, and are writable where bufs are;
    what lies in a store is opened.

    ProtocolError for what is no value, EncodingError where its class cannot be found here.
    """
    hook = _without_buffers
    if bufs:
        decoder = _Decoder()
        decoder.bufs = bufs
        decoder.body = body
        decoder.depth = 0
        decoder.views = None
        hook = decoder.extension
    try:
        return _unpackb(body, ext_hook=hook, strict_map_key=False, unicode_errors="surrogatepass")
    except MusterError:
        raise
    except Exception as error:
        raise ProtocolError(f"a value cannot be decoded: {type(error).__name__}: {error}") from None


@lru_cache(maxsize=1)
def _batch_class() -> Any:
    from ._batch import Batch

    return Batch


def _without_buffers(code: int, data: bytes) -> Any:
    if code == TUPLE:  # as many results are
        value = _unpackb(
            data, ext_hook=_in_tuple, strict_map_key=False, unicode_errors="surrogatepass"
        )
        if type(value) is list:
            return tuple(value)
    return _decoder(0).extension(code, data)


def _in_tuple(code: int, data: bytes) -> Any:
    return _decoder(1).extension(code, data)


def _decoder(depth: int) -> _Decoder:
    """One for values without buffers."""
    made = _Decoder()
    made.bufs, made.body, made.depth, made.views = (), None, depth, None
    return made


class _Decoder:
    """Decodes the values of one frame. There is no __init__, as one is made for most frames."""

    __slots__ = ("body", "bufs", "depth", "views")

    bufs: Sequence[Any]
    body: Any
    depth: int
    views: dict[int, memoryview] | None  # of what lies in stores, once opened

    def value(self, data: Any) -> Any:
        return _unpackb(
            data, ext_hook=self.extension, strict_map_key=False, unicode_errors="surrogatepass"
        )

    def extension(self, code: int, data: bytes) -> Any:
        if code == BATCH:
            first, count = FIRST_COUNT.unpack_from(data)
            if first + count > len(self.bufs):
                raise self.beyond(first, count)
            return _batch_class()._decode(data[8:], self.bufs[first : first + count])
        if code < 16:
            return self.nesting(code, data)
        if code >= 32:
            return self.buffered(code, data)
        if code == BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        if code == COMPLEX:
            return complex(*TWO_FLOATS.unpack(data))
        if code == RANGE:
            start, stop, step = self.inner(data, list)
            return range(start, stop, step)
        if code == BYTEARRAY:
            return bytearray(data)
        if code == SCALAR:
            return _arrays.scalar_from(self.inner(data, list))
        if code == FUTURE:
            return FutureMark(*FUTURE_MARK.unpack(data))
        raise ProtocolError(f"a value has the unknown extension {code}")

    def nesting(self, code: int, data: bytes) -> Any:
        if code == TUPLE:
            return tuple(self.inner(data, list))
        if code == SET:
            return set(self.inner(data, list))
        if code == FROZENSET:
            return frozenset(self.inner(data, list))
        if code == DATACLASS:
            module, qualname, fields = self.inner(data, list)
            return _records.rebuild(module, qualname, fields)
        if code == PER_RANK:
            return PerRank(self.inner(data, list))
        if code == BROADCAST:
            return Broadcast(self.inner(data, object))
        raise ProtocolError(f"a value has the unknown extension {code}")

    def inner(self, data: Any, kind: type) -> Any:
        """The value inside an extension."""
        self.depth += 1
        if self.depth > MAX_NESTED + 10:
            raise ProtocolError(f"a value is nested more than {MAX_NESTED} extensions deep")
        value = self.value(data)
        self.depth -= 1
        if not isinstance(value, kind):
            raise ProtocolError(f"an extension holds a {type(value).__name__}, expected a list")
        return value

    def beyond(self, first: int, count: int) -> ProtocolError:
        return ProtocolError(
            f"a value refers to buffers {first} to {first + count - 1} of {len(self.bufs)}"
        )

    def buffered(self, code: int, data: bytes) -> Any:
        first, count = FIRST_COUNT.unpack_from(data)
        rest = memoryview(data)[8:]
        if first + count > len(self.bufs):
            raise self.beyond(first, count)
        if code == PICKLE:
            buffers = [self.buffer(i) for i in range(first, first + count)]
            if not rest and buffers:  # it is long itself
                return _unpickle(memoryview(buffers[0]), buffers[1:])
            return _unpickle(rest, buffers)
        if count != 1:
            raise ProtocolError(f"extension {code} has one buffer, not {count}")
        buffer = self.buffer(first)
        if code == NDARRAY:
            return _arrays.array_from(self.inner(rest, list), memoryview(buffer))
        if code == BYTES:
            return bytes(buffer)
        if code == TEXT:
            return str(buffer, "utf-8", "surrogatepass")
        if code == LONG_BYTEARRAY:
            return bytearray(buffer)
        if code == TENSOR:
            return _arrays.tensor_from(self.inner(rest, list), memoryview(buffer))
        raise ProtocolError(f"a value has the unknown extension {code}")

    def buffer(self, index: int) -> Any:
        """The bytes of a buffer, wherever they lie."""
        buffer = self.bufs[index]
        if type(buffer) in _LIES_ELSEWHERE:
            if self.views is None:
                self.views = self.opened()
            return self.views[index]
        return buffer

    def opened(self) -> dict[int, memoryview]:
        """All that lies in stores, opened together; but for batches, which open what is used."""
        sources: dict[int, Any] = {
            i: _objects.from_buffer(buf)
            for i, buf in enumerate(self.bufs)
            if type(buf) in _LIES_ELSEWHERE
        }
        if len({source.right.object for source in sources.values()}) > 1:
            for index in _in_batches(self.body):
                sources.pop(index, None)
        return dict(zip(sources, _objects.views([*sources.values()]), strict=True))


_LIES_ELSEWHERE = (_objects.Stored, _wire.Reference)


def _in_batches(body: Any) -> set[int]:
    """The buffers of a body that belong to batches."""
    found: set[int] = set()

    def look(code: int, data: bytes) -> None:
        if code == BATCH:
            first, count = FIRST_COUNT.unpack_from(data)
            found.update(range(first, first + count))
        elif code < 16:
            walk(data)

    def walk(data: Any) -> None:
        _unpackb(data, ext_hook=look, strict_map_key=False, unicode_errors="surrogatepass")

    walk(body)
    return found


def _unpickle(data: memoryview, buffers: Sequence[Any]) -> Any:
    try:
        return _pickling.loads(data, buffers)
    except ImportError as error:
        raise EncodingError(
            f"a pickled value cannot be rebuilt here: {error}: both sides need the module"
        ) from error
    except Exception as error:
        raise EncodingError(
            f"a pickled value cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error
