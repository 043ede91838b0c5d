"""A role's configuration as ROLL writes it, in terms of Muster's own.

Pipelines subclass it and read its fields; the head gets what Muster's
`WorkerConfig` makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ..._config import WorkerConfig as Native
from ..._config import device_ids


@dataclass
class StrategyArguments:
    """Which strategy a role uses, and its settings."""

    strategy_name: str = "fsdp2_train"
    strategy_config: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy_config is None:  # as YAML says nothing
            self.strategy_config = {}


class Arguments(SimpleNamespace):
    """What stands for arguments of models and training where a pipeline has no class for them.

    Any attribute can be set; one that was not is None.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def to_dict(self) -> dict[str, Any]:
        """What was set, by name."""
        return dict(vars(self))


#: Strategies that say by their settings how many GPUs a worker has.
_BY_SETTINGS = ("vllm", "vllm_omni")
#: Strategies whose workers may have several GPUs each.
_SEVERAL_GPUS = ("hf_infer", "sglang", *_BY_SETTINGS)
#: Rows of a training step on one device, where a pipeline does not say.
_TRAIN_ROWS = 8


@dataclass
class SequencePackingConfig:
    """How sequences are packed into one. Lengths that are None follow from the batch sizes."""

    algorithm: str = "load_balance"
    max_packed_sequence_length_forward: int | None = None
    max_packed_sequence_length_train: int | None = None
    min_num_micro_batches_forward: int = 1
    min_num_micro_batches_train: int = 1


@dataclass
class RouterReplayConfig:
    """Whether the routing of experts is replayed in training: "disable", "R2" or "R3"."""

    mode: str = "disable"


@dataclass
class _Fields:
    """The fields that ROLL has, in its order: it counts where they are given without names."""

    name: str | None = None
    worker_cls: Any = None
    pg_variant: str | None = None
    model_args: Any = field(default_factory=Arguments)
    training_args: Any = field(default_factory=Arguments)
    data_args: Any = None
    generating_args: Any = None
    strategy_args: StrategyArguments | None = None
    world_size: int | None = None
    device_mapping: str | Sequence[int] | None = None
    num_gpus_per_worker: int | None = 1
    model_update_frequency: int = 1
    infer_batch_size: int = 16
    backend_timeout: int = 30
    system_envs: dict[str, Any] = field(default_factory=dict)
    topr_positive_weight: float = 1.0
    topr_negative_weight: float = 1.0
    max_concurrency: int | None = 1
    use_dynamic_batching_in_train: bool = False
    max_tokens_per_microbatch_in_train: int = 0
    sequence_length_round_in_train: int = 4
    use_dynamic_batching_in_infer: bool = False
    max_tokens_per_microbatch_in_infer: int | None = None
    sequence_length_round_in_infer: int = 4
    offload_nccl: bool = False
    use_sequence_packing: bool = True
    sequence_packing_args: SequencePackingConfig = field(default_factory=SequencePackingConfig)
    logits_in_fp32: bool = False
    use_logits_chunking: bool = False
    logits_chunk_size: int = 2048
    router_replay: RouterReplayConfig = field(default_factory=RouterReplayConfig)
    apply_loss_scale: bool = True
    mtp_training_mode: str | None = "disabled"
    opd_kl_coef: float | None = None
    tag_included: list[str] = field(default_factory=list)


@dataclass
class WorkerConfig(Native, _Fields):
    """How many workers a role has, on which devices, and what they are told.

    The fields are ROLL's, and after them all of `muster.WorkerConfig`'s (``python``,
    ``preload``, ``on_failure``, ...). ``device_mapping`` is a list, or text that
    names one; it decides ``world_size``.
    """

    # Both have these: they are ROLL's.
    strategy_args: StrategyArguments | None = None
    num_gpus_per_worker: int | None = 1
    max_concurrency: int | None = 1
    system_envs: dict[str, Any] = field(default_factory=dict)  # as YAML has them
    rank_env: bool = True  # ROLL's system_envs come last
    span_nodes: bool = True  # and its workers may have devices of several nodes

    def __post_init__(self) -> None:
        for name in ("model_args", "training_args", "data_args", "generating_args"):
            if isinstance(getattr(self, name), Mapping):  # of a YAML file
                setattr(self, name, Arguments(**getattr(self, name)))
        if self.use_dynamic_batching_in_train or self.use_dynamic_batching_in_infer:
            self.use_sequence_packing = False  # it is one or the other
        self._size_by_strategy()
        if self.device_mapping is None:
            self.num_gpus_per_worker = 0
        else:
            self.device_mapping = device_ids(self.device_mapping)
            entries, each = len(self.device_mapping), self.num_gpus_per_worker or 1
            assert entries % each == 0, (
                f"device_mapping has {entries} entries, which num_gpus_per_worker={each} does not "
                "divide"
            )
            self.world_size = entries // each
        #: In a worker: its own places, as `ResourceManager.allocate_placement_group` has them.
        self.resource_placement_groups: list[dict[str, Any]] | None = None
        self.checkpoint_config: dict[str, Any] | None = None
        model = getattr(self.model_args, "model_name_or_path", None)
        self.is_configured = bool(self.device_mapping) or model is not None
        dtype = getattr(self.model_args, "dtype", None)
        if dtype in ("bf16", "fp16"):
            setattr(self.training_args, dtype, True)

    def _size_by_strategy(self) -> None:
        given: Any = self.strategy_args
        args = StrategyArguments(**given) if isinstance(given, Mapping) else given
        self.strategy_args = args
        if args is None:
            return
        name, sizes = args.strategy_name, args.strategy_config or {}
        if self.offload_nccl and name in _BY_SETTINGS:
            raise ValueError(f"offload_nccl is not for {name}: leave it out")
        if "megatron" not in name:  # no other strategy packs
            self.use_sequence_packing = False
        if name not in _SEVERAL_GPUS and (self.num_gpus_per_worker or 1) > 1:
            self.num_gpus_per_worker = 1
        if name in _BY_SETTINGS:
            within = ("tensor_parallel_size", "pipeline_parallel_size")
            self.num_gpus_per_worker = math.prod(int(sizes.get(size, 1)) for size in within)

    def _auto_fill_packing_lengths(self, sequence_length: int) -> None:
        """Fill in the lengths of packed sequences that nobody gave: ROLL's pipelines call it."""
        if not self.use_sequence_packing:
            return
        each = getattr(self.training_args, "per_device_train_batch_size", None)
        trained = _TRAIN_ROWS if each is None else each
        for stage, rows in (("forward", self.infer_batch_size), ("train", trained)):
            name = f"max_packed_sequence_length_{stage}"
            if getattr(self.sequence_packing_args, name) is None:
                setattr(self.sequence_packing_args, name, sequence_length * rows)

    # --- for the head ----------------------------------------------------------------------

    def shape(self) -> dict[str, int]:
        """Ranks are data parallel, until the workers say otherwise by ``rank_info``: what
        strategy_args has is for the strategy."""
        return {"dp": 0, **{axis: getattr(self, axis) or 0 for axis in ("tp", "pp", "cp", "ep")}}

    def to_spec(self, name: str) -> dict[str, Any]:
        """The cluster's description for the head."""
        spec = super().to_spec(name)
        if (self.max_concurrency or 1) <= 1:  # of a class with async methods that is the default
            spec["max_concurrency"] = 0
        return spec
