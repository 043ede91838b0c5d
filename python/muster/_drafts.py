"""What users give as columns, and the columns that become of it.

Exactness decides: what has a plain layout (arrays, tensors, texts, bytes, lists
of numbers of one type, lists of arrays) gets it, all else is pickled row by row,
so that what comes out has the types that went in. Torch is never imported here: a
value of its own cannot exist before it does. Arrow's values are `_arrow`'s.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np

from . import _blame, _frames, _pickling
from ._columns import Array, Column, Fixed, Packed, Ragged, type_of
from ._errors import EncodingError
from ._rows import MAX_ROWS

_INT64 = range(-(1 << 63), 1 << 63)
_NUMBERS = {bool: "|b1", int: "<i8", float: "<f8"}
_PLAIN_KINDS = "biufcmM"
_SAME_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


# --- taking ------------------------------------------------------------------------------


def take(name: Any, value: Any) -> Any:
    """A column as it is kept until it is sent: an array, a tensor on the CPU, or a list."""
    check_name(name)
    if isinstance(value, np.ndarray):
        return _take_array(name, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _take_tensor(name, value, torch)
    if isinstance(value, list):
        return list(value)
    if _is_arrow(value):
        from ._arrow import column_value

        return take(name, column_value(name, value, None))
    if _is_series(value):
        from ._arrow import series_value

        try:
            return take(name, series_value(name, value))
        except ImportError:  # without pyarrow, numpy reads most of them
            pass
    if hasattr(value, "__array__"):
        return take(name, np.asarray(value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return list(value)
    hint = ""
    if isinstance(value, (Mapping, Set)):
        hint = "; a dict or set has no order of rows"
    raise TypeError(
        f"column {name!r} is a {_blame.type_name(value)}: a column is a numpy array, a torch "
        f"tensor, a list or a pyarrow array, with one element a row{hint}"
    )


def check_name(name: Any) -> None:
    """TypeError for what cannot be the name of a column."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a column is a str, not {name!r}")
    if not name or "\0" in name:
        raise ValueError(f"the name of a column is a text without NUL, not {name!r}")


def common_length(columns: Mapping[str, Any]) -> int:
    """How many rows columns have; ValueError where they differ, or are too many."""
    first, rows = "", 0
    for name, value in columns.items():
        if not first:
            first, rows = name, len(value)
        elif len(value) != rows:
            raise ValueError(
                f"columns of one batch have as many rows: {first!r} has {rows}, "
                f"{name!r} has {len(value)}"
            )
    if rows > MAX_ROWS:
        raise ValueError(f"{rows} rows are more than a batch can have, {MAX_ROWS}")
    return rows


def _take_array(name: str, array: Array) -> Array:
    kind = type(array)
    if kind is not np.ndarray:
        if not issubclass(kind, (np.memmap, np.recarray)):
            raise TypeError(
                f"column {name!r} is a {_blame.type_name(array)}, which is more than its numbers: "
                "pass np.asarray(...) of it, and what that loses as a column of its own"
            )
        array = array.view(np.ndarray)
    if array.ndim == 0:
        raise ValueError(f"column {name!r} is a 0-d array, which has no rows")
    if array.dtype.names is not None and array.dtype.hasobject:
        raise TypeError(
            f"column {name!r} is an array of records with objects in them ({array.dtype}): "
            "pass its fields as columns"
        )
    return array


def _take_tensor(name: str, tensor: Any, torch: Any) -> Any:
    if tensor.is_nested:
        return [row.detach().cpu() for row in tensor.unbind()]
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(
            f"column {name!r} is a {tensor.layout} tensor of {tensor.dtype}: "
            "pass it dense and not quantized"
        )
    if tensor.dim() == 0:
        raise ValueError(f"column {name!r} is a 0-d tensor, which has no rows")
    return _plain_tensor(tensor)


def _plain_tensor(tensor: Any) -> Any:
    if tensor.is_cpu and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def _is_arrow(value: Any) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(value, (pa.Array, pa.ChunkedArray))


def _is_series(value: Any) -> bool:
    """A column of a data frame whose type is Arrow's and not numpy's, and so may have nulls."""
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "__arrow_c_stream__")
        and not hasattr(value, "columns")
        and not isinstance(dtype, np.dtype)
        and _frames.in_arrow(dtype)
    )


