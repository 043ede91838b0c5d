"""Batches as Arrow tables and back, and as files that others read.

The buffers of a column are those of its Arrow array, so a table lies over the
same memory. What Arrow has no type for is fixed binary with the type in the
field's metadata. pyarrow is imported where a table is asked for.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from . import _arrays, _blocks, _columns, _pickling
from ._batch import Batch
from ._columns import Array, Column, Fixed, Ragged

_MOST_CHUNKS = 64  # ranges that stay chunks of the same memory; more are gathered
_UNITS = ("s", "ms", "us", "ns")  # of time, that Arrow has too
_META, _PICKLED_META = b"muster.meta", b"muster.meta.pickle"


def _pyarrow() -> Any:
    try:
        return _arrays.importing("pyarrow")
    except ImportError as error:
        raise ImportError(
            f"Arrow tables need pyarrow: pip install 'muster[arrow]' ({error})"
        ) from error


# --- to Arrow ----------------------------------------------------------------------------


def to_table(batch: Batch) -> Any:
    """The pyarrow.Table of a batch."""
    pa = _pyarrow()
    fields, arrays = [], []
    for part in batch._live():
        for name, stored in part.columns.items():
            columns = _chunks(name, stored, part.pieces)
            chunks = [_array(pa, column) for column in columns]
            fields.append(pa.field(name, chunks[0].type, metadata=_described(columns[0])))
            arrays.append(pa.chunked_array(chunks, chunks[0].type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, _table_metadata(batch.meta)))


def _chunks(name: str, stored: str, pieces: Any) -> list[Column]:
    some = [piece for piece in pieces if len(piece.rows)] or pieces[:1]
    if len(some) <= _MOST_CHUNKS and all(isinstance(piece.rows, range) for piece in some):
        columns = [block.column(stored, rows, "on") for block, rows in some]
        if len({_columns.signature(column) for column in columns}) == 1:
            return columns
    return [_blocks.column_of(name, stored, pieces, "on")]


def _described(column: Column) -> dict[str, str]:
    found = {"muster.lib": column.lib}
    if column.type:
        found["muster.dtype"] = column.type
    if column.kind == "object":
        found |= {"muster.kind": "object", "muster.shape": json.dumps(column.shape)}
    return found


def _table_metadata(meta: dict[Any, Any]) -> dict[bytes, bytes]:
    if not meta:
        return {}
    try:
        text = json.dumps(meta)
        if _exactly(json.loads(text), meta):
            return {_META: text.encode()}
    except (TypeError, ValueError):
        pass
    return {_PICKLED_META: _pickling.dumps(meta)[0]}


def _exactly(a: Any, b: Any) -> bool:
    """Equal, and of the same plain types: what JSON gives back as it was."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_exactly(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_exactly, a, b))
    return bool(a == b)


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


def _array(pa: Any, column: Column) -> Any:
    buffers = [buffer.array() for buffer in column.buffers()]
    rows = len(column)
    if isinstance(column, Fixed):
        return _elements(pa, column.type, column.shape, rows, buffers[0])
    valid = pa.py_buffer(buffers[0]) if len(buffers[0]) else None
    # Empty buffers have no memory; Arrow wants some all the same.
    offsets = pa.py_buffer(buffers[1] if len(buffers[1]) else np.zeros(8, np.uint8))
    if isinstance(column, Ragged):
        total = int(column.offsets[-1] - column.offsets[0])
        values = _elements(pa, column.type, column.shape, total, buffers[2])
        kind = pa.large_list(values.type)
        return pa.Array.from_buffers(kind, rows, [valid, offsets], children=[values])
    kind = pa.large_string() if column.kind == "text" else pa.large_binary()
    return pa.Array.from_buffers(kind, rows, [valid, offsets, pa.py_buffer(buffers[2])])


def _elements(pa: Any, type: str, shape: tuple[int, ...], rows: int, data: Any) -> Any:
    element = element_type(pa, type)
    each = int(np.prod(shape, dtype=np.int64))
    plain = getattr(element, "storage_type", element)
    made = pa.Array.from_buffers(plain, rows * each, [None, pa.py_buffer(data)])
    if plain is not element:
        made = pa.ExtensionArray.from_storage(element, made)
    if not shape:
        return made
    tensor = pa.fixed_shape_tensor(element, shape)
    lists = pa.Array.from_buffers(tensor.storage_type, rows, [None], children=[made])
    return pa.ExtensionArray.from_storage(tensor, lists)


