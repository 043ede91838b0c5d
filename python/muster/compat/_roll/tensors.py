"""Tensors by name that are cut as one: tensordict's TensorDict, or what stands in for it.

Where tensordict is installed, its class is used and this module only makes one.
Else `Tensors` has as much of its interface as DataProto and pipelines need.
torch is imported when the first tensor is there, not before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import cache
from typing import Any


class Tensors:
    """Tensors by name with the same first dimension."""

    def __init__(self, source: Mapping[str, Any] | None = None, batch_size: Any = ()) -> None:
        self._tensors = dict(source or {})
        sizes = [batch_size] if isinstance(batch_size, int) else list(batch_size)
        self.batch_size = tuple(sizes)
        for name, tensor in self._tensors.items():
            self._check(name, tensor)

    def _check(self, name: str, tensor: Any) -> None:
        if tuple(tensor.shape[: len(self.batch_size)]) != self.batch_size:
            raise RuntimeError(
                f"{name!r} has shape {tuple(tensor.shape)}, the batch size is {self.batch_size}"
            )

    def __len__(self) -> int:
        return self.batch_size[0] if self.batch_size else 0

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._tensors.keys()

    def values(self) -> ValuesView[Any]:
        """The tensors."""
        return self._tensors.values()

    def items(self) -> ItemsView[str, Any]:
        """Names and tensors."""
        return self._tensors.items()

    @property
    def device(self) -> Any:
        """Where all of them are, or None."""
        devices = {tensor.device for tensor in self._tensors.values()}
        return devices.pop() if len(devices) == 1 else None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._tensors[key]
        if isinstance(key, int) and not -len(self) <= key < len(self):
            raise IndexError(f"row {key} of {len(self)}")
        found = {name: tensor[key] for name, tensor in self._tensors.items()}
        if isinstance(key, int):
            return Tensors(found, self.batch_size[1:])
        rows = next(iter(found.values())).shape[0] if found else len(range(len(self))[key])
        return Tensors(found, (rows, *self.batch_size[1:]))

    def __setitem__(self, name: str, tensor: Any) -> None:
        self._check(name, tensor)
        self._tensors[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A tensor, or the default."""
        return self._tensors.get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Take a tensor out."""
        return self._tensors.pop(name, *default)

    def select(self, *names: str) -> Tensors:
        """These alone."""
        return Tensors({name: self._tensors[name] for name in names}, self.batch_size)

    def rename_key_(self, old: str, new: str) -> Tensors:
        """Give one another name, in place."""
        if new in self._tensors:
            raise KeyError(f"there is a tensor {new!r} already")
        self._tensors = {new if n == old else n: t for n, t in self._tensors.items()}
        return self

    def update(self, others: Mapping[str, Any]) -> Tensors:
        """Add others, or put them in place of its own."""
        for name, tensor in others.items():
            self[name] = tensor
        return self

    def to(self, device: Any) -> Tensors:
        """The same on a device."""
        return Tensors({n: t.to(device) for n, t in self._tensors.items()}, self.batch_size)

    def clone(self) -> Tensors:
        """Copies of all tensors."""
        return Tensors({n: t.clone() for n, t in self._tensors.items()}, self.batch_size)

    def copy(self) -> Tensors:
        """Another dict of the same tensors."""
        return Tensors(self._tensors, self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of the tensors."""
        return dict(self._tensors)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {tuple(t.shape)}" for name, t in self._tensors.items())
        return f"Tensors({shown or 'none'}; batch_size {self.batch_size})"


@cache
def kind() -> Any:
    """The class in use."""
    try:
        return importlib.import_module("tensordict").TensorDict
    except ImportError:
        return Tensors


def of(tensors: Mapping[str, Any], size: Any) -> Any:
    """These tensors as one."""
    return kind()(dict(tensors), batch_size=[size] if isinstance(size, int) else list(size))


def concat(several: Iterable[Any]) -> Any:
    """The rows of several, one after another."""
    import torch

    given = list(several)
    names = list(given[0].keys())
    for one in given:
        if set(one.keys()) != set(names):
            raise RuntimeError(
                f"batches with different tensors cannot be concatenated: {sorted(names)} and "
                f"{sorted(one.keys())}; select the same of each"
            )
    rows = sum(map(len, given))
    return of({name: torch.cat([one[name] for one in given]) for name in names}, rows)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, without importing torch for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
