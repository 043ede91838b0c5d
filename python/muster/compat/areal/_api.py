"""AReaL's scheduler API: its own classes where it is installed, else equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._areal import INSTALLED

if TYPE_CHECKING or not INSTALLED:
    from ._own import (
        EngineCallError,
        EngineCreationError,
        EngineImportError,
        GPUAllocationError,
        Job,
        PortAllocationError,
        RPCConnectionError,
        Scheduler,
        SchedulerError,
        SchedulingSpec,
        SchedulingStrategy,
        SchedulingStrategyType,
        Worker,
        WorkerConfigurationError,
        WorkerCreationError,
        WorkerFailedError,
        WorkerNotFoundError,
        WorkerTimeoutError,
    )
else:
    from areal.api import Job, Scheduler, Worker
    from areal.api.cli_args import (
        SchedulingSpec,
        SchedulingStrategy,
        SchedulingStrategyType,
    )
    from areal.infra.scheduler.exceptions import (
        EngineCallError,
        EngineCreationError,
        EngineImportError,
        GPUAllocationError,
        PortAllocationError,
        RPCConnectionError,
        SchedulerError,
        WorkerConfigurationError,
        WorkerCreationError,
        WorkerFailedError,
        WorkerNotFoundError,
        WorkerTimeoutError,
    )

__all__ = [
    "INSTALLED",
    "NATIVE_COMMANDS",
    "EngineCallError",
    "EngineCreationError",
    "EngineImportError",
    "GPUAllocationError",
    "Job",
    "PortAllocationError",
    "RPCConnectionError",
    "Scheduler",
    "SchedulerError",
    "SchedulingSpec",
    "SchedulingStrategy",
    "SchedulingStrategyType",
    "Worker",
    "WorkerConfigurationError",
    "WorkerCreationError",
    "WorkerFailedError",
    "WorkerNotFoundError",
    "WorkerTimeoutError",
    "default_spec",
]

#: What AReaL's own worker is started by; ours speaks the same protocol.
NATIVE_COMMANDS = ("areal.infra.rpc.rpc_server", "muster.compat.areal.rpc_server")


def default_spec() -> Any:
    """What a worker gets that nobody asked anything for."""
    return SchedulingSpec(cpu=1, mem=1024, gpu=0, port_count=2)
