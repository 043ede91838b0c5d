"""What ``remote`` and ``options`` take, and what comes of it: a `WorkerConfig`, a place.

Refuses what Ray refuses. Options that only tune Ray's scheduler are taken and have no
effect; docs/ray-calls.md lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ... import WorkerConfig, _modules, _pickling, _service
from . import _nodes, _state
from .util.placement_group import PlacementGroup
from .util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

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
#: What of a runtime_env only tunes how Ray makes it.
_IGNORED = ("config", "eager_install")
_FOR_EVER = 1_000_000  # restarts: as good as Ray's -1
#: Seconds for a new process of an actor, and for its constructor, which may load a model.
_CONSTRUCTING = 3600.0
#: Seconds between asking an actor to end and ending it: Ray asks not at all.
_GRACE = 1.0


_NUMBER = (int, float)
_STRATEGY = (
    str,
    PlacementGroupSchedulingStrategy,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
)
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
        _STRATEGY,
        lambda how: not isinstance(how, str) or how in ("DEFAULT", "SPREAD"),
        "'DEFAULT', 'SPREAD', a PlacementGroup-, NodeAffinity- or NodeLabelSchedulingStrategy",
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
        types, holds, words = _RULES.get(key, (object, lambda _: True, ""))
        if value is None:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and types is not object):
            raise TypeError(f"{key} is {value!r}; it is {words}")
        if not holds(value):
            raise ValueError(f"{key} is {value!r}; it is {words}")
    if options.get("get_if_exists") and not options.get("name"):
        raise ValueError("get_if_exists=True goes with a name")
    if options.get("placement_group") is not None and options.get("scheduling_strategy"):
        raise ValueError("give placement_group, or a scheduling_strategy that has one, not both")
    return dict(options)


def environment(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `WorkerConfig` that a runtime_env gives, with what `init` said for all.

    What of it can be made is for Muster to say: on Ray's nodes more than elsewhere.
    """
    given = options.get("runtime_env") or {}
    if not isinstance(given, dict):
        raise TypeError(f"runtime_env is {given!r}; it is a dict")
    given = dict(given)
    variables = given.pop("env_vars", None) or {}
    for key, value in variables.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"env_vars[{key!r}] is {value!r}; both sides are text")
    # What a user says comes last, also where Muster has a word of its own.
    found: dict[str, Any] = {"env": dict(variables), "rank_env": True}
    for key in _IGNORED:
        given.pop(key, None)
    if rest := {**_state.runtime_env(), **given}:
        found["runtime_env"] = rest
    if os.environ.get(_state.INSTALLED):  # before the user's modules look for Ray
        found["preload"] = ("muster.compat.ray._installed",)
    return found


def group_of(options: Mapping[str, Any]) -> tuple[PlacementGroup | None, int]:
    """The placement group that is asked for, and its bundle; -1 for any."""
    strategy = options.get("scheduling_strategy")
    group = options.get("placement_group")
    index = options.get("placement_group_bundle_index", -1)
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        group, index = strategy.placement_group, strategy.placement_group_bundle_index
    if group in (None, "default"):
        return None, -1
    if not isinstance(group, PlacementGroup):
        raise TypeError(f"placement_group is {group!r}; it is what placement_group() returns")
    return group, index


def node_of(options: Mapping[str, Any]) -> str | None:
    """The node that is asked for, by its name."""
    strategy = options.get("scheduling_strategy")
    if strategy == "SPREAD":
        return _nodes.in_turn()
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        name = _nodes.name_of(strategy.node_id)
        if name is None and not strategy.soft:
            raise ValueError(
                f"there is no node {strategy.node_id} that is alive; nodes() lists those there are"
            )
        return name
    return None


def devices_asked(options: Mapping[str, Any]) -> float:
    """How many devices are asked for: GPUs, or those that Ray takes for resources."""
    named = options.get("resources") or {}
    return float(options.get("num_gpus") or 0) or float(named.get("NPU") or 0)


def returns(options: Mapping[str, Any], usual: int = 1) -> Any:
    """How many values a call returns, by its options."""
    said = options.get("num_returns")
    return usual if said is None else said


def create(
    host: type,
    name: str,
    args: Any,
    options: Mapping[str, Any],
    patience: float,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> _service.Service:
    """The service that an actor or a task's worker is, where its options want it."""
    fields = environment(options)
    fields["env"] |= env or {}
    if restarts := options.get("max_restarts") or 0:
        fields["on_failure"] = "restart_worker"
        fields["max_restarts"] = _FOR_EVER if restarts < 0 else restarts
        fields["restart_window"] = 1e8
        fields["startup_timeout"] = _CONSTRUCTING
    fields |= {"max_concurrency": options.get("max_concurrency"), "grace": _GRACE}
    config = WorkerConfig(gpus_timeout=patience, **fields, **_place(options))
    return _service.create(host, name, args, config=config, **more)


def _place(options: Mapping[str, Any]) -> dict[str, Any]:
    """Where it may run, as fields of a `WorkerConfig`."""
    group, index = group_of(options)
    gpus = devices_asked(options)
    if group is None:
        return {"node": node_of(options), "gpus": gpus}
    bundles = group.reserved()
    chosen = bundles if index < 0 else bundles[index : index + 1]
    if not chosen:
        raise ValueError(f"the placement group has {len(bundles)} bundles, and no bundle {index}")
    if not gpus:
        return {"resource_manager": chosen[0].manager, "node": chosen[0].node_name}
    fit = [bundle for bundle in chosen if len(bundle.devices()) >= gpus]
    if not fit:
        raise ValueError(
            f"num_gpus={gpus:g}: no bundle of the placement group has so many; they have "
            f"{', '.join(str(len(bundle.devices())) for bundle in chosen)}"
        )
    devices = [device for bundle in fit for device in bundle.devices()]
    return {"resource_manager": fit[0].manager, "gpus": gpus, "device_mapping": devices}


def amounts(options: Mapping[str, Any], *, actor: bool) -> dict[str, float]:
    """What an actor or a task has taken, as it is told by its runtime context."""
    found = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus")}
    if found["CPU"] is None:
        found["CPU"] = 0 if actor else 1
    found |= options.get("resources") or {}
    return {key: float(value) for key, value in found.items() if value}


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
