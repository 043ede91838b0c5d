"""DataProto: what pipelines hand from role to role, as ROLL has it.

One that is sent travels as a `muster.Batch`: its rows are written to shared
memory once, cut and joined by the head as handles, and read where they lie. One
that has come keeps its batch until somebody looks at the rows; passed on before
that, it goes as it came.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ... import _adapters, _metas
from ..._arrays import importing
from ..._batch import Batch
from .. import ray
from .merging import by_key, custom_np_concatenate, is_tensor, merged_meta, unite

_FROM_ENVIRONMENT: Any = object()
#: The column that is sent where there are rows and no columns.
_ROWS = "muster.rows"


class DataProto:
    """Tensors (``batch``), arrays of objects (``non_tensor_batch``) and a dict (``meta_info``)."""

    def __init__(
        self,
        batch: Any = None,
        non_tensor_batch: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self._frozen: Batch | None = None
        self._batch = batch
        self._arrays: dict[str, Any] = {} if non_tensor_batch is None else non_tensor_batch
        self._meta: dict[str, Any] | None = {} if meta_info is None else meta_info
        self.check_consistency()

    # --- how it travels --------------------------------------------------------------------

    def __muster_batch__(self) -> Batch:
        """The batch that is sent in its place."""
        batch = Batch.from_dataproto(self) if self._frozen is None else self._frozen
        if len(self) and not batch.columns:
            batch = Batch({_ROWS: np.zeros(len(self), np.bool_)})
        kind = f"{type(self).__module__}:{type(self).__qualname__}"
        # What is sent is a part of its own: as in concat, the metas of all ranks count.
        values = {_metas.CLASS: kind, **_metas.checked(self.meta_info)}
        meta = _metas.Meta(values, _metas.new_origin())
        return Batch._of(len(batch), batch._live(), None, [meta])

    @classmethod
    def __from_muster_batch__(cls, batch: Batch) -> DataProto:
        """What a batch that came stands for."""
        self = cls.__new__(cls)
        self._frozen, self._batch, self._arrays, self._meta = batch, None, {}, None
        return self

    def _thaw(self) -> None:
        """Look at the rows, after which they may be anybody's to change."""
        batch = self._frozen
        if batch is None:
            return
        self._meta = self.meta_info
        if batch.columns:
            tensors, self._arrays = _adapters.halves(_read(batch))
            self._arrays.pop(_ROWS, None)
            self._batch = _tensordict(tensors, len(batch))
        self._frozen = None

    def _withhold(self) -> None:
        """Forget columns that came without rows."""
        if self._frozen is not None and not len(self._frozen):
            self._meta = self.meta_info
            self._frozen = None

    def __reduce__(self) -> Any:
        return type(self).__from_muster_batch__, (self.__muster_batch__(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataProto:
        return self.clone()

    def __copy__(self) -> DataProto:
        return self._made(self.batch, self.non_tensor_batch)

    def _made(self, batch: Any, arrays: dict[str, Any]) -> DataProto:
        return type(self)(batch=batch, non_tensor_batch=arrays, meta_info=self.meta_info)

    # --- its parts -------------------------------------------------------------------------

    @property
    def batch(self) -> Any:
        """The tensors: a TensorDict, or None."""
        self._thaw()
        return self._batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._thaw()
        self._batch = None if value is None else value.exclude(*self._arrays)
        self.check_consistency()

    @property
    def non_tensor_batch(self) -> dict[str, Any]:
        """Arrays of objects by name."""
        self._thaw()
        return self._arrays

    @non_tensor_batch.setter
    def non_tensor_batch(self, value: dict[str, Any]) -> None:
        self._arrays = {name: array for name, array in value.items() if not self._is_tensor(name)}
        self.check_consistency()

    @property
    def meta_info(self) -> dict[str, Any]:
        """What goes along with the rows."""
        if self._meta is None:
            assert self._frozen is not None
            told = [meta.decoded() for meta in self._frozen._told()]
            for one in told:
                one.pop(_metas.CLASS, None)
            self._meta = merged_meta(told) if told else {}
        return self._meta

    @meta_info.setter
    def meta_info(self, value: dict[str, Any]) -> None:
        self._meta = value

    def check_consistency(self) -> None:
        """Refuse parts that do not have the same rows, or share a name."""
        batch, arrays = self._batch, self._arrays
        if batch is not None:
            assert len(batch.batch_size) == 1, "a DataProto has one batch dimension"
        if not arrays:
            return
        assert batch is not None, "non_tensor_batch needs a batch beside it, if an empty one"
        both = [name for name in arrays if self._is_tensor(name)]
        assert not both, f"in batch and in non_tensor_batch: {', '.join(map(repr, both))}"
        for name, array in arrays.items():
            assert isinstance(array, np.ndarray) and array.dtype == object, (
                f"non_tensor_batch[{name!r}] is a {type(array).__name__}; it must be a numpy array "
                "with dtype=object"
            )
            assert array.shape[0] == len(batch), (
                f"non_tensor_batch[{name!r}] has {len(array)} rows, the batch {len(batch)}"
            )

    def _is_tensor(self, name: str) -> bool:
        return self.batch is not None and name in self.batch.keys()  # noqa: SIM118

    def __len__(self) -> int:
        if self._frozen is not None:
            return len(self._frozen)
        return 0 if self._batch is None else int(self._batch.batch_size[0])

    def __repr__(self) -> str:
        return (
            f"DataProto(batch={self.batch}, non_tensor_batch={self.non_tensor_batch}, "
            f"meta_info={self.meta_info})"
        )

    # --- making one ------------------------------------------------------------------------

    @classmethod
    def from_single_dict(cls, data: Mapping[str, Any], meta_info: Any = None) -> DataProto:
        """One of tensors and arrays, told apart by their type."""
        return cls.from_dict(*_by_type(data, ValueError), meta_info)

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Any],
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> DataProto:
        """One of tensors, and of arrays or lists that become arrays of objects."""
        assert tensors, "tensors must not be empty"
        assert num_batch_dims > 0, f"num_batch_dims is {num_batch_dims}; it is 1 or more"
        if non_tensors is not None:
            assert num_batch_dims == 1, "with non_tensors there is one batch dimension"
            assert isinstance(non_tensors, Mapping), "non_tensors is a dict"
        sizes = {name: tuple(tensor.shape[:num_batch_dims]) for name, tensor in tensors.items()}
        told = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        size, *others = set(sizes.values())
        assert not others, f"tensors of one DataProto have the same batch size: {told}"
        arrays = {name: custom_np_concatenate([rows]) for name, rows in (non_tensors or {}).items()}
        return cls(_tensordict(tensors, *size), arrays, meta_info)

    # --- rows ------------------------------------------------------------------------------

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return self._of_rows(item)
        if isinstance(item, (int, np.integer)):
            # Of the last row, to the end: what follows -1 is not 0.
            return self.slice(int(item), None if item == -1 else int(item) + 1)
        if isinstance(item, str):
            columns = self._columns()
            if item not in columns:
                raise KeyError(f"no column {item!r}, neither in batch nor in non_tensor_batch")
            return columns[item]
        if isinstance(item, (list, np.ndarray)) or is_tensor(item):
            return self.select_idxs(item)
        raise TypeError(f"a DataProto has no item {item!r}: it takes rows or a column's name")

    def _columns(self) -> dict[str, Any]:
        return {**({} if self.batch is None else self.batch), **self.non_tensor_batch}

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a column's name is text, not {name!r}")
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a column's name is text, not {name!r}")
        self[name]  # or there is none
        del (self.batch if self._is_tensor(name) else self.non_tensor_batch)[name]

    def update(self, other: Mapping[str, Any]) -> None:
        """Put columns in, each by its type into ``batch`` or ``non_tensor_batch``."""
        tensors, arrays = _by_type(other, TypeError)
        for name, tensor in tensors.items():
            assert self.batch is not None, "there is no batch to put a tensor in"
            self.non_tensor_batch.pop(name, None)
            self.batch[name] = tensor
        for name, array in arrays.items():
            if self._is_tensor(name):
                del self.batch[name]
            self.non_tensor_batch[name] = array

    def slice(self, start: Any = None, end: Any = None, step: Any = None) -> DataProto:
        """Some of the rows."""
        return self._of_rows(slice(start, end, step))

    def select_idxs(self, idxs: Any) -> DataProto:
        """The rows of these indices, or where a mask is true."""
        rows = np.asarray(idxs.detach().cpu() if is_tensor(idxs) else idxs)
        return self._of_rows(rows if rows.size else rows.astype(np.int64))

    def _of_rows(self, rows: Any) -> DataProto:
        arrays = {name: array[rows] for name, array in self.non_tensor_batch.items()}
        return self._made(None if self.batch is None else self.batch[rows], arrays)

    def chunk(self, chunks: int) -> list[DataProto]:
        """So many parts of consecutive rows, larger ones first; of meta alone, copies of it."""
        rows = len(self)
        if self.batch is None:
            return [self._made(None, {}) for _ in range(chunks)]
        assert not rows or rows >= chunks, f"{rows} rows cannot be cut into {chunks} parts"
        size, more = divmod(rows, chunks)
        bounds = [at * size + min(at, more) for at in range(chunks + 1)]
        parts = [self.slice(bounds[at], bounds[at + 1]) for at in range(chunks)]
        for part in parts:
            part._batch = part._batch.clone()
        return parts

    def reorder(self, indices: Any) -> None:
        """Put the rows into another order, in place."""
        made = self.select_idxs(indices.view(-1) if indices.dim() == 0 else indices)
        self._batch, self._arrays = made._batch, made._arrays

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        """The rows so many times: copies of a row beside each other, or all after all."""
        repeated = np.repeat if interleave else np.tile
        return self.select_idxs(repeated(np.arange(len(self)), repeat_times))

    def group_by(self, keys: str | list[str]) -> dict[str, DataProto]:
        """Rows of equal values, by these values as text, joined by "|"."""
        names, columns = self.validate_input(keys), self._columns()
        assert names, "there must be a key to group by"
        for name in names:
            if name not in columns:
                raise KeyError(f"Grouping key '{name}' is no column of the data")
        values = [map(str, np.asarray(columns[name])) for name in names]
        groups: dict[str, list[int]] = {}
        for at, row in enumerate(zip(*values, strict=True)):
            groups.setdefault("|".join(row), []).append(at)
        return {value: self.select_idxs(rows) for value, rows in groups.items()}

    @staticmethod
    def concat(data: Sequence[DataProto], *, global_keys: set[str] | None = None) -> DataProto:
        """The rows of all, one after another.

        Of their metas those under ``global_keys`` (by default "metrics") are put
        together: dicts by sub-key, others into a list. Else the first's stay.
        """
        if len(data) == 1:
            return data[0]
        batches = [one.batch for one in data if one.batch is not None]
        columns = by_key(one.non_tensor_batch for one in data)
        return DataProto(
            importing("torch").cat(batches) if batches else None,
            {name: custom_np_concatenate(arrays) for name, arrays in columns.items()},
            merged_meta([one.meta_info for one in data], global_keys),
        )

    @staticmethod
    def materialize_concat(
        data_refs: Any,
        *,
        global_keys: set[str] | None = None,
        timeout: float | None = _FROM_ENVIRONMENT,
    ) -> DataProto:
        """Wait for refs and concatenate what comes; of wrapped ones, what counts."""
        if isinstance(data_refs, (DataProto, ray.ObjectRef, ObjectRefWrap)):
            data_refs = [data_refs]
        if timeout is _FROM_ENVIRONMENT:
            timeout = rpc_timeout()
        refs = [
            ref if isinstance(ref, ObjectRefWrap) else ObjectRefWrap(ref, collected=True)
            for ref in data_refs
        ]
        got = ray.get([ref.obj_ref for ref in refs], timeout=timeout)
        kept = [one for one, ref in zip(got, refs, strict=True) if ref.collected]
        return DataProto.concat(kept, global_keys=global_keys)

    # --- columns ---------------------------------------------------------------------------

    @staticmethod
    def validate_input(keys: Any) -> Any:
        """One name, or a list of them, as a list."""
        if keys is None or isinstance(keys, list):
            return keys
        if isinstance(keys, str):
            return [keys]
        raise TypeError(f"names are a list or one text, not {type(keys).__name__}")

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> DataProto:
        """These columns and metas alone; all of a part that none are named of."""

        def only(part: dict[str, Any], keys: Iterable[str] | None) -> dict[str, Any]:
            wanted = None if keys is None else set(keys)
            return part if wanted is None else {key: part[key] for key in part if key in wanted}

        made = type(self)(
            self.batch if batch_keys is None else self.batch.select(*batch_keys),
            only(self.non_tensor_batch, non_tensor_batch_keys),
            only(self.meta_info, meta_info_keys),
        )
        return made.clone() if deepcopy else made

    def pop(
        self, batch_keys: Any = None, non_tensor_batch_keys: Any = None, meta_info_keys: Any = None
    ) -> DataProto:
        """Take columns and metas out, as a DataProto of their own."""
        assert batch_keys is not None, "pop takes batch_keys, if an empty list"

        def taken(part: Any, keys: Any) -> dict[str, Any]:
            names = self.validate_input(keys) or []
            for name in names:
                known = list(part.keys())
                assert name in known, f"there is no {name!r} to pop: there is {known}"
            return {name: part.pop(name) for name in names}

        return DataProto(
            _tensordict(taken(self.batch, batch_keys), len(self)),
            taken(self.non_tensor_batch, non_tensor_batch_keys),
            taken(self.meta_info, meta_info_keys),
        )

    def rename(self, old_keys: Any = None, new_keys: Any = None) -> DataProto:
        """Give tensors other names, in place."""
        old, new = self.validate_input(old_keys), self.validate_input(new_keys)
        if len(old) != len(new):
            raise ValueError(f"{len(old)} old_keys and {len(new)} new_keys: give as many of each")
        for before, after in zip(old, new, strict=True):
            self.batch.rename_key_(before, after)
        self.check_consistency()
        return self

    def union(self, other: DataProto) -> DataProto:
        """Take in the columns and metas of another one, in place; what both have must agree."""
        if self.batch is None and other.batch is not None:
            self._batch = other.batch.copy()
        elif other.batch is not None:
            assert len(self) == len(other), (
                f"a union is of the same rows: {len(self)} and {len(other)}"
            )
            unite("tensor", self.batch, other.batch)
        unite("column", self.non_tensor_batch, other.non_tensor_batch)
        unite("meta", self.meta_info, other.meta_info)
        self.check_consistency()
        return self

    # --- as a whole ------------------------------------------------------------------------

    def to(self, device: Any) -> DataProto:
        """Bring its tensors, and those in its meta, to a device, in place."""
        came, batch = self._frozen, self.batch
        if batch is not None and came is not None:  # quicker than from an ordinary view
            with suppress(ValueError):  # several types
                batch = _tensordict(came.to_torch(device, list(batch.keys())), len(came))
        if batch is not None:
            self._batch = batch.to(device)
        _move(self.meta_info, device)
        return self

    @classmethod
    def to_remote(
        cls, data: DataProto, partition: str = "train_eval", *, ref_data: Any = None
    ) -> DataProto:
        """The data itself: what is sent goes by reference as it is."""
        return data

    def prefetch(self, keys: Any = None) -> None:
        """Nothing to do: what came lies in the node's memory."""

    @classmethod
    def drop(cls, data: DataProto) -> None:
        """Nothing to do: rows go with the last that knows of them."""

    def clone(self) -> DataProto:
        """A copy that shares nothing."""
        return type(self)(
            None if self.batch is None else self.batch.clone(),
            {name: np.copy(array) for name, array in self.non_tensor_batch.items()},
            copy.deepcopy(self.meta_info),
        )

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[DataProto]:
        """Mini-batches by torch's DataLoader, for so many epochs."""
        from torch import Generator as Random
        from torch.utils.data import DataLoader

        assert len(self) % mini_batch_size == 0, f"{len(self)} % {mini_batch_size} != 0"
        loader = DataLoader(
            dataset=self,
            batch_size=mini_batch_size,
            collate_fn=DataProto.concat,
            generator=None if seed is None else Random().manual_seed(seed),
            **(dataloader_kwargs or {}),
        )

        def each() -> Iterator[DataProto]:
            for _ in range(epochs):
                for one in loader:
                    one.meta_info = self.meta_info
                    yield one

        return each()


class ObjectRefWrap:
    """A ref of one rank's result, and whether that is among those that count."""

    def __init__(self, obj_ref: Any, collected: bool = False) -> None:
        self.obj_ref = obj_ref
        self.collected = collected

    def __await__(self) -> Generator[Any, None, Any]:
        result: Generator[Any, None, Any] = self.obj_ref.__await__()
        return result

    def __repr__(self) -> str:
        return f"ObjectRefWrap({self.obj_ref!r}, collected={self.collected})"


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """The data with rows from its front added, until it divides; and how many were added."""
    assert isinstance(data, DataProto), f"data is a {type(data).__name__}, not a DataProto"
    rows = len(data)
    pad = -rows % size_divisor if rows else 0
    return data.select_idxs(np.resize(np.arange(rows), rows + pad)) if pad else data, pad


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """The data without the last ``pad_size`` rows."""
    return data.slice(None, -pad_size) if pad_size else data


def rpc_timeout() -> int | None:
    """Seconds that a blocking call may take, by the environment's ``roll_RPC_TIMEOUT``."""
    text = os.environ.get("roll_RPC_TIMEOUT")  # noqa: SIM112  (so it is called)
    return None if text is None else int(text)


def _tensordict(tensors: Mapping[str, Any], *size: int) -> Any:
    return importing("tensordict").TensorDict(dict(tensors), batch_size=size)


def _by_type(
    columns: Mapping[str, Any], error: type[Exception]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and the arrays, or the error for all else."""
    for name, value in columns.items():
        if not isinstance(value, np.ndarray) and not is_tensor(value):
            raise error(
                f"{name!r} is a {type(value).__name__}; it must be a tensor or a numpy array"
            )
    tensors = {name: value for name, value in columns.items() if is_tensor(value)}
    return tensors, {name: value for name, value in columns.items() if name not in tensors}


def _read(batch: Batch) -> dict[str, Any]:
    """The columns; tensors whose ranks gave them several types are joined as torch does it."""
    try:
        return batch.to_dict()
    except ValueError:
        return {name: _joined(batch, name) for name in batch.columns}


def _joined(batch: Batch, name: str) -> Any:
    part = batch._part(name)
    values = [at.block.read(part.columns[name], at.rows) for at in part.pieces if len(at.rows)]
    if not values or not all(map(is_tensor, values)):
        return batch[name]
    return importing("torch").cat(values)


def _move(value: Any, device: Any) -> Any:
    """Bring tensors to a device; the dicts and lists that they are in stay the same."""
    if is_tensor(value):
        return value.to(device)
    if isinstance(value, (dict, list)):
        for key, one in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[key] = _move(one, device)
    return value
