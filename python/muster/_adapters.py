"""What else batches are made of and turned into: dicts, rows, tensors, DataProto, datasets.

Everything here goes by what a value can do, not by its class: no library of
theirs is imported for its types' sake. Arrow is `_arrow`'s, devices are `_cuda`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import _arrays, _arrow, _blame, _columns, _cuda, _drafts
from ._batch import Batch
from ._columns import Array, Fixed, Ragged

_TORCH_KINDS = "biufc"


# --- numpy -------------------------------------------------------------------------------


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
        made = None
        if copies is not None:
            made = copies.column(part.columns[name], part.pieces)
        if made is None:
            made = _tensors(name, batch[name])
            if made is not None and target is not None:
                made = _moved(made, target)
        if made is not None:
            found[name] = made
        elif names is not None:
            raise TypeError(
                f"column {name!r} has no tensors: {part.pieces[0].block.describe(part.columns[name])}"
            )
    if copies is not None:
        copies.finish()
    return found


def _tensors(name: str, value: Any) -> Any:
    """A tensor, a list of tensors, or None for what torch has no type for."""
    if not isinstance(value, (list, np.ndarray)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OT":
        return _tensor(value)
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return None
    try:
        column = _drafts.draft(name, value, "off")
    except Exception:  # objects
        return None
    if isinstance(column, Fixed):
        return _tensor(column.data)
    if isinstance(column, Ragged):
        if column.lib == "torch":
            return column.value()
        rows = [None if row is None else _tensor(row) for row in column.rows()]
        given = [row for row in column.rows() if row is not None]
        return None if any(_tensor(row) is None for row in given[:1]) else rows
    return None


def _tensor(array: Array) -> Any:
    if (
        array.dtype.kind not in _TORCH_KINDS
        or array.dtype.itemsize > 16
        or array.dtype.char in "gG"
    ):
        return None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
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
