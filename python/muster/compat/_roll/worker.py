"""The base of ROLL's worker classes, on Muster's."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from time import perf_counter
from typing import Any

from ..._register import Dispatch
from ..._worker import Worker as Native
from ..._worker import _visible_devices
from .. import ray
from ..ray import _state
from ..ray.actor import identity
from .config import WorkerConfig
from .modes import register
from .proto import DataProto
from .storage import shared_storage

_log = logging.getLogger("muster.compat.roll")


class Worker(Native):
    """One rank of a role. Subclasses make ``self.strategy``, usually in ``initialize``, and set
    ``self.rank_info`` where ranks are not all data parallel."""

    def __init__(self, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config)
        me = _state.Me  # for those who ask where they run
        me.ident, me.name, me.is_worker = identity(self.worker_name), self.worker_name, True
        self.pipeline_config: Any = None
        self.strategy: Any = None
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.thread_executor = ThreadPoolExecutor(max_workers=5)
        placements = getattr(worker_config, "placements", None)
        if placements is not None:
            worker_config.resource_placement_groups = placements[self.rank]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.worker_name})"

    @property
    def logger(self) -> logging.Logger:
        """Where the worker writes what it has to say."""
        return _log

    @cached_property
    def shared_storage(self) -> Any:
        """The actor that keeps small values for all workers of the session."""
        return shared_storage()

    def get_master_addr_and_port(self) -> tuple[str, int]:
        """Where the cluster's rank 0 listens."""
        return self.master_addr, self.master_port

    @staticmethod
    def get_free_port() -> int:
        """A port of this node that nobody uses, and that nobody else of the session was given."""
        storage, node = shared_storage(), Native.get_node_ip()
        for _ in range(int(os.environ.get("MAX_PORT_RETRY_COUNT", "1000"))):
            port = Native.get_free_port()
            key = f"MASTER_ADDR_PORT:{node}:{port}"
            if ray.get(storage.put_if_absent.remote(key, True)):
                return port
        raise RuntimeError(f"there is no port on {node} that was not given out before")

    @staticmethod
    def is_port_available(port: int) -> bool:
        """Whether nobody has a port."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                return False
            return True

    @staticmethod
    def get_visible_gpus() -> list[str]:
        """The devices that this process sees."""
        return _visible_devices()

    def get_devices_info(self) -> list[dict[str, Any]]:
        """The worker's devices, in the mapping's order: dicts of rank, node_rank, gpu_rank."""
        return devices_info(self.worker_config.resource_placement_groups or [])

    def initialize(self, pipeline_config: Any, *args: Any, **kwargs: Any) -> None:
        """Take in the pipeline's configuration. Subclasses go on from there."""
        self.pipeline_config = pipeline_config

    @register(Dispatch.ONE_TO_ALL)
    def load_states(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy bring its states onto the device."""
        self._by_strategy("load_states")

    @register(Dispatch.ONE_TO_ALL)
    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy take its states off the device."""
        self._by_strategy("offload_states")

    @register(Dispatch.ONE_TO_ALL)
    def process_weights_after_loading(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy finish weights that were just loaded."""
        if self.strategy is not None:
            self.strategy.process_weights_after_loading()

    @register(Dispatch.DP_MP_COMPUTE)
    def get_metrics(  # type: ignore[override]  # ROLL's returns a DataProto
        self, metric_names: list[str] | None = None
    ) -> DataProto:
        """What the strategy measured, as ``meta_info["metrics"]``."""
        strategy = self.strategy
        metrics = {} if strategy is None else strategy.get_metrics(metric_names=metric_names)
        return DataProto(meta_info={"metrics": metrics})

    def setup_model_update(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy make ready to send weights."""
        self.strategy.setup_model_update(*args, **kwargs)

    def setup_collective_group(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy join a group for weights."""
        self._by_strategy("setup_collective_group", *args, **kwargs)

    def start_model_update(self, *args: Any, **kwargs: Any) -> DataProto:
        """Have the strategy load what it sends, send it, and offload all of its states; what
        that took is in the metrics."""
        begun, took = perf_counter(), {}
        if self.strategy is not None:
            with _loaded_for_update(self.strategy):
                took = dict(self.strategy.model_update(*args, **kwargs) or {})
            took = {"total": perf_counter() - begun, **took}
        else:
            self._by_strategy("model_update")  # says that there is none
        prefix = f"time/{self.cluster_name}/model_update"
        return DataProto(meta_info={"metrics": {f"{prefix}/{k}": v for k, v in took.items()}})

    def broadcast_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy take part in a broadcast of one weight."""
        self._by_strategy("broadcast_parameter", *args, **kwargs)

    def update_parameter_in_bucket(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy take in a bucket of weights."""
        self._by_strategy("update_parameter_in_bucket", *args, **kwargs)

    def add_lora(self, *args: Any, **kwargs: Any) -> None:
        """Have the strategy load an adapter."""
        self._by_strategy("add_lora", *args, **kwargs)

    # What every actor of Ray's has; handles call them by their own names.

    def ray_ready(self) -> bool:
        """Say that it runs."""
        return True

    def ray_call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function with the worker as its first argument."""
        return function(self, *args, **kwargs)

    def _by_strategy(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.strategy is None:
            self.logger.warning("%s has no strategy: %s does nothing", self.worker_name, method)
            return None
        return getattr(self.strategy, method)(*args, **kwargs)


#: The kinds of states that a strategy loads and offloads, as ROLL names them.
_STATES = ("model_params", "other_params", "optimizer_states")


@contextmanager
def _loaded_for_update(strategy: Any) -> Iterator[None]:
    """With the states on the device that an update of weights needs, and no others; afterwards
    with none. Of a strategy that has no methods for it, they stay where they are."""

    def ask(method: str, **kwargs: Any) -> Any:
        found = getattr(strategy, method, None)
        return None if found is None else found(**kwargs)

    needed = ask("get_model_update_load_kwargs") or {}
    ask("load_states", **needed)
    if needed.get("include") is not None:
        others = [state for state in _STATES if state not in needed["include"]]
        ask("offload_states", **{**needed, "include": others})
    try:
        yield
    finally:
        ask("offload_states")


def devices_info(places: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rank's places without their groups; CPU workers have one, whose gpu_rank is None."""
    return [
        {"rank": at, "node_rank": place["node_rank"], "gpu_rank": place["gpu_rank"]}
        for at, place in enumerate(places)
    ]
