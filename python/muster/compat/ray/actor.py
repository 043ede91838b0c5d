"""Actors: classes that ``remote`` decorated, handles of living ones, their methods.

An actor is a service of Muster's whose object is a `_host.Host`. A handle holds the service
and what is known of the class; it can be sent to others.
"""

from __future__ import annotations

import inspect
import json
from abc import ABCMeta
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import WorkerHandle, _errors, _modules, _service
from ..._methods import method_of
from ..._refs import parts_of
from . import _host, _names, _options, _state, _workers
from ._private.async_compat import has_async_methods
from ._refs import ObjectRef, failed, passed
from .exceptions import (
    ActorAlreadyExistsError,
    ActorDiedError,
    RayActorError,
    as_task_error,
    translate,
)
from .util.placement_group import PATIENCE


def method(*args: Any, **options: Any) -> Any:
    """Say of an actor's method what it returns: ``@ray.method(num_returns=2)``."""
    if args or not options:
        raise TypeError("method() is used with options, as @ray.method(num_returns=2)")
    known = ("num_returns", "concurrency_group", "max_task_retries", "retry_exceptions")
    strange = sorted(set(options) - {*known, "enable_task_events", "tensor_transport"})
    if strange:
        raise ValueError(f"method() has no option {', '.join(strange)}")

    def mark(function: Any) -> Any:
        function.__ray_method__ = options
        return function

    return mark


def _methods_of(cls: type) -> dict[str, int]:
    """The methods of an actor's class, and how many values each returns."""
    return {
        name: _options.returns(getattr(function, "__ray_method__", {}))
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
        service = _names.service_name(namespace, name) if name else _names.nameless(self.__name__)
        actor = _state.Actor(
            ident=_state.identity(service, 32),
            name=name,
            namespace=namespace,
            resources=_options.amounts(options, actor=True),
        )
        host = _host.AsyncHost if has_async_methods(cls) else _host.Host
        given = (actor, _modules.located(cls), args, kwargs)
        # Not before: a class that came by value, and names itself, has none yet when this is made.
        methods = _methods_of(cls)
        about = {_state.ABOUT: json.dumps([self.__name__, methods])}
        reuse = bool(options.get("get_if_exists"))
        try:
            made = _options.create(
                host, service, given, options, PATIENCE, about, get_or_create=reuse
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

    def options(self, **options: Any) -> ActorMethod:
        """The same with other options, of which ``num_returns`` has an effect."""
        return ActorMethod(self._handle, self._name, _options.returns(options, self._returns))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the call; a ref of what it returns, or a list of them."""
        return self._handle._start(self._name, args, kwargs, self._returns)

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

    def _start(self, name: str, args: Any, kwargs: Any, returns: int = 1) -> Any:
        ident = self._actor_id.hex()
        if self._class is not None and name not in _host.SPECIAL:
            method_of(self._class, name).check(args, kwargs)
        try:
            values = [passed(value) for value in (*args, *kwargs.values())]
        except Exception as error:
            return spread(failed(as_task_error(name, error), ident), returns)
        try:
            call = self._service.run.remote(name, tuple(kwargs), *values)
        except _errors.MusterError as error:
            refused = translate(error, ident)
            if not isinstance(refused, RayActorError):
                raise refused from None
            return spread(failed(refused, ident), returns)
        return spread(ObjectRef(call, actor=ident), returns)

    def __getattr__(self, name: str) -> ActorMethod:
        methods = self.__dict__.get("_methods")
        if name in _host.SPECIAL:
            return ActorMethod(self, name, 1)
        if methods is None and name.startswith("_"):
            raise AttributeError(f"an actor's handle has no attribute {name!r}")
        if methods is not None and name not in methods:
            raise AttributeError(f"{self._class_name} has no method {name!r}")
        return ActorMethod(self, name, 1 if methods is None else methods[name])

    def __eq__(self, other: object) -> bool:
        return type(other) is ActorHandle and self._service == other._service

    def __hash__(self) -> int:
        return hash(self._service)

    def __reduce__(self) -> Any:
        return ActorHandle, (self._service, self._methods, self._class_name)

    def __repr__(self) -> str:
        return f"Actor({self._class_name or self._service.name}, {self._actor_id.hex()})"


ActorHandle.register(WorkerHandle)  # for isinstance: workers of clusters are actors, too


class ActorID(str):
    """An actor's id."""

    __slots__ = ()

    def hex(self) -> str:
        """The id, as text."""
        return str(self)


def spread(ref: ObjectRef, returns: int) -> Any:
    """One ref, or one for each of the values that a call returns together."""
    if returns == 1:
        return ref
    if not isinstance(returns, int) or returns < 0:
        raise ValueError(f"num_returns is {returns!r}; Muster takes a whole number")
    if not returns:
        return None
    return [ObjectRef(part, ref._actor) for part in parts_of(ref._ref, returns)]


def get_actor(name: str, namespace: str | None = None) -> Any:
    """The living actor of that name; or the worker of a cluster, which is in ROLL's namespace."""
    if not name:
        raise ValueError("get_actor() takes the name of an actor")
    where = _state.namespace(namespace)
    try:
        service = _service.get_service(_names.service_name(where, name))
        return handle_of(service, service._environment({}))
    except _errors.NotFoundError:
        worker = _workers.named(name) if where == _workers.NAMESPACE else None
        if worker is not None:
            return worker
        raise ValueError(
            f"there is no living actor {name!r} in namespace {where!r}; it was not made, has "
            "ended, or has another namespace (get_actor(name, namespace=...))"
        ) from None


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
    if not _state.actor().ident:
        raise TypeError("exit_actor() ends the actor that calls it, and this is none")
    _host.leave()


__all__ = ["ActorClass", "ActorDiedError", "ActorHandle", "ActorMethod", "exit_actor", "method"]
