"""ROLL's distributed layer on Muster: change the imports, keep the pipeline.

All names in one place, whatever module of ROLL's they come from. What maps to what,
and what is better here, is in docs/migrating-from-roll.md.
"""

from __future__ import annotations

from .._metrics import reduce_metrics
from .._register import Dispatch, Execute
from .._worker import RankInfo
from . import ray
from ._roll.cluster import Cluster
from ._roll.config import (
    RouterReplayConfig,
    SequencePackingConfig,
    StrategyArguments,
    WorkerConfig,
)
from ._roll.merging import custom_np_concatenate
from ._roll.modes import (
    BIND_WORKER_METHOD_FLAG,
    collect_all_to_all,
    collect_all_to_one,
    collect_dp_mp_compute,
    dispatch_all_to_all,
    dispatch_dp_mp_compute,
    dispatch_dp_mp_dispatch_first,
    dispatch_one_to_all,
    register,
)
from ._roll.proto import DataProto, ObjectRefWrap, pad_dataproto_to_divisor, unpad_dataproto
from ._roll.resources import ResourceManager
from ._roll.worker import SharedStorage, Worker

__all__ = [
    "BIND_WORKER_METHOD_FLAG",
    "Cluster",
    "DataProto",
    "Dispatch",
    "Execute",
    "ObjectRefWrap",
    "RankInfo",
    "ResourceManager",
    "RouterReplayConfig",
    "SequencePackingConfig",
    "SharedStorage",
    "StrategyArguments",
    "Worker",
    "WorkerConfig",
    "collect_all_to_all",
    "collect_all_to_one",
    "collect_dp_mp_compute",
    "custom_np_concatenate",
    "dispatch_all_to_all",
    "dispatch_dp_mp_compute",
    "dispatch_dp_mp_dispatch_first",
    "dispatch_one_to_all",
    "pad_dataproto_to_divisor",
    "ray",
    "reduce_metrics",
    "register",
    "unpad_dataproto",
]
