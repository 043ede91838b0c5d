"""WorkerConfig: what is checked here, and what the head is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from muster import WorkerConfig, _values
from muster._cluster import encode_config
from muster._config import as_worker_config


def test_what_is_not_given_is_left_to_the_head() -> None:
    spec = WorkerConfig().to_spec("c")
    assert (spec["world"], spec["devices_per_worker"], spec["has_mapping"]) == (0, 0, False)
    assert spec["shape"] == {"dp": 0, "tp": 0, "pp": 0, "cp": 0, "ep": 0}
    assert (spec["start"], spec["pickle"], spec["startup_timeout"]) == ("fork", "on", 0.0)


@pytest.mark.parametrize(
    ("mapping", "text", "listed"),
    [
        ("0-7,16-23", "0-7,16-23", []),
        ([3, 1], "", [3, 1]),
        (range(2), "", [0, 1]),
        ((5,), "", [5]),
        ([], "", []),
    ],
)
def test_mappings(mapping: Any, text: str, listed: list[int]) -> None:
    spec = WorkerConfig(device_mapping=mapping).to_spec("c")
    assert (spec["has_mapping"], spec["mapping_text"], spec["mapping"]) == (True, text, listed)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"world_size": "8"}, TypeError, "world_size is '8'; it must be a whole number"),
        ({"world_size": 0}, ValueError, "world_size is 0"),
        ({"tp": 2.5}, TypeError, "tp is 2.5"),
        ({"tp": -1}, ValueError, "tp is -1"),
        ({"device_mapping": 8}, TypeError, "device_mapping is 8"),
        ({"device_mapping": ["0"]}, TypeError, "an id in device_mapping is '0'"),
        ({"env": {"A": None}}, TypeError, r"env\['A'\] is None"),
        ({"env": ["A=1"]}, TypeError, "env is a dict"),
        ({"start": 1}, TypeError, "start is 1"),
        ({"grace": "soon"}, TypeError, "grace is 'soon'; it is a number of seconds"),
    ],
)
def test_wrong_types_are_told(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        WorkerConfig(**arguments).to_spec("c")


def test_sizes_come_from_strategy_args_where_not_given() -> None:
    megatron = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2}
    for args in (
        megatron,
        {"strategy_config": megatron},
        SimpleNamespace(strategy_config=megatron),
    ):
        shape = WorkerConfig(strategy_args=args).shape()
        assert (shape["tp"], shape["pp"], shape["cp"]) == (4, 2, 0)
    assert WorkerConfig(tp=4, strategy_args=megatron).shape()["tp"] == 4
    with pytest.raises(ValueError, match=r"tp=2, but strategy_args says tensor_model_par.*=4"):
        WorkerConfig(tp=2, strategy_args=megatron).shape()


def test_an_engines_own_tensor_parallelism_is_no_matter_of_ranks() -> None:
    engine = {"tensor_parallel_size": 2}
    assert WorkerConfig(strategy_args=engine).shape()["tp"] == 2
    assert WorkerConfig(num_gpus_per_worker=2, strategy_args=engine).shape()["tp"] == 0


def test_env_goes_by_two_names() -> None:
    config = WorkerConfig(env={"A": "1", "B": "x"}, system_envs={"C": "3", "A": "1"})
    assert config.environment() == {"A": "1", "B": "x", "C": "3"}
    assert WorkerConfig(env={"N": 4}).environment() == {"N": "4"}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"env says A='1', system_envs .* says '2'"):
        WorkerConfig(env={"A": "1"}, system_envs={"A": "2"}).environment()


@dataclass
class Wider(WorkerConfig):
    model: str = "tiny"
    extra: dict[str, Any] = field(default_factory=dict)


def test_a_subclass_reaches_the_worker_as_it_is() -> None:
    config = Wider(world_size=2, model="large", extra={"k": (1, 2)})
    assert _values.decode(*encode_config(config, "c")) == config


def test_a_configuration_with_arrays_travels_with_them() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy: it is optional")
    config = Wider(world_size=1, extra={"weights": numpy.arange(5)})
    assert _values.decode(*encode_config(config, "c")).extra["weights"].tolist() == [0, 1, 2, 3, 4]


def test_a_dict_or_nothing_will_do() -> None:
    assert as_worker_config({"world_size": 3}) == WorkerConfig(world_size=3)
    assert as_worker_config(None).world_size == 1
    with pytest.raises(TypeError, match="WorkerConfig has no field wordl_size"):
        as_worker_config({"wordl_size": 3})
    with pytest.raises(TypeError, match="not int"):
        as_worker_config(3)
