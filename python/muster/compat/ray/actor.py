"""Actors: classes that ``remote`` decorated, handles of living ones, their methods.

An actor is a service of Muster's whose object is a `_host.Host`. A handle holds the service
and what is known of the class; it can be sent to others. Workers of clusters are actors as
well: so ROLL has them, in the namespace of all its actors.
"""

from __future__ import annotations

import functools
import inspect
import json
from abc import ABCMeta
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ... import WorkerHandle, _errors, _modules, _service, get_worker
from ..._calling import ONE_RANK
from ..._methods import method_of
from . import _host, _options, _state
from ._private.async_compat import has_async_methods
from ._refs import ObjectRef, failed, meant, spread, started
from .exceptions import ActorAlreadyExistsError, as_task_error

#: Where the names of workers are, and of ROLL's own actors.
WORKERS = "roll"
#: Methods that every actor has, as workers of `compat.roll` have them.
_SPECIAL = {"__ray_ready__": "ray_ready", "__ray_call__": "ray_call"}


def method(*, num_returns: int = 1, **_ignored: Any) -> Any:
    """Say of an actor's method what it returns: ``@ray.method(num_returns=2)``."""

    def mark(function: Any) -> Any:
        function.__ray_num_returns__ = num_returns
        return function

    return mark


def _methods_of(cls: type) -> dict[str, int]:
    """The methods of an actor's class, and how many values each returns."""
    return {
        name: getattr(function, "__ray_num_returns__", 1)
        for name, function in inspect.getmembers(cls, callable)
        if not name.startswith("__") or name == "__init__" or inspect.isfunction(function)
    }


class ActorClass(_options.Remote):
    """A class whose objects are actors: ``cls.remote(...)`` makes one."""

    _is_actor = True

    def __init__(self, cls: Any, options: Mapping[str, Any], *more: Any) -> None:
        if more or not isinstance(cls, type):
            raise TypeError("an actor class cannot be inherited from: inherit, then decorate")
        super().__init__(cls, options)
        self.__ray_actor_class__ = cls
        self.__ray_metadata__ = SimpleNamespace(modified_class=cls, class_name=cls.__name__)

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor. It returns when its process runs; the constructor runs there."""
        options, cls = self._options, self.__muster_class__
        method_of(cls, "__init__").check(args, kwargs)
        namespace = _state.namespace(options.get("namespace"))
        name = options.get("name") or ""
        service = _state.service_name(namespace, name) if name else _state.nameless(self.__name__)
        host = _host.AsyncHost if has_async_methods(cls) else _host.Host
        # Not before: a class that came by value, and names itself, has none yet when this is made.
        methods = _methods_of(cls)
        about = {_state.ABOUT: json.dumps([self.__name__, methods])}
        try:
            made = _service.create(
                host,
                service,
                (_modules.located(cls), args, kwargs),
                config=_options.config(cls, options, about),
                get_or_create=bool(options.get("get_if_exists")),
            )
        except _errors.NameTakenError:
            raise ActorAlreadyExistsError(
                f"there is a living actor {name!r} in namespace {namespace!r} already: use "
                "another name, kill() it, or take it with get_if_exists=True"
            ) from None
        if not name and options.get("lifetime") != "detached":
            made.end_with_handle()
        made.initialize.remote()
        return ActorHandle(made, methods, self.__name__, cls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "__muster_class__" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__muster_class__, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.__muster_class__)})


class ActorMethod:
    """A method of an actor: ``method.remote(...)`` calls it."""

    def __init__(self, handle: Any, name: str, returns: int) -> None:
        self._handle = handle
        self._name = name
        self._returns = returns

    def options(self, *, num_returns: int | None = None, **_ignored: Any) -> ActorMethod:
        """The same, with another number of values that it returns."""
        returns = self._returns if num_returns is None else num_returns
        return ActorMethod(self._handle, self._name, returns)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the call; a ref of what it returns, or a list of them."""
        return spread(self._handle._start(self._name, args, kwargs), self._returns)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it would run here."""
        raise TypeError(f"{self._name} is an actor's method: call it by {self._name}.remote()")


class ActorHandle(metaclass=ABCMeta):  # noqa: B024  (for what isinstance says of workers)
    """A living actor: ``handle.method.remote(...)`` calls it and returns a ref."""

    def __init__(
        self,
        service: Any,
        methods: Mapping[str, int] | None,  # None: nobody knows them
        class_name: str = "",
        cls: type | None = None,  # where it is at hand
    ) -> None:
        self._service = service
        self._methods = methods
        self._class_name = class_name
        self._class = cls

    @property
    def _actor_id(self) -> ActorID:
        return ActorID(_state.identity(self._service.name, 32))

    _ray_actor_id = _actor_id

    def _start(self, name: str, args: Any, kwargs: Any) -> ObjectRef:
        if self._class is not None and name not in _host.SPECIAL:
            method_of(self._class, name).check(args, kwargs)

        def start(args: Any, kwargs: Any) -> Any:
            return self._service.run.remote(name, tuple(kwargs), *args, *kwargs.values())

        return started(start, name, args, kwargs, self._actor_id)

    def __getattr__(self, name: str) -> ActorMethod:
        methods = self.__dict__.get("_methods")
        if name in _host.SPECIAL:
            return ActorMethod(self, name, 1)
        if name.startswith("_") if methods is None else name not in methods:
            raise AttributeError(f"{self._class_name or 'an actor'} has no method {name!r}")
        return ActorMethod(self, name, 1 if methods is None else methods[name])

    def __eq__(self, other: object) -> bool:
        return type(other) is ActorHandle and self._service == other._service

    def __hash__(self) -> int:
        return hash(self._service)

    def __reduce__(self) -> Any:
        return ActorHandle, (self._service, self._methods, self._class_name)

    def __repr__(self) -> str:
        return f"Actor({self._class_name or self._service.name}, {self._actor_id})"


ActorHandle.register(WorkerHandle)  # for isinstance: workers of clusters are actors, too


class Worker(WorkerHandle):
    """One worker of a cluster: ``handle.method.remote(...)`` as an actor's."""

    @property
    def _actor_id(self) -> ActorID:
        return identity(self.name)

    _ray_actor_id = _actor_id

    def __getattr__(self, name: str) -> Any:
        name = _SPECIAL.get(name, name)
        super().__getattr__(name)  # raises for what is none
        return ActorMethod(self, name, 1)

    def _start(self, name: str, args: Any, kwargs: Any, timeout: float | None = None) -> ObjectRef:
        group = self._cluster._group()
        method = group.method(name)
        try:
            args, kwargs = meant(args, kwargs)
        except Exception as error:  # of a ref that has failed: so does the call
            return failed(as_task_error(name, error), self._actor_id)
        call = group.start(method, ONE_RANK, self.rank, args, kwargs, timeout)
        return ObjectRef(call, self._actor_id)

    def __reduce__(self) -> Any:
        return Worker, (self._cluster, self.rank)


