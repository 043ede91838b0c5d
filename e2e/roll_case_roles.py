"""What the cases of `roll_cases.py` run on: ROLL on Ray, or `muster.compat.roll`.

ROLL_CASES=roll chooses ROLL itself. Here are the names of either, the workers that the cases
call, and how an outcome is told as text that can be compared.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

REAL = os.environ.get("ROLL_CASES") == "roll"

#: Where ROLL has its names; `muster.compat.roll` has them all in one place.
_WHERE = {
    "roll.configs.worker_config": "StrategyArguments WorkerConfig",
    "roll.distributed.executor.cluster": "Cluster",
    "roll.distributed.executor.worker": "RankInfo Worker",
    "roll.distributed.scheduler.decorator": "Dispatch Execute register collect_all_to_all "
    "collect_dp_mp_compute dispatch_dp_mp_compute dispatch_one_to_all",
    "roll.distributed.scheduler.protocol": "DataProto ObjectRefWrap custom_np_concatenate "
    "pad_dataproto_to_divisor unpad_dataproto",
    "roll.distributed.scheduler.resource_manager": "ResourceManager",
    "roll.distributed.scheduler.storage": "SharedStorage",
    "roll.utils.functionals": "reduce_metrics",
}


def named(name: str) -> Any:
    (where,) = [module for module, names in _WHERE.items() if name in names.split()]
    return getattr(importlib.import_module(where if REAL else "muster.compat.roll"), name)


ray: Any = importlib.import_module("ray" if REAL else "muster.compat.ray")
StrategyArguments, WorkerConfig = named("StrategyArguments"), named("WorkerConfig")
Cluster, RankInfo = named("Cluster"), named("RankInfo")
DataProto, ObjectRefWrap = named("DataProto"), named("ObjectRefWrap")
ResourceManager = named("ResourceManager")
collect_all_to_all = named("collect_all_to_all")
collect_dp_mp_compute = named("collect_dp_mp_compute")
dispatch_dp_mp_compute = named("dispatch_dp_mp_compute")
dispatch_one_to_all = named("dispatch_one_to_all")
custom_np_concatenate = named("custom_np_concatenate")
pad_dataproto_to_divisor = named("pad_dataproto_to_divisor")
unpad_dataproto = named("unpad_dataproto")
reduce_metrics = named("reduce_metrics")
if TYPE_CHECKING:  # what classes are made of has a type
    from muster.compat.roll import Dispatch, Execute, Worker, register
else:
    Dispatch, Execute = named("Dispatch"), named("Execute")
    Worker, register = named("Worker"), named("register")

Case = Callable[[], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """A case takes nothing, and what it returns or raises is its outcome."""
    CASES[function.__name__] = function
    return function


# --- outcomes as text ----------------------------------------------------------------------------

#: Classes that say nothing beside the others of an error.
_NO_MORE = {"object", "BaseException", "Exception", "RayError", "LookupError", "OSError"}
_NO_MORE |= {"ArithmeticError", "ActorAlreadyExistsError", "EnvironmentError"}


def told(act: Callable[[], Any]) -> str:
    """What came of it: a value, or the classes of an error that pipelines can catch."""
    try:
        return shown(act())
    except Exception as error:
        return raised(error)


def raised(error: BaseException) -> str:
    found = {
        kind.__name__
        for kind in type(error).__mro__
        if kind.__module__ in ("builtins", __name__) or kind.__module__.endswith("ray.exceptions")
    }
    names = sorted(name for name in found - _NO_MORE if "(" not in name)
    return f"raises {', '.join(names)}"


def shown(value: Any) -> str:
    """A value, without what differs from run to run."""
    if isinstance(value, DataProto):
        columns = (
            {**dict(value.batch.items()), **dict(value.non_tensor_batch.items())}
            if (value.batch is not None)
            else {}
        )
        return f"<{len(value)} rows {shown(columns)} meta {shown(value.meta_info)}>"
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {shown(list(value))}"
    if isinstance(value, ObjectRefWrap):
        return f"wrapped {value.collected}"
    if isinstance(value, ray.ObjectRef):
        return "ref"
    if isinstance(value, RankInfo):
        return f"dp {value.dp_rank}/{value.dp_size} tp {value.tp_rank}/{value.tp_size}"
    if isinstance(value, dict):
        pairs = sorted((shown(key), shown(one)) for key, one in value.items())
        return "{" + ", ".join(f"{key}: {one}" for key, one in pairs) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value}"
    return repr(value)


# --- workers -------------------------------------------------------------------------------------


def times_rank(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    """A dispatch function: rank r gets each argument r times."""
    ranks = range(cluster.world_size)
    return tuple([arg * rank for rank in ranks] for arg in args), {
        name: [arg * rank for rank in ranks] for name, arg in kwargs.items()
    }


def as_given(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def last_of(cluster: Any, output: list[Any]) -> Any:
    return output[-1]


class Own(Exception):
    """An error with a constructor of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def ranks_of(worker: Any, tp: int) -> Any:
    """Where a rank is in dp x tp, as its strategy would say."""
    return RankInfo(
        world_size=worker.world_size,
        tp_size=tp,
        dp_size=worker.world_size // tp,
        rank=worker.rank,
        tp_rank=worker.rank % tp,
        dp_rank=worker.rank // tp,
    )


