"""The layout of batch objects (docs/batches.md): columns to bytes and back.

Sizes first, then every buffer straight into its place. What is read is views of
the object's content. This module does no I/O.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from . import _shm
from ._columns import Array, Buffer, Bytes, Column, Fixed, Index, Packed, Ragged, dtype_of
from ._errors import EncodingError, MusterError, ProtocolError

MAGIC = b"MBT1"
ALIGN = 64
_FRONT = 512  # what most headers fit into


def layout(rows: int, columns: Mapping[str, Column]) -> tuple[int, Callable[[Bytes], None]]:
    """The size of the object that holds these columns, and what writes it."""
    buffers = [column.buffers() for column in columns.values()]
    start = ALIGN
    while True:
        header, places, end = _header(rows, columns, buffers, start)
        needed = _aligned(8 + len(header))
        if needed <= start:
            break
        start = needed

    def fill(target: Bytes) -> None:
        front = MAGIC + len(header).to_bytes(4, "little") + header
        target[: len(front)] = np.frombuffer(front, np.uint8)
        at, jobs = len(front), []
        for place, buffer in places:
            target[at:place] = 0  # what others left in this memory stays unseen
            at = place + buffer.nbytes
            if buffer.flat is not None:
                jobs.append((target[place:at], buffer.flat))
            elif buffer.write is not None:
                buffer.write(target[place:at])
        target[at:] = 0
        _shm.copy_all(jobs)

    return end, fill


def _header(
    rows: int, columns: Mapping[str, Column], buffers: list[list[Buffer]], start: int
) -> tuple[bytes, list[tuple[int, Buffer]], int]:
    at, places, described = start, [], []
    for (name, column), its in zip(columns.items(), buffers, strict=True):
        spans = []
        for buffer in its:
            if not buffer.nbytes:
                spans.append((0, 0))
                continue
            spans.append((at, buffer.nbytes))
            places.append((at, buffer))
            at = _aligned(at + buffer.nbytes)
        described.append([name, column.kind, column.type, column.shape, column.lib, spans])
    header: bytes = msgpack.packb([rows, described], unicode_errors="surrogatepass")
    end = places[-1][0] + places[-1][1].nbytes if places else start
    return header, places, end


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class Spec(NamedTuple):
    """A column as a header describes it."""

    kind: str
    type: str
    shape: tuple[int, ...]
    lib: str
    spans: list[tuple[int, int]]
    plain: np.dtype[Any] | None  # of rows that numpy shows as they lie there
    size: int  # of such a row


class Header(NamedTuple):
    """What lies in an object."""

    rows: int
    columns: dict[str, Spec]


Spans = list[tuple[int, int]]


def read_header(content: Bytes, need: Callable[[Spans], None] | None = None) -> Header:
    """The header of an object; ProtocolError for what is none. ``need`` has bytes of it here, of
    which not all are."""
    try:
        front = content[:_FRONT].tobytes()
        if front[:4] != MAGIC:
            raise ValueError(f"it begins with {front[:4]!r} instead of {MAGIC!r}")
        end = 8 + int.from_bytes(front[4:8], "little")
        if end > len(content):
            raise ValueError(f"a header of {end - 8} bytes in {len(content)}")
        if need is not None:
            need([(0, end)])
        return _parsed(front[8:end] if end <= _FRONT else content[8:end].tobytes())
    except MusterError:
        raise
    except Exception as error:
        raise ProtocolError(f"an object that is no batch: {error}") from None


@functools.lru_cache(maxsize=256)  # objects of one pipeline have few kinds of headers
def _parsed(data: bytes) -> Header:
    rows, columns = msgpack.unpackb(data, unicode_errors="surrogatepass")
    return Header(rows, {name: _spec(*told) for name, *told in columns})


def _spec(kind: str, type: str, shape: list[int], lib: str, spans: list[tuple[int, int]]) -> Spec:
    plain, size = None, 0
    if kind == "fixed" and lib == "numpy" and ":" not in type:
        dtype = dtype_of(type)
        size = math.prod(shape) * dtype.itemsize
        if size > 0 and not dtype.hasobject and all(n > 0 for n in shape):
            plain = dtype
    return Spec(kind, type, tuple(shape), lib, spans, plain, size)


Place = tuple[tuple[int, ...], Any, int]  # shape, type and where it begins


def _place(header: Header, size: int, name: str, start: int, stop: int) -> Place | None:
    """Where rows of a column of numbers lie in an object of so many bytes; None for what is none,
    or where something is wrong."""
    spec = header.columns.get(name)
    if spec is None or spec.plain is None:
        return None
    (offset, length), rows = spec.spans[0], header.rows
    if (
        0 <= start < stop <= rows
        and length == rows * spec.size
        and 0 <= offset <= offset + length <= size
    ):
        return (stop - start, *spec.shape), spec.plain, offset + start * spec.size
    return None


def plain_rows(content: Bytes, header: Header, name: str, start: int, stop: int) -> Array | None:
    """Rows of a column of numbers, in one step, as it is the most frequent one by far; None
    where it takes more."""
    place = _place(header, len(content), name, start, stop)
    if place is None:
        return None
    shape, dtype, offset = place
    made: Array = np.ndarray(shape, dtype, content, offset)
    return made


@functools.lru_cache(maxsize=256)  # as with _parsed; the same rows of another object
def _place_by(front: bytes, size: int, name: str, start: int, stop: int) -> Place | None:
    try:
        return _place(_parsed(front[8:]), size, name, start, stop)
    except Exception:
        return None


def lent_rows(memory: Any, at: int, size: int, name: str, start: int, stop: int) -> Array | None:
    """`read_header` and `plain_rows` in one step, of an object of so many bytes in memory that is
    no array of numpy's; None where either would raise, too."""
    front: bytes = memory[at : at + (_FRONT if size > _FRONT else size)]
    end = 8 + int.from_bytes(front[4:8], "little")
    if front[:4] != MAGIC or end > len(front):
        return None
    place = _place_by(front[:end], size, name, start, stop)
    if place is None:
        return None
    shape, dtype, offset = place
    made: Array = np.ndarray(shape, dtype, memory, at + offset)
    return made


