"""What users hold to make calls: bound methods of a cluster, handles of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _errors, _values
from ._calling import AS_REGISTERED, ONE_RANK, Group
from ._methods import Method
from ._refs import Ref

if TYPE_CHECKING:
    from ._cluster import Cluster


class BoundMethod:
    """A registered method, called on the whole cluster in its registered mode.

    ``blocking=False`` returns one `Ref` of what the blocking form returns.
    ``timeout`` is in seconds, from sending; then `DeadlineError` is raised, with
    the stacks of the ranks that have not answered.
    """

    __slots__ = ("__name__", "_cluster", "_functions", "_group", "_method")

    def __init__(self, cluster: Cluster, group: Group, method: Method) -> None:
        self._cluster = cluster
        self._group = group
        self._method = method
        self.__name__ = method.name
        # A mode of the user's own: (dispatch_fn, collect_fn), run in this process.
        self._functions: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        if method.custom:
            self._functions = _values.decode(method.custom)

    def __call__(
        self, *args: Any, blocking: bool = True, timeout: float | None = None, **kwargs: Any
    ) -> Any:
        method = self._method
        finish: Callable[[Any], Any] | None = None
        if self._functions is not None:
            dispatch, collect = self._functions
            method.check(args, kwargs)
            args, kwargs = _spread(method, dispatch(self._cluster, *args, **kwargs))
            if method.cut:  # RANK_ZERO: one result, which comes back alone
                finish = partial(collect, self._cluster)
        if method.name == "initialize":
            finish = self._cluster._noting_initialized(finish)
        go = self._group.run if blocking else self._group.start
        return go(method, AS_REGISTERED, -1, args, kwargs, timeout, finish)

    def __repr__(self) -> str:
        return f"<method {self._method.where} of cluster {self._group.name}>"


def _spread(method: Method, returned: Any) -> tuple[Any, Any]:
    """What a dispatch_fn returned, if it is what it has to be."""
    if (
        isinstance(returned, (tuple, list))
        and len(returned) == 2
        and isinstance(returned[0], (tuple, list))
        and isinstance(returned[1], dict)
    ):
        return returned[0], returned[1]
    raise TypeError(
        f"{method.where}: its dispatch_fn returned {type(returned).__name__}: {returned!r:.80}; it "
        "has to return (args, kwargs), with a list of one element per rank for each argument"
    )


class EngineHandle:
    """An engine: a further object that a worker hosts, under a name.

    ``engine.method(...)`` waits for the result, ``engine.method.remote(...)`` returns a
    `Ref`. It can be pickled and used from other workers.
    """

    def __init__(self, worker: WorkerHandle, name: str) -> None:
        self.worker = worker
        self.name = name

    def call(self, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Call a public method of the engine and wait for its result."""
        return self.worker.call(_engine_path(self.name, method), *args, timeout=timeout, **kwargs)

    def destroy(self) -> None:
        """End the engine; see `WorkerHandle.destroy_engine`."""
        self.worker.destroy_engine(self.name)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(f"an engine has no attribute {name!r}")
        return RemoteMethod(self.worker, _engine_path(self.name, name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EngineHandle):
            return NotImplemented
        return (self.worker, self.name) == (other.worker, other.name)

    def __hash__(self) -> int:
        return hash((self.worker, self.name))

    def __reduce__(self) -> Any:
        return EngineHandle, (self.worker, self.name)

    def __repr__(self) -> str:
        return f"<engine {self.name} of {self.worker!r}>"


def _engine_path(engine: str, method: str) -> str:
    """The method of an engine as calls name it."""
    for what, text in (("an engine", engine), ("a method", method)):
        if not isinstance(text, str) or not text:
            raise TypeError(f"{what} is called by its name, not by {text!r}")
    if method.startswith("_") or "/" in method:
        raise _errors.MethodNotFoundError(f"{method!r} is not the name of a public method")
    return f"{engine}/{method}"


class RemoteMethod:
    """A method of one worker: call it to wait for the result, or ``.remote()`` for a ref."""

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: WorkerHandle, name: str) -> None:
        self._handle = handle
        self._name = name

    def __call__(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        return self._handle.call(self._name, *args, timeout=timeout, **kwargs)

    def remote(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Ref:
        """Start the call and return a `Ref`."""
        handle = self._handle
        group = handle._cluster._group()
        return group.start(group.method(self._name), ONE_RANK, handle.rank, args, kwargs, timeout)


class WorkerHandle:
    """One worker of a cluster: ``cluster.workers[r]``.

    ``handle.call("method", ...)`` waits for the result, ``handle.method(...)``
    does the same, and ``handle.method.remote(...)`` returns a `Ref`. Handles can
    be pickled and used from other workers.
    """

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self._cluster = cluster
        self.rank = rank

    @property
    def name(self) -> str:
        """The worker's name, as ``actor_train-3-G3``."""
        return str(self._info("name"))

    worker_name = name

    @property
    def node(self) -> str:
        """The name of the node it runs on."""
        return str(self._info("node_name"))

    @property
    def pid(self) -> int:
        """Its process on that node, as it is now: a rank may have been restarted."""
        cluster = self._cluster
        info = cluster._info()
        if info.get("on_failure", "fail") != "fail":
            info = cluster._describe()
        return int(info["workers"][self.rank]["pid"])

    @property
    def log_file(self) -> str:
        """Where its output is kept, on that node."""
        return str(self._info("log_file"))

    def call(self, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Call a public method of this worker alone and wait for its result."""
        group = self._cluster._group()
        return group.run(group.method(method), ONE_RANK, self.rank, args, kwargs, timeout)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(f"a worker handle has no attribute {name!r}")
        self._cluster._group().method(name)  # raises for what is none
        return RemoteMethod(self, name)

    def kill_process(self, *, final: bool = False, why: str = "kill_process()") -> None:
        """End this worker's process at once; the others of its cluster go on.

        That is as a crash, and ``on_failure`` says what comes of it; with ``final`` it is not
        started again. ``why`` is told with its end. It may be called again.
        """
        group = self._cluster._group()
        asked = {"number": group.number, "name": group.name, "ranks": [self.rank]}
        try:
            group.connection.request("cluster.kill", asked | {"why": why, "final": final})
        except _errors.NotFoundError:
            pass  # its cluster has ended, and it with that

    def clear_taint(self) -> None:
        """Have this worker take calls again after one was cancelled in it (`TaintedError`).

        An exception was raised somewhere inside that call: say so only where the object is good
        for more.
        """
        group = self._cluster._group()
        asked = {"number": group.number, "name": group.name, "ranks": [self.rank]}
        group.connection.request("cluster.clear", asked)

    # --- engines: further objects in the same process ---------------------------

    def create_engine(
        self, path: str | type, name: str, /, *args: Any, **kwargs: Any
    ) -> EngineHandle:
        """Make ``path(*args, **kwargs)`` in this worker, a further object under a name.

        ``path`` is an import path (``"pkg.module.Class"`` or ``"pkg.module:Class"``), which
        the worker imports, or a class. Returns an `EngineHandle`. A name that is taken is a
        ValueError.
        """
        group = self._cluster._group()
        method = group.method("muster/create_engine")
        group.run(method, ONE_RANK, self.rank, (path, name, *args), kwargs, None)
        return EngineHandle(self, name)

    def engine(self, name: str) -> EngineHandle:
        """A handle for an engine of this worker, by its name."""
        return EngineHandle(self, name)

    def call_engine(
        self, name: str, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Any:
        """Call a public method of an engine and wait for its result."""
        return self.call(_engine_path(name, method), *args, timeout=timeout, **kwargs)

    def destroy_engine(self, name: str) -> None:
        """End an engine: its ``destroy()`` or ``close()`` is run, if it has one."""
        self.call("muster/destroy_engine", name)

    def engines(self) -> dict[str, str]:
        """The engines of this worker: name to class."""
        found: dict[str, str] = self.call("muster/engines")
        return found

    def env(self) -> dict[str, str]:
        """The living worker's environment, as it is now, whatever it runs."""
        found: dict[str, str] | None = self._environment({})
        return self.call("muster/env") if found is None else found

    def set_env(self, env: Mapping[str, str | None]) -> None:
        """Change variables of the living worker's environment; None takes one away.

        At once, also while a call runs, so for what begins after it.
        """
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str | int | float | None):
                raise TypeError(f"env[{name!r}] is {value!r}; both sides must be text")
        if self._environment(env) is None:
            self.call("muster/set_env", dict(env))

    def _environment(self, change: Mapping[str, str | None]) -> dict[str, str] | None:
        """Ask the worker's agent; None where it has to be a call: the worker has ended, is being
        restarted, is in C code for long, or has what is no text."""
        given = {name: str(value) for name, value in change.items() if value is not None}
        message = {
            "cluster": self._cluster._number,
            "rank": self.rank,
            "set": given,
            "unset": [name for name in change if name not in given],
        }
        group = self._cluster._group()
        group.method("muster/env")  # raises where there is none
        try:
            answer = group.connection.request("worker.env", message)
        except _errors.MusterError:
            return None
        found: dict[str, str] = answer["env"]
        return found

    def _info(self, key: str) -> Any:
        return self._cluster._info()["workers"][self.rank][key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerHandle):
            return NotImplemented
        return (self._cluster._number, self.rank) == (other._cluster._number, other.rank)

    def __hash__(self) -> int:
        return hash((self._cluster._number, self.rank))

    def __reduce__(self) -> Any:
        return WorkerHandle, (self._cluster, self.rank)

    def __repr__(self) -> str:
        return f"<worker {self.rank} of cluster {self._cluster.name}>"
