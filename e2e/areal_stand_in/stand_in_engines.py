"""Engines of the two kinds that AReaL has, and one of none."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

_api: Any = import_module("areal.api")  # found where the stand-in is on the path
TrainEngine: type = _api.TrainEngine
InferenceEngine: type = _api.InferenceEngine
current_platform: Any = import_module("areal.infra.platforms").current_platform


class Trainer(TrainEngine):  # type: ignore[misc]
    context_and_model_parallel_group = "mp"

    def initialize(self) -> None:
        self.initialized = True

    def current_data_parallel_head(self) -> int:
        return 4

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs]

    def device(self) -> str:
        return str(current_platform.current_device())


class Inference(InferenceEngine):  # type: ignore[misc]
    def env(self, *names: str) -> Any:
        return [os.environ.get(name) for name in names]

    def where(self) -> str:
        return "where"

    def wait_for(self) -> None: ...

    def spans(self) -> Any:
        return import_module("areal.utils.perf_tracer").SPANS


class Neither:
    pass