def load(content: Bytes, header: Header, name: str) -> Column:
    """A column of an object: views of its content."""
    spec, rows = header.columns[name], header.rows
    try:
        parts = [_span(content, offset, length) for offset, length in spec.spans]
        if spec.kind == "fixed":
            return Fixed(spec.type, spec.lib, _view(parts[0], (rows, *spec.shape), spec.type))
        bits, spans, data = parts
        offsets: NDArray[np.int64] = spans.view(np.int64) if rows else np.zeros(1, np.int64)
        valid = None
        if len(bits):
            valid = np.unpackbits(bits, count=rows, bitorder="little").view(bool)
        if len(offsets) != rows + 1 or offsets[0] < 0:
            raise ValueError(f"{len(offsets)} offsets of {rows} rows")
        if spec.kind != "ragged":
            if offsets[-1] > len(data):
                raise ValueError(f"rows end at {offsets[-1]} of {len(data)} bytes")
            return Packed(spec.kind, spec.lib, offsets, data, valid, spec.shape, spec.type)
        values = _view(data, (int(offsets[-1]), *spec.shape), spec.type)
        return Ragged(spec.type, spec.lib, spec.shape, offsets=offsets, values=values, valid=valid)
    except EncodingError:
        raise
    except Exception as error:
        raise ProtocolError(
            f"column {name!r} of a batch cannot be read: {type(error).__name__}: {error}"
        ) from None


def loading(spec: Spec) -> Spans:
    """The bytes that `load` reads: those that say where rows are."""
    return [(at, at + length) for at, length in spec.spans[:-1]]


def reading(header: Header, spec: Spec, column: Column, some: Sequence[range | Index]) -> Spans:
    """The bytes of some rows of a column that was loaded, as far as it does not hold them."""
    at, length = spec.spans[-1]
    spans: Spans = []
    for rows in some:
        if not len(rows):
            continue
        if isinstance(rows, range):
            first, last = np.array([rows.start]), np.array([rows.stop])
        else:
            first = rows.astype(np.int64)
            last = first + 1
        if isinstance(column, Fixed):
            size = length // max(1, header.rows)
            starts, stops = first * size, last * size
        else:
            size = 1
            if isinstance(column, Ragged):
                size = math.prod(spec.shape) * dtype_of(spec.type).itemsize
            starts, stops = column.offsets[first] * size, column.offsets[last] * size
        spans += _spread(starts + at, stops + at)
    return spans


def _spread(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Spans:
    """The chunks that stretches of bytes lie in, neighbours together."""
    some = starts < stops
    first, last = starts[some] // _shm.CHUNK, (stops[some] - 1) // _shm.CHUNK
    if not len(first):
        return []
    base = int(first.min())
    steps = np.zeros(int(last.max()) - base + 2, np.int64)
    np.add.at(steps, first - base, 1)
    np.add.at(steps, last - base + 1, -1)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.cumsum(steps) > 0))))
    return [
        ((base + lo) * _shm.CHUNK, (base + hi) * _shm.CHUNK)
        for lo, hi in edges.reshape(-1, 2).tolist()
    ]


def _span(content: Bytes, offset: int, length: int) -> Bytes:
    if not 0 <= offset <= offset + length <= len(content):
        raise ValueError(f"bytes {offset} to {offset + length} of {len(content)}")
    return content[offset : offset + length]


def _view(data: Bytes, shape: tuple[int, ...], type: str) -> Array:
    dtype = dtype_of(type)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or size != len(data) or any(n < 0 for n in shape):
        raise ValueError(f"{shape} of {dtype} in {len(data)} bytes")
    # np.empty would make something else of items without size.
    made: Array = np.ndarray(shape, dtype, data if size else bytearray(1))
    return made
