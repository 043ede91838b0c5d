"""Columns as they lie in an object.

A column here is numpy memory: views of an object's bytes, or of what a user gave
and what is to be written. It can be cut, joined, written, and shown as what the
user had. Columns come from `_drafts` (users' values) and `_layout` (objects). Torch is imported only for a column that is torch's.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _arrays, _pickling, _shm
from ._errors import EncodingError

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Index = NDArray[np.uint32]

_ROW_JOB = 64 << 10  # rows of this size are copied each by itself, by several threads
_EMPTY: Bytes = np.empty(0, np.uint8)


class Buffer(NamedTuple):
    """A buffer of a column that is to be written: bytes as they are, or who writes them."""

    nbytes: int
    flat: Bytes | None = None
    write: Callable[[Bytes], None] | None = None

    def array(self) -> Bytes:
        """The bytes in memory of this process, uncopied where they are there."""
        if self.flat is not None:
            return self.flat
        made = np.empty(self.nbytes, np.uint8)
        if self.write is not None:
            self.write(made)
        return made


NOTHING = Buffer(0, _EMPTY)


# --- types of elements -------------------------------------------------------------------

_CARRIERS = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}  # of what numpy has no type for
_OF_TWO, _OF_FOUR = ("bfloat16", "bits16"), ("complex32", "bcomplex32")
_OF_ONE = ("float8", "float4", "bits", "int", "uint")


@functools.lru_cache(maxsize=256)
def dtype_of(type: str) -> Any:
    """The numpy type over an element's bytes; for torch's own an integer of its size."""
    if type.startswith("torch:"):
        return np.dtype(_CARRIERS[_torch_size(type[6:])])
    plain, _, described = type.partition(":")
    if not described:
        return np.dtype(plain)
    if is_pickled(type):
        return _pickling.loads(bytes.fromhex(described[7:]))
    return _arrays.dtype_from(np, json.loads(described))


def is_pickled(type: str) -> bool:
    """Whether reading this type unpickles, which can run any code."""
    return type.partition(":")[2].startswith("pickle:")


def type_of(dtype: Any, pickle: str = "on") -> str | None:
    """How a numpy type is written in a header; None where it cannot be without pickle."""
    described = _arrays.describe(np, dtype)
    if isinstance(described, str):
        return described
    size = f"|V{dtype.itemsize}:"
    if described is not None:
        return size + json.dumps(described)
    if pickle != "on":
        return None
    return f"{size}pickle:{_pickling.dumps(dtype)[0].hex()}"


def _torch_size(name: str) -> int:
    if name in _OF_TWO:
        return 2
    if name in _OF_FOUR:
        return 4
    if name.startswith(_OF_ONE):
        return 1
    torch = _arrays.importing("torch")
    return int(torch.empty(0, dtype=getattr(torch, name)).element_size())


def tensor_of(array: Array, type: str) -> Any:
    """The torch tensor over an array's memory."""
    torch = _arrays.importing("torch")
    if type.startswith("torch:"):
        return torch.from_numpy(array).view(getattr(torch, type[6:]))
    return torch.from_numpy(array)


def describe(kind: str, type: str, shape: Sequence[int], lib: str) -> str:
    """The type of a column, for people."""
    if kind not in ("fixed", "ragged"):
        return kind
    if type.startswith("torch:"):
        element = type[6:]
    else:
        dtype = dtype_of(type)
        element = "record" if dtype.names else str(dtype)
    dims = [*(("*",) if kind == "ragged" else ()), *map(str, shape)]
    torch = lib in ("torch", "tensors") or (lib == "object" and kind == "fixed")
    return ("torch " if torch else "") + element + (f"[{', '.join(dims)}]" if dims else "")


# --- columns -----------------------------------------------------------------------------


