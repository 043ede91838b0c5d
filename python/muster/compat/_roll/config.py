"""A role's configuration as ROLL writes it, in terms of Muster's own.

Pipelines subclass it and read its fields; the head gets what Muster's
`WorkerConfig` makes of them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._config import WorkerConfig as Native


@dataclass
class StrategyArguments:
    """Which strategy a role uses, and its settings."""

    strategy_name: str = "fsdp2_train"
    strategy_config: dict[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy_config is None:  # as YAML says nothing
            self.strategy_config = {}


@dataclass
class Arguments:
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


def _as_arguments(given: Any) -> Any:
    """Arguments, where a dict of a YAML file stands for them; what has a class stays."""
    if not isinstance(given, Mapping):
        return given
    made = Arguments()
    vars(made).update(given)
    return made


#: Strategies that say by their settings how many GPUs a worker has.
_BY_SETTINGS = ("vllm", "vllm_omni")
#: Strategies whose workers may have several GPUs each.
_SEVERAL_GPUS = ("hf_infer", "sglang", *_BY_SETTINGS)


@dataclass
class WorkerConfig(Native):
    """How many workers a role has, on which devices, and what they are told.

    The fields are ROLL's, and beside them all of `muster.WorkerConfig`'s (``python``,
    ``preload``, ``on_failure``, ...). ``device_mapping`` is a list, or text that
    names one; it decides ``world_size``.
    """

    name: str | None = None
    worker_cls: Any = None
    pg_variant: str | None = None
    model_args: Any = field(default_factory=Arguments)
    training_args: Any = field(default_factory=Arguments)
    data_args: Any = None
    generating_args: Any = None
    strategy_args: StrategyArguments | None = None
    system_envs: dict[str, Any] = field(default_factory=dict)  # as YAML has them
    num_gpus_per_worker: int | None = 1
    model_update_frequency: int = 1
    infer_batch_size: int = 16
    backend_timeout: int = 30
    max_concurrency: int | None = 1
    topr_positive_weight: float = 1.0
    topr_negative_weight: float = 1.0
    use_dynamic_batching_in_train: bool = False
    max_tokens_per_microbatch_in_train: int = 0
    sequence_length_round_in_train: int = 4
    use_dynamic_batching_in_infer: bool = False
    max_tokens_per_microbatch_in_infer: int | None = None
    sequence_length_round_in_infer: int = 4
    offload_nccl: bool = False
    use_sequence_packing: bool = False
    sequence_packing_args: Any = None
    logits_in_fp32: bool = False
    use_logits_chunking: bool = False
    logits_chunk_size: int = 2048
    router_replay: Any = None
    apply_loss_scale: bool = True
    mtp_training_mode: str | None = "disabled"
    opd_kl_coef: float | None = None
    tag_included: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("model_args", "training_args", "data_args", "generating_args"):
            setattr(self, name, _as_arguments(getattr(self, name)))
        self._size_by_strategy()
        if self.device_mapping is None:
            self.num_gpus_per_worker = 0
        else:
            self.device_mapping = parse_mapping(self.device_mapping)
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
        args = self.strategy_args
        if args is None:
            return
        name, sizes = _strategy_of(args)
        if self.offload_nccl and name in _BY_SETTINGS:
            raise ValueError(f"offload_nccl is not for {name}: leave it out")
        if name not in _SEVERAL_GPUS and (self.num_gpus_per_worker or 1) > 1:
            self.num_gpus_per_worker = 1
        if name in _BY_SETTINGS:
            tensor, pipeline = (sizes.get(f"{axis}_parallel_size", 1) for axis in _WITHIN)
            self.num_gpus_per_worker = int(tensor) * int(pipeline)

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
        spec["rank_env"] = True  # ROLL's system_envs come last
        spec["span_nodes"] = True  # and its workers may have devices of several nodes
        return spec


_WITHIN = ("tensor", "pipeline")


def _strategy_of(args: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(args, Mapping):
        return str(args.get("strategy_name", "")), args.get("strategy_config") or {}
    return str(getattr(args, "strategy_name", "")), getattr(args, "strategy_config", None) or {}


# --- device_mapping as text ------------------------------------------------------------------


def parse_mapping(mapping: Any) -> list[int]:
    """The ids that a device_mapping names.

    ROLL evaluates its text as Python. Here the forms that name lists are read, and
    nothing is run: ``list(range(0, 8))``, ``[0, 1] + [4, 5]``, ``0-7,16-23``.
    """
    if not isinstance(mapping, str):
        return _ids(mapping, mapping)
    try:
        return _ids(_spanned(ast.parse(mapping.strip(), mode="eval").body), mapping)
    except (SyntaxError, ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(
            f"device_mapping={mapping!r} names no list of ids ({error}): write "
            "'list(range(0, 8))', '[0, 1, 2]', '0-7,16-23', or a sum of lists"
        ) from None


def _spanned(node: ast.expr) -> list[Any]:
    """Spans and single ids with commas between them, or one list."""
    match node:
        case ast.Tuple(elts=items):
            return [at for item in items for at in _spanned(item)]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            first, last = _value(left), _value(right)
            return list(range(first, last + 1))
    found = _value(node)
    return found if isinstance(found, list) else [found]


_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _value(node: ast.expr) -> Any:
    """What an expression of ints, lists and ranges stands for."""
    match node:
        case ast.Constant(value=number) if type(number) is int:
            return number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return -_value(one)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SUMS:
            return _SUMS[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return list(range(*map(_value, args)))
        case ast.Call(func=ast.Name(id="list"), args=[one], keywords=[]):
            return list(_value(one))
    raise ValueError(f"{ast.unparse(node)!r} is not understood")


def _ids(value: Any, mapping: Any) -> list[int]:
    several = list(value) if hasattr(value, "__iter__") else [value]
    for at in several:
        if isinstance(at, (bool, str)) or not hasattr(at, "__index__") or at < 0:
            raise ValueError(f"device_mapping={mapping!r}: {at!r} is no id, a whole number from 0")
    return [int(at) for at in several]
