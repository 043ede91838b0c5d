"""Values: how Python objects lie in a body, as docs/wire.md describes it.

Exact plain types are msgpack, others are extensions that the head can cut and
pass on without understanding them, the rest is pickle. What comes out
(`_decoding`) equals what went in and has the same type. This module does no I/O;
it appends large buffers to a list of its caller's instead of copying them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _arrays, _blame, _bulk, _pickling, _records
from ._bulk import OUT_OF_BAND
from ._decoding import decode
from ._errors import EncodingError, MusterError
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
from ._marks import Broadcast, FutureMark, Mark, PerRank
from ._pickling import main_importable, set_main_importable

__all__ = [
    "Broadcast",
    "FutureMark",
    "PerRank",
    "decode",
    "encode",
    "encode_payload",
    "main_importable",
    "marked",
    "set_main_importable",
]

_MAX_BUFFERS = 60_000  # a frame has room for 65,535; beyond this, arrays lie in pickles
_MAX_LEVELS = 480  # lists, dicts and extensions inside each other; the head refuses at 512

_LEAVES = frozenset((type(None), bool, int, float, str))
_only_leaves = _LEAVES.issuperset
_only_tuples = frozenset((tuple,)).issuperset
# What msgpack packs without asking, as something else than it is.
_TRAPS = frozenset((bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp))

_Packer = msgpack.Packer
_LARGE = 1 << 18
_OPTIONS: dict[str, Any] = {"strict_types": True, "unicode_errors": "surrogatepass"}
if msgpack.version >= (1, 1):
    _OPTIONS["buf_size"] = 1024  # the default of 256 KiB costs more than packing a few values
_ExtType = msgpack.ExtType
_new = tuple.__new__
_EXT_TYPES, _TUPLE_CODES = repeat(_ExtType), repeat(TUPLE)


class _TooDeep(ValueError):
    """Nested too deeply for msgpack; perhaps without end."""


class _Refused(Exception):
    """Carries an object that cannot be sent out of msgpack's recursion."""

    def __init__(self, obj: object, why: str) -> None:
        super().__init__(why)
        self.obj = obj
        self.why = why


# --- encoding ----------------------------------------------------------------------------


def encode(obj: Any, bufs: list[Any], pickle: str = "on") -> bytes:
    """The bytes of one value; its large buffers are appended to bufs.

    EncodingError where it cannot be sent; bufs is then as it was.
    """
    least = 0
    data: bytes
    try:
        if type(obj) is not list or not obj or type(obj[0]) is not tuple:
            if _plain(obj):
                data = _pack_plain(obj)
                least = _bulk.least(data, [[obj]]) if len(data) >= OUT_OF_BAND else 0
                if not least:
                    return data
        elif _only_tuples(map(type, obj)) and _only_leaves(map(type, chain.from_iterable(obj))):
            # As many results are: each tuple is packed, put into an extension, and all of them
            # are packed, without a step in Python.
            pack = _Shared.pack
            packed = zip(_TUPLE_CODES, map(pack, map(list, obj)), strict=False)
            data = pack([*map(_new, _EXT_TYPES, packed)])
            if len(data) > _LARGE:
                _Shared.pack = _Packer(**_OPTIONS).pack  # as in _pack_plain
                least = _bulk.least(data, obj)
            if not least:
                return data
    except OverflowError:
        pass
    return _Encoder(bufs, pickle).whole("the value", obj, least=least)


def encode_payload(
    args: Sequence[Any], kwargs: Mapping[str, Any], bufs: list[Any], pickle: str = "on"
) -> bytes:
    """The bytes of a call's arguments, ``[[arg, ...], {name: arg, ...}]``; marks allowed."""
    if len(args) == 1 and not kwargs and type(args[0]).__name__ == "Batch":
        passed = _passed_on(args[0], bufs)
        if passed is not None:
            return passed
    elif all(map(_plain, args)) and (not kwargs or all(map(_plain, kwargs.values()))):
        try:
            data = _pack_plain([[*args], kwargs])
            if len(data) < OUT_OF_BAND or not _bulk.least(data, [args, kwargs.values()]):
                return data
        except OverflowError:
            pass
    encoder = _Encoder(bufs, pickle)
    parts = [b"\x92", _head(0x90, 0xDC, len(args))]
    parts += [encoder.whole(f"argument {i}", arg, True) for i, arg in enumerate(args)]
    parts.append(_head(0x80, 0xDE, len(kwargs)))
    for name, arg in kwargs.items():
        parts.append(_pack(name))
        parts.append(encoder.whole(f"argument {name!r}", arg, True))
    return b"".join(parts)


