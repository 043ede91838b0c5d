"""What runs in the processes of actors and tasks, and where refs inside values are kept.

Each class here is a service of Muster's. A host makes the user's object when it is first
called, so that a constructor's error is told to every caller, as Ray does.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import _modules
from ..._errors import format_traceback
from . import _state
from ._values import Failure, unboxed
from .exceptions import ConstructionFailed


@dataclass
class Spec:
    """An actor as it is made: where its class is found, what it gets, who it is."""

    found: Any  # see `locate`
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    actor: _state.Actor = field(default_factory=_state.Actor)


def locate(thing: Any) -> Any:
    """A class or function as others find it: by its names, or itself where it has none.

    What ``remote`` decorates has another object in its place, which knows it.
    """
    module, name = thing.__module__, thing.__qualname__
    try:
        if "<locals>" in name or resolve((module, name)) is not thing:
            return thing
    except (ImportError, AttributeError):
        return thing
    file = _modules.file_of(module)
    return _modules.ByFile(module, file, name) if file else (module, name)


def resolve(found: Any) -> Any:
    """The class or function that `locate` spoke of."""
    if not isinstance(found, tuple):
        return found
    module, name = found
    thing: Any = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return getattr(thing, "__muster_class__", thing)


class Host:
    """An actor whose class has no ``async def`` method."""

    def __init__(self, spec: Spec) -> None:
        _state.enter(spec.actor)
        self._spec = spec
        self._made: Any = None
        self._failed = ""
        self._ready = False
        self._making = threading.Lock()  # with max_concurrency, several may be first

    def construct(self) -> None:
        """Make the object, unless somebody was first."""
        self._object()

    def run(self, name: str, keys: Sequence[str], *values: Any) -> Any:
        """Call a method; the last of the values are keyword arguments."""
        return _called(self._method(name), keys, values)

    def _method(self, name: str) -> Callable[..., Any]:
        obj = self._object()
        if name == "__ray_ready__":
            return lambda: True
        if name == "__ray_terminate__":
            return leave
        if name == "__ray_call__":
            return lambda function, *args, **kwargs: function(obj, *args, **kwargs)
        method: Callable[..., Any] = getattr(obj, name)
        return method

    def _object(self) -> Any:
        if not self._ready:
            with self._making:
                if not self._ready:
                    self._construct()
                    self._ready = True
        if self._failed:
            raise ConstructionFailed(self._failed)
        return self._made

    def _construct(self) -> None:
        from ._refs import argument

        spec = self._spec
        try:
            cls = resolve(spec.found)
            args = [argument(value) for value in spec.args]
            kwargs = {key: argument(value) for key, value in spec.kwargs.items()}
            self._made = cls(*args, **kwargs)
        except Exception as error:
            self._failed = format_traceback(error)
        self._spec = Spec(None, (), {})  # its arguments are the object's now


class AsyncHost(Host):
    """An actor of a class with ``async def`` methods: calls run side by side on its loop."""

    async def construct(self) -> None:  # type: ignore[override]
        """As `Host.construct`, with a running loop."""
        self._object()

    async def run(self, name: str, keys: Sequence[str], *values: Any) -> Any:
        """As `Host.run`; what can be awaited is."""
        result = super().run(name, keys, *values)
        return await result if inspect.isawaitable(result) else result


class TaskHost:
    """Runs tasks, one at a time."""

    def __init__(self, actor: _state.Actor) -> None:
        _state.enter(actor)

    def run(self, found: Any, keys: Sequence[str], *values: Any) -> Any:
        """Run a function; arguments as in `Host.run`."""
        result = _called(resolve(found), keys, values)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


def _called(function: Callable[..., Any], keys: Sequence[str], values: Sequence[Any]) -> Any:
    opened = [unboxed(value) for value in values]
    first = len(opened) - len(keys)
    return function(*opened[:first], **dict(zip(keys, opened[first:], strict=True)))


async def _awaited(thing: Any) -> Any:
    return await thing


class Keeper:
    """Keeps the values of refs that were sent inside other values, until the end."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._there: dict[str, asyncio.Event] = {}

    async def keep(self, ident: str, value: Any, index: int = -1) -> None:
        """Take a value, or one of several that a call returned together."""
        if index >= 0 and not isinstance(value, Failure):
            value = value[index]
        self._kept[ident] = value
        self._event(ident).set()

    async def take(self, ident: str) -> Any:
        """The value, as soon as it is here."""
        await self._event(ident).wait()
        return self._kept[ident]

    def _event(self, ident: str) -> asyncio.Event:
        return self._there.setdefault(ident, asyncio.Event())


def leave() -> None:
    """End this actor's process, in order."""
    raise SystemExit(0)
