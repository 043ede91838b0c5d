"""ROLL's configurations of roles: sizes, defaults, mappings, and how they are made of YAML."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

import muster
from muster.compat import roll


def test_world_size_by_mapping() -> None:
    config = roll.WorkerConfig(
        name="actor", device_mapping="list(range(0,8))", num_gpus_per_worker=2
    )
    assert config.device_mapping == list(range(8)) and config.world_size == 4
    cpu = roll.WorkerConfig(name="reward", world_size=3)
    assert cpu.num_gpus_per_worker == 0 and cpu.device_mapping is None
    assert cpu.resource_placement_groups is None and cpu.checkpoint_config is None
    with pytest.raises(AssertionError, match="num_gpus_per_worker=2 does not divide"):
        roll.WorkerConfig(device_mapping="[0,1,2]", num_gpus_per_worker=2)


def test_world_size_by_strategy() -> None:
    vllm = roll.StrategyArguments("vllm", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2})
    config = roll.WorkerConfig(device_mapping="0-7", strategy_args=vllm)
    assert config.num_gpus_per_worker == 4 and config.world_size == 2
    train = roll.StrategyArguments("megatron_train", {"tensor_model_parallel_size": 2})
    config = roll.WorkerConfig(device_mapping="0-3", strategy_args=train, num_gpus_per_worker=2)
    assert config.num_gpus_per_worker == 1 and config.world_size == 4
    assert config.shape()["tp"] == 0  # until the workers say so
    assert roll.StrategyArguments(strategy_config=None).strategy_config == {}


def test_what_the_head_is_told() -> None:
    spec = roll.WorkerConfig(world_size=2, system_envs={"A": "1"}).to_spec("c")
    assert spec["world"] == 2 and spec["env"] == {"A": "1"} and spec["max_concurrency"] == 0
    assert roll.WorkerConfig(world_size=1, max_concurrency=4).to_spec("c")["max_concurrency"] == 4


def test_arguments_that_nobody_gave() -> None:
    config = roll.WorkerConfig(world_size=1)
    assert config.model_args.model_name_or_path is None and not config.is_configured
    config.model_args.model_name_or_path = "x"
    assert config.model_args.model_name_or_path == "x"


def test_fields_without_names_come_in_the_order_of_roll() -> None:
    config = roll.WorkerConfig("actor_train", "pkg.Actor", None)
    assert (config.name, config.worker_cls, config.world_size) == ("actor_train", "pkg.Actor", None)
    names = [entry.name for entry in fields(roll.WorkerConfig)]
    assert names[:11] == [
        *("name", "worker_cls", "pg_variant", "model_args", "training_args", "data_args"),
        *("generating_args", "strategy_args", "world_size", "device_mapping"),
        "num_gpus_per_worker",
    ]
    assert set(names) > {entry.name for entry in fields(muster.WorkerConfig)}


def test_sequences_are_packed_where_they_can_be() -> None:
    def packs(strategy: str | None = None, **given: Any) -> bool:
        args = None if strategy is None else roll.StrategyArguments(strategy)
        return roll.WorkerConfig(world_size=1, strategy_args=args, **given).use_sequence_packing

    assert packs() and packs("megatron_train") and packs("megatron_infer")
    assert not packs("fsdp2_train") and not packs("vllm")
    assert not packs("megatron_train", use_dynamic_batching_in_train=True)
    assert not packs(use_dynamic_batching_in_infer=True)
    assert not packs(use_sequence_packing=False)


def test_lengths_of_packed_sequences() -> None:
    config = roll.WorkerConfig(world_size=1, infer_batch_size=4)
    packing = config.sequence_packing_args
    assert packing == roll.SequencePackingConfig("load_balance", None, None, 1, 1)
    config.training_args.per_device_train_batch_size = 2
    config._auto_fill_packing_lengths(10)
    lengths = packing.max_packed_sequence_length_forward, packing.max_packed_sequence_length_train
    assert lengths == (40, 20)
    config._auto_fill_packing_lengths(100)  # they are given now
    assert packing.max_packed_sequence_length_train == 20
    other = roll.WorkerConfig(world_size=1)
    other._auto_fill_packing_lengths(10)
    assert other.sequence_packing_args.max_packed_sequence_length_train == 80
    off = roll.WorkerConfig(world_size=1, use_sequence_packing=False)
    off._auto_fill_packing_lengths(10)
    assert off.sequence_packing_args == roll.SequencePackingConfig()


def test_router_replay() -> None:
    assert roll.WorkerConfig(world_size=1).router_replay.mode == "disable"


# --- made of YAML ------------------------------------------------------------------------------


@dataclass
class PipelineConfig:
    """As pipelines declare theirs, and have dacite make it of a file."""

    actor_train: roll.WorkerConfig = field(default_factory=roll.WorkerConfig)


ROLE = {
    "device_mapping": "list(range(0,2))",
    "model_args": {"dtype": "bf16", "model_name_or_path": "m"},
    "training_args": {"learning_rate": 1.0e-6},
    "generating_args": {"max_new_tokens": 8},
    "strategy_args": {
        "strategy_name": "megatron_train",
        "strategy_config": {"tensor_model_parallel_size": 1},
    },
    "system_envs": {"A": 1, "B": "2"},
    "router_replay": {"mode": "R2"},
    "sequence_packing_args": {"algorithm": "none"},
}


@pytest.mark.parametrize("config", [muster.WorkerConfig, roll.WorkerConfig])
def test_types_of_fields_can_be_looked_up(config: type) -> None:
    assert typing.get_type_hints(config)["world_size"] == int | None


def test_the_type_of_strategy_args() -> None:
    hint = typing.get_type_hints(roll.WorkerConfig)["strategy_args"]
    assert hint == roll.StrategyArguments | None


def test_a_pipeline_of_yaml() -> None:
    dacite = pytest.importorskip("dacite")
    made = dacite.from_dict(PipelineConfig, {"actor_train": ROLE}).actor_train
    assert isinstance(made.strategy_args, roll.StrategyArguments)
    assert made.strategy_args.strategy_name == "megatron_train"
    assert made.router_replay.mode == "R2" and made.sequence_packing_args.algorithm == "none"
    assert made.world_size == 2 and made.to_spec("c")["env"] == {"A": "1", "B": "2"}
    assert made.model_args.model_name_or_path == "m" and made.training_args.bf16


def test_dicts_stand_for_arguments() -> None:
    made = roll.WorkerConfig(
        world_size=1,
        model_args={"dtype": "bf16", "model_name_or_path": "m"},
        generating_args={"max_new_tokens": 8},
    )
    assert made.model_args.model_name_or_path == "m" and made.training_args.bf16
    assert made.generating_args.max_new_tokens == 8 and made.generating_args.top_p is None
    assert made.generating_args.to_dict() == {"max_new_tokens": 8}
    assert made.data_args is None
