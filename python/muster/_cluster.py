"""`Cluster`: a named group of workers, called as one object.

Owns what a user sees of a cluster. Placement, starting and dispatch are the
head's; what is cached here never changes during a cluster's life, and what can
change is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from typing import Any

from . import _context, _errors, _modules, _objects, _pickling, _values
from ._calling import EVERY_RANK, ONE_RANK, Group
from ._config import WorkerConfig, as_seconds, as_worker_config, command_of
from ._environment import describe_runtime
from ._handles import BoundMethod, WorkerHandle
from ._methods import check_class, unknown_method
from ._refs import Ref
from ._register import RESERVED_NAMES
from ._resources import ResourceManager, devices_of
from ._worker import RankInfo

#: What workers are made with: a value, and its buffers.
Setup = tuple[bytes, list[Any]]


class Cluster:
    """Workers of one class, started, called and stopped as one.

    ``worker_cls`` is a class, its import path (``"pkg.module.Class"``), or a
    program that is the worker itself (``"exec:./verifier --strict"``), as
    Muster's Go package ``worker`` makes them.
    ``Cluster(...)`` returns when every worker is ready, and raises what kept the
    first one from it. The public ``@register``ed methods of the class are
    methods of the cluster; ``execute_*`` call any public method.

    A cluster lives until `shutdown`, the end of its ``with`` block, or the end
    of the script. It can be pickled and called from other workers.
    """

    #: What its registered methods and its workers are to those who hold it.
    _method_class: type[BoundMethod] = BoundMethod
    _handle_class: type[WorkerHandle] = WorkerHandle

    def __init__(
        self,
        name: str,
        worker_cls: type | str,
        resource_manager: ResourceManager | None = None,
        worker_config: WorkerConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self._start(name, worker_cls, resource_manager, as_worker_config(worker_config), None)

    @classmethod
    def _made_of(
        cls,
        setup: Setup,
        name: str,
        worker_cls: type | str,
        resource_manager: ResourceManager,
        config: WorkerConfig,
    ) -> Cluster:
        """A cluster whose configuration is encoded already."""
        self = cls.__new__(cls)
        self._start(name, worker_cls, resource_manager, config, setup)
        return self

    def _start(
        self,
        name: str,
        worker_cls: type | str,
        resource_manager: ResourceManager | None,
        config: WorkerConfig,
        setup: Setup | None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a cluster's name is text, not {name!r}")
        spec = config.to_spec(name)
        if isinstance(worker_cls, type):
            check_class(worker_cls)
        connection = _context.connection(f"Cluster({name!r})")
        given = config.resource_manager if resource_manager is None else resource_manager
        resource_manager = _pool_for(config) if given is None else given  # type: ignore[assignment]
        if not isinstance(resource_manager, ResourceManager):
            raise TypeError(
                f"resource_manager takes a ResourceManager, not {type(resource_manager).__name__}"
            )
        spec["class"] = describe_class(worker_cls)
        spec["runtime"] = runtime_of(config)
        spec["runtime"]["command"] = command_of(worker_cls)
        spec["config"], buffers = encode_config(config, name) if setup is None else setup
        self.resource_manager: ResourceManager | None = resource_manager
        self.worker_config: WorkerConfig | None = config
        self.initialized = False
        self._name = name
        try:
            with _context.waiting():
                wanted = {"pool": resource_manager.id, "spec": spec}
                info = connection.request("cluster.create", wanted, buffers=buffers)
        except _errors.MusterError:
            raise
        except BaseException:
            # Given up while it started: what has started must not stay behind.
            connection.ask("cluster.stop", {"number": 0, "name": name})
            raise
        self._adopt(info)
        session = _context.session()
        if session is not None:
            session.clusters.add(self._number)
        resource_manager._clusters.add(self)

    @classmethod
    def _attach(cls, name: str, number: int, pickle: str = "on") -> Cluster:
        """A cluster that lives elsewhere; the head is asked when it is first used."""
        self = cls.__new__(cls)
        self.resource_manager = None
        self.worker_config = None if pickle == "on" else WorkerConfig(pickle=pickle)
        self.initialized = False
        self._name = name
        self._number = number
        self._known = None
        self._calls = None
        return self

    def _adopt(self, info: dict[str, Any]) -> None:
        self._number: int = info["number"]
        self._known: dict[str, Any] | None = info
        pickle = self.worker_config.to_spec("")["pickle"] if self.worker_config else "on"
        self._calls: Group | None = Group(_context.connection(), info, pickle)

    def _info(self) -> dict[str, Any]:
        if self._known is None:
            self._adopt(self._describe())
        assert self._known is not None
        return self._known

    def _group(self) -> Group:
        if self._calls is None:
            self._info()
        assert self._calls is not None
        return self._calls

    def _describe(self) -> dict[str, Any]:
        """Ask the head how the cluster is now."""
        connection = self._calls.connection if self._calls else _context.connection()
        wanted = {"number": self._number, "name": self._name}
        return connection.request("cluster.describe", wanted)

    # --- calls -----------------------------------------------------------

    def execute_all_sync(
        self, method_name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a public method on every rank and wait; returns the results in rank order.

        Every rank gets all arguments; ``PerRank([...])`` gives each its own.
        """
        group = self._group()
        results: list[Any] = group.run(
            group.method(method_name), EVERY_RANK, -1, args, kwargs, timeout
        )
        self.initialized |= method_name == "initialize"
        return results

    def execute_all_async(
        self, method_name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> list[Ref]:
        """Call a public method on every rank; returns one `Ref` per rank, in rank order."""
        group = self._group()
        return group.start_each(group.method(method_name), args, kwargs, timeout)

    def execute_rank_zero_sync(
        self, method_name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Any:
        """Call a public method on rank 0 alone and wait for its result."""
        group = self._group()
        return group.run(group.method(method_name), ONE_RANK, 0, args, kwargs, timeout)

    def execute_rank_zero_async(
        self, method_name: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> Ref:
        """Call a public method on rank 0 alone; returns a `Ref` of its result."""
        group = self._group()
        return group.start(group.method(method_name), ONE_RANK, 0, args, kwargs, timeout)

    execute_all = execute_all_async
    execute_rank_zero = execute_rank_zero_async

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there yet: a registered method at its first use.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        group = self._group()
        method = group.methods.get(name)
        if method is None or not method.registered:
            registered = [m.name for m in group.methods.values() if m.registered]
            error = unknown_method(group.class_name, name, [*registered, *RESERVED_NAMES])
            if method is not None:
                error = _errors.MethodNotFoundError(
                    f"{group.class_name}.{name} is not registered, so it is no method of the "
                    f"cluster: call it by execute_all_sync({name!r}, ...), or put @register(...) "
                    "above it",
                    method=name,
                )
            raise error
        bound = self._method_class(self, group, method)
        self.__dict__[name] = bound
        return bound

    def __dir__(self) -> list[str]:
        methods = self._calls.methods.values() if self._calls else ()
        return sorted({*super().__dir__(), *(m.name for m in methods if m.registered)})

    def _noting_initialized(self, finish: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        def note(value: Any) -> Any:
            self.initialized = True
            return value if finish is None else finish(value)

        return note

    # --- what it is ------------------------------------------------------

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._name

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self._name

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self._group().world

    @cached_property
    def workers(self) -> list[WorkerHandle]:
        """A handle for each worker, by rank."""
        return [self._handle_class(self, rank) for rank in range(self.world_size)]

    @property
    def rank2worker(self) -> dict[int, WorkerHandle]:
        """The worker of each rank."""
        return dict(enumerate(self.workers))

    @property
    def worker2rank(self) -> dict[WorkerHandle, int]:
        """The rank of each worker."""
        return {worker: worker.rank for worker in self.workers}

    @property
    def rank2devices(self) -> dict[int, list[dict[str, Any]]]:
        """Each rank's devices in the mapping's order: dicts of rank, node_rank, gpu_rank."""
        return {
            worker["rank"]: [
                {"rank": index, "node_rank": at["node"], "gpu_rank": at["device"]}
                for index, at in enumerate(worker["devices"])
            ]
            for worker in self._info()["workers"]
        }

    @property
    def worker2nodes(self) -> dict[WorkerHandle, str]:
        """The address of each worker's node."""
        return {
            handle: worker["address"]
            for handle, worker in zip(self.workers, self._info()["workers"], strict=True)
        }

    @property
    def placement_groups(self) -> list[list[dict[str, Any]]]:
        """Each rank's devices as `ResourceManager.allocate_placement_group` gives them."""
        info = self._info()
        return [devices_of(worker, info["pool"]) for worker in info["workers"]]

    @property
    def master_addr(self) -> str:
        """Where rank 0's node is reached."""
        return str(self._info()["master_addr"])

    @property
    def master_port(self) -> int:
        """A port on rank 0's node that is kept free for the workers' rendezvous."""
        return int(self._info()["master_port"])

    @property
    def worker_rank_info(self) -> list[RankInfo]:
        """Each rank's place in the parallel layout, as it is now."""
        return [RankInfo(**ranks) for ranks in self._describe()["ranks"]]

    @property
    def dp_size(self) -> int:
        """How many data parallel groups there are."""
        return self.worker_rank_info[0].dp_size

    @property
    def tp_size(self) -> int:
        """How many ranks share one layer's tensors."""
        return self.worker_rank_info[0].tp_size

    @property
    def pp_size(self) -> int:
        """How many pipeline stages there are."""
        return self.worker_rank_info[0].pp_size

    @property
    def cp_size(self) -> int:
        """How many ranks share one sequence."""
        return self.worker_rank_info[0].cp_size

    # --- the end ---------------------------------------------------------

    def shutdown(self, *, drain: float = 0.0) -> None:
        """Stop every worker, also inside a call; returns when all their processes are gone.

        With ``drain``, calls that were made before have up to so many seconds
        (``math.inf``: as long as they take) to be answered first, and later ones are
        refused. Their last output has been written then. It may be called again.
        """
        patience = as_seconds("drain", drain)
        session = _context.session()
        group = self._group() if self._number == 0 else self._calls
        connection = group.connection if group else _context.connection()
        if not connection.alive():
            return
        if session is not None and session.connection is connection:
            session.stop_cluster(self._number, patience, self._name)
        else:
            asked = _context.stopping(self._number, patience, self._name)
            connection.request("cluster.stop", asked)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __reduce__(self) -> Any:
        pickle = self._calls.pickle if self._calls else "on"
        return type(self)._attach, (self._name, self._number, pickle)

    def __repr__(self) -> str:
        size = f", {self._calls.world} x {self._calls.class_name}" if self._calls else ""
        return f"<muster.Cluster {self._name}{size}>"


def get_cluster(name: str) -> Cluster:
    """The live cluster of that name; LookupError where there is none."""
    connection = _context.connection()
    info = connection.request("cluster.describe", {"number": 0, "name": name})
    cluster = Cluster._attach(name, info["number"])
    cluster._adopt(info)
    return cluster


def get_worker(name: str) -> WorkerHandle:
    """The living worker of a cluster by its name, as errors and logs tell it
    (``actor_train-3-G3``); LookupError where there is none."""
    found = re.fullmatch(r"(.+)-(\d+)(?:-G\d+)?", name)
    try:
        if found is not None:
            cluster, rank = get_cluster(found[1]), int(found[2])
            workers = {worker["rank"]: worker for worker in cluster._info()["workers"]}
            worker = workers.get(rank)
            if worker and worker["name"] == name and worker["state"] != "dead":
                return WorkerHandle(cluster, rank)
    except _errors.NotFoundError:
        pass
    raise _errors.NotFoundError(
        f"there is no living worker {name!r}: `muster status` lists those there are"
    )


def list_workers() -> list[str]:
    """The names of all living workers of clusters, as `get_worker` takes them."""
    status = _context.connection("list_workers()").request("status", {})
    return [
        worker["name"]
        for cluster in status["clusters"]
        if cluster["kind"] != "service"
        for worker in cluster["workers"]
        if worker["state"] != "dead"
    ]


def _pool_for(config: WorkerConfig) -> ResourceManager:
    if config.device_mapping is not None:
        raise ValueError(
            f"device_mapping={config.device_mapping!r} names devices of a pool: pass "
            "resource_manager=ResourceManager(num_gpus_per_node=..., num_nodes=...)"
        )
    return ResourceManager(num_gpus_per_node=0, num_nodes=1, node=config.node)


def describe_class(worker_cls: type | str, what: str = "worker_cls") -> dict[str, Any]:
    """Where workers find the class: by import path, or by value where they cannot import it."""
    if isinstance(worker_cls, str):
        module, colon, name = worker_cls.partition(":")
        if not colon:
            module, name = "", worker_cls
        return {"module": module, "name": name, "pickle": b""}
    if not isinstance(worker_cls, type):
        raise TypeError(f"{what} is a class, or a path as 'pkg.module.Class', not {worker_cls!r}")
    module, name = worker_cls.__module__, worker_cls.__qualname__
    in_main = module in _pickling.MAINS
    sent: Any = worker_cls
    if "<locals>" not in name and not _pickling.by_value(worker_cls):
        file = "" if in_main else _modules.file_of(module)
        if not file:
            return {"module": module, "name": name, "pickle": b""}
        sent = _modules.ByFile(module, file, name)
    try:
        data, _ = _pickling.dumps(sent)
    except Exception as error:
        raise _errors.EncodingError(
            f"{module}.{name} cannot be imported by workers, and cannot be sent to them either: "
            f"{type(error).__name__}: {error}. Put the class at the top level of a module"
        ) from error
    return {"module": module, "name": name, "pickle": data}


def runtime_of(config: WorkerConfig) -> dict[str, Any]:
    """What the workers of a configuration run in."""
    return describe_runtime(
        python=config.python,
        working_dir=config.working_dir,
        py_modules=config.py_modules,
        preload=config.preload,
        ray=config.ray,
        runtime_env=config.runtime_env,
    )


def encode_config(config: WorkerConfig, name: str) -> Setup:
    """The configuration of a cluster as a value, and its buffers."""
    pickle = config.to_spec("")["pickle"]
    if config.resource_manager is not None:  # which says where workers go, and not with them
        config = copy(config)
        config.resource_manager = None
    return encode_setup(config, pickle, f"the worker_config of {name}")


def encode_setup(value: Any, pickle: str, what: str) -> Setup:
    """What workers are made with, as a value and its buffers. Large ones lie in the store then,
    where the head holds them for as long as it may have to make a worker anew."""
    buffers: list[Any] = []
    try:
        body = _values.encode(value, buffers, pickle)
        _objects.stow(buffers, what)
    except _errors.StoreFullError as error:
        raise _errors.StoreFullError(
            f"{what} found no place in a store: {error.message}", node=error.node
        ) from None
    return body, buffers