# --- drafting ----------------------------------------------------------------------------


def draft(name: str, value: Any, pickle: str = "on") -> Column:
    """The column of what take() gave; EncodingError where it needs pickle, and that is off."""
    if isinstance(value, list):
        return _of_list(name, value, "list", pickle)
    if isinstance(value, np.ndarray):
        return _of_array(name, value, pickle)
    return Fixed(*carried(value))


def carried(tensor: Any) -> tuple[str, str, Array]:
    """Type, library and memory of a tensor on the CPU."""
    type, carrier = _carrier(tensor.dtype)
    if carrier is not None:
        return type, "torch", tensor.view(carrier).numpy()
    return type, "torch", tensor.numpy()


@functools.lru_cache(maxsize=64)
def _carrier(dtype: Any) -> tuple[str, Any]:
    """How a type of torch's is called, and by which it is read where numpy has none such."""
    torch: Any = sys.modules["torch"]
    empty = torch.empty(0, dtype=dtype)
    try:
        return empty.numpy().dtype.str, None
    except TypeError:
        name = str(dtype).rpartition(".")[2]
        return f"torch:{name}", getattr(torch, _SAME_SIZE[empty.element_size()])


def _of_array(name: str, array: Array, pickle: str) -> Column:
    kind = array.dtype.kind
    if kind == "T":
        return _of_strings(name, array, pickle)
    if kind == "O":
        if array.ndim == 1:
            return _of_list(name, list(array), "numpy", pickle)
        return _objects(name, list(array), "numpy", pickle, shape=array.shape[1:])
    type = type_of(array.dtype, pickle)
    if type is None:
        raise EncodingError(
            f'column {name!r} of {array.dtype} needs pickle, which is off (pickle="off")'
        )
    return Fixed(type, "numpy", array)


def _of_strings(name: str, array: Array, pickle: str) -> Column:
    if array.ndim == 1 and not hasattr(array.dtype, "na_object"):
        rows = [text.encode() for text in array.tolist()]
        return Packed.of("text", "numpy", rows, type="T")
    return _of_array(name, array.astype(object), pickle)


def _of_list(name: str, values: list[Any], lib: str, pickle: str) -> Column:
    """The column of a list, or of a one-dimensional array of objects (lib "numpy")."""
    kinds = set(map(type, values))
    some = kinds - {type(None)}
    kind = some.pop() if len(some) == 1 else None
    found: Column | None = None
    if kind is str:
        found = _texts(values, lib)
    elif kind is bytes:
        found = Packed.of("bytes", lib, values)
    elif kind is list and lib == "list":
        found = _lists(values)
    elif kind is np.ndarray:
        found = _arrays_of(values, "object" if lib == "numpy" else "numpy")
    elif kind is not None and kind is getattr(sys.modules.get("torch"), "Tensor", None):
        found = _tensors(values, lib)
    elif kind is not None and lib == "list" and len(kinds) == 1:
        if kind in _NUMBERS:
            found = _numbers(values, kind)
        elif issubclass(kind, np.generic):
            found = _scalars(values)
    return _objects(name, values, lib, pickle) if found is None else found


def _texts(values: list[Any], lib: str) -> Column | None:
    try:
        if None not in values:
            whole = "".join(values)
            if whole.isascii():  # as long in bytes as in characters: encoded at once
                offsets = np.zeros(len(values) + 1, np.int64)
                np.cumsum(list(map(len, values)), out=offsets[1:])
                return Packed("text", lib, offsets, np.frombuffer(whole.encode(), np.uint8))
        rows = [None if text is None else text.encode() for text in values]
    except UnicodeEncodeError:  # lone surrogates
        return None
    return Packed.of("text", lib, rows)


def _numbers(values: list[Any], kind: type) -> Column | None:
    if kind is int and not (min(values) in _INT64 and max(values) in _INT64):
        return None
    type = _NUMBERS[kind]
    return Fixed(type, "list", np.array(values, type))


def _scalars(values: list[Any]) -> Column | None:
    dtype = values[0].dtype
    if dtype.kind not in _PLAIN_KINDS or any(value.dtype != dtype for value in values):
        return None
    type = type_of(dtype, "off")
    return None if type is None else Fixed(type, "scalars", np.array(values, dtype))


