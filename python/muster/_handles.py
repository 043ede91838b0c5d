"""What users hold to make calls: bound methods of a cluster, handles of workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _values
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
