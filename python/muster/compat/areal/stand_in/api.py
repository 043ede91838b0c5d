"""In the place of ``areal.api``, ``areal.api.cli_args`` and ``areal.infra.scheduler.exceptions``.

The same names with the same fields as AReaL's scheduler API of May 2026: base
class, dataclasses, errors. With AReaL installed its own are used instead, so
that ``except`` clauses and ``isinstance`` of its controllers hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

__all__ = ["Job", "Scheduler", "SchedulingSpec", "SchedulingStrategy", "SchedulingStrategyType"]
__all__ += ["EngineCallError", "EngineCreationError", "EngineImportError", "GPUAllocationError"]
__all__ += ["PortAllocationError", "RPCConnectionError", "SchedulerError", "Worker"]
__all__ += ["WorkerConfigurationError", "WorkerCreationError", "WorkerFailedError"]
__all__ += ["WorkerNotFoundError", "WorkerTimeoutError"]


class SchedulingStrategyType(str, Enum):
    """Whether a role has workers of its own or shares another's."""

    separation = "separation"
    colocation = "colocation"


@dataclass
class SchedulingStrategy:
    """Where the workers of a role go; with ``fork`` a colocated role has processes of its own."""

    type: str = "separation"
    target: str | None = None
    fork: bool = True


_PLACEMENTS = ("shared", "separate", "deferred")


@dataclass
class SchedulingSpec:
    """What one worker needs."""

    cpu: int = 8
    gpu: int = 0
    mem: int = 32
    port_count: int = 2
    image: str = ""
    task_type: str = "worker"
    env_vars: dict[str, str] = field(default_factory=dict)
    cmd: str | None = None
    srun_additional_args: str = ""
    additional_bash_cmds: list[str] | None = None
    container_type: str = "none"
    mount: str = ""
    nodelist: str | None = None
    exclude: str | None = None
    ray_placement_strategy: str = "shared"

    def __post_init__(self) -> None:
        if self.ray_placement_strategy not in _PLACEMENTS:
            raise ValueError(
                f"ray_placement_strategy is {self.ray_placement_strategy!r}; "
                f"it is one of {', '.join(_PLACEMENTS)}"
            )


@dataclass
class Worker:
    """A worker as controllers see it; the first of ``worker_ports`` speaks HTTP."""

    id: str
    ip: str
    worker_ports: list[str] = field(default_factory=list)
    engine_ports: list[str] = field(default_factory=list)


@dataclass
class Job:
    """A role: how many workers, with which needs, where."""

    role: str
    replicas: int = 0
    tasks: list[SchedulingSpec] = field(default_factory=list)
    scheduling_strategy: SchedulingStrategy = field(default_factory=SchedulingStrategy)


class Scheduler:
    """What AReaL's controllers ask for workers; what they ask is what MusterScheduler has."""


@runtime_checkable
class TrainEngine(Protocol):
    """An engine whose methods run on all ranks of a data-parallel group at once."""

    initialized: bool

    def current_data_parallel_head(self) -> Any:
        """The rank that has the arguments."""


class SchedulerError(Exception):
    """What every error of a scheduler is."""


class _WithKey(SchedulerError):
    _what = ""

    def __init__(self, worker_key: str, reason: str, details: str = "") -> None:
        self.worker_key, self.reason, self.details = worker_key, reason, details
        more = f"\n{details}" if details else ""
        SchedulerError.__init__(self, f"{self._what} {worker_key!r}: {reason}{more}")


class WorkerCreationError(_WithKey):
    """The workers of a role could not be started."""

    _what = "could not create the workers of"


class WorkerConfigurationError(_WithKey):
    """A worker did not take the experiment's configuration."""

    _what = "could not configure"


class WorkerFailedError(SchedulerError):
    """A worker's process ended: its exit code (negative: the signal) and last lines."""

    def __init__(self, worker_id: str, exit_code: int, stderr: str = "") -> None:
        self.worker_id, self.exit_code, self.stderr = worker_id, exit_code, stderr
        more = f"; its last lines:\n{stderr}" if stderr else ""
        super().__init__(f"worker {worker_id!r} ended with exit code {exit_code}{more}")


class WorkerNotFoundError(SchedulerError):
    """There is no such worker, or role."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        super().__init__(f"there is no worker {worker_id!r}")


class WorkerTimeoutError(SchedulerError):
    """Workers were not ready in time."""

    def __init__(self, worker_key: str, timeout: float) -> None:
        self.worker_key, self.timeout = worker_key, timeout
        super().__init__(f"{worker_key!r} was not ready within {timeout} s")


class EngineCreationError(SchedulerError):
    """An engine could not be made."""

    def __init__(self, worker_id: str, reason: str, status_code: int | None = None) -> None:
        self.worker_id, self.reason, self.status_code = worker_id, reason, status_code
        more = f" (HTTP {status_code})" if status_code else ""
        super().__init__(f"could not make an engine on {worker_id!r}: {reason}{more}")


class EngineCallError(SchedulerError):
    """A call of an engine failed, at its ``attempt``-th attempt."""

    def __init__(self, worker_id: str, method: str, reason: str, attempt: int = 1) -> None:
        self.worker_id, self.method, self.reason, self.attempt = worker_id, method, reason, attempt
        more = f" (after {attempt} attempts)" if attempt > 1 else ""
        super().__init__(f"could not call {method!r} on {worker_id!r}: {reason}{more}")


class EngineImportError(SchedulerError):
    """An engine's class could not be imported in the worker."""

    def __init__(self, import_path: str, reason: str) -> None:
        self.import_path, self.reason = import_path, reason
        super().__init__(f"could not import the engine {import_path!r}: {reason}")


class PortAllocationError(SchedulerError):
    """No ports were free."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"could not allocate ports: {reason}")


class GPUAllocationError(SchedulerError):
    """No GPUs were free."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"could not allocate GPUs: {reason}")


class RPCConnectionError(SchedulerError):
    """A worker could not be reached."""

    def __init__(self, worker_id: str, host: str, port: int, reason: str) -> None:
        self.worker_id, self.host, self.port, self.reason = worker_id, host, port, reason
        super().__init__(f"could not reach {worker_id!r} at {host}:{port}: {reason}")