class Probe(Worker):
    """Says who got what."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any, tp: int = 1) -> None:
        self.pipeline_config = pipeline_config
        self.rank_info = ranks_of(self, tp)

    @register()
    def all_to_all(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def one_to_all(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def takes_two(self, a: Any, b: Any = 2) -> Any:
        return a, b

    @register(dispatch_mode=Dispatch.ONE_TO_ALL_ONE)
    def one_to_all_one(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def dp_mp(self, *args: Any, **kwargs: Any) -> Any:
        return [(self.rank, args, kwargs)]

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def dp_mp_gives(self, x: Any) -> Any:
        """What it is told to: one of several kinds."""
        kind = x[0]
        made: dict[str, Any] = {"int": 1, "none": None, "tuple": (1,), "dict": {"a": 1}, "list": []}
        return made[kind] if kind in made else torch.ones(2)

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST)
    def dispatch_first(self, *args: Any, **kwargs: Any) -> Any:
        return [(self.rank, args, kwargs)]

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def first_collect_all(self, data: Any) -> Any:
        return self.rank, len(data), getattr(data, "meta_info", None)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def on_rank_zero(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode={"dispatch_fn": times_rank, "collect_fn": last_of})
    def custom(self, x: Any) -> Any:
        return x

    @register(dispatch_mode={"dispatch_fn": as_given, "collect_fn": collect_all_to_all})
    def custom_as_given(self, x: Any) -> Any:
        return self.rank, x

    @register(
        dispatch_mode={"dispatch_fn": dispatch_dp_mp_compute, "collect_fn": collect_dp_mp_compute}
    )
    def custom_of_theirs(self, x: Any) -> Any:
        return [(self.rank, x)]

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def double(self, data: Any) -> Any:
        made = DataProto.from_dict(
            {"y": data.batch["x"] * 2},
            dict(data.non_tensor_batch.items()),
            {"step": data.meta_info.get("step"), "rank": self.rank},
        )
        made.meta_info["metrics"] = {"rows": len(data), "seen": np.array([self.rank])}
        return made

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def meta_alone(self, data: Any) -> Any:
        return DataProto(meta_info={"metrics": {"loss": 0.5}, "saw": len(data)})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def change(self, data: Any) -> Any:
        """Changes what it was given, which is nobody else's."""
        data.batch["x"] += 1
        data.meta_info["mine"] = self.rank
        return float(data.batch["x"].sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, rank: int) -> int:
        if self.rank == rank:
            raise ZeroDivisionError(f"rank {rank}")
        return int(self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_own(self) -> None:
        raise Own(5, "of its own")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return int(self.rank)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    def fails(self) -> None:
        raise KeyError("plain")

    def note(self, x: Any) -> list[Any]:
        self.noted = [*getattr(self, "noted", []), x]
        return self.noted

    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def attributes(self) -> dict[str, Any]:
        addr, port = self.get_master_addr_and_port()
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "cluster_name": self.cluster_name,
            "worker_name": self.worker_name,
            "master": (type(addr).__name__, type(port).__name__, addr == self.master_addr),
            "same as environment": os.environ["MASTER_PORT"] == str(port),
            "devices": self.get_devices_info(),
            "groups": len(self.worker_config.resource_placement_groups),
            "repr": repr(self),
            "free": self.is_port_available(self.get_free_port()),
            "node": self.get_node_ip() == ray.util.get_node_ip_address(),
            "info": self.get_rank_info(),
            "main thread": threading.current_thread() is threading.main_thread(),
        }

    def stored(self, key: str, value: Any) -> Any:
        storage = self.shared_storage
        kept = ray.get(storage.put_if_absent.remote(key, value))
        return kept, ray.get(storage.get.remote(key))

    def where_it_is(self, cluster_name: str) -> Any:
        found = ray.get(self.shared_storage.get.remote(cluster_name))
        return None if found is None else sorted(found)

    def die(self) -> None:
        os._exit(7)

    def use(self, cluster: Any, handle: Any) -> Any:
        """Another role from inside a worker, as train workers use infer workers."""
        return {
            "all": cluster.one_to_all(self.rank),
            "one": ray.get(handle.plain.remote(self.rank)),
            "rank": cluster.worker2rank[cluster.workers[1]],
            "its rank": cluster.worker2rank.get(handle),
            "same": handle == cluster.workers[1],
            "name": cluster.cluster_name,
            "size": (cluster.world_size, cluster.dp_size),
            "config": cluster.worker_config.name,
            "devices": cluster.rank2devices,
            "initialized": cluster.initialized,
        }


