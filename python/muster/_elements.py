"""Elements of columns as Arrow arrays, and back.

An array lies over the memory of its elements, whose Arrow type has the same
bytes; fixed binary is for those that Arrow has no type for. A plain array is a
copy, of types that all readers of files compute with. On the way back the type
that a field's metadata tells holds where the array is what would be made of it, in
either way; other arrays are read by their own types. pyarrow is passed in.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _columns
from ._columns import Array

_UNITS = ("s", "ms", "us", "ns")  # of time, that Arrow has too


def element_type(pa: Any, type: str) -> Any:
    """The Arrow type of an element: of the same bytes."""
    dtype = _columns.dtype_of(type)
    if not type.startswith("torch:") and dtype.names is None and dtype.isnative:
        if dtype == np.bool_:
            return pa.bool8()
        if dtype.kind in "iuf" and dtype.itemsize <= 8:
            return pa.from_numpy_dtype(dtype)
        if dtype.kind in "mM":
            unit, count = np.datetime_data(dtype)
            if unit in _UNITS and count == 1:
                return pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
            return pa.int64()
    return pa.binary(dtype.itemsize)


# --- to Arrow ----------------------------------------------------------------------------


def array_of(
    pa: Any, type: str, shape: tuple[int, ...], rows: int, data: Any, plain: bool = False
) -> Any:
    """The array over rows of this shape; NaT is null in it."""
    count = rows * math.prod(shape)
    made = _plain(pa, type, count, data) if plain else None
    if made is None:
        made = _flat(pa, type, count, data)
    if plain:
        for at in reversed(range(len(shape))):
            lists = pa.list_(made.type, shape[at])
            count = rows * math.prod(shape[:at])
            made = pa.Array.from_buffers(lists, count, [None], children=[made])
        return made
    if not shape:
        return made
    tensor = pa.fixed_shape_tensor(made.type, shape)
    lists = pa.Array.from_buffers(tensor.storage_type, rows, [None], children=[made])
    return pa.ExtensionArray.from_storage(tensor, lists)


def _flat(pa: Any, type: str, count: int, data: Any) -> Any:
    element = element_type(pa, type)
    storage = getattr(element, "storage_type", element)
    dtype = _columns.dtype_of(type)
    valid = None
    if dtype.kind in "mM" and dtype.isnative:
        valid = _but(pa, np.isnat(data.view(dtype)))
    made = pa.Array.from_buffers(storage, count, [valid, pa.py_buffer(data)])
    return made if storage is element else pa.ExtensionArray.from_storage(element, made)


def _plain(pa: Any, type: str, count: int, data: Any) -> Any:
    """Elements in a type that others compute with; None where those of the same bytes are such,
    or there is none that gives them back bit for bit."""
    dtype = _columns.dtype_of(type)
    values: Array = np.ndarray((count,), dtype, data if len(data) else bytearray(1))
    if type == "torch:bfloat16":  # the upper half of a float32
        return pa.array((values.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
    if type.startswith("torch:") or dtype.names is not None:
        return None
    if dtype == np.bool_:
        return pa.array(values)
    if dtype.kind in "US":
        try:
            return pa.array(
                values.tolist(), pa.large_string() if dtype.kind == "U" else pa.large_binary()
            )
        except ValueError:  # lone surrogates, and what is no character
            return None
    if dtype.kind in "mM":
        return _plain_times(pa, dtype, values)
    if dtype.kind in "iuf" and dtype.itemsize <= 8 and not dtype.isnative:
        return pa.array(_swapped(values))
    return None


def _plain_times(pa: Any, dtype: Any, values: Array) -> Any:
    if not dtype.isnative:
        dtype, values = dtype.newbyteorder(), _swapped(values)
    unit, count = np.datetime_data(dtype)
    nulls = np.isnat(values)
    valid, numbers = _but(pa, nulls), np.where(nulls, 0, values.view(np.int64))
    if dtype.kind == "M" and (unit, count) == ("D", 1) and _within(numbers, 1 << 31):
        data = pa.py_buffer(numbers.astype(np.int32))
        return pa.Array.from_buffers(pa.date32(), len(values), [valid, data])
    kind = element_type(pa, dtype.str)
    if unit == "s" and not _within(numbers, (1 << 63) // 1000):  # Parquet has milliseconds
        kind = pa.int64()
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])


def _within(numbers: Array, bound: int) -> bool:
    return not len(numbers) or bool(-bound <= numbers.min() and numbers.max() < bound)


def _swapped(values: Array) -> Array:
    """The same elements in the other byte order, NaNs bit for bit."""
    made: Array = values.byteswap().view(values.dtype.newbyteorder())
    return made


def _but(pa: Any, nulls: Array) -> Any:
    """The validity of all but these; None where there is no null."""
    if not nulls.any():
        return None
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


# --- from Arrow --------------------------------------------------------------------------


def decoded(pa: Any, array: Any) -> Any:
    """The values of a dictionary's array, one for each row."""
    words = array.dictionary
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    if str(words.type) in views:  # pyarrow takes none of these by index
        words = words.cast(views[str(words.type)])
    return pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()


def by_sizes(pa: Any, array: Any) -> Any:
    """Lists in lists as lists of fixed sizes, where their type tells them: as that of datasets'
    arrays of a shape does, whose first dimension may be None."""
    kind = array.type
    shape = getattr(kind, "shape", None)
    if isinstance(kind, pa.FixedShapeTensorType) or not isinstance(shape, tuple):
        return array
    if not isinstance(kind, pa.BaseExtensionType):
        return array
    target = kind.storage_type
    for _ in shape:
        if not (pa.types.is_list(target) or pa.types.is_large_list(target)):
            return array
        target = target.value_type
    for at in reversed(range(len(shape))):
        sized = shape[at] is not None and (at > 0 or not array.null_count)
        target = pa.list_(target, shape[at]) if sized else pa.large_list(target)
    try:
        return array.storage.cast(target)
    except pa.ArrowException:  # there is a None in a row
        return array.storage


