"""What else batches are made of and turned into: dicts, rows, tensors, DataProto, datasets.

Everything here goes by what a value can do, not by its class: no library of
theirs is imported for its types' sake. Arrow is `_arrow`'s, devices are `_cuda`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import _arrays, _arrow, _blame, _blocks, _columns, _cuda, _drafts
from ._batch import Batch
from ._columns import Array, Column, Fixed, Ragged

_TORCH_KINDS = "biufc"


# --- numpy -------------------------------------------------------------------------------


def to_numpy(batch: Batch) -> dict[str, Array]:
    """Columns as arrays."""
    found: dict[str, Array] = {}
    for name, value in batch.to_dict().items():
        column = _without_rows(batch, name) if isinstance(value, list) else None
        if isinstance(column, Fixed):
            found[name] = _widened(name, column.type, column.data)
        elif column is not None and column.kind != "object":
            found[name] = _columns.as_objects([])
        else:
            found[name] = numpy_column(name, value)
    return found


def numpy_column(name: str, value: Any) -> Array:
    """A column as an array; rows that make none become objects in one."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, list):
        element, _, array = _drafts.carried(value)
        return _widened(name, element, array)
    kinds = set(map(type, value))
    if kinds <= {bool} or kinds <= {int} or kinds <= {float}:
        try:
            return np.array(value, None if value else np.float64)
        except OverflowError:
            pass
    if kinds and all(isinstance(row, np.generic) for row in value) and len(kinds) == 1:
        return np.array(value)
    if kinds and all(hasattr(row, "detach") for row in value):
        column = _drafted(name, value)
        if isinstance(column, Fixed):
            return _widened(name, column.type, column.data)
    rows = [numpy_column(name, row) if hasattr(row, "detach") else row for row in value]
    return _columns.as_objects([np.array(row) if type(row) is list else row for row in rows])


def _widened(name: str, element: str, array: Array) -> Array:
    """An array of numbers that numpy has a type for."""
    if not element.startswith("torch:"):
        return array
    if element == "torch:bfloat16":  # the upper half of a float32
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if element.startswith("torch:float8"):
        wide: Array = _columns.tensor_of(array, element).float().numpy()
        return wide
    raise TypeError(f"column {name!r} is of {element}, which numpy has no type for")


# --- torch -------------------------------------------------------------------------------


def to_torch(batch: Batch, device: Any, names: Iterable[str] | None) -> dict[str, Any]:
    """Columns as tensors, on a device if one is named."""
    torch = _arrays.importing("torch")
    target = None if device is None else torch.device(device)
    found: dict[str, Any] = {}
    copies = _cuda.Copies(torch, target) if target is not None else None
    for name in batch.columns if names is None else names:
        part = batch._part(name)
        made, stored = None, part.columns[name]
        if copies and _cuda.as_stored(batch._cache.get(name), stored, part.pieces):
            made = copies.column(stored, part.pieces)
        if made is None:
            made = _tensors(name, batch[name], _without_rows(batch, name))
            if made is not None and target is not None:
                made = _moved(made, target)
        if made is not None:
            found[name] = made
        elif names is not None:
            what = part.pieces[0].block.describe(stored)
            raise TypeError(f"column {name!r} has no tensors: {what}")
    if copies is not None:
        copies.finish()
    return found


def _without_rows(batch: Batch, name: str) -> Column | None:
    """The column of a batch that has no rows: a list does not tell its type then."""
    part = batch._part(name)
    if len(batch):
        return None
    return _blocks.empty_of(name, part.columns[name], part.pieces)


