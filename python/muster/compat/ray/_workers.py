"""Workers of clusters as actors: so ROLL has them, in the namespace of all its actors.

Handles that call one worker, how it is found by its name and ended, and what of this
module's refs a call of a cluster takes as arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ... import _context, _errors, get_worker
from ..._calling import ONE_RANK
from ..._handles import WorkerHandle
from . import _refs, _state
from ._refs import ObjectRef
from .exceptions import as_task_error

#: Methods that every actor has, as workers of `compat.roll` have them.
_SPECIAL = {"__ray_ready__": "ray_ready", "__ray_call__": "ray_call"}
#: Where the names of workers are, and of ROLL's own actors.
NAMESPACE = "roll"


class Worker(WorkerHandle):
    """One worker: ``handle.method.remote(...)`` as an actor's."""

    @property
    def _actor_id(self) -> Any:
        from .actor import ActorID

        return ActorID(identity(self.name))

    _ray_actor_id = _actor_id

    def __getattr__(self, name: str) -> Any:
        from .actor import ActorMethod

        name = _SPECIAL.get(name, name)
        super().__getattr__(name)  # raises for what is none
        return ActorMethod(self, name, 1)

    def _start(
        self, name: str, args: Any, kwargs: Any, returns: int = 1, timeout: float | None = None
    ) -> Any:
        from .actor import spread

        group = self._cluster._group()
        method = group.method(name)
        try:
            args, kwargs = meant(args, kwargs)
        except Exception as error:  # of a ref that has failed: so does the call
            return spread(_refs.failed(as_task_error(name, error), self._actor_id), returns)
        call = group.start(method, ONE_RANK, self.rank, args, kwargs, timeout)
        return spread(ObjectRef(call, actor=self._actor_id), returns)

    def __reduce__(self) -> Any:
        return Worker, (self._cluster, self.rank)


@functools.lru_cache(maxsize=4096)
def identity(worker: str) -> str:
    """The id of the actor that a worker is."""
    return _state.identity(f"worker {worker}", 32)


def named(name: str) -> Worker | None:
    """The living worker of that name, as ``actor_train-0-G0``."""
    try:
        found = get_worker(name)
    except _errors.NotFoundError:
        return None
    return Worker(found._cluster, found.rank)


def names() -> list[str]:
    """The names of all living workers of clusters."""
    status = _context.connection("list_named_actors()").request("status", {})
    return [
        worker["name"]
        for cluster in status["clusters"]
        if cluster["kind"] != "service"
        for worker in cluster["workers"]
        if worker["state"] != "dead"
    ]


# --- refs as arguments -----------------------------------------------------------------

#: Positional arguments, and those by name.
Arguments = tuple[Any, Any]


def meant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments, where one is an ObjectRef: as a call of a cluster takes it."""
    return [*map(_refs.passed, args)], {name: _refs.passed(arg) for name, arg in kwargs.items()}
