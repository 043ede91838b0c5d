"""Tensors by name that are cut as one: tensordict's TensorDict, or what stands in for it.

Where tensordict is installed, its class is used and this module only makes one.
Else `Tensors` has as much of its interface as DataProto and pipelines need.
torch is imported when the first tensor is there, not before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any


class Tensors(dict[str, Any]):
    """Tensors by name with the same first dimension; its length is their rows'."""

    def __init__(self, source: Mapping[str, Any] | None = None, batch_size: Any = ()) -> None:
        super().__init__()
        sizes = [batch_size] if isinstance(batch_size, int) else batch_size
        self.batch_size = self.shape = tuple(sizes)
        self.update(source or {})

    def _with(self, tensors: Mapping[str, Any]) -> Tensors:
        return Tensors(tensors, self.batch_size)

    def __len__(self) -> int:
        return self.batch_size[0] if self.batch_size else 0

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __reduce__(self) -> Any:
        return Tensors, (self.to_dict(), self.batch_size)

    @property
    def device(self) -> Any:
        """Where all of them are, or None."""
        devices = {tensor.device for tensor in self.values()}
        return devices.pop() if len(devices) == 1 else None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        import torch

        rows = torch.arange(len(self))[key].shape  # or an IndexError
        found = {name: tensor[key] for name, tensor in self.items()}
        return Tensors(found, (*rows, *self.batch_size[1:]))

    def __setitem__(self, name: str, tensor: Any) -> None:
        if tuple(tensor.shape[: len(self.batch_size)]) != self.batch_size:
            raise RuntimeError(
                f"{name!r} has shape {tuple(tensor.shape)}, the batch size is {self.batch_size}"
            )
        super().__setitem__(name, tensor)

    def select(self, *names: str) -> Tensors:
        """These alone."""
        return self._with({name: self[name] for name in names})

    def rename_key_(self, old: str, new: str) -> Tensors:
        """Give one another name, in place."""
        if new in self:
            raise KeyError(f"there is a tensor {new!r} already")
        self[new] = self.pop(old)
        return self

    def update(self, others: Mapping[str, Any]) -> Tensors:  # type: ignore[override]
        """Add others, or put them in place of its own."""
        for name, tensor in others.items():
            self[name] = tensor
        return self

    def to(self, device: Any) -> Tensors:
        """The same on a device."""
        return self._with({name: tensor.to(device) for name, tensor in self.items()})

    def clone(self) -> Tensors:
        """Copies of all tensors."""
        return self._with({name: tensor.clone() for name, tensor in self.items()})

    def copy(self) -> Tensors:
        """Another dict of the same tensors."""
        return self._with(self)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of the tensors."""
        return dict(self.items())

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.items())
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
