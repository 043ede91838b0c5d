"""What runs in the processes of actors: each class here is a service of Muster's.

A host makes the user's object in a call, so that a constructor's error is told to every
caller, as Ray does: in `initialize`, which the head has a new process run again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ... import _worker
from ..._crew import called
from ..._errors import format_traceback
from ..._modules import Located
from . import _state
from ._refs import ObjectRef, get
from .exceptions import ConstructionFailed


class Host:
    """An actor whose class has no ``async def`` method."""

    def __init__(self, found: Located, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if _worker._identity is not None:
            service = _worker._identity.cluster_name
            _state.Me.ident = _state.identity(service, 32)
            _, _state.Me.name = _state.actor_name(service) or ("", "")
        self._given: Any = found, args, kwargs
        self._made: Any = None
        self._failed = ""
        self._making = threading.Lock()  # with max_concurrency, several may be first

    def initialize(self) -> None:
        """Make the object, unless somebody was first."""
        with suppress(ConstructionFailed):  # told to who calls
            self._object()

    def run(self, name: str, keys: Sequence[str], *values: Any) -> Any:
        """Call a method; the last of the values are keyword arguments."""
        obj = self._object()
        method = SPECIAL[name](obj) if name in SPECIAL else getattr(obj, name)
        return called(method, keys, values)

    def _object(self) -> Any:
        with self._making:
            if self._given is not None:
                found, args, kwargs = self._given
                try:
                    given = {key: _meant(value) for key, value in kwargs.items()}
                    self._made = found.find()(*map(_meant, args), **given)
                except Exception as error:
                    self._failed = format_traceback(error)
                self._given = None  # they are the object's now
        if self._failed:
            raise ConstructionFailed(self._failed)
        return self._made


class AsyncHost(Host):
    """An actor of a class with ``async def`` methods: calls run side by side on its loop."""

    async def initialize(self) -> None:  # type: ignore[override]
        """As `Host.initialize`, with a running loop."""
        super().initialize()

    async def run(self, name: str, keys: Sequence[str], *values: Any) -> Any:
        """As `Host.run`; what can be awaited is."""
        result = super().run(name, keys, *values)
        return await result if inspect.isawaitable(result) else result


def _meant(value: Any) -> Any:
    """An argument of a constructor: what a ref stands for."""
    return get(value) if isinstance(value, ObjectRef) else value


def leave() -> None:
    """End this actor's process, in order."""
    raise SystemExit(0)


#: Methods that every actor has.
SPECIAL: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "__ray_ready__": lambda _: lambda: True,
    "__ray_terminate__": lambda _: leave,
    "__ray_call__": lambda obj: lambda function, *args, **kwargs: function(obj, *args, **kwargs),
}
