"""ROLL's Cluster on Muster's: its defaults, its refusals, its non-blocking forms."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ... import _errors
from ..._calling import AS_REGISTERED, EVERY_RANK, ONE_RANK, Group
from ..._cluster import Cluster as Native
from ..._handles import BoundMethod
from ..._marks import PerRank
from ..._methods import Method as _Method
from ..._refs import Ref
from ..._register import Dispatch
from ..._worker import RankInfo
from .. import _preloads, ray
from ..ray._refs import meant
from ..ray.actor import Worker, identity
from . import modes
from .config import WorkerConfig
from .proto import DataProto, rpc_timeout
from .resources import ResourceManager
from .worker import devices_info


class Method(BoundMethod):
    """A registered method of a cluster, called in its mode.

    ``blocking=False`` returns one ref per rank: bare where all results come back,
    else as `ObjectRefWrap`. The environment's ``roll_RPC_TIMEOUT`` is the limit of
    blocking calls, in seconds.
    """

    __slots__ = ()
    _cluster: Cluster

    def __call__(self, *args: Any, blocking: bool = True, **kwargs: Any) -> Any:
        method, group, cluster = self._method, self._group, self._cluster
        limit = rpc_timeout() if blocking else None
        if method.name == "initialize":
            cluster.initialized = True
        if self._functions is not None:  # a mode of the user's own: both run here
            dispatch, collect = self._functions
            args, kwargs = dispatch(cluster, *args, **kwargs)
            # RANK_ZERO gets all that was made, and its result alone is there.
            call: Any = cluster._each if method.cut else cluster._first
            return collect(cluster, call(method, args, kwargs, blocking, limit))
        method.check(args, kwargs)
        args, kwargs = meant(args, kwargs)
        if method.cut == Dispatch.ALL_TO_ALL:
            modes.dispatch_all_to_all(cluster, *args, **kwargs)
            if any(map(_has_refs, (*args, *kwargs.values()))):
                lists = modes.mapped(lambda _, arg: list(arg), args, kwargs)
                return cluster._each(method, *lists, blocking, limit)
        elif method.cut in modes.BY_ROWS:
            args, kwargs = modes.mapped(self._rows, args, kwargs)
        if blocking:
            return _run(group, method, AS_REGISTERED, -1, args, kwargs, limit)
        if not method.cut:  # RANK_ZERO: one rank, one ref
            ref = group.start(method, AS_REGISTERED, -1, args, kwargs, None)
            return ray.ObjectRef(ref, actor=identity(group.workers[0]))
        refs = _refs(group, method, AS_REGISTERED, args, kwargs)
        wrap: Any = modes.COLLECTS.get(method.cut, modes.collect_all_to_all)
        return wrap(cluster, refs)

    def _rows(self, label: str, arg: Any) -> Any:
        """An argument as the head cuts it, or each rank's part of what only cuts itself."""
        if isinstance(arg, Ref):
            return arg
        # dp_size divides world_size, so that mostly nobody has to be asked for it.
        try:
            modes.check_cut(label, arg, self._group.world)
        except AssertionError:
            modes.check_cut(label, arg, self._cluster.dp_size)
        if isinstance(arg, (list, DataProto)):
            return arg
        (parts,), _ = modes.dispatch_dp_mp_compute(self._cluster, arg)
        return PerRank(parts)


#: What befalls a call that was sent; all else is wrong with the call, and told as it is.
_BEFALLS = (
    _errors.RemoteError,
    _errors.WorkerDiedError,
    _errors.NodeLostError,
    _errors.CallCancelledError,
    _errors.DeadlineError,
)


def _run(
    group: Group,
    method: _Method,
    how: int,
    rank: int,
    args: Any,
    kwargs: Any,
    timeout: float | None,
) -> Any:
    """Call and wait for one answer; what befalls the call is told as an error of Ray's, too."""
    try:
        return group.run(method, how, rank, args, kwargs, timeout)
    except _errors.MusterError as error:
        if isinstance(error, _BEFALLS) or error.worker:  # as of a result that cannot be sent
            whose = identity(error.worker) if error.worker in group.workers else ""
            raise ray.exceptions.translate(error, whose) from None
        raise


def _refs(
    group: Group, method: _Method, how: int, args: Any, kwargs: Any, timeout: float | None = None
) -> list[Any]:
    refs = group.start_each(method, args, kwargs, timeout, how, apart=True)
    return [
        ray.ObjectRef(ref, actor=identity(worker))
        for ref, worker in zip(refs, group.workers, strict=True)
    ]


def _has_refs(several: Any) -> bool:
    return any(isinstance(one, ray.ObjectRef) for one in several)


