"""Batches as Arrow tables and back, and as files that others read.

The buffers of a column are those of its Arrow array, so a table lies over the
same memory. Which Arrow type has an element's bytes is `_elements`' to say; what the
user had stands in the field's metadata. pyarrow is imported where a table is asked for.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import errno
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from . import _arrays, _blocks, _columns, _elements, _frames, _pickling
from ._batch import Batch
from ._columns import Array, Column, Fixed, Ragged
from ._errors import EncodingError

_MOST_CHUNKS = 64  # ranges that stay chunks of the same memory; more are gathered
_PLAIN = {
    *(type(None), bool, int, float, str, bytes, decimal.Decimal),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
}
_META, _PICKLED_META = b"muster.meta", b"muster.meta.pickle"


def _pyarrow() -> Any:
    try:
        return _arrays.importing("pyarrow")
    except ImportError as error:
        raise ImportError(
            f"Arrow tables need pyarrow: pip install 'muster[arrow]' ({error})"
        ) from error


# --- to Arrow ----------------------------------------------------------------------------


def to_table(batch: Batch, plain: bool = False) -> Any:
    """The pyarrow.Table of a batch: over the same memory, or of plain types."""
    pa = _pyarrow()
    fields, arrays = [], []
    for part in batch._live():
        for name, stored in part.columns.items():
            columns = _chunks(name, stored, part.pieces)
            listed = None
            if plain and columns[0].kind == "object" and not columns[0].shape:
                listed = _listed(pa, batch, name)
            if listed is not None:
                told = {"muster.lib": columns[0].lib, "muster.kind": "listed"}
                fields.append(pa.field(name, listed.type, metadata=told))
                arrays.append(listed)
                continue
            chunks = [_array(pa, column, plain) for column in columns]
            if len({str(chunk.type) for chunk in chunks}) > 1:  # one has what is not plain
                chunks = [_array(pa, _blocks.column_of(name, stored, part.pieces, "on"), plain)]
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
    # As text: what a file says of itself is UTF-8, and polars reads no Parquet else.
    return {_PICKLED_META: base64.b64encode(_pickling.dumps(meta)[0])}


def _exactly(a: Any, b: Any) -> bool:
    """Equal, and of the same plain types: what JSON gives back as it was."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_exactly(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_exactly, a, b))
    if isinstance(a, float):  # NaN is as good as others
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def _array(pa: Any, column: Column, plain: bool) -> Any:
    buffers = [buffer.array() for buffer in column.buffers()]
    rows = len(column)
    if isinstance(column, Fixed):
        return _elements.array_of(pa, column.type, column.shape, rows, buffers[0], plain)
    valid = pa.py_buffer(buffers[0]) if len(buffers[0]) else None
    # Empty buffers have no memory; Arrow wants some all the same.
    offsets = pa.py_buffer(buffers[1] if len(buffers[1]) else np.zeros(8, np.uint8))
    if isinstance(column, Ragged):
        total = int(column.offsets[-1] - column.offsets[0])
        values = _elements.array_of(pa, column.type, column.shape, total, buffers[2], plain)
        kind = pa.large_list(values.type)
        return pa.Array.from_buffers(kind, rows, [valid, offsets], children=[values])
    kind = pa.large_string() if column.kind == "text" else pa.large_binary()
    return pa.Array.from_buffers(kind, rows, [valid, offsets, pa.py_buffer(buffers[2])])


def plain_table(batch: Batch) -> Any:
    """A table of plain types, without metadata, for those who know neither."""
    pa = _pyarrow()
    table = to_table(batch, plain=True)
    arrays = []
    for field, column in zip(table.schema, table.columns, strict=True):
        made = None
        if field.metadata.get(b"muster.kind") == b"object":
            made = _without_pickle(pa, list(batch[field.name]))
        arrays.append(column if made is None else made)
    return pa.Table.from_arrays(arrays, names=table.column_names)


def _without_pickle(pa: Any, rows: list[Any]) -> Any:
    """Objects as an array of a type that Arrow finds for them, as numbers of which some are None,
    or dicts of the same keys; None where that would not give back the same."""
    if not all(map(_is_plain, rows)):  # of some others pyarrow makes a segmentation fault
        return None
    try:
        made = pa.array(rows)
        return made if _exactly(made.to_pylist(), rows) else None
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(held) for key, held in value.items())
    return type(value) in _PLAIN