class Fixed:
    """Rows of one shape: data is (rows, *shape)."""

    kind = "fixed"
    __slots__ = ("data", "lib", "type")

    def __init__(self, type: str, lib: str, data: Array) -> None:
        self.type = type
        self.lib = lib
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of one row."""
        return self.data.shape[1:]

    def take(self, rows: range | Index) -> Fixed:
        """Some rows: a view for a range, a copy for indices."""
        data = self.data
        if isinstance(rows, range):
            return Fixed(self.type, self.lib, data[rows.start : rows.stop])
        return Fixed(self.type, self.lib, np.take(data, rows, axis=0))

    def value(self) -> Any:
        """What the user had."""
        if self.lib == "torch":
            return tensor_of(self.data, self.type)
        if self.lib == "list":
            return self.data.tolist()
        if self.lib == "scalars":
            return list(self.data)
        if self.lib in ("tensors", "object"):
            whole = tensor_of(_writable(self.data), self.type)
            rows = [whole[at].detach() for at in range(len(whole))]
            return as_objects(rows) if self.lib == "object" else rows
        return self.data

    def buffers(self) -> list[Buffer]:
        """What is to be written."""
        return [array_buffer(self.data)]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.data.nbytes)


class Ragged:
    """Rows that differ in their first dimension; each is an array, or None."""

    kind = "ragged"
    __slots__ = ("_rows", "lib", "offsets", "shape", "type", "valid", "values")

    def __init__(
        self,
        type: str,
        lib: str,
        shape: tuple[int, ...],
        *,
        rows: list[Any] | None = None,
        offsets: NDArray[np.int64] | None = None,
        values: Array | None = None,
        valid: NDArray[np.bool_] | None = None,
    ) -> None:
        self.type = type
        #: "object": an array of arrays, "tensors": of tensors; else what the rows are, in a list.
        self.lib = lib
        self.shape = shape  # of one element of a row
        self._rows = rows
        self.values = values  # where it is None, the rows are not joined yet
        if rows is not None and offsets is None:
            valid, offsets = _spans([None if row is None else len(row) for row in rows])
        assert offsets is not None
        self.offsets = offsets
        self.valid = valid

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> list[Any]:
        """Every row: views of the values."""
        if self._rows is None:
            values, valid = self.values, self.valid
            assert values is not None
            self._rows = [values[lo:hi] for lo, hi in pairwise(self.offsets.tolist())]
            if valid is not None:
                for row in np.flatnonzero(~valid).tolist():
                    self._rows[row] = None
        return self._rows

    def take(self, rows: range | Index) -> Ragged:
        """Some rows, uncopied."""
        head = (self.type, self.lib, self.shape)
        if isinstance(rows, range):
            lo, hi = rows.start, rows.stop
            if (lo, hi) == (0, len(self)):
                return self
            offsets = self.offsets[lo : hi + 1]
            valid = None if self.valid is None else self.valid[lo:hi]
            some = None if self._rows is None else self._rows[lo:hi]
            return Ragged(*head, rows=some, offsets=offsets, values=self.values, valid=valid)
        known = self.rows()
        return Ragged(*head, rows=[known[row] for row in rows.tolist()])

    def value(self) -> list[Any] | Array:
        """What the user had."""
        if self.lib == "torch":
            return self._tensors()
        if self.lib == "tensors":
            return as_objects(self._tensors())
        rows = self.rows()
        if self.lib == "list":
            return [None if row is None else row.tolist() for row in rows]
        return as_objects(rows) if self.lib == "object" else rows

    def _tensors(self) -> list[Any]:
        if self.values is None or not len(self):
            return [None if row is None else tensor_of(row, self.type) for row in self.rows()]
        lo, hi = int(self.offsets[0]), int(self.offsets[-1])
        whole = tensor_of(_writable(self.values[lo:hi]), self.type)
        # A third of slicing each; of what split() makes, autograd lets nobody write to a row.
        split = _arrays.importing("torch").unsafe_split_with_sizes
        rows = list(split(whole, np.diff(self.offsets).tolist()))
        if self.valid is not None:
            for row in np.flatnonzero(~self.valid).tolist():
                rows[row] = None
        return rows

    def buffers(self) -> list[Buffer]:
        """What is to be written."""
        lo, hi = int(self.offsets[0]), int(self.offsets[-1])
        offsets = array_buffer(self.offsets - lo if lo else self.offsets)
        if self.values is not None:
            values = array_buffer(self.values[lo:hi])
        else:
            values = self._joined(hi - lo)
        return [_validity(self.valid), offsets, values]

    def _joined(self, total: int) -> Buffer:
        dtype = dtype_of(self.type)
        nbytes = total * math.prod(self.shape) * dtype.itemsize
        rows = [row for row in self.rows() if row is not None and row.nbytes]
        if not nbytes:
            return NOTHING

        def write(target: Bytes) -> None:
            if nbytes < _ROW_JOB * len(rows) or not all(row.flags.c_contiguous for row in rows):
                np.concatenate(rows, out=np.ndarray((total, *self.shape), dtype, target))
                return
            jobs, at = [], 0
            for row in rows:
                jobs.append((target[at : at + row.nbytes], flat_bytes(row)))
                at += row.nbytes
            _shm.copy_all(jobs)

        return Buffer(nbytes, None, write)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of where they begin."""
        total = int(self.offsets[-1] - self.offsets[0])
        return 8 * len(self) + total * math.prod(self.shape) * int(dtype_of(self.type).itemsize)