class Broken(Worker):
    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        raise RuntimeError(f"no model for rank {self.rank}")


class Slow(Worker):
    """With async methods: calls run at once."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.opened = asyncio.Event()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def wait(self) -> int:
        await self.opened.wait()
        return int(self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def open(self) -> None:
        self.opened.set()

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    async def rows(self, x: list[int]) -> list[int]:
        return [value * 10 for value in x]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def fail(self) -> None:
        raise ZeroDivisionError("async")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def not_async(self, x: int) -> int:
        return x + 1

    async def ask(self, handle: Any) -> Any:
        """A call of another worker, awaited."""
        return await handle.plain.remote(self.rank)

    async def ask_blocking(self, cluster: Any) -> Any:
        """A blocking call of another cluster, inside the event loop."""
        return cluster.one_to_all_one(self.rank)

    async def in_a_thread(self, cluster: Any) -> Any:
        return await asyncio.to_thread(cluster.one_to_all_one, self.rank)


# --- clusters ------------------------------------------------------------------------------------

_NODES = 2
_GPUS = 4


def start() -> Callable[[], None]:
    """A session on two nodes of four made-up GPUs; what is returned ends it."""
    if REAL:
        nodes = importlib.import_module("ray.cluster_utils").Cluster()
        for _ in range(_NODES):
            nodes.add_node(num_cpus=8, num_gpus=_GPUS, object_store_memory=100_000_000)
        ray.init(address=nodes.address, namespace="roll", log_to_driver=False)

        def end() -> None:
            ray.shutdown()
            nodes.shutdown()

        return end
    importlib.import_module("muster").init(virtual=f"{_NODES}x{_GPUS}")
    ray.init(namespace="roll")
    shutdown: Callable[[], None] = ray.shutdown
    return shutdown


@cache
def pool() -> Any:
    return ResourceManager(num_gpus_per_node=_GPUS, num_nodes=_NODES)


def role(name: str, worker_cls: Any = Probe, *, config: Any = None, **fields: Any) -> Any:
    made = WorkerConfig(name=name, **fields) if config is None else config
    return Cluster(name, worker_cls, pool(), made)


@contextmanager
def some(name: str, worker_cls: Any = Probe, **config: Any) -> Iterator[Any]:
    cluster = role(name, worker_cls, **config)
    try:
        yield cluster
    finally:
        end(cluster)


def end(cluster: Any) -> None:
    if not REAL:
        cluster.shutdown()
        return
    for worker in cluster.workers:  # ROLL has no other way
        ray.kill(worker)


@cache
def three() -> Any:
    """Three ranks without devices, all data parallel."""
    return role("three", world_size=3)


@cache
def laid() -> Any:
    """Four ranks on one node, dp 2 x tp 2 as they say in initialize."""
    cluster = role("laid", device_mapping="list(range(0,4))")
    cluster.initialize("config", tp=2)
    return cluster