class Cluster(Native):
    """The workers of one role, called as one.

    ``worker_cls`` is a class, one that ``ray.remote`` decorated, or a dotted path.
    Registered methods are the cluster's own; with ``blocking=False`` they return a
    ref for each rank, wrapped where not every rank's result counts.
    """

    _method_class, _handle_class = Method, Worker
    workers: list[Worker]  # type: ignore[assignment]

    def __init__(
        self,
        name: str,
        worker_cls: Any,
        resource_manager: ResourceManager,
        worker_config: WorkerConfig,
    ) -> None:
        places = resource_manager.allocate_placement_group(
            world_size=worker_config.world_size or 0, device_mapping=worker_config.device_mapping
        )
        config = copy.copy(worker_config)
        config.placements = places  # type: ignore[attr-defined]  # for Worker.__init__
        found = getattr(worker_cls, "__muster_class__", worker_cls)
        if config.python is None:
            config.preload = (*_preloads.of(found, config.runtime_env), *config.preload)
        pool: Any = getattr(resource_manager, "pool", resource_manager)  # or one of Muster's own
        super().__init__(name, found, pool, config)
        self.worker_config = worker_config
        self.resource_manager = resource_manager  # type: ignore[assignment]

    def _adopt(self, info: dict[str, Any]) -> None:
        super()._adopt(info)
        self._group().own_rows = True  # as ROLL cuts: each argument by itself

    def __reduce__(self) -> Any:
        state = "worker_config", "resource_manager", "initialized"
        return *super().__reduce__(), {name: self.__dict__[name] for name in state}

    # --- calls -----------------------------------------------------------------------------

    def execute_all_async(  # type: ignore[override]  # a timeout is the method's own
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a method on every rank; a ref for each. Lists of world_size are spread."""
        return self._each(self._group().method(method_name), args, kwargs, blocking=False)

    def execute_all_sync(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a method on every rank and wait; lists of world_size are spread over ranks."""
        return self._each(self._group().method(method_name), args, kwargs, blocking=True)

    def execute_rank_zero_async(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method on rank 0 alone; a ref of its result."""
        return self._first(self._group().method(method_name), args, kwargs, blocking=False)

    def execute_rank_zero_sync(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method on rank 0 alone and wait for its result."""
        return self._first(self._group().method(method_name), args, kwargs, blocking=True)

    execute_all = execute_all_async  # type: ignore[assignment]
    execute_rank_zero = execute_rank_zero_async  # type: ignore[assignment]

    def _first(
        self,
        method: _Method,
        args: Sequence[Any],
        kwargs: Any,
        blocking: bool,
        timeout: float | None = None,
    ) -> Any:
        """Call rank 0: a ref, or with ``blocking`` what it returns."""
        if not blocking:
            return self.workers[0]._start(method.name, args, kwargs, timeout)
        return _run(self._group(), method, ONE_RANK, 0, *meant(args, kwargs), timeout)

    def _each(
        self,
        method: _Method,
        args: Sequence[Any],
        kwargs: Any,
        blocking: bool,
        timeout: float | None = None,
    ) -> list[Any]:
        """Call every rank: a ref for each, and a rank that is dead fails its own alone. With
        ``blocking`` what they return, which is one answer and costs half of as many refs.

        Where every argument is a list of world_size, each rank gets its elements; where refs are
        among them, it begins when its own are there, whatever the others wait for.
        """
        given, world = [*args, *kwargs.values()], self.world_size
        if not given or not all(isinstance(arg, list) and len(arg) == world for arg in given):
            args, kwargs = meant(args, kwargs)
        elif not any(map(_has_refs, given)):
            args, kwargs = modes.mapped(lambda _, arg: PerRank(arg), args, kwargs)
        else:
            refs = [
                worker._start(
                    method.name,
                    [arg[rank] for arg in args],
                    {name: arg[rank] for name, arg in kwargs.items()},
                    timeout=timeout,
                )
                for rank, worker in enumerate(self.workers)
            ]
            return list(ray.get(refs)) if blocking else refs
        if not blocking:
            return _refs(self._group(), method, EVERY_RANK, args, kwargs, timeout)
        results: list[Any] = _run(self._group(), method, EVERY_RANK, -1, args, kwargs, timeout)
        return results

    # --- what it is ------------------------------------------------------------------------

    def get_rank_info(self, rank: int) -> RankInfo:
        """A rank's place in the parallel layout, as it is now."""
        assert 0 <= rank < self.world_size, f"there is no rank {rank} of {self.world_size}"
        return self.worker_rank_info[rank]

    @property
    def vp_size(self) -> int:
        """How many virtual pipeline stages the strategy is told to have."""
        args = getattr(self.worker_config, "strategy_args", None)
        sizes = getattr(args, "strategy_config", None) or {}
        return int(sizes.get("virtual_pipeline_model_parallel_size", 1))

    @property
    def placement_groups(self) -> list[list[dict[str, Any]]]:
        """Each rank's devices as `ResourceManager.allocate_placement_group` gives them."""
        manager, config = self.resource_manager, self.worker_config
        if manager is None or config is None:  # a cluster that was looked up by its name
            return super().placement_groups
        return manager.allocate_placement_group(self.world_size, config.device_mapping)

    @property
    def rank2devices(self) -> dict[int, list[dict[str, Any]]]:
        """Each rank's devices: dicts of rank, node_rank, gpu_rank; of a CPU worker its node."""
        return dict(enumerate(map(devices_info, super().placement_groups)))
