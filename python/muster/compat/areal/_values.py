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


@dataclass
class Shard:
    """An RTensor on its way: AReaL's holds a tensor without rows, which cannot be sent."""

    shard_id: Any
    node_addr: str
    shape: list[int]
    dtype: str


def pack(value: Any, tuples: bool = True) -> Any:
    """What is sent in the place of a value: the value itself where nothing in it has to change."""
    if isinstance(value, dict):
        packed = {key: pack(entry, tuples) for key, entry in value.items()}
        same = all(packed[key] is entry for key, entry in value.items())
        return value if same else packed
    if isinstance(value, (list, tuple)):
        entries = [pack(entry, tuples) for entry in value]
        if isinstance(value, tuple) and tuples:
            return entries
        same = all(after is before for after, before in zip(entries, value, strict=True))
        return value if same else entries
    if isinstance(value, subprocess.Popen):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return _pack_dataclass(value)
    return value


def _pack_dataclass(value: Any) -> Any:
    shard = getattr(value, "shard", None)
    if shard is not None and type(value).__name__ == "RTensor":
        data = value.data
        if not data.is_meta:
            return data  # the rows are here already, so they go along
        return Shard(shard.shard_id, shard.node_addr, list(data.shape), str(data.dtype))
    return _each_field(value, lambda entry: pack(entry, tuples=False))  # tuples are meant there


def _each_field(value: Any, change: Callable[[Any], Any]) -> Any:
    """A dataclass with changed fields; itself where none changes."""
    made = value
    for entry in fields(value):
        before = getattr(value, entry.name, None)
        after = change(before)
        if after is not before:
            if made is value:
                made = copy.copy(value)
            object.__setattr__(made, entry.name, after)
    return made


def unpack(value: Any) -> Any:
    """The other way round: shards are AReaL's RTensors again."""
    if isinstance(value, Shard):
        import torch

        home = _tensors.home()
        dtype = getattr(torch, value.dtype.removeprefix("torch."))
        data = torch.empty(value.shape, dtype=dtype, device="meta")
        where = home.TensorShardInfo(shard_id=value.shard_id, node_addr=value.node_addr)
        return home.RTensor(shard=where, data=data)
    if isinstance(value, dict):
        unpacked = {key: unpack(entry) for key, entry in value.items()}
        return value if all(unpacked[key] is value[key] for key in value) else unpacked
    if isinstance(value, list):
        entries = [unpack(entry) for entry in value]
        same = all(after is before for after, before in zip(entries, value, strict=True))
        return value if same else entries
    if is_dataclass(value) and not isinstance(value, type):
        return _each_field(value, unpack)
    return value
