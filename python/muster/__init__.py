"""Muster runs named clusters of GPU workers for RL post-training.

This module holds the public names and nothing else; each is loaded when it is
first used, so that ``import muster`` stays cheap. Everything that starts with
an underscore may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._cluster import Cluster, get_cluster
    from ._config import WorkerConfig
    from ._context import init, shutdown
    from ._errors import (
        CallCancelledError,
        DeadlineError,
        HeadLostError,
        MethodNotFoundError,
        MusterError,
        WorkerDiedError,
    )
    from ._refs import Ref, as_completed, get, wait
    from ._register import Dispatch, Execute, register
    from ._resources import Plan, ResourceManager
    from ._values import Broadcast, PerRank
    from ._worker import RankInfo, Worker, hold_ports

__version__ = "0.1.0"

_HOMES = {
    "Cluster": "_cluster",
    "get_cluster": "_cluster",
    "WorkerConfig": "_config",
    "init": "_context",
    "shutdown": "_context",
    "CallCancelledError": "_errors",
    "DeadlineError": "_errors",
    "HeadLostError": "_errors",
    "MethodNotFoundError": "_errors",
    "MusterError": "_errors",
    "WorkerDiedError": "_errors",
    "Ref": "_refs",
    "as_completed": "_refs",
    "get": "_refs",
    "wait": "_refs",
    "Dispatch": "_register",
    "Execute": "_register",
    "register": "_register",
    "Plan": "_resources",
    "ResourceManager": "_resources",
    "Broadcast": "_values",
    "PerRank": "_values",
    "RankInfo": "_worker",
    "Worker": "_worker",
    "hold_ports": "_worker",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
