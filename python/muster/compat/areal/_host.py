"""The process of a worker: engines by name, HTTP on its first port, forks beside it.

`Host` is the worker class of every role. Calls of controllers come by Muster and
run on the main thread, in order. What comes by HTTP takes the same way: the
thread that has the request calls this very worker, so that there is one order
and one thread for engines.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import muster

from . import _engines, _json, _values
from ._areal import INSTALLED
from ._children import Child, Children, Logs, leave_as


@dataclass
class Identity:
    """Which worker of which experiment this is, and where its files are."""

    role: str
    index: int
    experiment_name: str | None = None
    trial_name: str | None = None
    name_resolve_type: str | None = None
    nfs_record_root: str | None = None
    etcd3_addr: str | None = None
    fileroot: str | None = None
    log_dir: str | None = None

    def arguments(self, port: int) -> list[str]:
        """What a command is told: AReaL's servers all take these."""
        pairs = {
            "--port": port,
            "--experiment-name": self.experiment_name,
            "--trial-name": self.trial_name,
            "--role": self.role,
            "--worker-index": self.index,
            "--name-resolve-type": self.name_resolve_type,
            "--nfs-record-root": self.nfs_record_root,
            "--etcd3-addr": self.etcd3_addr,
            "--fileroot": self.fileroot,
        }
        return [str(word) for pair in pairs.items() if pair[1] is not None for word in pair]


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
        self.identity = Identity("", 0)
        self.node_addr = ""
        self.address = "127.0.0.1"
        self.children = Children()
        self._server: Any = None
        self._jobs: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        self._self: Any = None
        self.is_warm = False

    # --- the beginning ---------------------------------------------------

    def open_worker(self, opening: Opening) -> list[int]:
        """Take one's place; returns the ports, which are this worker's alone."""
        if opening.env is not None:
            own = {name: os.environ[name] for name in _OWN if name in os.environ}
            os.environ.clear()
            os.environ.update(opening.env | own)
        self.identity, self.address = opening.identity, opening.address
        atexit.register(self.close)
        if opening.target:
            _end_with(opening.target)
        if opening.command:
            ports = muster.hold_ports(opening.port_count)
            self._run_command(opening.command, ports[0])
            return ports
        port = self.serve(opening.address, 0, self.on_engine_thread)
        return [port, *muster.hold_ports(opening.port_count - 1)]

    def serve(
        self, bind: str, port: int, run: Callable[[Callable[[], Any]], Any], named: str = ""
    ) -> int:
        """Serve AReaL's protocol over HTTP; returns the port."""
        from ._client import join
        from ._http import Server

        self._server = Server(self, bind, port, run)
        self.address = named or bind
        self.node_addr = join(self.address, self._server.port)
        self._server.start()
        return int(self._server.port)

    def warm(self) -> None:
        """Import what engines and tensors need, which takes AReaL seconds, before the first of
        them. On the engines' thread alone: several that import it side by side would find each
        other's modules half made."""
        if not self.is_warm:
            _json.warm()
            mine = self.identity
            join_names(mine.name_resolve_type, mine.nfs_record_root, mine.etcd3_addr)
            self.is_warm = True

    def _run_command(self, command: Sequence[str], port: int) -> None:
        words = list(command)
        if words[0] == "python" or words[0].startswith("python3"):
            words[0] = sys.executable
        child = Child([*words, *self.identity.arguments(port)], child_environment())
        atexit.register(child.end)

        def follow() -> None:
            leave_as(child.process.wait())  # so that the exit code is the command's

        threading.Thread(target=follow, name="command", daemon=True).start()

    def close(self) -> None:
        """End what was started beside the engines."""
        self.children.end_all()

    # --- engines ---------------------------------------------------------

    def make_engine(self, path: str, name: str, args: Sequence[Any], kwargs: Any) -> None:
        """Make an engine of a class that is imported here and now, after the environment is set."""
        self.warm()
        if name in self.engines():
            raise _engines.EngineExistsError(
                f"Engine '{name}' already exists. Use a different name, or delete it first"
            )
        _engines.check_class(path)
        self.create_engine(path, name, *_values.unpack(list(args)), **_values.unpack(kwargs))

    def run_engine(self, name: str, method: str, args: Any, kwargs: Any, rpc_meta: Any) -> Any:
        """Call an engine for a controller: tensors that it returns stay here."""
        args, kwargs = _engines.localize(_values.unpack([list(args), kwargs]))
        result = _engines.call(self.find_engine(name), method, args, kwargs, rpc_meta)
        return _values.pack(_engines.remotize(result, self.node_addr))

    def find_engine(self, name: str) -> Any:
        """The engine itself."""
        names = list(self.engines())
        if name not in names:
            raise _engines.UnknownEngineError(
                f"Engine '{name}' not found. Available engines: {names}"
            )
        return self.engine(name)

    def configure(self, seed: int, rank: int) -> None:
        """Take the experiment's seed."""
        _engines.seed(seed, f"{self.identity.role}{rank}")

    # --- what comes by HTTP ----------------------------------------------

    def on_engine_thread(self, work: Callable[[], Any]) -> Any:
        """Run something in order with the calls of controllers; from any other thread."""
        if self._self is None:
            self._self = muster.get_cluster(self.cluster_name).workers[self.rank]
        number = next(self._numbers)
        done: list[Any] = []
        failed: list[BaseException] = []

        def job() -> None:
            try:
                done.append(work())
            except BaseException as error:
                failed.append(error)
                raise

        self._jobs[number] = job
        try:
            self._self.call("run_job", number)
        except Exception:
            if failed:
                raise failed[0] from None
            raise
        finally:
            self._jobs.pop(number, None)
        return done[0]

    def run_job(self, number: int) -> None:
        """Run what a thread of this process left for the main one."""
        self._jobs[number]()

    # --- forks -----------------------------------------------------------

    def fork_process(
        self, role: str, index: int, command: Sequence[str], env: Mapping[str, str]
    ) -> int:
        """Start a process with this one's environment; its pid."""
        logs = Logs(self.log_dir(), role)
        return self.children.start(role, index, command, child_environment(env), logs).process.pid

    def log_dir(self) -> str | None:
        """Where roles' logs are, if anywhere."""
        mine = self.identity
        if mine.log_dir or not (mine.fileroot and mine.experiment_name and mine.trial_name):
            return mine.log_dir
        import getpass

        names = (mine.fileroot, "logs", getpass.getuser(), mine.experiment_name, mine.trial_name)
        return os.path.join(*names)


