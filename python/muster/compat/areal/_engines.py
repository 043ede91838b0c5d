"""How an engine is made and called, on the one thread of its worker that does so.

The methods of a TrainEngine are collective: the data-parallel head gets the
arguments, and its model-parallel peers have them from it over the process group.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import _tensors
from ._areal import INSTALLED, part, tensors
from ._client import Refusal
from ._trees import leaves


def said(error: BaseException) -> str:
    """What was raised, without the remote traceback, which its cause has."""
    message = getattr(error, "message", None)
    return str(message if message is not None else error) or type(error).__name__


def refusal(error: Exception, what: str, asked: Mapping[str, Any]) -> Refusal:
    """What was raised where something was asked of a host, as a server tells it."""
    if isinstance(error, Refusal):
        return Refusal(error.status, error.reason)
    if what == "call":
        return Refusal(500, f"Engine method '{asked['method']}' failed: {said(error)}")
    if what == "create_engine" and getattr(error, "code", "") == "import":
        return Refusal(400, f"Failed to import engine '{asked['engine']}': {said(error)}")
    doing = "instantiate engine" if what == "create_engine" else what
    return Refusal(500, f"Failed to {doing}: {said(error)}")


def check_class(path: str) -> None:
    """Refuse what AReaL refuses: with it installed, engines are of its two kinds."""
    if not INSTALLED:
        return
    from ..._runtime.classes import named

    found, api = named(path), part("api")
    if not issubclass(found, (api.TrainEngine, api.InferenceEngine)):
        raise Refusal(
            400, f"Engine class must be a subclass of TrainEngine or InferenceEngine, got {found}"
        )


def is_train_engine(engine: Any) -> bool:
    """Whether its methods run on all ranks of a data-parallel group at once."""
    return isinstance(engine, part("api").TrainEngine)


def wants_broadcast(engine: Any, rpc_meta: Any) -> bool:
    """Whether the head's arguments go to its peers: so for engines that are initialised, unless
    rpc_meta says otherwise."""
    usual = is_train_engine(engine) and bool(engine.initialized)
    if rpc_meta is None:
        return usual
    if not isinstance(rpc_meta, dict):
        raise ValueError(f"rpc_meta is {rpc_meta!r:.80}; it is a dict, or None")
    said = rpc_meta.get("broadcast", usual)
    if not isinstance(said, bool):
        raise ValueError(f"rpc_meta['broadcast'] is {said!r:.80}; it is True or False")
    return said


def call(engine: Any, name: str, method: str, args: Any, kwargs: Any, rpc_meta: Any) -> Any:
    """Call a method of the engine of that name, with the arguments of the data-parallel head."""
    bound = getattr(engine, method, None)
    if bound is None:
        raise Refusal(400, f"Engine does not have method '{method}'")
    if wants_broadcast(engine, rpc_meta):
        args, kwargs = _broadcast(engine, args), _broadcast(engine, kwargs)
    _settle_device(engine)
    with _traced(name, method):
        result = bound(*args, **kwargs)
        # A weight update is under way when its method returns; its end is what callers wait for.
        return result.result() if isinstance(result, Future) else result


#: What a method is about, by words of its name, as AReaL's server tells its tracer; the first counts.
_CATEGORIES = {
    "scheduler": ("submit", "wait"),
    "comm": ("update_weights", "broadcast"),
    "io": ("save", "load"),
    "compute": (
        *("train", "eval", "forward", "compute", "step", "update"),
        *("optimizer", "zero_grad", "lr_scheduler"),
    ),
}


def _traced(name: str, method: str) -> AbstractContextManager[Any]:
    """A span of AReaL's tracer around a call."""
    if not INSTALLED:
        return nullcontext()
    lower = method.lower()
    fit = (kind for kind, words in _CATEGORIES.items() if any(word in lower for word in words))
    scope: AbstractContextManager[Any] = part("utils.perf_tracer").trace_scope(
        f"rpc.{method}", category=next(fit, "misc"), args={"method": method, "engine": name}
    )
    return scope


def _broadcast(engine: Any, value: Any) -> Any:
    head, group = engine.current_data_parallel_head(), engine.context_and_model_parallel_group
    if INSTALLED:
        data, device = part("utils.data"), _platform().current_device()
        placed = data.tensor_container_to(value, device)
        return data.broadcast_tensor_container(placed, src_rank=head, group=group)
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=head, group=group)
    return box[0]


def _settle_device(engine: Any) -> None:
    """Say anew which device is meant: object collectives look for it."""
    if not INSTALLED or not (is_train_engine(engine) and engine.initialized):
        return
    platform = _platform()
    if platform.device_type != "cpu":
        platform.set_device(platform.current_device())


def _platform() -> Any:
    return part("infra.platforms").current_platform


def localize(value: Any) -> Any:
    """Fetch the tensors that a value refers to."""
    return tensors().RTensor.localize(value)


def keep(engine: Any, result: Any, node_addr: str) -> Any:
    """A result that refers to its tensors, which are kept. Only those of a data-parallel head:
    nobody would ever fetch, nor let go of, those of its peers."""
    if _has_tensors(result) and _is_peer(engine):
        return None
    made = tensors().RTensor.remotize(result, node_addr=node_addr)
    if (near := _tensors.backend()) is not None:
        near.settle()
    return made


def _is_peer(engine: Any) -> bool:
    return is_train_engine(engine) and engine.initialized and not engine.is_data_parallel_head()


def _has_tensors(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))


def seed(number: int, key: str) -> None:
    """Seed what is random, differently for each worker."""
    part("utils.seeding").set_random_seed(number, key=key)