def plain_table(batch: Batch) -> Any:
    """A table without extension types and metadata, for those who know neither."""
    pa = _pyarrow()
    table = to_table(batch)
    arrays = []
    for field, column in zip(table.schema, table.columns, strict=True):
        made = None
        if field.metadata.get(b"muster.kind") == b"object":
            made = _without_pickle(pa, list(batch[field.name]))
        arrays.append(_plain(pa, column.combine_chunks()) if made is None else made)
    return pa.Table.from_arrays(arrays, names=table.column_names)


def _without_pickle(pa: Any, rows: list[Any]) -> Any:
    """Objects as an array of a type that Arrow finds for them, as numbers of which some are None,
    or dicts of the same keys; None where that would not give back the same."""
    try:
        made = pa.array(rows)
        return made if _exactly(made.to_pylist(), rows) else None
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def _plain(pa: Any, array: Any) -> Any:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        made = _plain(pa, array.storage.flatten())
        for size in reversed(kind.shape):
            made = pa.FixedSizeListArray.from_arrays(made, size)
        return made
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if pa.types.is_large_list(kind):
        values = _plain(pa, array.values)
        return pa.LargeListArray.from_arrays(array.offsets, values, mask=array.is_null())
    return array


def export(batch: Batch, path: str | os.PathLike[str]) -> None:
    """Write a file in the format that its suffix names."""
    pa = _pyarrow()
    where = os.fspath(path)
    suffix = os.path.splitext(where)[1]
    table = to_table(batch)
    if suffix in (".arrow", ".feather"):
        _arrays.importing("pyarrow.feather").write_feather(table, where, compression="uncompressed")
    elif suffix == ".parquet":
        for field in table.schema:
            kind = field.type.value_type if pa.types.is_large_list(field.type) else field.type
            if isinstance(kind, pa.FixedShapeTensorType) and 0 in kind.shape:
                raise ValueError(
                    f"column {field.name!r} has rows of shape {kind.shape}, without an element, "
                    "which Parquet cannot hold: drop it, or export to .arrow"
                )
        _arrays.importing("pyarrow.parquet").write_table(table, where)
    else:
        raise ValueError(f"a batch is exported to .parquet, .arrow or .feather, not {where!r}")


# --- from Arrow --------------------------------------------------------------------------


