"""Named services: one object of any class, in a process of its own, found by its name.

Owns what a user sees of one. Who makes it and who finds it is the head's to
decide, in one step for all who ask at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from . import _context, _errors
from ._cluster import Cluster, describe_class, encode_setup, runtime_of
from ._config import WorkerConfig, as_seconds, as_worker_config, command_of
from ._handles import RemoteMethod, WorkerHandle
from ._refs import Ref, get
from ._resources import ResourceManager

_KIND = "service"
#: Seconds that one waits for GPUs that others have.
_PATIENCE = 30.0
_AS_LONG_AS_IT_TAKES = 1e9  # seconds


class Service(WorkerHandle):
    """A service: ``service.method(...)`` waits for the result, ``service.method.remote(...)``
    returns a `Ref`.

    Every public method of its class can be called; ``service.call("name", ...)`` is for one
    that is called as an attribute of this class is. It can be pickled and called from any
    worker.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, 0)
        self._ending: Any = None

    @property
    def name(self) -> str:
        """The name that it is found by."""
        return self._cluster.name

    def shutdown(self) -> None:
        """End its process; its name is free then. It may be called again."""
        self._cluster.shutdown()

    def end_with_handle(self) -> Service:
        """Have the service end when this handle is gone, and the calls that were made by it are
        answered: the head hears of it with this process's next call, request or wait. Returns
        the handle. Once it is sent to others it is not counted any more, and the service lives
        on."""
        calls = self._cluster._group()
        self._ending = weakref.finalize(self, _let_go, calls.connection, calls.number)
        self._ending.atexit = False  # all services end with the script
        return self

    def __getattr__(self, name: str) -> RemoteMethod:
        found = super().__getattr__(name)
        return found if self._ending is None else _HeldMethod(self, name)

    def __reduce__(self) -> Any:
        if self._ending is not None:
            self._ending.detach()
        return Service, (self._cluster,)

    def __repr__(self) -> str:
        return f"<muster.Service {self.name}>"


class _HeldMethod(RemoteMethod):
    """A method of a service that ends with its handle: which is held until it is answered."""

    __slots__ = ()

    def remote(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Ref:
        ref = super().remote(*args, timeout=timeout, **kwargs)
        held = [self._handle]
        ref.watch(held.clear)
        return ref


def _let_go(connection: Any, number: int) -> None:
    # Called by the garbage collector, maybe in the middle of a send.
    connection.later("cluster.stop", _context.stopping(number, _AS_LONG_AS_IT_TAKES))


def service(
    cls: type | str,
    name: str,
    /,
    *args: Any,
    get_or_create: bool = True,
    config: WorkerConfig | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Service:
    """The service of that name; where there is none, ``cls(*args, **kwargs)`` in a new process.

    ``cls`` is any class, or its import path. Two who ask at once get one and the same. With
    ``get_or_create=False`` a name that is taken is a ValueError. A service can be made and
    found by the script and by every worker; it lives until `Service.shutdown`, or as long as
    the script. ``config`` says what surrounds it: environment, interpreter,
    ``max_concurrency``, ``gpus``; by default it is a CPU worker.
    """
    return create(cls, name, args, kwargs, config=config, get_or_create=get_or_create)


def create(
    cls: type | str,
    name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    config: WorkerConfig | Mapping[str, Any] | None = None,
    get_or_create: bool = True,
) -> Service:
    """As `service`, with the constructor's arguments apart from its own."""
    if not isinstance(name, str):
        raise TypeError(f"a service's name is text, not {name!r}")
    if command_of(cls):
        raise ValueError(f"{cls!r} is a program; a service hosts an object of a class")
    config = WorkerConfig() if config is None else as_worker_config(config)
    connection = _context.connection(f"service({name!r})")
    where = describe_class(cls, "a service's class")
    if get_or_create:
        try:
            return get_service(name)
        except _errors.NotFoundError:
            pass
    spec = config.to_spec(name)
    given = (tuple(map(_value, args)), {key: _value(arg) for key, arg in (kwargs or {}).items()})
    spec["kind"] = _KIND
    spec["class"] = where
    spec["runtime"] = runtime_of(config)
    pool, others = _pools(config)
    if pool is None and config.device_mapping is not None:
        raise ValueError(
            f"device_mapping={config.device_mapping!r} names devices of a pool: say which by "
            "WorkerConfig(resource_manager=ResourceManager(...))"
        )
    what = f"the arguments of service {name}"
    spec["config"], buffers = encode_setup(given, spec["pickle"], what)
    request: dict[str, Any] = {
        "pool": 0 if pool is None else pool.id,  # 0: one of its own, which goes with it
        "spec": spec,
        "reuse": bool(get_or_create),
    }
    if others:
        request["others"] = [other.id for other in others]
    if config.gpus:
        patience = _PATIENCE if config.gpus_timeout is None else config.gpus_timeout
        request["patience"] = as_seconds("gpus_timeout", patience)
    with _context.waiting():
        info = connection.request("cluster.create", request, buffers=buffers)
    session = _context.session()
    if session is not None:
        session.clusters.add(info["number"])
    made = _of(name, info, spec["pickle"])
    for one in (pool, *others):
        if one is not None and one.id == info["pool"]:
            one._clusters.add(made._cluster)
    return made


def _pools(config: WorkerConfig) -> tuple[ResourceManager | None, list[ResourceManager]]:
    """The pool, None for one of its own; and others that will do as well."""
    given = config.resource_manager
    if given is None or isinstance(given, ResourceManager):
        return given, []
    if not given or not config.gpus or config.device_mapping is not None:
        raise ValueError(
            "resource_manager is a list: that is for services with gpus and without a "
            "device_mapping, and has one pool at least"
        )
    first, *others = given
    return first, others


def get_service(name: str) -> Service:
    """The living service of that name; `NotFoundError` where there is none."""
    connection = _context.connection(f"get_service({name!r})")
    wanted = {"number": 0, "name": name, "kind": _KIND}
    return _of(name, connection.request("cluster.describe", wanted))


def list_services() -> list[str]:
    """The names of all living services, sorted."""
    names: list[str] = _context.connection("list_services()").request("service.list", {})["names"]
    return names


def _of(name: str, info: dict[str, Any], pickle: str = "on") -> Service:
    cluster = Cluster._attach(name, info["number"], pickle)
    cluster._adopt(info)
    return Service(cluster)


def _value(arg: Any) -> Any:
    if not isinstance(arg, Ref):
        return arg
    if not arg.done():
        get(arg)
    return arg._passed(whole=True)
