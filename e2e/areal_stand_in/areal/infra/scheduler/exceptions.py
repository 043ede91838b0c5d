"""Errors that are not Muster's own."""

from __future__ import annotations

from muster.compat.areal.stand_in import api as _own


class SchedulerError(Exception):
    pass


def _child(name: str) -> type:
    base = getattr(_own, name)
    return type(name, (base, SchedulerError), {"__module__": __name__})


EngineCallError = _child("EngineCallError")
EngineCreationError = _child("EngineCreationError")
EngineImportError = _child("EngineImportError")
GPUAllocationError = _child("GPUAllocationError")
PortAllocationError = _child("PortAllocationError")
RPCConnectionError = _child("RPCConnectionError")
WorkerConfigurationError = _child("WorkerConfigurationError")
WorkerCreationError = _child("WorkerCreationError")
WorkerFailedError = _child("WorkerFailedError")
WorkerNotFoundError = _child("WorkerNotFoundError")
WorkerTimeoutError = _child("WorkerTimeoutError")
