"""Tensors that engines return, on Muster: who fetches them maps them where they lie.

They lie in the store of their node, as batches of one row, and a reference to one goes as any
batch does: for as long as somebody has it, it is there. The worker that made a tensor has it,
too, until it is cleared, and gives it to who asks by HTTP, as AReaL does it; shards of servers
that are no workers of Muster's are fetched so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ... import _context, _metas
from ._areal import tensors

_COLUMN = "tensor"


class Shard(str):
    """A tensor's name, by which its worker knows it, and the batch that it lies in. In JSON and
    in pickles it is the name alone."""

    batch: Any = None

    def __reduce__(self) -> Any:
        return str, (str(self),)


def is_ours(shard: Any) -> bool:
    """Whether a tensor is to be had by Muster."""
    return isinstance(shard, Shard) and shard.batch is not None


@dataclass
class Sent:
    """What is sent in the place of an RTensor: its batch, which arrives as an RTensor again."""

    whole: Any

    def __muster_batch__(self) -> Any:
        shard, data = self.whole.shard, self.whole.data
        about = {"shard_id": str(shard.shard_id), "node_addr": shard.node_addr}
        about |= {"shape": list(data.shape), "dtype": str(data.dtype).removeprefix("torch.")}
        return _metas.stand_for(shard.shard_id.batch[:], f"{__name__}:Sent", about)

    @classmethod
    def __from_muster_batch__(cls, batch: Any) -> Any:
        import torch

        shard, about = Shard(batch.meta["shard_id"]), batch.meta
        shard.batch = batch
        dtype = getattr(torch, about["dtype"])
        info = tensors().TensorShardInfo(shard, about["node_addr"])
        return tensors().RTensor(info, torch.empty(about["shape"], dtype=dtype, device="meta"))

    def __reduce__(self) -> Any:  # within what only pickle can carry
        return _same, (self.whole,)


def _same(value: Any) -> Any:
    return value


def sent(leaf: Any) -> Any:
    """What goes by Muster in the place of a value, if that is an RTensor without its rows."""
    shard = getattr(getattr(leaf, "shard", None), "shard_id", None)
    return Sent(leaf) if is_ours(shard) and leaf.data.is_meta else leaf


class Backend:
    """What an RTensor asks for its rows: AReaL's protocol of the same name."""

    def __init__(self, by_http: Any) -> None:
        self._by_http = by_http

    def store(self, tensor: Any) -> str:
        """Lay a tensor down; its shard."""
        session = _context.in_worker() or _context.session() is not None
        if not session or find_spec("numpy") is None:
            return str(self._by_http.store(tensor))
        from ..._batch import Batch

        batch = Batch({_COLUMN: tensor[None]})
        batch._encode([])  # into the store now: its maker may change it
        shard = Shard(self._by_http.store(batch[_COLUMN][0]))
        shard.batch = batch
        return shard

    def fetch(self, shards: Sequence[Any]) -> list[Any]:
        """The tensors of shards, in their order."""
        others = [shard for shard in shards if not is_ours(shard.shard_id)]
        far = iter(self._by_http.fetch(others) if others else ())
        return [
            shard.shard_id.batch[_COLUMN][0] if is_ours(shard.shard_id) else next(far)
            for shard in shards
        ]

    async def delete(self, node_addr: str, shard_ids: Sequence[Any]) -> None:
        """Let go of shards."""
        for shard in filter(is_ours, shard_ids):
            shard.batch = None
        await self._by_http.delete(node_addr, list(shard_ids))


def install() -> None:
    """Have tensors of this process go by Muster, unless somebody has said how they go."""
    home = tensors()
    if hasattr(home, "set_backend") and getattr(home, "_backend", None) is None:
        home.set_backend(Backend(home.HttpRTensorBackend()))