class Packed:
    """Rows of bytes: texts, bytes, or pickled objects; a row of the first two may be None."""

    __slots__ = ("data", "kind", "lib", "offsets", "shape", "type", "valid")

    def __init__(
        self,
        kind: str,
        lib: str,
        offsets: NDArray[np.int64],
        data: Bytes,
        valid: NDArray[np.bool_] | None = None,
        shape: tuple[int, ...] = (),
        type: str = "",
    ) -> None:
        self.kind = kind
        self.lib = lib  # "numpy": an array of objects; "list"
        self.offsets = offsets
        self.data = data
        self.valid = valid
        self.shape = shape  # of a row of an array of objects
        self.type = type  # "T": an array of numpy's strings

    @classmethod
    def of(cls, kind: str, lib: str, rows: Sequence[Any], **more: Any) -> Packed:
        """A column of these rows, each bytes or None."""
        valid, offsets = _spans([None if row is None else len(row) for row in rows])
        data = b"".join(rows if valid is None else [row for row in rows if row is not None])
        return cls(kind, lib, offsets, np.frombuffer(data, np.uint8), valid, **more)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self) -> list[Any]:
        """The bytes of every row, uncopied."""
        data = self.data.data
        found: list[Any] = [data[lo:hi] for lo, hi in pairwise(self.offsets.tolist())]
        if self.valid is not None:
            for row in np.flatnonzero(~self.valid).tolist():
                found[row] = None
        return found

    def take(self, rows: range | Index) -> Packed:
        """Some rows: uncopied for a range."""
        head: tuple[str, str] = (self.kind, self.lib)
        tail: dict[str, Any] = {"shape": self.shape, "type": self.type}
        if isinstance(rows, range):
            lo, hi = rows.start, rows.stop
            valid = None if self.valid is None else self.valid[lo:hi]
            return Packed(*head, self.offsets[lo : hi + 1], self.data, valid, **tail)
        known = self.rows()
        return Packed.of(*head, [known[row] for row in rows.tolist()], **tail)

    def value(self) -> list[Any] | Array:
        """What the user had."""
        if self.kind == "text":
            found = self._texts()
        else:
            make = bytes if self.kind == "bytes" else _unpickled
            found = [None if row is None else make(row) for row in self.rows()]
        if self.lib != "numpy":
            return found
        if self.type == "T":
            return np.array(found, np.dtypes.StringDType())
        return as_objects(found, self.shape)

    def _texts(self) -> list[Any]:
        lo, hi = int(self.offsets[0]), int(self.offsets[-1])
        whole = str(self.data[lo:hi].data, "utf-8")
        if len(whole) != hi - lo:
            return [None if row is None else str(row, "utf-8") for row in self.rows()]
        # All ASCII: characters are where the bytes are.
        spans = (self.offsets - lo if lo else self.offsets).tolist()
        found: list[Any] = [whole[lo:hi] for lo, hi in pairwise(spans)]
        if self.valid is not None:
            for row in np.flatnonzero(~self.valid).tolist():
                found[row] = None
        return found

    def buffers(self) -> list[Buffer]:
        """What is to be written."""
        lo, hi = int(self.offsets[0]), int(self.offsets[-1])
        offsets = array_buffer(self.offsets - lo if lo else self.offsets)
        return [_validity(self.valid), offsets, Buffer(hi - lo, self.data[lo:hi])]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of where they begin."""
        return 8 * len(self) + int(self.offsets[-1] - self.offsets[0])


Column = Fixed | Ragged | Packed


def _writable(array: Array) -> Array:
    """What torch takes without a word."""
    return array if array.flags.writeable else array.copy()


def as_objects(rows: Sequence[Any], shape: tuple[int, ...] = ()) -> Array:
    """An array of objects with these rows."""
    made = np.empty((len(rows), *shape), object)
    for at, row in enumerate(rows):
        made[at] = row
    return made


def _unpickled(data: memoryview) -> Any:
    try:
        return _pickling.loads(data)
    except Exception as error:
        raise EncodingError(
            f"an object of a batch cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error


def _spans(lengths: list[int | None]) -> tuple[NDArray[np.bool_] | None, NDArray[np.int64]]:
    """Which rows there are (None: all), and where each begins and ends."""
    valid = None
    if None in lengths:
        valid = np.array([n is not None for n in lengths])
        lengths = [n or 0 for n in lengths]
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:], dtype=np.int64)  # type: ignore[arg-type]
    return valid, offsets


def _validity(valid: NDArray[np.bool_] | None) -> Buffer:
    if valid is None or valid.all():
        return NOTHING
    bits = np.packbits(valid, bitorder="little")
    return Buffer(bits.nbytes, bits)


def flat_bytes(array: Array) -> Bytes:
    """The memory of a contiguous array."""
    if array.nbytes == 0:
        return _EMPTY
    return array.reshape(-1).view(np.uint8)


def array_buffer(array: Array) -> Buffer:
    """The bytes of an array in C order; what is not contiguous is copied straight into place."""
    if array.nbytes == 0:
        return NOTHING
    if array.flags.c_contiguous:
        return Buffer(array.nbytes, flat_bytes(array))
    if array.dtype.names is not None:
        return Buffer(array.nbytes, flat_bytes(array.copy()))  # copyto leaves what is between

    def write(target: Bytes) -> None:
        np.copyto(np.ndarray(array.shape, array.dtype, target), array)

    return Buffer(array.nbytes, None, write)


# --- joining -----------------------------------------------------------------------------


def signature(column: Column) -> tuple[Any, ...]:
    """What columns must have in common to be joined."""
    return column.kind, column.type, tuple(column.shape), column.lib


def joined(pieces: Sequence[tuple[Column, range | Index]]) -> Column:
    """Rows of columns of one signature, one after another, by one copy at most."""
    first = pieces[0][0]
    if len(pieces) == 1:
        return first.take(pieces[0][1])
    if isinstance(first, Fixed):
        return Fixed(first.type, first.lib, _gathered(pieces))
    rows: list[Any] = []
    for column, some in pieces:
        rows += column.take(some).rows()  # type: ignore[union-attr]
    if isinstance(first, Ragged):
        return Ragged(first.type, first.lib, first.shape, rows=rows)
    return Packed.of(first.kind, first.lib, rows, shape=first.shape, type=first.type)


def _copy_rows(jobs: Sequence[tuple[Array, Array]]) -> None:
    """Copy rows to where they go: with threads where they are many, as most of the time then
    goes into memory that is touched for the first time."""
    size = sum(target.nbytes for target, _ in jobs)
    if size < _shm.PARALLEL or not all(source.flags.c_contiguous for _, source in jobs):
        for target, source in jobs:
            target[...] = source
        return
    _shm.copy_all(
        [
            (target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8))
            for target, source in jobs
        ]
    )


def _gathered(pieces: Sequence[tuple[Any, range | Index]]) -> Array:
    first: Fixed = pieces[0][0]
    total = sum(len(rows) for _, rows in pieces)
    out: Array = np.ndarray((total, *first.shape), first.data.dtype)
    if total > 4 * len(pieces):
        at = 0
        jobs = []
        for column, rows in pieces:
            target, at = out[at : at + len(rows)], at + len(rows)
            if isinstance(rows, range):
                jobs.append((target, column.data[rows.start : rows.stop]))
            else:  # "clip" spares a second copy; bounds are checked where rows are chosen
                np.take(column.data, rows, axis=0, out=target, mode="clip")
        _copy_rows(jobs)
        return out
    # Very many short pieces: all of one column at once.
    wanted: dict[int, tuple[Any, list[Any], list[Any]]] = {}
    at = 0
    for column, rows in pieces:
        _, sources, targets = wanted.setdefault(id(column), (column, [], []))
        sources.append(np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows)
        targets.append(np.arange(at, at + len(rows)))
        at += len(rows)
    for column, sources, targets in wanted.values():
        out[np.concatenate(targets)] = np.take(column.data, np.concatenate(sources), axis=0)
    return out
