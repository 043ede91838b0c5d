"""The process of a worker: engines by name, HTTP on its first port, forks beside it.

`Host` is the worker class of every role. Calls of controllers come by Muster and
run on the main thread, in order. What comes by HTTP takes the same way: the
thread that has the request calls this very worker, so that there is one order
and one thread for engines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import muster

from ... import _context
from ..._programs import Program, end_with
from . import _engines, _tensors, guard
from ._areal import join_names, serialization, tensors
from ._client import Refusal
from ._trees import plain
from .guard import GuardState, Identity


@dataclass
class Opening:
    """What a worker is told when it begins."""

    identity: Identity
    address: str
    port_count: int = 2
    #: The environment of a fork's target, which it has and nothing else.
    env: dict[str, str] | None = None
    #: A server to run in the place of the engines.
    command: list[str] = field(default_factory=list)
    #: The process that this one ends with, where it is a fork's.
    target: int = 0


#: What a fork does not have from its target.
_OWN = ("CLUSTER_NAME", "WORKER_NAME")


class Host(muster.Worker):
    """A worker that hosts engines, or a command that is a server itself."""

    def __init__(self, worker_config: Any = None) -> None:
        super().__init__(worker_config)
        self.state = GuardState(host=self)
        #: Calls a method of this object on the thread of the engines; from any other thread.
        self.ask: Callable[..., Any] = self._ask
        self._self: Any = None
        self.is_warm = False

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
            named = first == "python" or first.startswith("python3")
            words = [sys.executable if named else first, *more, *self.state.arguments(ports[0])]
            Program(words).lead()  # so that the exit code is the command's
            return ports
        self.serve(opening.address, 0)
        return [self.state.server_port, *guard.find_free_ports(opening.port_count - 1)]

    def serve(self, bind: str, port: int, named: str = "") -> None:
        """Serve AReaL's protocol over HTTP."""
        from ._blueprints import data_bp, engine_bp

        app = guard.create_app(self.state)
        app.register_blueprint(data_bp)
        app.register_blueprint(engine_bp)
        self.state.server_host = named or bind
        self.state.server_port = guard.listen(app, bind, port)

    def warm(self) -> None:
        """Import what engines and tensors need, which takes AReaL seconds, before the first of
        them. On the engines' thread alone: several that import it side by side would find each
        other's modules half made."""
        if not self.is_warm:
            serialization()
            tensors()
            if _context.in_worker():
                _tensors.install(self.state.node_addr)
            join_names(self.state)
            self.is_warm = True

    # --- engines: what controllers, and requests by HTTP, ask for ---------

    def do_create_engine(
        self, engine: str, engine_name: str, init_args: list[Any], init_kwargs: dict[str, Any]
    ) -> None:
        """Make an engine of a class that is imported here and now, after the environment is set."""
        self.warm()
        if engine_name in self.engines():
            why = f"Engine '{engine_name}' already exists. Use a different name, or delete it first"
            raise Refusal(400, why)
        _engines.check_class(engine)
        self.create_engine(engine, engine_name, *init_args, **init_kwargs)

    def do_call(
        self, method: str, engine_name: str, args: Any, kwargs: Any, rpc_meta: Any = None
    ) -> Any:
        """Call an engine: what comes back refers to tensors that it returns."""
        args, kwargs = _engines.localize([args, kwargs])
        if engine_name not in (names := list(self.engines())):
            raise Refusal(404, f"Engine '{engine_name}' not found. Available engines: {names}")
        engine = self.engine(engine_name)
        result = _engines.call(engine, engine_name, method, args, kwargs, rpc_meta)
        return plain(_engines.keep(engine, result, self.state.node_addr))

    def do_configure(self, seed: int, rank: int) -> None:
        """Take the experiment's seed."""
        _engines.seed(seed, f"{self.state.role}{rank}")

    def _ask(self, name: str, /, **given: Any) -> Any:
        """In order with the calls of controllers."""
        if self._self is None:
            self._self = muster.get_cluster(self.cluster_name).workers[self.rank]
        return self._self.call(name, **given)
