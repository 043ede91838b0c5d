"""ROLL's Cluster on Muster's: its defaults, its refusals, its non-blocking forms."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from ... import _errors
from ..._calling import AS_REGISTERED, EVERY_RANK, ONE_RANK, Group
from ..._cluster import Cluster as Native
from ..._handles import BoundMethod
from ..._marks import PerRank
from ..._methods import Method as _Method
from ..._refs import Ref
from ..._register import Dispatch
from ..._sharing import Put
from ..._worker import RankInfo
from .. import ray
from ..ray._refs import failed, meant
from ..ray.actor import Worker, identity
from . import modes
from .config import WorkerConfig
from .proto import DataProto, rpc_timeout
from .resources import ResourceManager
from .worker import devices_info

#: Positional arguments, and those by name.
Arguments = tuple[Any, Any]


class Cluster(Native):
    """The workers of one role, called as one.

    ``worker_cls`` is a class, one that ``ray.remote`` decorated, or a dotted path.
    Registered methods are the cluster's own; with ``blocking=False`` they return a
    ref for each rank, wrapped where not every rank's result counts.
    """

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
            config.preload = (*_preload(found), *config.preload)
        pool: Any = getattr(resource_manager, "pool", resource_manager)  # or one of Muster's own
        super().__init__(name, found, pool, config)
        self.worker_config = worker_config
        self.resource_manager = resource_manager  # type: ignore[assignment]
        self.placement_groups = places

    def _adopt(self, info: dict[str, Any]) -> None:
        super()._adopt(info)
        self._group().own_rows = True  # as ROLL cuts: each argument by itself

    # --- calls -----------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        bound = super().__getattr__(name)
        if isinstance(bound, BoundMethod):
            bound = self.__dict__[name] = Method(self, bound._group, bound._method)
        return bound

    def execute_all_sync(  # type: ignore[override]  # a timeout is the method's own
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a method on every rank and wait; lists of world_size are spread over ranks."""
        group = self._group()
        args, kwargs = spread(group.world, *meant(args, kwargs))
        results: list[Any] = _run(group, group.method(method_name), EVERY_RANK, -1, args, kwargs)
        return results

    def execute_all_async(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Call a method on every rank; a ref for each. Lists of world_size are spread."""
        group = self._group()
        args, kwargs = spread(group.world, *meant(args, kwargs))
        return _each(group, group.method(method_name), args, kwargs)

    def execute_rank_zero_sync(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method on rank 0 alone and wait for its result."""
        group = self._group()
        return _run(group, group.method(method_name), ONE_RANK, 0, *meant(args, kwargs))

    def execute_rank_zero_async(  # type: ignore[override]
        self, method_name: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method on rank 0 alone; a ref of its result."""
        return self.workers[0]._start(method_name, args, kwargs)

    execute_all = execute_all_async  # type: ignore[assignment]
    execute_rank_zero = execute_rank_zero_async  # type: ignore[assignment]

    # --- what it is ------------------------------------------------------------------------

    @cached_property
    def workers(self) -> list[Worker]:  # type: ignore[override]  # whose methods are an actor's
        """A handle for each worker, by rank."""
        return [Worker(self, rank) for rank in range(self.world_size)]

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

    @cached_property
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

    def __reduce__(self) -> Any:
        native: tuple[Any, tuple[Any, ...]] = super().__reduce__()
        state = self.worker_config, self.resource_manager, self.initialized
        return _attached, (*native[1], *state)


def _preload(worker_cls: Any) -> list[str]:
    """What a node's workers import once, before they are forked."""
    found = []
    if sys.modules.get("ray") is ray:  # so it is to be for the workers' modules
        found.append("muster.compat.ray._installed")
    module = sys.modules.get(getattr(worker_cls, "__module__", ""))
    if module is not None and "torch" in vars(module):  # each of them would import it
        found.append("torch")
        if find_spec("tensordict") is not None:
            found.append("tensordict")
    return found


def _attached(
    name: str,
    number: int,
    pickle: str,
    config: WorkerConfig | None,
    manager: Any,
    initialized: bool,
) -> Cluster:
    cluster = Cluster._attach(name, number, pickle)
    assert isinstance(cluster, Cluster)
    cluster.worker_config = config
    cluster.resource_manager = manager
    cluster.initialized = initialized
    return cluster


class Method(BoundMethod):
    """A registered method of a cluster, called in its mode.

    ``blocking=False`` returns one ref per rank: bare where all results come back,
    else as `ObjectRefWrap`. The environment's ``roll_RPC_TIMEOUT`` is the limit of
    blocking calls, in seconds.
    """

    __slots__ = ()

    def __call__(self, *args: Any, blocking: bool = True, **kwargs: Any) -> Any:
        method, group = self._method, self._group
        if method.name == "initialize":
            self._cluster.initialized = True
        if self._functions is not None:
            return self._by_functions(self._functions, args, kwargs, blocking)
        method.check(args, kwargs)
        args, kwargs = self._prepared(*meant(args, kwargs))
        if blocking:
            return _run(group, method, AS_REGISTERED, -1, args, kwargs, rpc_timeout())
        if not method.cut:  # RANK_ZERO: one rank, one ref
            return _ref_of(group, group.start(method, AS_REGISTERED, -1, args, kwargs, None), 0)
        refs = _each(group, method, args, kwargs, AS_REGISTERED)
        collect = modes.COLLECTS.get(method.cut)
        return refs if collect is None else collect(self._cluster, refs)

    def _by_functions(
        self,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        blocking: bool,
    ) -> Any:
        """A mode of the user's own: both functions run here."""
        method, group, cluster = self._method, self._group, self._cluster
        dispatch, collect = functions
        args, kwargs = meant(*dispatch(cluster, *args, **kwargs))
        if not method.cut:  # RANK_ZERO: it gets all that was made, and its result alone is there
            if blocking:
                result = _run(group, method, ONE_RANK, 0, args, kwargs, rpc_timeout())
            else:
                result = _ref_of(group, group.start(method, ONE_RANK, 0, args, kwargs, None), 0)
            return collect(cluster, result)
        args, kwargs = spread(group.world, args, kwargs)
        if blocking:
            results = _run(group, method, EVERY_RANK, -1, args, kwargs, rpc_timeout())
            return collect(cluster, results)
        return collect(cluster, _each(group, method, args, kwargs))

    def _prepared(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments as the head takes them; AssertionError for what ROLL refuses."""
        mode = self._method.cut
        if mode == Dispatch.ALL_TO_ALL:
            modes.dispatch_all_to_all(self._cluster, *args, **kwargs)
            if any(map(_has_refs, (*args, *kwargs.values()))):
                return _per_rank(args, kwargs)
        if mode in modes.BY_ROWS and (args or kwargs):
            args, kwargs = self._by_rows(args, kwargs)
        return args, kwargs

    def _by_rows(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        args = [_opened(arg) for arg in args]
        kwargs = {name: _opened(arg) for name, arg in kwargs.items()}
        given = [pair for pair in modes.labelled(args, kwargs) if not isinstance(pair[1], Ref)]
        for label, arg in given:
            # dp_size divides world_size, so that mostly nobody has to be asked for it.
            try:
                modes.check_cut(label, arg, self._group.world)
            except AssertionError:
                modes.check_cut(label, arg, self._cluster.dp_size)
        return [*map(self._cuttable, args)], {k: self._cuttable(arg) for k, arg in kwargs.items()}

    def _cuttable(self, arg: Any) -> Any:
        """What the head can cut; of all else that has a method chunk, each rank's part."""
        if isinstance(arg, (list, DataProto, Ref)):
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
    timeout: float | None = None,
) -> Any:
    """Call and wait; what befalls the call is told as an error of Ray's, too."""
    args, kwargs = [*map(_settled, args)], {name: _settled(arg) for name, arg in kwargs.items()}
    try:
        return group.run(method, how, rank, args, kwargs, timeout)
    except _errors.MusterError as error:
        if isinstance(error, _BEFALLS) or error.worker:  # as of a result that cannot be sent
            raise ray.exceptions.translate(error, "") from None
        raise


def _each(
    group: Group, method: _Method, args: Any, kwargs: Any, how: int = EVERY_RANK
) -> list[Any]:
    """Call every rank: a ref for each. A rank that is dead fails its own alone."""
    if any(isinstance(arg, PerRank) and _has_refs(arg.values) for arg in (*args, *kwargs.values())):
        return [_own(group, method, rank, args, kwargs) for rank in range(group.world)]
    refs = group.start_each(method, args, kwargs, None, how, apart=True)
    return [_ref_of(group, ref, rank) for rank, ref in enumerate(refs)]


def _own(group: Group, method: _Method, rank: int, args: Any, kwargs: Any) -> Any:
    """Call one rank with what is its own: it begins when its refs are there, whatever the others
    wait for."""

    def part(arg: Any) -> Any:
        return arg.values[rank] if isinstance(arg, PerRank) else arg

    try:
        args, kwargs = meant([*map(part, args)], {name: part(arg) for name, arg in kwargs.items()})
    except Exception as error:  # of a ref that is done
        return failed(error, identity(group.workers[rank]))
    return _ref_of(group, group.start(method, ONE_RANK, rank, args, kwargs, None), rank)


def _ref_of(group: Group, ref: Ref, rank: int) -> Any:
    return ray.ObjectRef(ref, actor=identity(group.workers[rank]))


def _opened(arg: Any) -> Any:
    """What was put, as its rows are cut."""
    return arg._passed(whole=False) if isinstance(arg, Put) else arg


def spread(world: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Give each rank its element where every argument is a list of world_size; else all to all."""
    given = [*args, *kwargs.values()]
    if given and all(isinstance(arg, list) and len(arg) == world for arg in given):
        return _per_rank(args, kwargs)
    return args, kwargs


def _per_rank(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    return [*map(PerRank, args)], {name: PerRank(arg) for name, arg in kwargs.items()}


def _has_refs(several: Any) -> bool:
    return any(isinstance(one, ray.ObjectRef) for one in several)


def _settled(arg: Any) -> Any:
    """An argument with values in the place of the refs of single ranks."""
    if not isinstance(arg, PerRank) or not _has_refs(arg.values):
        return arg
    return PerRank(ray.get(one) if isinstance(one, ray.ObjectRef) else one for one in arg.values)
