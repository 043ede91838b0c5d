"""The base of ROLL's worker classes, on Muster's; and the actor that keeps values for them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
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
from ..ray.actor import WORKERS, identity
from .config import WorkerConfig
from .modes import register
from .proto import DataProto

_log = logging.getLogger("muster.compat.roll")


@ray.remote
class SharedStorage:
    """Values by key, for all workers of the session. Calls come one after another."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def put(self, key: Any, data: Any) -> None:
        """Keep a value."""
        self._values[key] = data

    def put_if_absent(self, key: Any, data: Any) -> bool:
        """Keep a value where there is none; whether it was kept."""
        absent = key not in self._values
        self._values.setdefault(key, data)
        return absent

    def get(self, key: Any) -> Any:
        """A value, or None."""
        return self._values.get(key)


def _shared_storage() -> Any:
    """The session's one, made at its first use, under the name that ROLL gives it."""
    actor: Any = SharedStorage
    options = {"name": "SHARED_STORAGE_ACTOR", "namespace": WORKERS}
    return actor.options(get_if_exists=True, **options).remote()


def _by_strategy(name: str, pass_on: bool = True) -> Callable[..., None]:
    """A worker's method that has its strategy do what it says, where there is one."""

    def method(self: Worker, *args: Any, **kwargs: Any) -> None:
        if self.strategy is None:
            self.logger.warning("%s has no strategy: %s does nothing", self.worker_name, name)
        elif pass_on:
            getattr(self.strategy, name)(*args, **kwargs)
        else:
            getattr(self.strategy, name)()

    method.__name__, method.__qualname__ = name, f"Worker.{name}"
    return method


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
        return _shared_storage()

    def get_master_addr_and_port(self) -> tuple[str, int]:
        """Where the cluster's rank 0 listens."""
        return self.master_addr, self.master_port

    @staticmethod
    def get_free_port() -> int:
        """A port of this node that nobody uses, and that nobody else of the session was given."""
        storage, node = _shared_storage(), Native.get_node_ip()
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

    load_states = register(Dispatch.ONE_TO_ALL)(_by_strategy("load_states", pass_on=False))
    offload_states = register(Dispatch.ONE_TO_ALL)(_by_strategy("offload_states", pass_on=False))
    setup_collective_group = _by_strategy("setup_collective_group")
    broadcast_parameter = _by_strategy("broadcast_parameter")
    update_parameter_in_bucket = _by_strategy("update_parameter_in_bucket")
    add_lora = _by_strategy("add_lora")

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

    def start_model_update(self, *args: Any, **kwargs: Any) -> DataProto:
        """Have the strategy load what it sends, send it, and offload all of its states; what
        that took is in the metrics."""
        begun, took = perf_counter(), {}
        if self.strategy is None:
            self.logger.warning("%s has no strategy: it sends no weights", self.worker_name)
        else:
            with _loaded_for_update(self.strategy):
                took = dict(self.strategy.model_update(*args, **kwargs) or {})
            took = {"total": perf_counter() - begun, **took}
        prefix = f"time/{self.cluster_name}/model_update"
        return DataProto(meta_info={"metrics": {f"{prefix}/{k}": v for k, v in took.items()}})

    # What every actor of Ray's has; handles call them by their own names.

    def ray_ready(self) -> bool:
        """Say that it runs."""
        return True

    def ray_call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a function with the worker as its first argument."""
        return function(self, *args, **kwargs)


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
