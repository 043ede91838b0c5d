"""What ``remote`` and ``options`` take, and what comes of it: a `WorkerConfig`.

Refuses what Ray refuses. Options that only tune Ray's scheduler are taken and have no
effect; docs/ray-calls.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ... import WorkerConfig, _modules, _pickling
from .. import _preloads
from . import _nodes, _state
from .util import scheduling_strategies as strategies
from .util.placement_group import PlacementGroup

if TYPE_CHECKING:
    from typing_extensions import Self

_COMMON = set(
    """accelerator_type enable_task_events fallback_strategy label_selector memory name num_cpus
    num_gpus object_store_memory placement_group placement_group_bundle_index
    placement_group_capture_child_tasks resources runtime_env scheduling_strategy _labels
    _metadata""".split()  # noqa: SIM905
)
_TASK = _COMMON | {"max_calls", "max_retries", "num_returns", "retry_exceptions"}
_ACTOR = _COMMON | set(
    """allow_out_of_order_execution concurrency_groups enable_tensor_transport get_if_exists
    lifetime max_concurrency max_pending_calls max_restarts max_task_retries namespace""".split()  # noqa: SIM905
)
_FOR_EVER = 1_000_000  # restarts: as good as Ray's -1
#: Seconds for a new process of an actor, and for its constructor, which may load a model.
_CONSTRUCTING = 3600.0
#: Seconds between asking an actor to end and ending it: Ray asks not at all.
_GRACE = 1.0

_NUMBER = (int, float)
_IN_GROUP = strategies.PlacementGroupSchedulingStrategy
_ON_NODE = strategies.NodeAffinitySchedulingStrategy
#: What options are checked for: of which types they are, what holds of them, and both in words.
_RULES: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "num_cpus": (_NUMBER, lambda n: n >= 0, "a number, 0 or more"),
    "memory": (_NUMBER, lambda n: n >= 0, "a number, 0 or more"),
    "num_gpus": (
        _NUMBER,
        lambda n: n >= 0 and (n <= 1 or n == int(n)),
        "a number, 0 or more, and above 1 a whole number",
    ),
    "name": (str, bool, "text, and not empty"),
    "namespace": (str, bool, "text, and not empty"),
    "lifetime": (object, ("detached", "non_detached").__contains__, "'detached' or 'non_detached'"),
    "max_concurrency": (object, lambda n: type(n) is int and n >= 1, "a whole number from 1 on"),
    "max_restarts": (int, lambda n: n >= -1, "a whole number, 0 or more, or -1 for ever"),
    "resources": (
        dict,
        lambda named: not {"CPU", "GPU"} & named.keys(),
        "a dict, without CPU and GPU: num_cpus and num_gpus are for those",
    ),
    "scheduling_strategy": (
        (str, _IN_GROUP, _ON_NODE),
        lambda how: not isinstance(how, str) or how in ("DEFAULT", "SPREAD"),
        "'DEFAULT', 'SPREAD', a PlacementGroup- or NodeAffinitySchedulingStrategy",
    ),
}


def checked(options: Mapping[str, Any], *, actor: bool) -> dict[str, Any]:
    """The options that somebody gave, or the error that names the first that cannot be."""
    kind, known = ("actors", _ACTOR) if actor else ("tasks", _TASK)
    for key, value in options.items():
        if key not in known:
            raise ValueError(
                f"{key!r} is no option of {kind}; they have {', '.join(sorted(known))}"
            )
        if value is None or key not in _RULES:
            continue
        types, holds, words = _RULES[key]
        if not isinstance(value, types) or (isinstance(value, bool) and types is not object):
            raise TypeError(f"{key} is {value!r}; it is {words}")
        if not holds(value):
            raise ValueError(f"{key} is {value!r}; it is {words}")
    if options.get("get_if_exists") and not options.get("name"):
        raise ValueError("get_if_exists=True goes with a name")
    if options.get("placement_group") is not None and options.get("scheduling_strategy"):
        raise ValueError("give placement_group, or a scheduling_strategy that has one, not both")
    return dict(options)


def config(
    thing: Any, options: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> WorkerConfig:
    """What surrounds an actor or a task, of which this is the class or function, and where it
    may run."""
    fields: dict[str, Any] = {"env": dict(env or {}), "grace": _GRACE}
    fields["max_concurrency"] = options.get("max_concurrency")
    if restarts := options.get("max_restarts") or 0:
        fields["on_failure"] = "restart_worker"
        fields["max_restarts"] = _FOR_EVER if restarts < 0 else restarts
        fields["restart_window"] = 1e8
        fields["startup_timeout"] = _CONSTRUCTING
    # What a user says comes last, also where Muster has a word of its own.
    surroundings = {**_state.runtime_env(), **environment(options.get("runtime_env"))}
    fields["preload"] = _preloads.of(thing, surroundings)
    return WorkerConfig(**fields, **place(options), runtime_env=surroundings, rank_env=True)


def environment(given: Any) -> dict[str, Any]:
    """A runtime_env without what only tunes how Ray makes it. What of it can be made is for
    Muster to say: on Ray's nodes more than elsewhere."""
    if not isinstance(given, dict | None):
        raise TypeError(f"runtime_env is {given!r}; it is a dict")
    ignored = ("config", "eager_install")
    return {key: value for key, value in (given or {}).items() if key not in ignored}


