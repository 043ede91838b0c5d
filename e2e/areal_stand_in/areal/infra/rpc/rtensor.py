"""Tensors by reference; a "tensor" is anything with `is_meta`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_shards: dict[str, Any] = {}


@dataclass
class TensorShardInfo:
    shard_id: str
    node_addr: str


@dataclass
class RTensor:
    shard: TensorShardInfo
    data: Any

    @staticmethod
    def remotize(obj: Any, node_addr: str) -> Any:
        return [obj, node_addr] if obj == "where" else obj

    @staticmethod
    def localize(obj: Any) -> Any:
        return obj


def store(shard_id: str, tensor: Any) -> None:
    _shards[shard_id] = tensor


def fetch(shard_id: str) -> Any:
    return _shards[shard_id]


def remove(shard_id: str) -> int:
    return int(_shards.pop(shard_id, None) is not None)


def storage_stats() -> dict[str, int]:
    return {"num_tensors": len(_shards), "total_bytes": 0}