def _lists(values: list[Any]) -> Column | None:
    """Lists of numbers of one type."""
    there = values if None not in values else [row for row in values if row is not None]
    kinds = set(map(type, chain.from_iterable(there)))
    kind = kinds.pop() if len(kinds) == 1 else int if not kinds else None
    if kinds or kind not in _NUMBERS:
        return None
    try:
        flat = np.fromiter(chain.from_iterable(there), _NUMBERS[kind], count=sum(map(len, there)))
    except OverflowError:
        return None
    rows: list[Any] = []
    at = 0
    for row in values:
        if row is None:
            rows.append(None)
        else:
            rows.append(flat[at : at + len(row)])
            at += len(row)
    made = Ragged(_NUMBERS[kind], "list", (), rows=rows)
    made.values = flat
    return made


def _arrays_of(values: list[Any], lib: str) -> Column | None:
    """Arrays that differ in their first dimension at most."""
    there = [row for row in values if row is not None]
    dtype, dims = there[0].dtype, there[0].shape[1:]
    if (
        dtype.hasobject
        or dtype.kind == "T"
        or not all(row.ndim and row.dtype == dtype and row.shape[1:] == dims for row in there)
    ):
        return None
    type = type_of(dtype, "off")
    return None if type is None else Ragged(type, lib, dims, rows=values)


def _tensors(values: list[Any], lib: str) -> Column | None:
    """Tensors that differ in their first dimension at most, or of one number each."""
    torch: Any = sys.modules["torch"]
    rows: list[Any] = []
    types = []
    for tensor in values:
        if tensor is None:
            rows.append(None)
            continue
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return None
        type, _, array = carried(_plain_tensor(tensor))
        types.append((type, array.shape[1:]))
        rows.append(array)
    there = [row for row in rows if row is not None]
    if not any(row.ndim for row in there):
        if len(there) < len(rows) or len(set(types)) > 1:
            return None
        return Fixed(types[0][0], "object" if lib == "numpy" else "tensors", np.array(rows))
    if not all(row.ndim for row in there):
        return None
    if len(set(types)) > 1:
        return None
    type, dims = types[0]
    return Ragged(type, "tensors" if lib == "numpy" else "torch", dims, rows=rows)


def _objects(
    name: str, values: list[Any], lib: str, pickle: str, shape: tuple[int, ...] = ()
) -> Column:
    rows: list[bytes] = []
    try:
        for value in values:
            if pickle != "on":
                raise EncodingError('it needs pickle, which is off (pickle="off")')
            rows.append(_pickling.dumps(value)[0])
    except Exception as error:
        at = len(rows)
        why = f"{type(error).__name__}: {error}" if type(error) is not EncodingError else error
        what = f"row {at} of column {name!r}, a {_blame.type_name(values[at])}"
        raise EncodingError(f"{what}, cannot be sent: {why}") from None
    return Packed.of("object", lib, rows, shape=shape)


def describe_given(value: Any) -> str:
    """The type of what take() gave, for people; found without drafting it."""
    if not isinstance(value, list) and value.dtype != object:
        return _described(value, [])
    kinds = set(map(type, value))
    whole = type(None) not in kinds
    kinds.discard(type(None))
    if len(kinds) != 1 or (not whole and kinds <= _NUMBERS.keys()):
        return "object"
    first = next(row for row in value if row is not None)
    if kinds == {list}:
        if not set(map(type, first)) <= _NUMBERS.keys():
            return "object"
        first = np.array(first or [0])
    if len(getattr(first, "shape", ())):
        return _described(first, ["*"])
    if hasattr(first, "detach"):
        return _described(first, []) if whole else "object"
    names = {str: "text", bytes: "bytes", int: "int64", float: "float64", bool: "bool"}
    return names.get(kinds.pop(), "object")


def _described(array: Any, dims: list[str]) -> str:
    dims = [*dims, *map(str, array.shape[1:])]
    element = "record" if getattr(array.dtype, "names", None) else str(array.dtype)
    return element.replace(".", " ") + (f"[{', '.join(dims)}]" if dims else "")
