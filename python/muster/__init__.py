"""Muster runs named clusters of GPU workers for RL post-training.

This module holds the public names and nothing else; each is loaded when it is
first used, so that ``import muster`` stays cheap. Everything that starts with
an underscore may change at any time.
"""

from __future__ import annotations

from ._version import __version__

TYPE_CHECKING = False  # as in typing, whose import would cost more than this module

if TYPE_CHECKING:
    from ._batch import Batch
    from ._cluster import Cluster, get_cluster, get_worker, list_workers
    from ._config import WorkerConfig, device_ids
    from ._context import init, shutdown
    from ._crew import Crew
    from ._errors import (
        ArgumentTypeError,
        AuthError,
        CallCancelledError,
        DeadlineError,
        DeadlockError,
        EncodingError,
        HeadLostError,
        InvalidArgumentError,
        LayoutError,
        LimitError,
        MethodNotFoundError,
        MusterError,
        NameTakenError,
        NodeLostError,
        NotFoundError,
        PlacementError,
        ProtocolError,
        ReleasedError,
        RemoteError,
        ResourceError,
        StartupError,
        StoreFullError,
        TaintedError,
        TooLargeError,
        WorkerDiedError,
        WorkerImportError,
    )
    from ._handles import EngineHandle, WorkerHandle
    from ._instances import Instances
    from ._logfiles import LogFiles
    from ._metrics import reduce_metrics
    from ._programs import Program
    from ._refs import Ref, as_completed, get, wait
    from ._register import Dispatch, Execute, register
    from ._reserving import Reservation
    from ._resources import Outlook, Plan, ResourceManager, nodes
    from ._service import Service, get_service, list_services, service
    from ._sharing import put
    from ._values import Broadcast, PerRank
    from ._worker import RankInfo, Worker, hold_ports

__all__ = [
    "ArgumentTypeError",
    "AuthError",
    "Batch",
    "Broadcast",
    "CallCancelledError",
    "Cluster",
    "Crew",
    "DeadlineError",
    "DeadlockError",
    "Dispatch",
    "EncodingError",
    "EngineHandle",
    "Execute",
    "HeadLostError",
    "Instances",
    "InvalidArgumentError",
    "LayoutError",
    "LimitError",
    "LogFiles",
    "MethodNotFoundError",
    "MusterError",
    "NameTakenError",
    "NodeLostError",
    "NotFoundError",
    "Outlook",
    "PerRank",
    "PlacementError",
    "Plan",
    "Program",
    "ProtocolError",
    "RankInfo",
    "Ref",
    "ReleasedError",
    "RemoteError",
    "Reservation",
    "ResourceError",
    "ResourceManager",
    "Service",
    "StartupError",
    "StoreFullError",
    "TaintedError",
    "TooLargeError",
    "Worker",
    "WorkerConfig",
    "WorkerDiedError",
    "WorkerHandle",
    "WorkerImportError",
    "__version__",
    "as_completed",
    "device_ids",
    "get",
    "get_cluster",
    "get_service",
    "get_worker",
    "hold_ports",
    "init",
    "list_services",
    "list_workers",
    "nodes",
    "put",
    "reduce_metrics",
    "register",
    "service",
    "shutdown",
    "wait",
]

_HOMES = {
    "Batch": "_batch",
    "Cluster": "_cluster",
    "get_cluster": "_cluster",
    "get_worker": "_cluster",
    "list_workers": "_cluster",
    "WorkerConfig": "_config",
    "device_ids": "_config",
    "init": "_context",
    "shutdown": "_context",
    "Crew": "_crew",
    "ArgumentTypeError": "_errors",
    "AuthError": "_errors",
    "CallCancelledError": "_errors",
    "DeadlineError": "_errors",
    "DeadlockError": "_errors",
    "EncodingError": "_errors",
    "HeadLostError": "_errors",
    "InvalidArgumentError": "_errors",
    "LayoutError": "_errors",
    "LimitError": "_errors",
    "MethodNotFoundError": "_errors",
    "MusterError": "_errors",
    "NameTakenError": "_errors",
    "NodeLostError": "_errors",
    "NotFoundError": "_errors",
    "PlacementError": "_errors",
    "ProtocolError": "_errors",
    "ReleasedError": "_errors",
    "RemoteError": "_errors",
    "ResourceError": "_errors",
    "StartupError": "_errors",
    "StoreFullError": "_errors",
    "TaintedError": "_errors",
    "TooLargeError": "_errors",
    "WorkerDiedError": "_errors",
    "WorkerImportError": "_errors",
    "EngineHandle": "_handles",
    "WorkerHandle": "_handles",
    "Instances": "_instances",
    "LogFiles": "_logfiles",
    "reduce_metrics": "_metrics",
    "Program": "_programs",
    "Ref": "_refs",
    "as_completed": "_refs",
    "get": "_refs",
    "wait": "_refs",
    "Dispatch": "_register",
    "Execute": "_register",
    "register": "_register",
    "Outlook": "_resources",
    "Plan": "_resources",
    "ResourceManager": "_resources",
    "nodes": "_resources",
    "Reservation": "_reserving",
    "Service": "_service",
    "get_service": "_service",
    "list_services": "_service",
    "service": "_service",
    "put": "_sharing",
    "Broadcast": "_values",
    "PerRank": "_values",
    "RankInfo": "_worker",
    "Worker": "_worker",
    "hold_ports": "_worker",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES} - {"TYPE_CHECKING"})
