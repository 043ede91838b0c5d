"""Base classes, as AReaL has them."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

from .cli_args import SchedulingSpec, SchedulingStrategy


class TrainEngine:
    initialized = False


class InferenceEngine:
    pass


@dataclass
class Worker:
    id: str
    ip: str
    worker_ports: list[str] = field(default_factory=list)
    engine_ports: list[str] = field(default_factory=list)


@dataclass
class Job:
    role: str
    replicas: int = 0
    tasks: list[SchedulingSpec] = field(default_factory=list)
    scheduling_strategy: SchedulingStrategy = field(default_factory=SchedulingStrategy)


class Scheduler(abc.ABC):
    @property
    @abc.abstractmethod
    def n_gpus_per_node(self) -> int: ...

    @abc.abstractmethod
    def create_workers(self, job: Any, *args: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    async def create_engine(self, *args: Any, **kwargs: Any) -> Any: ...