def from_table(table: Any, pickle: bool) -> Batch:
    """The batch of a table, or of what pyarrow makes one of."""
    pa = _pyarrow()
    if not isinstance(table, pa.Table):
        table = pa.table(table)
    columns = {
        field.name: column_value(field.name, column, field.metadata, pickle)
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    metadata = table.schema.metadata or {}
    meta = None
    if _META in metadata:
        meta = json.loads(metadata[_META])
    elif _PICKLED_META in metadata:
        meta = _unpickle("the meta of this table", metadata[_PICKLED_META], pickle)
    if not columns and table.num_rows:
        raise ValueError(f"a table of {table.num_rows} rows without columns")
    return Batch(columns, meta)


def _unpickle(what: str, data: Any, pickle: bool) -> Any:
    if not pickle:
        raise _refusal(what)
    return _pickling.loads(data)


def _refusal(what: str) -> ValueError:
    return ValueError(
        f"{what} is pickled: Batch.from_arrow(table, pickle=True) reads it, if you trust who "
        "wrote it, for unpickling can run any code"
    )


def _said_type(name: str, said: dict[str, str], pickle: bool) -> str | None:
    """The type of elements that a field's metadata tells. Who wrote the table wrote that too, so
    it is looked at before anything is made of it."""
    type = said.get("muster.dtype")
    if type is None or type == "T":
        return type
    if _columns.is_pickled(type) and not pickle:
        raise _refusal(f"the type of column {name!r}")
    try:
        dtype = _columns.dtype_of(type)
        if not isinstance(dtype, np.dtype) or dtype.hasobject:
            raise ValueError("it is no type of plain bytes")
    except Exception as error:
        raise ValueError(
            f"column {name!r} is said to be of type {type!r} (muster.dtype in its metadata), "
            f"which cannot be: {error}"
        ) from error
    return type


def column_value(name: str, data: Any, metadata: Any, pickle: bool = False) -> Any:
    """An Arrow array as a column: over the same memory where its type allows it.

    Without muster's metadata: numbers and fixed lists become arrays, lists of numbers lists of
    arrays, all else a list. A null is None; a column of numbers that has one becomes a list.
    """
    pa = _pyarrow()
    said = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    lib = said.get("muster.lib", "")
    type = _said_type(name, said, pickle)
    array = data
    if isinstance(data, pa.ChunkedArray):
        array = _one_array(pa, data)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if said.get("muster.kind") == "object":
        rows = [_unpickle(f"column {name!r}", row, pickle) for row in array.to_pylist()]
        shape = tuple(json.loads(said.get("muster.shape", "[]")))
        return _columns.as_objects(rows, shape) if lib == "numpy" else rows
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        ragged = _ragged(pa, array, type, lib or "numpy")
        return array.to_pylist() if ragged is None else ragged.value()
    found = None
    if array.null_count == 0 or pa.types.is_temporal(kind):
        found = _numbers(pa, array, type)
    if found is not None:
        element, values = found
        return Fixed(
            element, lib or "numpy", _writable(values) if lib == "torch" else values
        ).value()
    listed = array.to_pylist()
    if type == "T":
        return np.array(listed, np.dtypes.StringDType())
    return _columns.as_objects(listed) if lib == "numpy" else listed


def _one_array(pa: Any, data: Any) -> Any:
    if data.num_chunks == 1:
        return data.chunk(0)
    if not data.num_chunks:
        return pa.nulls(0, data.type)
    if not isinstance(data.type, pa.BaseExtensionType):
        return pa.concat_arrays(data.chunks)
    whole = pa.concat_arrays([chunk.storage for chunk in data.chunks])
    return pa.ExtensionArray.from_storage(data.type, whole)


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


def _ragged(pa: Any, array: Any, type: str | None, lib: str) -> Ragged | None:
    if array.type.value_type.id == pa.null().id:
        return None
    found = None if array.values.null_count else _numbers(pa, array.values, type)
    if found is None:
        return None
    type, values = found
    valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    values = _writable(values) if lib == "torch" else values
    return Ragged(type, lib, values.shape[1:], offsets=offsets, values=values, valid=valid)


def _numbers(pa: Any, array: Any, type: str | None) -> tuple[str, Array] | None:
    """Type and elements of an array whose elements have a size, over its memory; else None."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        found = _numbers(pa, array.storage, type)
        if found is None or kind.permutation:
            return None
        return found[0], found[1].reshape(len(array), *kind.shape)
    if isinstance(kind, pa.Bool8Type):
        return "|b1", _memory(array.storage, np.dtype(bool))
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if pa.types.is_fixed_size_list(kind):
        start, size = array.offset * kind.list_size, len(array) * kind.list_size
        inner = array.values.slice(start, size) if _counts_offset(array) else array.flatten()
        found = None if inner.null_count else _numbers(pa, inner, type)
        if found is None:
            return None
        values = found[1]
        return found[0], values.reshape(len(array), kind.list_size, *values.shape[1:])
    if type is not None:
        dtype = _columns.dtype_of(type)
        same = pa.types.is_fixed_size_binary(kind) or pa.types.is_primitive(kind)
        if same and kind.bit_width == 8 * dtype.itemsize:
            return type, _memory(array, dtype)
    if pa.types.is_boolean(kind):
        return "|b1", array.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        letter = "f" if pa.types.is_floating(kind) else "iu"[pa.types.is_unsigned_integer(kind)]
        dtype = np.dtype(f"<{letter}{kind.bit_width // 8}")
        return dtype.str, _memory(array, dtype)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        code = "M" if pa.types.is_timestamp(kind) else "m"
        dtype = np.dtype(f"<{code}8[{kind.unit}]")
        values = _memory(array, dtype)
        if array.null_count:
            values = values.copy()
            values[array.is_null().to_numpy(zero_copy_only=False)] = np.array("NaT", dtype)
        return dtype.str, values
    return None


def _counts_offset(array: Any) -> bool:
    """Whether ``values`` of a fixed-size list is without its offset."""
    return bool(len(array.values) != len(array) * array.type.list_size)


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
