"""The process of a worker: engines by name, HTTP on its first port, forks beside it.

`Host` is the worker class of every role. Calls of controllers come by Muster and
run on the main thread, in order. What comes by HTTP takes the same way: the
thread that has the request calls this very worker, so that there is one order
and one thread for engines.

The methods of a TrainEngine are collective: the data-parallel head gets the
arguments, and its model-parallel peers have them from it over the process group.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import muster

from ... import _context
from ..._programs import Program, end_with
from ..._runtime.classes import named
from . import _tensors, guard
from ._areal import INSTALLED, join_names, part, serialization, tensors
from ._http import Refusal, listen, refusing
from ._trees import leaves, plain
from .guard import GuardState, Identity


@dataclass
class Opening:
    """What a worker is told when it begins."""

    identity: Identity
    port_count: int = 2
    #: The environment of a fork's target, which it has and nothing else.
    env: dict[str, str] | None = None
    #: A server to run in the place of the engines.
    command: list[str] = field(default_factory=list)
    #: The process that this one ends with, where it is a fork's.
    target: int = 0
    #: Where its node is reached.
    address: str = ""


#: What a fork does not have from its target.
_OWN = ("CLUSTER_NAME", "WORKER_NAME")


class Host(muster.Worker):
    """A worker that hosts engines, or a command that is a server itself."""

    def __init__(self, worker_config: Any = None) -> None:
        super().__init__(worker_config)
        self.state = GuardState(host=self)
        self._self: Any = None
        self._is_warm = False

    # --- the beginning ---------------------------------------------------

    def open_worker(self, opening: Opening) -> list[int]:
        """Take one's place; returns the ports, which are this worker's alone."""
        if opening.env is not None:
            own = {name: os.environ[name] for name in _OWN if name in os.environ}
            os.environ.clear()
            os.environ.update(opening.env | own)
        self.state = GuardState(**vars(opening.identity), host=self)
        if opening.target:
            end_with(opening.target)
        if opening.command:
            ports = guard.find_free_ports(opening.port_count)
            first, *more = opening.command
            python = first == "python" or first.startswith("python3")
            words = [sys.executable if python else first, *more, *self.state.arguments(ports[0])]
            Program(words).lead()  # so that the exit code is the command's
            return ports
        self.serve(opening.address, 0)
        return [self.state.server_port, *guard.find_free_ports(opening.port_count - 1)]

    def serve(self, bind: str, port: int, named: str = "") -> None:
        """Serve AReaL's protocol over HTTP."""
        from ._blueprints import data_bp, engine_bp

        app = guard.create_app(self.state)
        app.register_blueprint(data_bp | engine_bp)
        self.state.server_host = named or bind
        self.state.server_port = listen(app, bind, port)

    def warm(self) -> None:
        """Import what engines and tensors need, which takes AReaL seconds, before the first of
        them. On the engines' thread alone: several that import it side by side would find each
        other's modules half made."""
        serialization()
        tensors()
        if _context.in_worker():
            _tensors.install()
        join_names(self.state)
        self._is_warm = True

    def ready(self) -> None:
        """Have that done, from any other thread."""
        if not self._is_warm:
            self.ask("warm")

    def ask(self, name: str, /, **given: Any) -> Any:
        """Call a method of this object on the thread of the engines, in order with the calls of
        controllers; from any other thread."""
        if self._self is None:
            self._self = muster.get_cluster(self.cluster_name).workers[self.rank]
        return self._self.call(name, **given)

    # --- engines: what controllers, and requests by HTTP, ask for ---------

    def do_create_engine(
        self, engine: str, engine_name: str, init_args: Any = (), init_kwargs: Any = None
    ) -> None:
        """Make an engine of a class that is imported here and now, after the environment is set."""
        if not self._is_warm:
            self.warm()
        if engine_name in self.engines():
            why = f"Engine '{engine_name}' already exists. Use a different name, or delete it first"
            raise Refusal(400, why)
        with refusing(f"Failed to import engine '{engine}'", 400):
            found = named(engine)
        if INSTALLED and not issubclass(
            found, (part("api").TrainEngine, part("api").InferenceEngine)
        ):
            raise Refusal(
                400,
                f"Engine class must be a subclass of TrainEngine or InferenceEngine, got {found}",
            )
        with refusing("Failed to instantiate engine"):
            self.create_engine(found, engine_name, *init_args, **(init_kwargs or {}))

    def do_call(
        self,
        method: str,
        engine_name: str,
        args: Any = (),
        kwargs: Any = None,
        rpc_meta: Any = None,
    ) -> Any:
        """Call an engine: what comes back refers to tensors that it returns."""
        if engine_name not in (names := list(self.engines())):
            raise Refusal(404, f"Engine '{engine_name}' not found. Available engines: {names}")
        engine = self.engine(engine_name)
        with refusing(f"Engine method '{method}' failed"):
            args, kwargs = tensors().RTensor.localize([args, kwargs or {}])
            result = call(engine, engine_name, method, args, kwargs, rpc_meta)
            # Only of a data-parallel head: nobody would ever fetch, nor let go of, its peers'.
            if (
                _has_tensors(result)
                and _runs_together(engine)
                and not engine.is_data_parallel_head()
            ):
                return None
            return plain(tensors().RTensor.remotize(result, node_addr=self.state.node_addr))

    def do_configure(self, seed: int, rank: int) -> None:
        """Seed what is random, differently for each worker."""
        part("utils.seeding").set_random_seed(seed, key=f"{self.state.role}{rank}")


