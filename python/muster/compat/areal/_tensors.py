"""Tensors that engines return, on Muster: who fetches them maps them where they lie.

They are in the store of their node, and a service of the session knows them by their shards,
until they are cleared or their role ends. Shards of servers that are no workers of Muster's are
fetched by HTTP, as AReaL does it; and a worker gives its own to who asks by HTTP.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ... import _context, _errors, _service
from ..._config import WorkerConfig
from ..._kept import Closed, Kept, Laid, keep
from ..._refs import Ref, get
from ..._register import Dispatch, register
from ._areal import tensors

SERVICE = "areal.tensors"
#: How the shards begin that the service has; the number of its process follows.
_MARK = "muster-"
_LOST = f"tensors of engines are lost: {SERVICE}, the service that had them, died"

#: What the service is asked does no harm when it is asked again, after its death.
_again = register(Dispatch.ONE_TO_ALL, idempotent=True)


class Tensors:
    """The service: tensors by their shards, each with the worker that made it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, int, Any]] = {}
        Closed.here = True  # they are passed on as they came

    @_again
    async def keep(self, owner: str, shard: str, size: int, value: Any) -> int:
        """Take a tensor; who has it now."""
        self._kept[shard] = owner, size, value
        return os.getpid()

    @_again
    async def take(self, shards: list[str]) -> list[Any]:
        """Tensors; None in the place of one that is not here."""
        return [self._kept[shard][2] if shard in self._kept else None for shard in shards]

    @_again
    async def drop(self, shards: list[str]) -> int:
        """Let go of tensors; how many that were."""
        return sum(self._kept.pop(shard, None) is not None for shard in shards)

    @_again
    async def leave(self, owners: list[str]) -> None:
        """Let go of all that workers made."""
        kept = self._kept.items()
        self._kept = {shard: entry for shard, entry in kept if entry[0] not in owners}

    @_again
    async def sizes(self, owner: str) -> list[int]:
        """The bytes of each tensor of a worker's."""
        return [size for of, size, _ in self._kept.values() if of == owner]


@lru_cache(maxsize=1)
def _made(connection: Any) -> tuple[Any, int]:
    """The service, made when it is first needed, and its process."""
    config = WorkerConfig(on_failure="restart_worker")
    service = _service.service(Tensors, SERVICE, config=config)
    return service, service.pid


def _living() -> Any:
    """The service, None where there is none."""
    with contextlib.suppress(_errors.NotFoundError):
        return _service.get_service(SERVICE) if _has_session() else None


class Backend:
    """What an RTensor asks for its rows: AReaL's protocol of the same name."""

    def __init__(self, by_http: Any, owner: str = "") -> None:
        self._by_http, self._owner = by_http, owner
        self._told: list[tuple[int, Ref]] = []  # what was laid down, and who has it

    def store(self, tensor: Any) -> str:
        """Lay a tensor down; its shard. In a worker, `settle` sees to it that it is there."""
        if not _has_session():
            return str(self._by_http.store(tensor))
        service, pid = _made(_context.connection("tensors of engines"))
        shard = f"{_MARK}{pid}-{uuid.uuid4()}"
        told = service.keep.remote(self._owner, shard, int(tensor.nbytes), _closed(tensor))
        self._told.append((pid, told))
        if not self._owner:
            self.settle()
        return shard

    def settle(self) -> None:
        """Wait until the service has what was laid down."""
        told, self._told = self._told, []
        for pid, ref in told:
            if get(ref) != pid:
                _made.cache_clear()  # it has another process by now

    def fetch(self, shards: Sequence[Any]) -> list[Any]:
        """The tensors of shards, in their order."""
        if not _has_session():
            return list(self._by_http.fetch(shards))
        ours = [shard.shard_id for shard in shards if is_ours(shard.shard_id)]
        others = [shard for shard in shards if not is_ours(shard.shard_id)]
        near = iter(self.take(ours))
        far = iter(self._by_http.fetch(others) if others else ())
        return [next(near if is_ours(shard.shard_id) else far) for shard in shards]

    def take(self, shards: list[str]) -> list[Any]:
        """Tensors that the service has."""
        service = _living() if shards else None
        found = list(map(_opened, service.take(shards) if service else [None] * len(shards)))
        for shard, tensor in zip(shards, found, strict=True):
            if tensor is None:
                there = service is not None and shard.startswith(f"{_MARK}{service.pid}-")
                why = "it was cleared, or its role has ended" if there else _LOST
                raise RuntimeError(f"Failed to fetch shard {shard}: {why}")
        return found

    async def delete(self, node_addr: str, shard_ids: Sequence[Any]) -> None:
        """Let go of shards."""
        ours = [shard for shard in shard_ids if is_ours(shard)]
        if ours and (service := _living()):
            await service.drop.remote(ours)
        if others := [shard for shard in shard_ids if not is_ours(shard)]:
            await self._by_http.delete(node_addr, others)

    def clear(self, shards: Iterable[Any], owner: str) -> tuple[int, list[int]]:
        """Let go of shards: how many that were, and the bytes of each that a worker has left."""
        if (service := _living()) is None:
            return 0, []
        return service.drop([shard for shard in shards if is_ours(shard)]), service.sizes(owner)


def _has_session() -> bool:
    return _context.in_worker() or _context.session() is not None


def is_ours(shard: Any) -> bool:
    """Whether a shard is one that the service has, or had."""
    return isinstance(shard, str) and shard.startswith(_MARK)


def install(owner: str = "") -> None:
    """Have tensors of this process go by Muster, unless somebody has said how they go."""
    home = tensors()
    if hasattr(home, "set_backend") and getattr(home, "_backend", None) is None:
        home.set_backend(Backend(home.HttpRTensorBackend(), owner))


def backend() -> Backend | None:
    """How tensors of this process go, if they go by Muster."""
    found = getattr(tensors(), "_backend", None)
    return found if isinstance(found, Backend) else None


def leave(owners: Iterable[str]) -> None:
    """Let go of all that workers made, which have ended."""
    with contextlib.suppress(_errors.MusterError):  # the session may end, too
        if service := _living():
            service.leave(list(owners))


def _closed(tensor: Any) -> Any:
    """A tensor as it is kept: the service has no need of torch to pass it on."""
    kept = keep(tensor)
    if isinstance(kept, Laid):  # what it lies in is somebody else's
        kept = keep(tensor.clone())
    assert isinstance(kept, Kept)
    return kept if kept._batch is not None else [kept._body, list(kept._parts), None]


def _opened(value: Any) -> Any:
    return Kept(*value).open() if isinstance(value, list) else value