def _listed(pa: Any, batch: Batch, name: str) -> Any:
    """A column of objects as an array that files can hold and that gives them back as they are;
    None where there is none."""
    try:
        made = _without_pickle(pa, list(batch[name]))
    except EncodingError:  # of a class that is not here
        return None
    return made if isinstance(made, pa.Array) and _common(pa, made.type) else None


def _common(pa: Any, kind: Any) -> bool:
    """Whether all formats have this type, and one Python type for it."""
    if pa.types.is_list(kind):
        return _common(pa, kind.value_type)
    if pa.types.is_struct(kind):
        return bool(kind.num_fields) and all(_common(pa, field.type) for field in kind)
    return str(kind) in ("null", "bool", "int64", "double", "string", "binary", "date32[day]")


def export(batch: Batch, path: str | os.PathLike[str]) -> None:
    """Write a file in the format that its suffix names."""
    pa = _pyarrow()
    where = os.fspath(path)
    suffix = os.path.splitext(urlsplit(where).path if _is_uri(where) else where)[1]
    if suffix not in (".parquet", ".arrow", ".feather"):
        raise ValueError(f"a batch is exported to .parquet, .arrow or .feather, not {where!r}")
    table = to_table(batch, plain=True)
    if suffix != ".parquet":
        feather = _arrays.importing("pyarrow.feather")
        _put(where, lambda to: feather.write_feather(table, to, compression="uncompressed"))
        return
    for field in table.schema:
        shape = _shape(pa, field.type)
        if 0 in shape:
            raise ValueError(
                f"column {field.name!r} has rows of shape {shape}, without an element, "
                "which Parquet cannot hold: drop it, or export to .arrow"
            )
    parquet = _arrays.importing("pyarrow.parquet")
    _put(where, lambda to: parquet.write_table(table, to))


def _is_uri(where: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", where) is not None


def _put(where: str, write: Callable[[Any], None]) -> None:
    """Have a file written to a path, or to a file system that pyarrow has, by its URI."""
    if _is_uri(where):
        fs = _arrays.importing("pyarrow.fs")
        system, where = fs.FileSystem.from_uri(where)
        if not isinstance(system, fs.LocalFileSystem):
            with system.open_output_stream(where) as to:
                write(to)
            return
    _written(where, write)


def _written(where: str, write: Callable[[str], None]) -> None:
    """Have a file written beside where it belongs, and put it there when it is whole."""
    target = os.path.realpath(where)
    part = os.path.join(os.path.dirname(target), f".muster-{os.urandom(8).hex()}.part")
    try:
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"a batch is exported to a file, and {where!r} is none")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            write(part)
            if mode is not None:
                os.chmod(part, stat.S_IMODE(mode))
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
    except OSError as error:
        code = error.errno or errno.EIO
        why = os.strerror(code) if error.errno else str(error)
        raise OSError(code, f"the batch was not exported: {why}", where) from error


def _shape(pa: Any, kind: Any) -> list[int]:
    """The dimensions of fixed lists in a column."""
    if pa.types.is_large_list(kind):
        return _shape(pa, kind.value_type)
    return (
        [kind.list_size, *_shape(pa, kind.value_type)] if pa.types.is_fixed_size_list(kind) else []
    )


# --- from Arrow --------------------------------------------------------------------------


def from_table(table: Any, pickle: bool) -> Batch:
    """The batch of a table, or of what pyarrow makes one of."""
    pa = _pyarrow()
    beside: dict[str, Any] = {}
    if not isinstance(table, pa.Table):
        table, beside = _table_and_rest(pa, table)
    _check_once(table.column_names)
    columns = {
        field.name: column_value(field.name, column, field.metadata, pickle)
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    columns = {**beside, **columns}  # in the order of the frame
    metadata = table.schema.metadata or {}
    meta = None
    if _META in metadata:
        meta = json.loads(metadata[_META])
    elif _PICKLED_META in metadata:
        data = metadata[_PICKLED_META]
        if not data.startswith(b"\x80"):  # else it is the pickle itself, as it used to be
            data = base64.b64decode(data)
        meta = _unpickle("the meta of this table", data, pickle)
    if not columns and table.num_rows:
        raise ValueError(f"a table of {table.num_rows} rows without columns")
    return Batch(columns, meta)


def _check_once(names: Sequence[Any]) -> None:
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"the table has several columns called {', '.join(map(repr, twice))}: rename them, "
            "as by table.rename_columns"
        )


