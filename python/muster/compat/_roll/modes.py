"""Marking methods as ROLL does, and its dispatch and collect functions.

A method that has one of ROLL's own modes is cut and collected by the head. The
functions here are for modes of a user's own, which are made of them: they work
on any object that has ``world_size``, ``dp_size`` and ``get_rank_info``.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

from ..._cluster import Cluster
from ..._register import Dispatch, Execute
from ..._register import register as mark
from ..ray import ObjectRef
from .proto import DataProto, ObjectRefWrap

F = TypeVar("F", bound=Callable[..., Any])
Spread = tuple[tuple[Any, ...], dict[str, Any]]

#: The attribute that `register` leaves on a method.
BIND_WORKER_METHOD_FLAG = "BIND_WORKER_METHOD_FLAG"

#: Modes that give the rows of a DataProto to the first rank of each dp rank alone.
FIRST = (Dispatch.DP_MP_DISPATCH_FIRST, Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
#: Modes whose arguments are cut by rows.
BY_ROWS = (*FIRST, Dispatch.DP_MP_COMPUTE, Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
#: What a mode of one's own is made of.
_FUNCTIONS = ("dispatch_fn", "collect_fn")


def register(
    dispatch_mode: Dispatch | Mapping[str, Callable[..., Any]] = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    clear_cache: bool = True,
    trace: bool = False,
    prefetch: bool = False,
    to_remote: bool = False,
) -> Callable[[F], F]:
    """Make a worker's method callable on its whole cluster.

    ``clear_cache`` gives unused GPU memory back after each call. ``trace``,
    ``prefetch`` and ``to_remote`` are taken and mean nothing: rows travel by
    reference as it is.
    """
    assert isinstance(dispatch_mode, (Dispatch, dict)), (
        f"dispatch_mode is {dispatch_mode!r}; it is a Dispatch or a dict"
    )
    assert isinstance(execute_mode, Execute), f"execute_mode is {execute_mode!r}; it is an Execute"
    mode: Any = dispatch_mode
    if isinstance(dispatch_mode, dict):
        for key in _FUNCTIONS:
            assert key in dispatch_mode, f"a dispatch_mode that is a dict needs {key!r}"
        mode = {key: dispatch_mode[key] for key in _FUNCTIONS}
    native = mark(mode, execute_mode)

    @contextmanager
    def around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if dispatch_mode in FIRST:
            _drop_rows(*args, *kwargs.values())
        yield
        if clear_cache:
            _clear_cache()

    def decorate(function: F) -> F:
        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs):
                return await function(*args, **kwargs)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around(args, kwargs):
                return function(*args, **kwargs)

        wrapped: Any = call_async if inspect.iscoroutinefunction(function) else call
        attributes = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode}
        setattr(wrapped, BIND_WORKER_METHOD_FLAG, attributes)
        marked: F = native(wrapped)
        return marked

    return decorate


def _drop_rows(worker: Any, *given: Any) -> None:
    """Where the rows went to another rank, what came is meta alone, as in ROLL."""
    info = getattr(worker, "rank_info", None)
    if info is not None and not _is_first(info):
        for arg in given:
            if isinstance(arg, DataProto):
                arg._withhold()


def _clear_cache() -> None:
    """Give back GPU memory that nothing uses, in a process that uses a GPU at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


# --- dispatch ------------------------------------------------------------------------------


