"""Worker classes as pipelines for ROLL write them, with its imports changed."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from muster.compat import ray
from muster.compat.roll import (
    DataProto,
    Dispatch,
    Execute,
    RankInfo,
    Worker,
    collect_all_to_all,
    dispatch_dp_mp_compute,
    register,
)

# Read when the module is imported: a worker's environment is complete by then.
ENVIRONMENT_AT_IMPORT = dict(os.environ)


def twice(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    """A dispatch function: rank r gets each argument r times."""
    ranks = range(cluster.world_size)
    return tuple([arg * rank for rank in ranks] for arg in args), {
        name: [arg * rank for rank in ranks] for name, arg in kwargs.items()
    }


def largest(cluster: Any, output: list[Any]) -> Any:
    return output if isinstance(output[0], ray.ObjectRef) else max(output)


def to_all(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    """A dispatch function that returns no lists: what it returns goes to all."""
    return args, kwargs


class Echo(Worker):
    """Says who got what."""

    @register()
    def default(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def one_to_all(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.ONE_TO_ALL_ONE)
    def one_to_all_one(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def dp_mp(self, *args: Any, **kwargs: Any) -> Any:
        return [(self.rank, args, kwargs)]

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def number(self) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def first_collect_all(self, *args: Any) -> Any:
        return self.rank, args

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def on_rank_zero(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode={"dispatch_fn": twice, "collect_fn": largest})
    def custom(self, x: Any) -> Any:
        return x

    @register(dispatch_mode={"dispatch_fn": to_all, "collect_fn": collect_all_to_all})
    def custom_to_all(self, x: Any) -> Any:
        return x

    @register(
        dispatch_mode={"dispatch_fn": dispatch_dp_mp_compute, "collect_fn": collect_all_to_all}
    )
    def custom_of_theirs(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any, tp: int = 1) -> None:
        super().initialize(pipeline_config)
        self.rank_info = RankInfo(
            world_size=self.world_size,
            tp_size=tp,
            dp_size=self.world_size // tp,
            rank=self.rank,
            tp_rank=self.rank % tp,
            dp_rank=self.rank // tp,
        )

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        return self.rank, args, kwargs

    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: ENVIRONMENT_AT_IMPORT.get(name) for name in names}

    def attributes(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "cluster_name": self.cluster_name,
            "worker_name": self.worker_name,
            "master": self.get_master_addr_and_port(),
            "devices": self.get_devices_info(),
            "places": self.worker_config.resource_placement_groups,
            "pipeline": self.pipeline_config,
            "repr": repr(self),
            "free": self.is_port_available(self.get_free_port()),
        }

    def keep(self, key: str, value: Any) -> Any:
        kept = ray.get(self.shared_storage.put_if_absent.remote(key, value))
        return kept, ray.get(self.shared_storage.get.remote(key))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, rank: int) -> int:
        if self.rank == rank:
            raise ZeroDivisionError(f"rank {rank}")
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def total(self, array: Any) -> int:
        return int(array.sum())

    def pass_on(self, values: dict[str, Any], handle: Any) -> Any:
        """A ref that came inside a value, as an argument of another call."""
        return ray.get(handle.total.remote(values["ref"]))

    def die(self) -> None:
        os._exit(7)

    def call_others(self, cluster: Any, handles: list[Any]) -> Any:
        """Use another role from inside a worker, as train workers do with infer workers."""
        return (
            cluster.one_to_all(self.rank),
            ray.get([handle.plain.remote(self.rank) for handle in handles]),
            cluster.worker_config.name,
            cluster.rank2devices,
        )


class Giver:
    """For an actor."""

    def give(self, value: Any) -> Any:
        return value


class Broken(Worker):
    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        raise LookupError(f"no model for rank {self.rank}")


class Slow(Worker):
    """With async methods: calls run at once."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.opened = asyncio.Event()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def wait(self) -> int:
        await self.opened.wait()
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def open(self) -> None:
        self.opened.set()

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    async def rows(self, x: list[int]) -> list[int]:
        return [value * 10 for value in x]


class Data(Worker):
    """Works on DataProtos; dp 2 x tp 2 on four ranks."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        tp = 2 if self.world_size > 2 else 1
        self.rank_info = RankInfo(
            world_size=self.world_size,
            tp_size=tp,
            dp_size=self.world_size // tp,
            rank=self.rank,
            tp_rank=self.rank % tp,
            dp_rank=self.rank // tp,
        )

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def double(self, data: DataProto) -> DataProto:
        out = DataProto.from_dict(
            {"y": data.batch["x"] * 2}, dict(data.non_tensor_batch), dict(data.meta_info)
        )
        out.meta_info["metrics"] = {"rows": len(data), "same": 0.5}
        return out

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def first(self, data: DataProto) -> Any:
        rows = None if data.batch is None else len(data)
        return self.rank, rows, data.meta_info

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def same(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def two(self, data: DataProto, names: list[str]) -> list[Any]:
        return [(self.rank, len(data), names)]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def total(self, data: DataProto) -> float:
        return float(data.batch["x"].sum())

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def metrics_only(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"loss": 1.0, "seen": data.meta_info["step"]}})

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE)
    def where(self, data: DataProto) -> list[Any]:
        """Whether the tensor lies in shared memory: its address is in a mapping of a memfd."""
        address = data.batch["x"].data_ptr()
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, _, rest = line.partition(" ")
                low, high = (int(end, 16) for end in span.split("-"))
                if low <= address < high:
                    return ["memfd" in rest]
        return [False]

    def write(self, data: DataProto) -> float:
        data.batch["x"] += 1  # legal, and nobody else's
        return float(data.batch["x"][0])

    def inside(self, values: dict[str, Any]) -> Any:
        return {"len": len(values["data"]), "back": values["data"][:1]}