def _passed_on(batch: Any, bufs: list[Any]) -> bytes | None:
    """The payload of a batch alone that goes as it came; None for all else."""
    batches = sys.modules.get("muster._batch")
    if batches is None or type(batch) is not getattr(batches, "Batch", None):
        return None
    first = len(bufs)
    handle = batch._as_it_came(bufs)
    if handle is None:
        return None
    value = _new(_ExtType, (BATCH, FIRST_COUNT.pack(first, len(bufs) - first) + handle))
    payload: bytes = b"\x92\x91" + _Shared.pack(value) + b"\x80"
    if len(payload) > _LARGE:
        _Shared.pack = _Packer(**_OPTIONS).pack  # as in _pack_plain
    return payload


def marked(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is a mark, which the head then has to look for."""
    return any(isinstance(arg, Mark) for arg in chain(args, kwargs.values()))


def _plain(obj: Any) -> bool:
    """Whether msgpack packs obj as it is; looks one level deep, as most arguments are."""
    kind = type(obj)
    if kind is list:
        return _only_leaves(map(type, obj))
    if kind is dict:
        return _only_leaves(map(type, obj)) and _only_leaves(map(type, obj.values()))
    if kind is str:
        return len(obj) < OUT_OF_BAND
    return kind in _LEAVES


def _pack(obj: object) -> bytes:
    data: bytes = _Packer(**_OPTIONS).pack(obj)
    return data


class _Shared:
    """One packer for all that `_plain` lets pass: such values call nothing back, so the
    GIL keeps threads apart; and making a packer takes longer than packing a small value."""

    pack = _Packer(**_OPTIONS).pack


def _pack_plain(obj: object) -> bytes:
    data: bytes = _Shared.pack(obj)
    if len(data) > _LARGE:
        _Shared.pack = _Packer(**_OPTIONS).pack  # it keeps the memory of its largest value
    return data


def _ext(code: int, data: bytes) -> Any:
    return _new(_ExtType, (code, data))  # its own __new__ takes longer than packing it


def _head(small: int, large: int, n: int) -> bytes:
    """The head of a msgpack array or map."""
    if n < 16:
        return bytes((small | n,))
    if n < 1 << 16:
        return struct.pack(">BH", large, n)
    return struct.pack(">BI", large + 1, n)


class _Encoder:
    """Encodes the values of one frame."""

    __slots__ = ("bufs", "depth", "least", "levels", "pickle")

    def __init__(self, bufs: list[Any], pickle: str) -> None:
        self.bufs = bufs
        self.pickle = pickle
        self.depth = 0  # of extensions
        self.levels = 0  # of lists and dicts as well
        self.least = 0  # from which size on text and bytes become buffers; 0: as they do at first

    def whole(self, label: str, obj: object, mark: bool = False, least: int = 0) -> bytes:
        """A value with nothing around it; label names it in errors."""
        start = len(self.bufs)
        if not least and type(obj) is str and len(obj) >= OUT_OF_BAND:
            least = OUT_OF_BAND
        try:
            self.least = least
            data = self.top(obj, mark)
            if not least and len(data) >= OUT_OF_BAND:
                self.least = _bulk.least(data, _inside(obj))
                if self.least:
                    del self.bufs[start:]
                    data = self.top(obj, mark)
            return data
        except _Refused as refused:
            del self.bufs[start:]
            raise _explain(label, obj, refused) from None
        except MusterError:  # as a store that is full
            del self.bufs[start:]
            raise
        except Exception as error:  # as a dict that another thread changes
            del self.bufs[start:]
            raise EncodingError(
                f"{label}, a {_blame.type_name(obj)}, cannot be sent: {type(error).__name__}: {error}"
            ) from error

    def top(self, obj: object, mark: bool) -> bytes:
        if mark and isinstance(obj, Mark):
            return _pack(self.mark(obj))
        return self.one(obj, cuttable=True)

    def one(self, obj: object, cuttable: bool = False) -> bytes:
        """A value, by whatever way is left where it is nested too deeply."""
        start = len(self.bufs)
        try:
            return self.nested(obj)
        except MusterError:
            raise
        except (ValueError, RecursionError):
            del self.bufs[start:]
            self.depth = self.levels = 0
        if self.pickle != "on":
            raise _Refused(obj, f"nested more than {_MAX_LEVELS} levels deep, or inside itself")
        # Element by element at the top, so that the head can still cut it.
        if cuttable and type(obj) is list:
            return self.array_of(obj)
        if cuttable and type(obj) is tuple:
            return _pack(_ext(TUPLE, self.array_of(obj)))
        return _pack(self.pickled(obj))

    def array_of(self, items: Sequence[Any]) -> bytes:
        return _head(0x90, 0xDC, len(items)) + b"".join(map(self.one, items))

    def nested(self, obj: Any) -> bytes:
        """A value as msgpack packs it, asking default() for what is not plain."""
        if self.depth >= MAX_NESTED:
            raise _TooDeep
        kind = type(obj)
        levels, trapped = 1, False
        if kind is list:
            if not _only_leaves(map(type, obj)):
                levels, trapped = _survey(obj)
        elif kind is dict:
            levels, trapped = _survey(obj, obj.values())
        elif kind in _TRAPS or kind is bytes:
            trapped = True
        if trapped or self.least:
            obj = self.disarm(obj)
        self.depth += 1
        self.levels += levels
        if self.levels > _MAX_LEVELS:
            raise _TooDeep
        data: bytes = _Packer(default=self.default, **_OPTIONS).pack(obj)
        self.depth -= 1
        self.levels -= levels
        return data

    def disarm(self, obj: Any) -> Any:
        """obj with what msgpack would mistake for something else put into extensions, and what is
        long."""
        kind = type(obj)
        if kind is list:
            if _bulk.only_numbers(map(type, obj)):
                return obj
            return [self.disarm(item) for item in obj]
        if kind is dict:
            return {
                key if type(key) is str else self.disarm(key): self.disarm(value)
                for key, value in obj.items()
            }
        if kind is str:
            if not self.least or not _bulk.long(obj, self.least) or self.crowded():
                return obj
            return self.buffered(TEXT, b"", obj.encode("utf-8", "surrogatepass"))
        if kind in _TRAPS or (kind is bytes and self.long(obj)):
            return self.default(obj)
        return obj

    def long(self, data: Any) -> bool:
        return len(data) >= (self.least or OUT_OF_BAND) and not self.crowded()

    def crowded(self) -> bool:
        return len(self.bufs) >= _MAX_BUFFERS

    def mark(self, mark: Mark) -> Any:
        if isinstance(mark, PerRank):
            return _ext(PER_RANK, self.array_of(mark.values))
        if isinstance(mark, Broadcast):
            return _ext(BROADCAST, self.one(mark.value))
        assert isinstance(mark, FutureMark)
        return _ext(FUTURE, FUTURE_MARK.pack(mark.id, mark.rank))

    def default(self, obj: Any) -> Any:
        """The extension that obj becomes."""
        kind = type(obj)
        if kind is tuple:
            return _ext(TUPLE, self.nested([*obj]))
        if kind is int:
            size = (obj if obj >= 0 else ~obj).bit_length() // 8 + 1
            return _ext(BIG_INT, obj.to_bytes(size, "little", signed=True))
        if kind is set:
            return _ext(SET, self.nested([*obj]))
        if kind is frozenset:
            return _ext(FROZENSET, self.nested([*obj]))
        if kind is complex:
            return _ext(COMPLEX, TWO_FLOATS.pack(obj.real, obj.imag))
        if kind is range:
            return _ext(RANGE, self.nested([obj.start, obj.stop, obj.step]))
        if kind is bytearray:
            if self.long(obj):
                return self.buffered(LONG_BYTEARRAY, b"", bytes(obj))
            return _ext(BYTEARRAY, bytes(obj))
        if kind is bytes:
            return self.buffered(BYTES, b"", obj)
        if issubclass(kind, Mark):
            raise _Refused(obj, "it has to be an argument of the call itself, not inside one")
        found = self.array(obj, kind)
        if found is not None:
            return found
        batches = sys.modules.get("muster._batch")
        if batches is not None and kind is getattr(batches, "Batch", None):
            first = len(self.bufs)
            handle = obj._encode(self.bufs, self.pickle)
            return _ext(BATCH, FIRST_COUNT.pack(first, len(self.bufs) - first) + handle)
        as_batch = getattr(kind, "__muster_batch__", None)  # a class that travels as a batch
        if as_batch is not None:
            return self.default(as_batch(obj))
        if hasattr(kind, "__dataclass_fields__"):
            fields = _records.fields_of(obj)
            if fields is not None:
                where = [kind.__module__, kind.__qualname__, fields]
                return _ext(DATACLASS, self.nested(where))
        return self.pickled(obj)

    def array(self, obj: Any, kind: Any) -> Any:
        """The extension of an array, numpy scalar or tensor; None for all else."""
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray:
                parts = _arrays.array_parts(numpy, obj)
                if parts is None or (len(self.bufs) >= _MAX_BUFFERS and self.pickle == "on"):
                    return None
                return self.buffered(NDARRAY, _pack_meta(parts[0]), parts[1])
            if issubclass(kind, numpy.generic):
                meta = _arrays.scalar_parts(numpy, obj)
                return None if meta is None else _ext(SCALAR, _pack(meta))
        torch = sys.modules.get("torch")
        if torch is not None and kind is getattr(torch, "Tensor", None):
            parts = _arrays.tensor_parts(torch, obj)
            if parts is not None and len(self.bufs) < _MAX_BUFFERS:
                return self.buffered(TENSOR, _pack_meta(parts[0]), parts[1])
        return None

    def buffered(self, code: int, meta: bytes, buffer: Any) -> Any:
        first = len(self.bufs)
        self.bufs.append(buffer)
        return _ext(code, FIRST_COUNT.pack(first, 1) + meta)

    def pickled(self, obj: object) -> Any:
        if self.pickle != "on":
            raise _Refused(obj, 'it needs pickle, which is off (pickle="off")')
        first = len(self.bufs)
        try:
            data, buffers = _pickling.dumps(obj, _MAX_BUFFERS - first)
        except Exception as error:
            if isinstance(error, RecursionError) or "deep recursion" in str(error):
                raise _Refused(obj, "it is nested too deeply") from None
            raise _Refused(obj, f"{type(error).__name__}: {error}") from None
        if self.long(data):
            self.bufs += [data, *buffers]
            return _ext(PICKLE, FIRST_COUNT.pack(first, 1 + len(buffers)))
        self.bufs += buffers
        return _ext(PICKLE, FIRST_COUNT.pack(first, len(buffers)) + data)


def _inside(obj: Any) -> list[list[Any]]:
    """A value as `_bulk` looks at it; a mark is no value."""
    if isinstance(obj, PerRank):
        return [obj.values]
    return [[obj.value if isinstance(obj, Broadcast) else obj]]


def _pack_meta(meta: object) -> bytes:
    data: bytes = msgpack.packb(meta)  # tuples of a dtype's descr become arrays
    return data


def _survey(*level: Iterable[Any]) -> tuple[int, bool]:
    """How many levels of lists and dicts these iterables have, and whether a trap is in them.

    Goes level by level, as types of many elements at once are found at C speed.
    """
    trapped = False
    for levels in range(1, _MAX_LEVELS):
        kinds = set(map(type, chain.from_iterable(level)))
        if kinds <= _LEAVES:
            return levels, trapped
        if not kinds.isdisjoint(_TRAPS):
            trapped = True
        elif bytes in kinds and not trapped:
            for item in chain.from_iterable(level):
                if type(item) is bytes and len(item) >= OUT_OF_BAND:
                    trapped = True
        if list not in kinds and dict not in kinds:
            return levels, trapped
        below: dict[int, Iterable[Any]] = {}  # by identity, as lists may share and contain lists
        for item in chain.from_iterable(level):
            kind = type(item)
            if kind is list:
                below[id(item)] = item
            elif kind is dict:
                below[id(item)] = item
                below[-id(item)] = item.values()
        level = tuple(below.values())
    raise _TooDeep


def _explain(label: str, root: object, refused: _Refused) -> EncodingError:
    path, obj, why = _blame.path_to(label, root, refused.obj), refused.obj, refused.why

    def fails(part: object) -> bool:
        try:
            _Encoder([], "on").one(part)
        except _Refused:
            return True
        return False

    if "Error: " in why:
        path, obj = _blame.narrow(path, obj, fails)
    return EncodingError(f"{path}, a {_blame.type_name(obj)}, cannot be sent: {why}")