def _table_and_rest(pa: Any, frame: Any) -> tuple[Any, dict[str, Any]]:
    """A data frame as a table, and all its columns in order where Arrow has no type for some:
    those with their values, the others with None."""
    apart = _frames.apart(frame)
    if not apart:
        return _table_of(pa, frame), {}
    names = list(frame.columns)
    _check_once(names)
    rest = {str(name): np.asarray(frame[name]) if name in apart else None for name in names}
    others = frame.drop(columns=apart) if hasattr(frame, "iloc") else frame.drop(apart)
    return _table_of(pa, others), rest


def _table_of(pa: Any, frame: Any) -> Any:
    try:
        return pa.table(frame)
    except pa.ArrowException:
        for name in getattr(frame, "columns", ()):
            _chunked(pa, name, frame[name])  # says which it is
        raise


def _chunked(pa: Any, name: Any, series: Any) -> Any:
    try:
        return pa.chunked_array(series)
    except pa.ArrowException as error:
        raise TypeError(
            f"column {name!r} of {getattr(series, 'dtype', type(series))} cannot be read by Arrow: "
            f"{error}: cast it to a type that Arrow has, or pass it as a list"
        ) from error


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
    said = {
        key.decode(): value.decode()
        for key, value in (metadata or {}).items()
        if key.startswith(b"muster.")
    }
    lib = said.get("muster.lib", "")
    type = _said_type(name, said, pickle)
    array = _elements.by_sizes(pa, _one_array(pa, data))
    kind = array.type
    if said.get("muster.kind") == "listed":
        rows = array.to_pylist()
        return _columns.as_objects(rows) if lib == "numpy" else rows
    if said.get("muster.kind") == "object":
        rows = [_unpickle(f"column {name!r}", row, pickle) for row in array.to_pylist()]
        shape = tuple(json.loads(said.get("muster.shape", "[]")))
        return _columns.as_objects(rows, shape) if lib == "numpy" else rows
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        ragged = _ragged(pa, array, type, lib)
        return array.to_pylist() if ragged is None else ragged.value()
    found = _elements.numbers(pa, array, type)
    if found is not None:
        return Fixed(*_kept(lib, *found)).value()
    listed = array.to_pylist()
    if type == "T":
        return np.array(listed, np.dtypes.StringDType())
    return _columns.as_objects(listed) if lib == "numpy" else listed


def series_value(name: str, series: Any) -> Any:
    """What a data frame has as a column, which Arrow can read, as a column."""
    return column_value(name, _chunked(_pyarrow(), name, series), None)


def _one_array(pa: Any, data: Any) -> Any:
    if not isinstance(data, pa.ChunkedArray):
        data = pa.chunked_array([data])
    if not data.num_chunks:
        return pa.nulls(0, data.type)
    if pa.types.is_dictionary(data.type):
        data = pa.chunked_array([_elements.decoded(pa, chunk) for chunk in data.chunks])
    if data.num_chunks == 1:
        return data.chunk(0)
    if not isinstance(data.type, pa.BaseExtensionType):
        return pa.concat_arrays(data.chunks)
    whole = pa.concat_arrays([chunk.storage for chunk in data.chunks])
    return pa.ExtensionArray.from_storage(data.type, whole)


def _kept(lib: str, type: str, values: Array) -> tuple[str, str, Array]:
    """Type, library and memory of a column; torch's can be written to, and is of its types."""
    if lib != "torch" or values.dtype.kind not in "biufc":
        return type, "numpy" if lib in ("", "torch") else lib, values
    return type, lib, values if values.flags.writeable else values.copy()


def _ragged(pa: Any, array: Any, type: str | None, lib: str) -> Ragged | None:
    if array.type.value_type.id == pa.null().id:
        return None
    found = _elements.numbers(pa, array.values, type)
    if found is None:
        return None
    type, lib, values = _kept(lib, *found)
    valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    return Ragged(type, lib, values.shape[1:], offsets=offsets, values=values, valid=valid)