class ActorID(str):
    """An actor's id."""

    __slots__ = ()

    def hex(self) -> str:
        """The id, as text."""
        return str(self)


@functools.lru_cache(maxsize=4096)
def identity(worker: str) -> ActorID:
    """The id of the actor that a worker is."""
    return ActorID(_state.identity(f"worker {worker}", 32))


def worker_named(name: str) -> Worker:
    """The living worker of that name, as ``actor_train-0-G0``."""
    found = get_worker(name)
    return Worker(found._cluster, found.rank)


def get_actor(name: str, namespace: str | None = None) -> Any:
    """The living actor of that name; or the worker of a cluster, which is in ROLL's namespace."""
    if not name:
        raise ValueError("get_actor() takes the name of an actor")
    where = _state.namespace(namespace)
    with suppress(_errors.NotFoundError):
        service = _service.get_service(_state.service_name(where, name))
        return handle_of(service, service._environment({}))
    with suppress(_errors.NotFoundError):
        if where == WORKERS:
            return worker_named(name)
    raise ValueError(
        f"there is no living actor {name!r} in namespace {where!r}; it was not made, has "
        "ended, or has another namespace (get_actor(name, namespace=...))"
    )


def handle_of(service: Any, env: Mapping[str, str] | None) -> ActorHandle:
    """A handle of an actor that another process made, whose environment tells of its class; None
    where it cannot be asked at once."""
    name, methods = json.loads((env or {}).get(_state.ABOUT, '["", null]'))
    return ActorHandle(service, methods, name)


def kill(actor: Any, *, no_restart: bool = True) -> None:
    """End an actor's process; its calls raise `ActorDiedError`, now and later.

    Of a cluster, one worker; the others go on.
    With ``no_restart=False`` that is as if it had crashed: one with ``max_restarts`` left
    is made again, and takes later calls.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill() takes an actor's handle, not a {type(actor).__name__}")
    worker: Any = actor._service if type(actor) is ActorHandle else actor
    if no_restart and worker is not actor:
        worker.shutdown()
    else:
        worker.kill_process(final=no_restart, why="ray.kill()")


def exit_actor() -> None:
    """End the actor that this is called in."""
    if not _state.Me.ident:
        raise TypeError("exit_actor() ends the actor that calls it, and this is none")
    _host.leave()
