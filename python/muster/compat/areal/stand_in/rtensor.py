"""In the place of ``areal.infra.rpc.rtensor``: tensors by reference.

What an engine returns names worker and shard, with shape and dtype; the rows are fetched
when somebody needs them, over HTTP unless `set_backend` says how else.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any, cast

from .._trees import leaves, mapped
from .serialization import deserialize_value

_FETCH_SECONDS = 7200.0


@dataclass
class TensorShardInfo:
    """Where a tensor lies."""

    shard_id: Any
    node_addr: str


@dataclass
class RTensor:
    """A tensor that lies in a worker; ``data`` has its shape and dtype, and its rows once fetched:
    until then its device is "meta"."""

    shard: TensorShardInfo
    data: Any

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    device = property(lambda self: self.data.device)
    ndim = property(lambda self: self.data.ndim)

    def to_local(self) -> Any:
        """The tensor itself, fetched if it is not here yet."""
        if self.data.is_meta:
            self.data = get_backend().fetch([self.shard])[0]
        return self.data

    @staticmethod
    def remotize(obj: Any, node_addr: str) -> Any:
        """Keep every tensor in obj here; what is returned refers to them."""
        torch = sys.modules.get("torch")

        def change(leaf: Any) -> Any:
            if torch is None or not isinstance(leaf, torch.Tensor):
                return leaf
            tensor = leaf.detach().cpu()
            shard = get_backend().store(tensor)
            return RTensor(TensorShardInfo(shard, node_addr), tensor.to("meta"))

        return mapped(obj, change)

    @staticmethod
    def localize(obj: Any) -> Any:
        """Put the tensors in the place of what refers to them."""
        refs = [leaf for leaf in leaves(obj) if isinstance(leaf, RTensor)]
        far = [ref for ref in refs if ref.data.is_meta]
        found = get_backend().fetch([ref.shard for ref in far]) if far else []
        for ref, tensor in zip(far, found, strict=True):
            ref.data = tensor
        return mapped(obj, lambda leaf: leaf.to_local() if isinstance(leaf, RTensor) else leaf)

    @staticmethod
    def collect_shards(obj: Any) -> dict[str, list[Any]]:
        """The shards that obj refers to, by the worker that has them."""
        found: dict[str, list[Any]] = {}
        for leaf in leaves(obj):
            if isinstance(leaf, RTensor):
                found.setdefault(leaf.shard.node_addr, []).append(leaf.shard.shard_id)
        return found

    @staticmethod
    async def clear_node(node_addr: str, shard_ids: list[Any]) -> None:
        """Have a worker let go of shards."""
        await get_backend().delete(node_addr, shard_ids)


class HttpRTensorBackend:
    """Tensors stay in the process that made them, which serves them."""

    def fetch(self, shards: list[TensorShardInfo]) -> list[Any]:
        """The tensors of shards."""
        return [_fetch_far(shard) for shard in shards]

    def store(self, tensor: Any) -> str:
        """Keep a tensor; its shard."""
        shard = str(uuid.uuid4())
        store(shard, tensor)
        return shard

    async def delete(self, node_addr: str, shard_ids: list[Any]) -> None:
        """Have a worker let go of shards."""
        url, body = f"http://{node_addr}/data/clear", json.dumps({"shard_ids": shard_ids}).encode()
        request = urllib.request.Request(url, body, method="DELETE")
        await asyncio.get_running_loop().run_in_executor(None, _read, request)


_backend: Any = None


def get_backend() -> Any:
    """How tensors of this process are stored and fetched."""
    return _backend or HttpRTensorBackend()


def set_backend(backend: Any) -> None:
    """Say how; None for HTTP."""
    global _backend
    _backend = backend


def _read(request: Any) -> bytes:
    with urllib.request.urlopen(request, timeout=_FETCH_SECONDS) as answer:
        return cast("bytes", answer.read())


def _fetch_far(shard: TensorShardInfo) -> Any:
    """Get a shard from the worker that has it."""
    url = f"http://{shard.node_addr}/data/{shard.shard_id}"
    try:
        return deserialize_value(json.loads(_read(url)))
    except OSError as error:
        why = error.code if isinstance(error, urllib.error.HTTPError) else error
        raise RuntimeError(f"Failed to fetch shard from {url}: {why}") from error


#: The shards of this process.
_shards: dict[str, Any] = {}


def store(shard_id: str, tensor: Any) -> None:
    """Keep a tensor under a name."""
    _shards[shard_id] = tensor


def fetch(shard_id: str) -> Any:
    """The tensor of that name; KeyError where there is none."""
    return _shards[shard_id]


def remove(shard_id: str) -> int:
    """Let go of a tensor; how many that were."""
    return 0 if _shards.pop(shard_id, None) is None else 1


def storage_stats() -> dict[str, int]:
    """How many tensors are kept, and their bytes."""
    kept = list(_shards.values())
    return {"num_tensors": len(kept), "total_bytes": sum(int(tensor.nbytes) for tensor in kept)}
