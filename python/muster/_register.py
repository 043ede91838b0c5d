"""Marking a worker's methods: how a call of each is cut, run and collected.

Owns the names of the modes and the mark that `register` leaves on a function.
It never looks at a cluster; the head carries the modes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: The axes of a parallel layout, fastest first.
AXES = ("tp", "cp", "dp", "pp")

#: Parameters that belong to the SDK: a bound method takes them for itself.
RESERVED_PARAMS = ("timeout", "blocking")

#: Names that every Cluster has itself: no registered method may be called so.
RESERVED_NAMES = frozenset(
    (
        "cluster_name",
        "cp_size",
        "dp_size",
        "execute_all",
        "execute_all_async",
        "execute_all_sync",
        "execute_rank_zero",
        "execute_rank_zero_async",
        "execute_rank_zero_sync",
        "initialized",
        "master_addr",
        "master_port",
        "name",
        "placement_groups",
        "pp_size",
        "rank2devices",
        "rank2worker",
        "resource_manager",
        "shutdown",
        "tp_size",
        "worker2nodes",
        "worker2rank",
        "worker_config",
        "worker_rank_info",
        "workers",
        "world_size",
    )
)


class Dispatch(str, Enum):
    """How the arguments of a call are cut, and which results come back.

    ========================================  =================================  ==============
    mode                                      what each rank gets                what comes back
    ========================================  =================================  ==============
    ``ONE_TO_ALL``                            every argument, unchanged          list by rank
    ``ONE_TO_ALL_ONE``                        every argument, unchanged          rank 0's result
    ``ALL_TO_ALL``                            element r of each argument         list by rank
    ``DP_MP_COMPUTE``                         part dp_rank of each argument      chained dp parts
    ``DP_MP_DISPATCH_FIRST``                  as above; of batches only the      chained dp parts
                                              first tp/cp/pp rank gets rows
    ``DP_MP_COMPUTE_COLLECT_ALL``             as ``DP_MP_COMPUTE``               list by rank
    ``DP_MP_DISPATCH_FIRST_COLLECT_ALL``      as ``DP_MP_DISPATCH_FIRST``        list by rank
    ``DP_COMPUTE``                            element r of each argument         list by rank
    ``DP_COMPUTE_PROTO``                      rows, cut over all ranks           chained
    ``DP_COMPUTE_PROTO_WITH_FUNC``            as above, the first argument whole chained
    ``DP_COMPUTE_METRIC``                     rows, cut over all ranks           list by rank
    ``Dispatch.over("dp", "cp")``             rows, cut over these axes          chained parts
    ========================================  =================================  ==============
    """

    ONE_TO_ALL = "ONE_TO_ALL"
    ONE_TO_ALL_ONE = "ONE_TO_ALL_ONE"
    ALL_TO_ALL = "ALL_TO_ALL"
    DP_MP_COMPUTE = "DP_MP_COMPUTE"
    DP_MP_DISPATCH_FIRST = "DP_MP_DISPATCH_FIRST"
    DP_MP_COMPUTE_COLLECT_ALL = "DP_MP_COMPUTE_COLLECT_ALL"
    DP_MP_DISPATCH_FIRST_COLLECT_ALL = "DP_MP_DISPATCH_FIRST_COLLECT_ALL"

    DP_COMPUTE = "DP_COMPUTE"
    DP_COMPUTE_PROTO = "DP_COMPUTE_PROTO"
    DP_COMPUTE_PROTO_WITH_FUNC = "DP_COMPUTE_PROTO_WITH_FUNC"
    DP_COMPUTE_METRIC = "DP_COMPUTE_METRIC"

    @staticmethod
    def over(*axes: str) -> str:
        """The n-D mode: rows are cut over the named axes (tp, cp, dp, pp) together."""
        unknown = [axis for axis in axes if axis not in AXES]
        if unknown or not axes or len(set(axes)) < len(axes):
            raise ValueError(
                f"Dispatch.over takes each of {', '.join(AXES)} at most once, and at least one; "
                f"it was given {', '.join(map(repr, axes)) or 'none'}"
            )
        return f"OVER({','.join(axes)})"

    def __str__(self) -> str:
        return self.value


class Execute(str, Enum):
    """Which ranks run a call: all of them, or rank 0 alone."""

    ALL = "ALL"
    RANK_ZERO = "RANK_ZERO"

    def __str__(self) -> str:
        return self.value


class Registration:
    """What `register` leaves on a function as its attribute ``__muster__``.

    ``dispatch`` is a mode's name, or ``"CUSTOM"`` with ``dispatch_fn`` and
    ``collect_fn`` set; ``on_timeout`` is ``""``, ``"cancel"`` or ``"kill"``.
    """

    __slots__ = (
        "collect_fn",
        "collective",
        "dispatch",
        "dispatch_fn",
        "execute",
        "idempotent",
        "on_timeout",
    )

    def __init__(
        self,
        dispatch: str,
        execute: str,
        collective: bool = False,
        idempotent: bool = False,
        on_timeout: str = "",
        dispatch_fn: Callable[..., Any] | None = None,
        collect_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.dispatch = dispatch
        self.execute = execute
        self.collective = collective
        self.idempotent = idempotent
        self.on_timeout = on_timeout
        self.dispatch_fn = dispatch_fn
        self.collect_fn = collect_fn

    def __repr__(self) -> str:
        return f"Registration({self.dispatch}, {self.execute})"


DispatchMode = Dispatch | str | Mapping[str, Callable[..., Any]]


def register(
    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute | str = Execute.ALL,
    *,
    collective: bool = False,
    idempotent: bool = False,
    on_timeout: str | None = None,
) -> Callable[[F], F]:
    """Make a worker's method callable on its whole cluster.

    ``dispatch_mode`` is a `Dispatch`, its name, or a dict ``{"dispatch_fn": f,
    "collect_fn": g}`` of functions that run in the controller: ``f(cluster,
    *args, **kwargs)`` returns ``(args, kwargs)`` in which every argument is a
    list with one element per rank; ``g(cluster, results)`` turns the list of
    results, in rank order, into what the caller gets.

    ``collective=True`` says that the ranks need each other in this method: when
    one raises, the others are cancelled rather than left waiting for it.
    ``idempotent=True`` says that running the method again does no harm: on a
    cluster with ``on_failure="restart_worker"`` or ``"restart_cluster"``, a call
    that died with a rank is run again on the new one. Others never are.
    ``on_timeout`` says what happens at a deadline to the ranks that still run:
    ``"cancel"`` raises an exception in them, ``"kill"`` ends their processes.
    """
    registration = _registration(dispatch_mode, execute_mode, collective, idempotent, on_timeout)

    def mark(function: F) -> F:
        target: Any = getattr(function, "__func__", function)  # a classmethod's own function
        if not callable(target):
            raise TypeError(
                f"register() marks methods, and {function!r} is not one; "
                "put @register(...) right above a def"
            )
        target.__muster__ = registration
        return function

    return mark


def _registration(
    dispatch_mode: DispatchMode,
    execute_mode: Execute | str,
    collective: bool,
    idempotent: bool,
    on_timeout: str | None,
) -> Registration:
    if callable(dispatch_mode):
        raise TypeError("register takes parentheses: write @register() or @register(Dispatch....)")
    try:
        execute = Execute(execute_mode).value
    except ValueError:
        known = ", ".join(mode.value for mode in Execute)
        raise ValueError(f"execute_mode is {execute_mode!r}; it can be {known}") from None
    if on_timeout not in (None, "", "cancel", "kill"):
        raise ValueError(f'on_timeout is {on_timeout!r}; it can be None, "cancel" or "kill"')
    rest = (execute, bool(collective), bool(idempotent), on_timeout or "")
    if isinstance(dispatch_mode, Mapping):
        functions = dict(dispatch_mode)
        if sorted(functions) != ["collect_fn", "dispatch_fn"] or not all(
            callable(f) for f in functions.values()
        ):
            raise ValueError(
                "a dispatch_mode of one's own is a dict of two functions, dispatch_fn and "
                f"collect_fn; it has {sorted(map(str, functions))}"
            )
        return Registration("CUSTOM", *rest, functions["dispatch_fn"], functions["collect_fn"])
    if isinstance(dispatch_mode, str) and dispatch_mode.startswith("OVER("):
        return Registration(Dispatch.over(*dispatch_mode[5:].rstrip(")").split(",")), *rest)
    try:
        dispatch = Dispatch(dispatch_mode).value
    except ValueError:
        known = ", ".join(mode.value for mode in Dispatch)
        raise ValueError(f"dispatch_mode is {dispatch_mode!r}; it can be {known}") from None
    return Registration(dispatch, *rest)