def place(options: Mapping[str, Any]) -> dict[str, Any]:
    """Where it may run, as fields of a `WorkerConfig`: which devices, the head says."""
    named = options.get("resources") or {}
    gpus = float(options.get("num_gpus") or named.get("NPU") or 0)  # Ray has NPUs for resources
    strategy = options.get("scheduling_strategy")
    group = options.get("placement_group")
    index = options.get("placement_group_bundle_index", -1)
    if isinstance(strategy, _IN_GROUP):
        group, index = strategy.placement_group, strategy.placement_group_bundle_index
    if group in (None, "default"):
        return {"node": _node(strategy), "gpus": gpus}
    if not isinstance(group, PlacementGroup):
        raise TypeError(f"placement_group is {group!r}; it is what placement_group() returns")
    if index >= group.bundle_count:
        raise ValueError(
            f"the placement group has {group.bundle_count} bundles, and no bundle {index}"
        )
    pool = group.pool()
    chosen = group.nodes if index < 0 else group.nodes[index : index + 1]
    if not gpus:
        return {"resource_manager": pool, "node": pool.nodes[chosen[0]]["name"]}
    devices = [device for node in chosen for device in pool.gpu_ids(node)]
    return {"resource_manager": pool, "gpus": gpus, "device_mapping": devices}


def _node(strategy: Any) -> str | None:
    """The node that a strategy asks for, by its name."""
    if strategy == "SPREAD":
        return _nodes.in_turn()
    if not isinstance(strategy, _ON_NODE):
        return None
    name = _nodes.name_of(strategy.node_id)
    if name is None and not strategy.soft:
        raise ValueError(
            f"there is no node {strategy.node_id} that is alive; nodes() lists those there are"
        )
    return name


class Remote:
    """A class or a function that ``remote`` decorated, with its options."""

    _is_actor: ClassVar[bool]

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        self.__muster_class__ = thing
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(self, name, getattr(thing, name))
        if self.__module__ in _pickling.MAINS:  # of a script, which Ray's need no guard in
            _pickling.leave_main_alone()
        self._options = checked(options, actor=self._is_actor)

    def options(self, **options: Any) -> Self:
        """The same with other options."""
        return type(self)(self.__muster_class__, {**self._options, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it would run here."""
        raise TypeError(f"{self!r} runs elsewhere: use {self.__muster_class__.__name__}.remote()")

    def __reduce__(self) -> Any:
        return type(self), (_modules.by_name(self.__muster_class__), self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__muster_class__.__qualname__})"
