"""Configuration, as AReaL has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass
class NameResolveConfig:
    type: str = "nfs"
    nfs_record_root: str = ""
    etcd3_addr: str = ""


class SchedulingStrategyType(str, Enum):
    separation = "separation"
    colocation = "colocation"


@dataclass
class SchedulingStrategy:
    type: str = "separation"
    target: str | None = None
    fork: bool = True


@dataclass
class SchedulingSpec:
    cpu: int = 8
    gpu: int = 0
    mem: int = 32
    port_count: int = 2
    env_vars: dict[str, str] = field(default_factory=dict)
    cmd: str | None = "python -m areal.infra.rpc.rpc_server"
    ray_placement_strategy: str = "shared"