def numbers(pa: Any, array: Any, type: str | None) -> tuple[str, Array] | None:
    """Type and elements of an array whose elements have a size, over its memory; None for other
    arrays, and where there is a null that is no NaT."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        found = numbers(pa, array.storage, type)
        if found is None or kind.permutation:
            return None
        return found[0], found[1].reshape(len(array), *kind.shape)
    if isinstance(kind, pa.Bool8Type):
        return None if array.null_count else ("|b1", _memory(array.storage, np.dtype(bool)))
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists(pa, array, type)
    found = None
    if type is not None and type != "T":
        found = _as_said(pa, array, type)
    return _by_itself(pa, array) if found is None else found


def _fixed_lists(pa: Any, array: Any, type: str | None) -> tuple[str, Array] | None:
    if array.null_count:
        return None
    each = array.type.list_size
    inner = array.values  # without its offset, where it is as long as the array
    if len(inner) != len(array) * each:
        inner = inner.slice(array.offset * each, len(array) * each)
    found = numbers(pa, inner, type)
    if found is None:
        return None
    return found[0], found[1].reshape(len(array), each, *found[1].shape[1:])


def _as_said(pa: Any, array: Any, type: str) -> tuple[str, Array] | None:
    """Elements of the type that metadata tells, if the array is what is made of that."""
    kind, dtype = array.type, _columns.dtype_of(type)
    if array.null_count and dtype.kind not in "mM":
        return None
    if kind == element_type(pa, type):
        return type, _with_nat(array, _memory(array, dtype))
    if type == "torch:bfloat16" and kind == pa.float32():
        bits = _memory(array, np.dtype(np.uint32))
        if (bits & 0xFFFF).any():  # others were put in
            return None
        return type, (bits >> 16).astype(np.uint16).view(dtype)
    if type.startswith("torch:") or dtype.names is not None:
        return None
    if dtype.kind in "US":
        return _texts_as_said(pa, array, type)
    if dtype.kind in "mM":
        return _times_as_said(pa, array, type)
    if not dtype.isnative and kind == element_type(pa, dtype.newbyteorder().str):
        return type, _swapped(_memory(array, dtype.newbyteorder()))
    return None


def _texts_as_said(pa: Any, array: Any, type: str) -> tuple[str, Array] | None:
    dtype = _columns.dtype_of(type)
    kinds = ("large_string", "string") if dtype.kind == "U" else ("large_binary", "binary")
    if str(array.type) not in kinds:
        return None
    listed = array.to_pylist()
    made = np.array(listed, dtype)
    return (type, made) if made.tolist() == listed else None  # longer ones were put in


def _times_as_said(pa: Any, array: Any, type: str) -> tuple[str, Array] | None:
    kind, dtype = array.type, _columns.dtype_of(type)
    if not dtype.isnative:
        found = _as_said(pa, array, dtype.newbyteorder().str)
        return None if found is None else (type, _swapped(found[1]))
    if kind == pa.int64():
        return type, _with_nat(array, _memory(array, dtype))
    if kind == pa.date32() and dtype == np.dtype("<M8[D]"):
        days = _memory(array, np.dtype(np.int32)).astype(np.int64).view(dtype)
        return type, _with_nat(array, days)
    if (pa.types.is_timestamp(kind) and dtype.kind == "M") or (
        pa.types.is_duration(kind) and dtype.kind == "m"
    ):
        return _in_unit(type, dtype, _by_itself(pa, array))
    return None


def _in_unit(type: str, dtype: Any, found: tuple[str, Array] | None) -> tuple[str, Array] | None:
    """Times in the unit they were in; files have not all. None where that loses something."""
    assert found is not None
    made = found[1].astype(dtype)
    same = np.array_equal(made.astype(found[0]).view(np.int64), found[1].view(np.int64))
    return (type, made) if same else None


def _by_itself(pa: Any, array: Any) -> tuple[str, Array] | None:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        code = "M" if pa.types.is_timestamp(kind) else "m"
        dtype = np.dtype(f"<{code}8[{kind.unit}]")
        return dtype.str, _with_nat(array, _memory(array, dtype))
    if array.null_count:
        return None
    if pa.types.is_boolean(kind):
        return "|b1", array.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        letter = "f" if pa.types.is_floating(kind) else "iu"[pa.types.is_unsigned_integer(kind)]
        dtype = np.dtype(f"<{letter}{kind.bit_width // 8}")
        return dtype.str, _memory(array, dtype)
    return None


def _with_nat(array: Any, values: Array) -> Array:
    """Times that are NaT where the array is null; the same memory where they already are."""
    if not array.null_count:
        return values
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if not np.isnat(values[nulls]).all():
        values = values.copy()
        values[nulls] = np.array("NaT", values.dtype)
    return values


def _memory(array: Any, dtype: Any) -> Array:
    data = array.buffers()[1]
    size = len(array) * dtype.itemsize
    made: Array
    if data is None or not size:
        made = np.ndarray((len(array),), dtype, bytearray(max(size, 1)))
        return made
    start = array.offset * dtype.itemsize
    made = np.frombuffer(data, np.uint8)[start : start + size].view(dtype)
    return made