def child_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with which a program finds the modules that this one finds."""
    made = {**os.environ, **(env or {})}
    paths = [*made.get("PYTHONPATH", "").split(os.pathsep), os.getcwd(), *sys.path]
    made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return made


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


def announce(mine: Identity, node_addr: str) -> None:
    """Tell AReaL's name service, of which this process is part, where a worker is."""
    if not (INSTALLED and mine.experiment_name and mine.trial_name):
        return
    from areal.utils import (  # type: ignore[import-not-found, unused-ignore]
        name_resolve,
        names,
    )

    key = names.worker_discovery(mine.experiment_name, mine.trial_name, mine.role, mine.index)
    name_resolve.add(key, node_addr, replace=True)


def join_names(kind: str | None, nfs_record_root: str | None, etcd3_addr: str | None) -> None:
    """Have this process be part of AReaL's name service."""
    if not (INSTALLED and kind):
        return
    from areal.api.cli_args import (  # type: ignore[import-not-found, unused-ignore]
        NameResolveConfig,
    )
    from areal.utils import name_resolve

    given = {"type": kind, "nfs_record_root": nfs_record_root, "etcd3_addr": etcd3_addr}
    name_resolve.reconfigure(
        NameResolveConfig(**{key: value for key, value in given.items() if value is not None})
    )
