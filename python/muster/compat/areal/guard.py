"""AReaL's guard: what a worker's process does for others, by HTTP.

It hands out ports, and starts and ends processes beside itself, which have its
environment and end with it. `create_app` is what it answers; a worker's server
adds engines and tensors to that (`_blueprints`). Names, fields and replies are
AReaL's; what makes a server of a guard of one's own is not here (parsers, hooks,
``run_server``): `rpc_server` is that.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import muster

from ..._logfiles import append
from ..._programs import Program, end_group
from ._http import App, Client, Refusal, Routes, join

__all__ = ["App", "Client", "GuardState", "cleanup_forked_children", "create_app"]

Child = subprocess.Popen[bytes]


#: What every process of an experiment is told of it.
EXPERIMENT = (
    *("experiment_name", "trial_name"),
    *("name_resolve_type", "nfs_record_root", "etcd3_addr", "fileroot"),
)


@dataclass
class Identity:
    """Which worker of which experiment this is, and where its files are."""

    role: str = ""
    worker_index: int = -1
    experiment_name: str | None = None
    trial_name: str | None = None
    name_resolve_type: str | None = None
    nfs_record_root: str | None = None
    etcd3_addr: str | None = None
    fileroot: str | None = None
    log_dir: str | None = None

    def arguments(self, port: int) -> list[str]:
        """What a command is told: AReaL's servers all take these."""
        names = (*EXPERIMENT[:2], "role", "worker_index", *EXPERIMENT[2:])
        said = {"port": port, **{name: getattr(self, name) for name in names}}
        pairs = [("--" + name.replace("_", "-"), value) for name, value in said.items()]
        return [str(word) for pair in pairs if pair[1] is not None for word in pair]

    def logs(self) -> str | None:
        """The folder of the roles' logs, if there is one."""
        if self.log_dir or not (self.fileroot and self.experiment_name and self.trial_name):
            return self.log_dir
        names = (getpass.getuser(), self.experiment_name, self.trial_name)
        return os.path.join(self.fileroot, "logs", *names)


@dataclass
class GuardState(Identity):
    """What a guard knows."""

    server_host: str = "0.0.0.0"
    server_port: int = 0
    allocated_ports: set[int] = field(default_factory=set)
    forked_children: list[Child] = field(default_factory=list)
    forked_children_map: dict[tuple[str, int], Child] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Who has the engines, where there are any.
    host: Any = None

    @property
    def node_addr(self) -> str:
        """Where it listens."""
        return join(self.server_host, self.server_port)


# --- ports and processes ------------------------------------------------------------


class NoPortsError(ValueError):
    """There are not as many free ports as are wanted."""


def find_free_ports(count: int, exclude_ports: Iterable[int] = ()) -> list[int]:
    """Ports that nobody else gets while this process lives."""
    found: list[int] = []
    try:
        while len(found) < count:
            held = muster.hold_ports(count - len(found))
            found += [port for port in held if port not in set(exclude_ports)]
    except OSError as error:
        raise NoPortsError(f"cannot hold {count} ports: {error}") from error
    return found


def run_with_streaming_logs(
    cmd: Sequence[str], folder: str | None, role: str, *, env: Mapping[str, str]
) -> Child:
    """Start a process whose output goes to a role's logs and to ours."""
    if folder:
        os.makedirs(folder, exist_ok=True)

    def keep(line: str) -> None:
        nonlocal folder
        sys.stdout.write(line + "\n")
        if folder and not append(folder, role, [line]):
            folder = None

    return Program(cmd, env=env, lines=keep)


def kill_process_tree(pid: int, timeout: float = 3, graceful: bool = True) -> None:
    """End a child that leads a group, and the group: SIGTERM, and SIGKILL for who is left."""
    end_group(pid, timeout if graceful else 0)


def _end(child: Child) -> None:
    """End a process that was started here; it is gone on return."""
    if child.poll() is None:
        kill_process_tree(child.pid, timeout=3, graceful=True)
        child.wait()


def cleanup_forked_children(state: GuardState) -> None:
    """End every process that a guard has started, side by side."""
    with state.lock:
        children, state.forked_children = state.forked_children, []
        state.forked_children_map = {}
    with ThreadPoolExecutor(len(children) or 1) as pool:
        for child, ended in [(child, pool.submit(_end, child)) for child in children]:
            if (error := ended.exception()) is not None:
                sys.stderr.write(f"process {child.pid} could not be ended: {error}\n")


# --- what it is asked ---------------------------------------------------------------

_KINDS = {str: "a text", int: "a whole number", dict: "a dictionary", list: "a list"}


def needed(data: Mapping[str, Any], key: str, kind: type = object) -> Any:
    """A field of a request."""
    value = data.get(key)
    if value is None or value == "":
        raise Refusal(400, f"Missing '{key}' field in request")
    if not isinstance(value, kind):
        raise Refusal(400, f"'{key}' must be {_KINDS[kind]}")
    return value


def _health(state: GuardState, _: Any) -> Any:
    engines = [] if state.host is None else list(state.host.engines())
    about = {"engine_count": len(engines), "engines": engines}
    return {"status": "healthy", **about, "forked_children": len(state.forked_children)}


def _alloc_ports(state: GuardState, data: Any) -> Any:
    count = needed(data, "count", int)
    if isinstance(count, bool) or count <= 0:
        raise Refusal(400, "'count' must be a positive integer")
    with state.lock:
        ports = find_free_ports(count, exclude_ports=set(state.allocated_ports))
        state.allocated_ports.update(ports)
    return {"status": "success", "ports": ports, "host": state.server_host}


def _fork(state: GuardState, data: Any) -> Any:
    """Start a process with this one's environment; whoever asks waits for it."""
    key = needed(data, "role", str), needed(data, "worker_index", int)
    command = [str(word) for word in needed(data, "raw_cmd", list)]
    _take(state, key)  # one that has its place
    child = run_with_streaming_logs(command, state.logs(), key[0], env=data.get("env") or {})
    with state.lock:
        state.forked_children.append(child)
        state.forked_children_map[key] = child
    return {"status": "success", "host": state.server_host, "pid": child.pid}


def _kill_forked_worker(state: GuardState, data: Any) -> Any:
    key = needed(data, "role", str), needed(data, "worker_index", int)
    who, child = f"forked worker {key[0]}/{key[1]}", _take(state, key)
    if child is None:
        raise Refusal(404, f"{who.capitalize()} not found")
    return {"status": "success", "message": f"Killed {who} (pid={child.pid})"}


def _take(state: GuardState, key: tuple[str, int]) -> Child | None:
    """End a process, if there is one."""
    with state.lock:
        child = state.forked_children_map.pop(key, None)
        state.forked_children = [other for other in state.forked_children if other is not child]
    if child is not None:
        _end(child)
    return child


def set_env(_: GuardState, data: Any) -> Any:
    """Change the environment at once, whatever runs, for engines and processes to come."""
    env = needed(data, "env", dict)
    os.environ.update({str(key): str(value) for key, value in env.items()})
    return {"status": "success"}


_GUARD: Routes = {
    ("GET", "/health"): _health,
    ("POST", "/alloc_ports"): _alloc_ports,
    ("POST", "/fork"): _fork,
    ("POST", "/kill_forked_worker"): _kill_forked_worker,
    ("POST", "/configure"): lambda *_: {"status": "ok"},  # there is nothing that would need it
    ("POST", "/set_env"): set_env,
}


def create_app(state: GuardState) -> App:
    """What a guard answers."""
    app = App("guard")
    app.config["guard_state"] = state
    app.register_blueprint(_GUARD)
    return app
