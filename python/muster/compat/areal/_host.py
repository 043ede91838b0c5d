"""The process of a worker: engines by name, HTTP on its first port, forks beside it.

`Host` is the worker class of every role. Calls of controllers come by Muster and
run on the main thread, in order. What comes by HTTP takes the same way: the
thread that has the request calls this very worker, so that there is one order
and one thread for engines.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import muster

from . import _engines, _json, _values, guard
from ._areal import INSTALLED, part
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
        atexit.register(self.close)
        if opening.target:
            _end_with(opening.target)
        if opening.command:
            ports = guard.find_free_ports(opening.port_count)
            self._run_command(opening.command, ports[0])
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
            _json.warm()
            mine = self.state
            join_names(mine.name_resolve_type, mine.nfs_record_root, mine.etcd3_addr)
            self.is_warm = True

    def _run_command(self, command: Sequence[str], port: int) -> None:
        words = list(command)
        if words[0] == "python" or words[0].startswith("python3"):
            words[0] = sys.executable
        child = subprocess.Popen(
            [*words, *self.state.arguments(port)],
            env=guard.child_environment(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # ended as a group, with what it started
        )
        atexit.register(guard.end, child)

        def follow() -> None:
            _leave_as(child.wait())  # so that the exit code is the command's

        threading.Thread(target=follow, name="command", daemon=True).start()

    def close(self) -> None:
        """End what was started beside the engines."""
        guard.cleanup_forked_children(self.state)

    # --- engines: what controllers, and requests by HTTP, ask for ---------

    def do_create_engine(
        self, engine: str, engine_name: str, init_args: list[Any], init_kwargs: dict[str, Any]
    ) -> None:
        """Make an engine of a class that is imported here and now, after the environment is set."""
        self.warm()
        if engine_name in self.engines():
            raise _engines.EngineExistsError(
                f"Engine '{engine_name}' already exists. Use a different name, or delete it first"
            )
        _engines.check_class(engine)
        args, kwargs = _values.unpack([init_args, init_kwargs])
        self.create_engine(engine, engine_name, *args, **kwargs)

    def do_call(
        self, method: str, engine_name: str, args: Any, kwargs: Any, rpc_meta: Any = None
    ) -> Any:
        """Call an engine: tensors that it returns stay here."""
        args, kwargs = _engines.localize(_values.unpack([args, kwargs]))
        engine = self.find_engine(engine_name)
        result = _engines.call(engine, method, args, kwargs, rpc_meta)
        return _values.pack(_engines.keep(engine, result, self.state.node_addr))

    def do_configure(self, seed: int, rank: int) -> None:
        """Take the experiment's seed."""
        _engines.seed(seed, f"{self.state.role}{rank}")

    def find_engine(self, name: str) -> Any:
        """The engine itself."""
        names = list(self.engines())
        if name not in names:
            raise _engines.UnknownEngineError(
                f"Engine '{name}' not found. Available engines: {names}"
            )
        return self.engine(name)

    def _ask(self, name: str, /, **given: Any) -> Any:
        """In order with the calls of controllers."""
        if self._self is None:
            self._self = muster.get_cluster(self.cluster_name).workers[self.rank]
        return self._self.call(name, **given)


def _end_with(pid: int) -> None:
    """Have this process end, in order, when another one does."""
    main = threading.main_thread().ident
    assert main is not None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        handle = -1  # it has ended already

    def follow() -> None:
        if handle >= 0:
            select.select([handle], [], [])
        while True:  # one that comes right before the main thread waits is not seen by it
            signal.pthread_kill(main, signal.SIGTERM)
            time.sleep(0.1)

    threading.Thread(target=follow, name="target", daemon=True).start()


def _leave_as(code: int) -> None:
    """End this process as another one ended: with its exit code, or by its signal."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        import ctypes

        if -code != signal.SIGKILL:
            ctypes.CDLL(None).signal(-code, 0)  # from any thread, which Python's own refuses
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def announce(mine: Identity, node_addr: str) -> None:
    """Tell AReaL's name service, of which this process is part, where a worker is."""
    if not (INSTALLED and mine.experiment_name and mine.trial_name):
        return
    who = (mine.experiment_name, mine.trial_name, mine.role, mine.worker_index)
    key = part("utils.names").worker_discovery(*who)
    part("utils.name_resolve").add(key, node_addr, replace=True)


def join_names(kind: str | None, nfs_record_root: str | None, etcd3_addr: str | None) -> None:
    """Have this process be part of AReaL's name service."""
    if not (INSTALLED and kind):
        return
    given = {"type": kind, "nfs_record_root": nfs_record_root, "etcd3_addr": etcd3_addr}
    config = {key: value for key, value in given.items() if value is not None}
    part("utils.name_resolve").reconfigure(part("api.cli_args").NameResolveConfig(**config))