def call(engine: Any, name: str, method: str, args: Any, kwargs: Any, rpc_meta: Any) -> Any:
    """Call a method of the engine of that name, with the arguments of the data-parallel head."""
    bound = getattr(engine, method, None)
    if bound is None:
        raise Refusal(400, f"Engine does not have method '{method}'")
    if wants_broadcast(engine, rpc_meta):
        args, kwargs = _broadcast(engine, args), _broadcast(engine, kwargs)
    if INSTALLED and _runs_together(engine) and _platform().device_type != "cpu":
        _platform().set_device(_platform().current_device())  # object collectives look for it
    with _traced(name, method):
        result = bound(*args, **kwargs)
        # A weight update is under way when its method returns; its end is what callers wait for.
        return result.result() if isinstance(result, Future) else result


def wants_broadcast(engine: Any, rpc_meta: Any) -> bool:
    """Whether the head's arguments go to its peers: so for engines that are initialised, unless
    rpc_meta says otherwise."""
    if not isinstance(rpc_meta, dict | None):
        raise ValueError(f"rpc_meta is {rpc_meta!r:.80}; it is a dict, or None")
    said = (rpc_meta or {}).get("broadcast", _runs_together(engine))
    if not isinstance(said, bool):
        raise ValueError(f"rpc_meta['broadcast'] is {said!r:.80}; it is True or False")
    return said


def _runs_together(engine: Any) -> bool:
    """Whether its methods run on all ranks of a data-parallel group at once."""
    return isinstance(engine, part("api").TrainEngine) and bool(engine.initialized)


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


def _platform() -> Any:
    return part("infra.platforms").current_platform


def _has_tensors(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))


#: What a method is about, by words of its name, as AReaL's server tells its tracer; the first counts.
_CATEGORIES = {
    "scheduler": "submit wait",
    "comm": "update_weights broadcast",
    "io": "save load",
    "compute": "train eval forward compute step update optimizer zero_grad lr_scheduler",
}


def _traced(name: str, method: str) -> AbstractContextManager[Any]:
    """A span of AReaL's tracer around a call."""
    if not INSTALLED:
        return nullcontext()
    kinds = [
        kind
        for kind, words in _CATEGORIES.items()
        for word in words.split()
        if word in method.lower()
    ]
    scope: AbstractContextManager[Any] = part("utils.perf_tracer").trace_scope(
        f"rpc.{method}", category=[*kinds, "misc"][0], args={"method": method, "engine": name}
    )
    return scope
