"""Values on their way between a controller and an engine, by Muster's own wire.

AReaL sends JSON, so engines and controllers are used to what comes of that:
tuples arrive as lists, processes as None. Tensors that an engine returned are
named, not sent. All else goes as Muster sends it, large arrays by shared memory.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from . import _tensors
from ._trees import mapped


@dataclass
class Shard:
    """An RTensor on its way: AReaL's holds a tensor without rows, which cannot be sent."""

    shard_id: Any
    node_addr: str
    shape: list[int]
    dtype: str


def pack(value: Any, lists: bool = True) -> Any:
    """What is sent in the place of a value: the value itself where nothing in it has to change."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, subprocess.Popen):
            return None
        shard = getattr(leaf, "shard", None)
        if shard is None or type(leaf).__name__ != "RTensor":
            return _each_field(
                leaf, lambda entry: pack(entry, lists=False)
            )  # tuples are meant there
        if not leaf.data.is_meta:
            return leaf.data  # the rows are here already, so they go along
        return Shard(shard.shard_id, shard.node_addr, list(leaf.shape), str(leaf.dtype))

    return mapped(value, change, lists)


def unpack(value: Any) -> Any:
    """The other way round: shards are AReaL's RTensors again."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Shard):
            return _each_field(leaf, unpack)
        import torch

        home = _tensors.home()
        dtype = getattr(torch, leaf.dtype.removeprefix("torch."))
        data = torch.empty(leaf.shape, dtype=dtype, device="meta")
        where = home.TensorShardInfo(shard_id=leaf.shard_id, node_addr=leaf.node_addr)
        return home.RTensor(shard=where, data=data)

    return mapped(value, change)


def _each_field(value: Any, change: Callable[[Any], Any]) -> Any:
    """A dataclass with changed fields; itself where none changes."""
    made = value
    if not is_dataclass(value) or isinstance(value, type):
        return value
    for entry in fields(value):
        before = getattr(value, entry.name, None)
        after = change(before)
        if after is not before:
            if made is value:
                made = copy.copy(value)
            object.__setattr__(made, entry.name, after)
    return made