def mapped(
    act: Callable[[str, Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Spread:
    """What becomes of each argument, which has a name for messages."""
    return (
        tuple(act(f"argument {at}", arg) for at, arg in enumerate(args)),
        {name: act(f"argument {name!r}", arg) for name, arg in kwargs.items()},
    )


def dispatch_one_to_all(cluster: Any, *args: Any, **kwargs: Any) -> Spread:
    """Every argument to every rank."""
    return mapped(lambda _, arg: [arg] * cluster.world_size, args, kwargs)


def dispatch_all_to_all(cluster: Any, *args: Any, **kwargs: Any) -> Spread:
    """Element r of every argument to rank r."""

    def checked(label: str, arg: Any) -> Any:
        assert isinstance(arg, (tuple, list)) and len(arg) == cluster.world_size, (
            f"{label} needs an element for each of {cluster.world_size} ranks; it is {_shown(arg)}"
        )
        return arg

    return mapped(checked, args, kwargs)


def dispatch_dp_mp_compute(cluster: Any, *args: Any, **kwargs: Any) -> Spread:
    """Part dp_rank of every argument, cut into dp_size parts."""
    infos = _infos(cluster)

    def spread(label: str, arg: Any) -> list[Any]:
        parts = _parts(label, arg, cluster.dp_size)
        return [parts[info.dp_rank] for info in infos]

    return mapped(spread, args, kwargs)


def dispatch_dp_mp_dispatch_first(cluster: Any, *args: Any, **kwargs: Any) -> Spread:
    """As `dispatch_dp_mp_compute`; but of a DataProto, ranks other than the first of their dp
    rank get the meta alone."""
    firsts = [*map(_is_first, _infos(cluster))]

    def spread(_: str, parts: list[Any]) -> list[Any]:
        return [
            part
            if first or not isinstance(part, DataProto)
            else DataProto(meta_info=part.meta_info)
            for part, first in zip(parts, firsts, strict=True)
        ]

    return mapped(spread, *dispatch_dp_mp_compute(cluster, *args, **kwargs))


def _infos(cluster: Any) -> list[Any]:
    """Each rank's place: asked for at once, or one by one of what only stands for a cluster."""
    if isinstance(cluster, Cluster):
        return cluster.worker_rank_info
    return [cluster.get_rank_info(rank=rank) for rank in range(cluster.world_size)]


def _is_first(info: Any) -> bool:
    return (info.tp_rank, info.cp_rank, info.pp_rank) == (0, 0, 0)


def _parts(label: str, arg: Any, size: int) -> Sequence[Any]:
    check_cut(label, arg, size)
    if isinstance(arg, list):
        step = len(arg) // size
        return [arg[at : at + step] for at in range(0, len(arg), step)]
    parts: Sequence[Any] = arg.chunk(chunks=size)
    assert len(parts) == size, f"{label} came apart into {len(parts)} parts, not dp_size {size}"
    return parts


def check_cut(label: str, arg: Any, size: int) -> None:
    """Refuse what ROLL does not cut: lists that do not divide evenly, too few rows."""
    if isinstance(arg, list):
        assert arg and len(arg) % size == 0, (
            f"{label} is a list of {len(arg)}, which does not divide by dp_size {size}: "
            "pad it, or send a DataProto"
        )
    elif isinstance(arg, DataProto):
        assert not len(arg) or len(arg) >= size, (
            f"{label} is a DataProto of {len(arg)} rows, fewer than dp_size {size}: "
            "pad it with pad_dataproto_to_divisor"
        )
    else:
        assert hasattr(arg, "chunk"), (
            f"{label} is {_shown(arg)}, which cannot be cut: it takes a list, a DataProto, or what "
            "has a method chunk"
        )


def _shown(arg: Any) -> str:
    size = f" of {len(arg)}" if hasattr(arg, "__len__") else ""
    return f"a {type(arg).__name__}{size}"


# --- collect -------------------------------------------------------------------------------


def collect_all_to_all(cluster: Any, output: list[Any]) -> list[Any]:
    """All results, in rank order."""
    assert len(output) == cluster.world_size
    return output


def collect_all_to_one(cluster: Any, output: list[Any]) -> Any:
    """Rank 0's result."""
    assert len(output) == cluster.world_size
    if isinstance(output[0], ObjectRef):
        return [ObjectRefWrap(ref, collected=rank == 0) for rank, ref in enumerate(output)]
    return output[0]


def collect_dp_mp_compute(cluster: Any, output: list[Any]) -> Any:
    """The results of each dp rank: lists chained, DataProtos concatenated."""
    ours = [
        info.tp_rank == 0 and info.is_pipeline_last_stage and info.cp_rank == 0
        for info in _infos(cluster)
    ]
    if isinstance(output[0], ObjectRef):
        return [ObjectRefWrap(r, collected=own) for r, own in zip(output, ours, strict=True)]
    kept = [result for result, own in zip(output, ours, strict=True) if own]
    if all(isinstance(result, list) for result in kept):
        return list(chain.from_iterable(kept))
    if all(isinstance(result, DataProto) for result in kept):
        return DataProto.concat(kept)
    kinds = ", ".join(sorted({type(result).__name__ for result in kept}))
    raise NotImplementedError(f"results of type {kinds} are not put together: return a list")


#: How refs of every rank are given, where not every rank's result counts.
COLLECTS: dict[str, Callable[[Any, list[Any]], Any]] = {
    Dispatch.ONE_TO_ALL_ONE: collect_all_to_one,
    Dispatch.DP_MP_COMPUTE: collect_dp_mp_compute,
    Dispatch.DP_MP_DISPATCH_FIRST: collect_dp_mp_compute,
}