def _tensors(name: str, value: Any, column: Column | None) -> Any:
    """A tensor, a list of tensors, or None for what torch has no type for. ``column`` is the
    value's, where it has no rows."""
    if not isinstance(value, (list, np.ndarray)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OT":
        return _tensor(value)
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return None
    column = _drafted(name, value) if column is None else column
    if isinstance(column, Fixed):
        if column.lib in ("tensors", "object"):
            return _columns.tensor_of(column.data, column.type)
        return _tensor(column.data)
    if isinstance(column, Ragged):
        if column.lib in ("torch", "tensors"):
            return list(column.value())
        rows = [None if row is None else _tensor(row) for row in column.rows()]
        return None if _tensor(np.empty(0, _columns.dtype_of(column.type))) is None else rows
    return None


def _drafted(name: str, value: Any) -> Column | None:
    """What a value is as a column; None for objects."""
    try:
        return _drafts.draft(name, value, "off")
    except Exception:
        alike = _alike(value)
        return None if alike is value else _drafted(name, alike)


def _alike(rows: Any) -> Any:
    """Arrays or tensors, those without elements of the type that the others have: where nothing
    else is said, ``np.array([])`` and ``torch.tensor([])`` are of floats."""
    there = [row for row in rows if row is not None]
    if len({*map(type, there)}) != 1 or not all(getattr(row, "shape", ()) for row in there):
        return rows
    types = {(row.dtype, tuple(row.shape[1:])) for row in there}
    if len(types) == 1:
        return rows
    some = {(row.dtype, tuple(row.shape[1:])) for row in there if len(row)}
    if not some:  # all are empty: what was said goes before what was not
        some = types - {(np.dtype(np.float64), ()), (_arrays.importing("torch").float32, ())}
    if len(some) != 1:
        return rows
    ((dtype, dims),) = some
    none = next(row for row in there if (row.dtype, tuple(row.shape[1:])) == (dtype, dims))[:0]
    return [row if row is None or len(row) else none for row in rows]


def _tensor(array: Array) -> Any:
    if (
        array.dtype.kind not in _TORCH_KINDS
        or array.dtype.itemsize > 16
        or array.dtype.char in "gG"
    ):
        return None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    size = array.dtype.itemsize
    if not array.flags.writeable or any(step < 0 or step % size for step in array.strides):
        array = array.copy()
    return _arrays.importing("torch").from_numpy(array)


def _moved(made: Any, device: Any) -> Any:
    if isinstance(made, list):
        return [None if row is None else row.to(device) for row in made]
    return made.to(device)


# --- DataProto ---------------------------------------------------------------------------


def is_dataproto(value: Any) -> bool:
    """Whether it has the three parts of a DataProto."""
    return all(hasattr(value, name) for name in ("batch", "non_tensor_batch", "meta_info"))


def from_dataproto(proto: Any) -> Batch:
    """A batch of the tensors, the other columns and the meta of a DataProto."""
    columns = dict(proto.batch.items()) if proto.batch is not None else {}
    both = [name for name in proto.non_tensor_batch or {} if name in columns]
    if both:
        raise ValueError(f"columns are both tensors and not: {', '.join(map(repr, both))}")
    columns |= proto.non_tensor_batch or {}
    return Batch(columns, proto.meta_info)


def halves(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """The columns that are tensors, and the others as arrays."""
    tensors: dict[str, Any] = {}
    others: dict[str, Array] = {}
    for name, value in columns.items():
        if isinstance(value, (list, np.ndarray)):
            others[name] = value if isinstance(value, np.ndarray) else _columns.as_objects(value)
        else:
            tensors[name] = value
    return tensors, others


def to_dataproto(batch: Batch, cls: Any) -> Any:
    """A cls of the batch's tensors, its other columns as arrays, and its meta."""
    tensors, others = halves(batch.to_dict())
    made: Any = tensors
    tensordict: Any = sys.modules.get("tensordict")
    if tensordict is not None:
        made = tensordict.TensorDict(source=tensors, batch_size=[len(batch)])
    return cls(batch=made, non_tensor_batch=others, meta_info=dict(batch.meta))


# --- datasets ----------------------------------------------------------------------------


def from_hf(dataset: Any) -> Batch:
    """A batch of a dataset, by its Arrow table (its own order of rows included)."""
    table = dataset.with_format("arrow")[:]
    if not hasattr(table, "schema"):
        raise TypeError(
            f"a {_blame.type_name(dataset)} has no rows to take: pass a datasets.Dataset, as "
            "Dataset.from_list(list(stream.take(1000)))"
        )
    return _arrow.from_table(table, False)


def to_hf(batch: Batch) -> Any:
    """A datasets.Dataset of the batch; types that it does not know become plain ones."""
    datasets = _arrays.importing("datasets")
    return datasets.Dataset(_arrow.plain_table(batch))


# --- whatever it is ----------------------------------------------------------------------


def batch_of(value: Any) -> Batch:
    """A batch of whatever one can be made of."""
    if isinstance(value, Mapping):
        return Batch(value)
    if is_dataproto(value):
        return from_dataproto(value)
    if hasattr(value, "with_format") and hasattr(value, "features"):
        return from_hf(value)
    pa = sys.modules.get("pyarrow")
    if hasattr(value, "__arrow_c_stream__") or (
        pa is not None and isinstance(value, (pa.Table, pa.RecordBatch))
    ):
        return _arrow.from_table(value, False)
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        return _of_rows(value)
    raise TypeError(
        f"no batch can be made of a {_blame.type_name(value)}: pass a dict of columns, a list of "
        "dicts, a DataProto, a pyarrow Table, a dataset, or a data frame"
    )


def _of_rows(rows: list[Any]) -> Batch:
    names = list(rows[0])
    for at, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise ValueError(f"row {at} has {list(row)}, the first has {names}")
    return Batch({name: [row[name] for row in rows] for name in names})
