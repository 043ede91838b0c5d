"""Tensors that engines return, on Muster: who fetches them maps them where they lie.

They are in the store of their node, and a service of the session knows them by their shards,
until they are cleared or their role ends. Shards of servers that are no workers of Muster's are
fetched by HTTP, as AReaL does it; and a worker gives its own to who asks by HTTP.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ... import _context, _errors, _service
from ..._kept import Closed, Kept, Laid, keep
from ..._refs import Ref, get
from ._areal import tensors

SERVICE = "areal.tensors"
#: How the shards begin that the service has; its number follows.
_MARK = "muster-"
_GONE = (_errors.WorkerDiedError, _errors.NotFoundError)
_LOST = f"tensors of engines are lost: {SERVICE}, the service that had them, died"


class Tensors:
    """The service: tensors by their shards, each with the worker that made it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, int, Any]] = {}
        Closed.here = True  # they are passed on as they came

    async def keep(self, owner: str, shard: str, size: int, value: Any) -> None:
        """Take a tensor."""
        self._kept[shard] = owner, size, value

    async def take(self, shards: list[str]) -> list[Any]:
        """Tensors; None in the place of one that is not here."""
        return [self._kept[shard][2] if shard in self._kept else None for shard in shards]

    async def drop(self, shards: list[str]) -> int:
        """Let go of tensors; how many that were."""
        return sum(self._kept.pop(shard, None) is not None for shard in shards)

    async def leave(self, owners: list[str]) -> None:
        """Let go of all that workers made."""
        gone = [shard for shard, (owner, _, _) in self._kept.items() if owner in owners]
        await self.drop(gone)

    async def sizes(self, owner: str) -> list[int]:
        """The bytes of each tensor of a worker's."""
        return [size for of, size, _ in self._kept.values() if of == owner]


class Backend:
    """What an RTensor asks for its rows: AReaL's protocol of the same name."""

    def __init__(self, by_http: Any, owner: str = "") -> None:
        self._by_http = by_http
        self._owner = owner
        self._told: list[tuple[tuple[Any, ...], Ref]] = []  # what was laid down
        self._of: Any = None  # the connection by which the service was found
        self._found: Any = None

    def service(self) -> Any:
        """The service, made when it is first needed."""
        connection = _context.connection("tensors of engines")
        if self._of is not connection:
            self._found, self._of = _service.service(Tensors, SERVICE), connection
        return self._found

    def living(self) -> Any:
        """The service, None where there is none."""
        connection = _context.connection("tensors of engines")
        if self._of is not connection:
            try:
                self._found, self._of = _service.get_service(SERVICE), connection
            except _errors.NotFoundError:
                return None
        return self._found

    def _ask(self, which: Callable[[], Any], what: Callable[[Any], Any]) -> Any:
        """Ask the service; if it has died meanwhile, the one after it."""
        try:
            return what(which())
        except _GONE as error:
            self._forget(error)
        try:
            return what(which())
        except _GONE as error:
            self._forget(error)
            raise RuntimeError(_LOST) from error

    def _forget(self, error: _errors.MusterError) -> None:
        """The service has died, if that is what an error tells."""
        if error.cluster not in (SERVICE, ""):
            raise error
        self._found = self._of = None

    def store(self, tensor: Any) -> str:
        """Lay a tensor down; its shard. In a worker, `settle` sees to it that it is there."""
        if not _has_session():
            return str(self._by_http.store(tensor))
        service = self.service()
        shard = f"{_MARK}{_number(service)}-{uuid.uuid4()}"
        kept = self._owner, shard, int(tensor.nbytes), _closed(tensor)
        self._told.append((kept, service.keep.remote(*kept)))
        if not self._owner:
            self.settle()
        return shard

    def settle(self) -> None:
        """Wait until the service has what was laid down."""
        told, self._told = self._told, []
        try:
            get([ref for _, ref in told])
        except _GONE as error:
            self._forget(error)
            all_of = [kept for kept, _ in told]
            self._ask(self.service, lambda it: get([it.keep.remote(*kept) for kept in all_of]))

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
        if not shards:
            return []
        closed = self._ask(self.living, lambda it: it and it.take(shards)) or [None] * len(shards)
        found = list(map(_opened, closed))
        for shard, tensor in zip(shards, found, strict=True):
            if tensor is None:
                why = "it was cleared, or its role has ended"
                made, now = _made_by(shard), self.living()
                if made and made != _number(now):
                    why = _LOST
                raise RuntimeError(f"Failed to fetch shard {shard}: {why}")
        return found

    async def delete(self, node_addr: str, shard_ids: Sequence[Any]) -> None:
        """Let go of shards."""
        ours = list(filter(is_ours, shard_ids))
        if ours and _has_session() and (service := self.living()):
            try:
                await service.drop.remote(ours)
            except _GONE as error:
                self._forget(error)
        if others := [shard for shard in shard_ids if not is_ours(shard)]:
            await self._by_http.delete(node_addr, others)

    def clear(self, shards: Iterable[Any], owner: str) -> tuple[int, list[int]]:
        """Let go of shards: how many that were, and the bytes of each that a worker has left."""
        ours = list(filter(is_ours, shards))
        asked = self._ask(self.living, lambda it: it and (it.drop(ours), it.sizes(owner)))
        return asked or (0, [])


def _number(service: Any) -> int:
    return 0 if service is None else int(service._cluster._number)


def _made_by(shard: str) -> int:
    """The number of the service that a shard was given to; 0 where it does not tell."""
    number = shard.removeprefix(_MARK).split("-")[0]
    return int(number) if "-" in shard.removeprefix(_MARK) and number.isdecimal() else 0


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
    with contextlib.suppress(_errors.MusterError):  # there is no service
        if not _has_session():
            return
        _service.get_service(SERVICE).leave(list(owners))


def _closed(tensor: Any) -> Any:
    """A tensor as it is kept: the service has no need of torch to pass it on."""
    kept = keep(tensor)
    if isinstance(kept, Laid):  # what it lies in is somebody else's
        kept = keep(tensor.clone())
    assert isinstance(kept, Kept)
    return kept if kept._batch is not None else [kept._body, list(kept._parts)]


def _opened(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    body, parts = value
    return Kept(body, parts, None).open()
