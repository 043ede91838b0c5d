"""AReaL's guard: what a worker's process does for others, by HTTP.

It hands out ports, and starts and ends processes beside itself, which have its
environment and end with it. `create_app` is what it answers; a worker's server
adds engines and tensors to that (`_blueprints`). Names, fields and replies are
AReaL's; what makes a server of a guard of one's own is not here (parsers, hooks,
``run_server``): `rpc_server` is that. There is no authentication, as its clients know none: a server binds the
address that its worker is reached at and no other.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import muster

from ..._logfiles import append
from ..._programs import Program, end_group
from ._client import Refusal, join

#: What every process of an experiment is told of it.
NAMES = (
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
        names = (*NAMES[:2], "role", "worker_index", *NAMES[2:])
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
    forked_children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    forked_children_map: dict[tuple[str, int], subprocess.Popen[bytes]] = field(
        default_factory=dict
    )
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
) -> subprocess.Popen[bytes]:
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


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process that was started here; it is gone on return."""
    if child.poll() is None:
        kill_process_tree(child.pid, timeout=3, graceful=True)
        child.wait()


def cleanup_forked_children(state: GuardState) -> None:
    """End every process that a guard has started, side by side."""

    def one(child: subprocess.Popen[bytes]) -> None:
        try:
            _end(child)
        except Exception as error:
            sys.stderr.write(f"process {child.pid} could not be ended: {error}\n")

    with state.lock:
        children, state.forked_children = state.forked_children, []
        state.forked_children_map = {}
    if children:
        with ThreadPoolExecutor(len(children)) as pool:
            list(pool.map(one, children))


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
    return {"status": "healthy", "forked_children": len(state.forked_children)}


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
    child = _take(state, key)
    who = f"forked worker {key[0]}/{key[1]}"
    if child is None:
        raise Refusal(404, f"{who.capitalize()} not found")
    return {"status": "success", "message": f"Killed {who} (pid={child.pid})"}


def _take(state: GuardState, key: tuple[str, int]) -> subprocess.Popen[bytes] | None:
    """End a process, if there is one."""
    with state.lock:
        child = state.forked_children_map.pop(key, None)
        if child is None:
            return None
        if child in state.forked_children:
            state.forked_children.remove(child)
    _end(child)
    return child


def set_env(_: GuardState, data: Any) -> Any:
    """Change the environment at once, whatever runs, for engines and processes to come."""
    env = needed(data, "env", dict)
    os.environ.update({str(key): str(value) for key, value in env.items()})
    return {"status": "success"}


def _configure(_: GuardState, __: Any) -> Any:
    return {"status": "ok"}  # there is nothing that would need it


#: What serves a request: its verb and path, and what is done with the guard and its fields.
Routes = dict[tuple[str, str], Callable[[GuardState, Any], Any]]

_GUARD: Routes = {
    ("GET", "/health"): _health,
    ("POST", "/alloc_ports"): _alloc_ports,
    ("POST", "/fork"): _fork,
    ("POST", "/kill_forked_worker"): _kill_forked_worker,
    ("POST", "/set_env"): set_env,
    ("POST", "/configure"): _configure,
}


class App:
    """Answers requests by its routes; what Flask calls it is what it is called here."""

    def __init__(self, name: str = "") -> None:
        self.config: dict[str, Any] = {}
        self._routes: Routes = {}

    def register_blueprint(self, routes: Routes) -> None:
        """Serve more; a route that is there already is replaced."""
        self._routes |= routes

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The status of a reply, and its JSON."""
        try:
            return 200, json.dumps(self._serve(verb, path, body), default=plain).encode()
        except Refusal as error:
            refused, cause = error, error.__cause__
        except Exception as error:
            refused, cause = Refusal(500, f"Internal server error: {error}"), error
        if cause is not None:  # what an engine raised belongs in the log, as a whole
            sys.stderr.write("".join(traceback.format_exception(cause)))
        reply = {"status": "error", "error": refused.reason, "message": refused.reason}
        return refused.status, json.dumps(reply | refused.more).encode()

    def _serve(self, verb: str, path: str, body: bytes) -> Any:
        folder, _, last = path.rpartition("/")
        serve = self._routes.get((verb, path))
        one = self._routes.get((verb, f"{folder}/*"))
        if serve is None and one is None:
            raise Refusal(404, f"there is no {verb} {path} here")
        try:
            data = {} if verb == "GET" else json.loads(body or b"null")
        except (ValueError, RecursionError):
            data = None
        if data is not None and serve is None:
            serve, data = one, {"name": last, "value": data}
        if serve is None or not isinstance(data, dict):
            raise Refusal(400, "Invalid JSON in request body")
        return serve(self.config["guard_state"], data)

    def test_client(self) -> Client:
        """Who asks without a socket, as AReaL's own tests of guards do."""
        return Client(self)


@dataclass
class Answer:
    """What a `Client` gets."""

    status_code: int
    data: bytes

    def get_json(self) -> Any:
        """The reply."""
        return json.loads(self.data)


@dataclass
class Client:
    """Asks an app, for tests."""

    app: App

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open(
        self, verb: str, path: str, *, json: Any = None, data: str = "", content_type: str = ""
    ) -> Answer:
        """Have a request answered."""
        from json import dumps

        body = data if json is None else dumps(json)
        return Answer(*self.app.answer(verb, path, body.encode()))

    get = partialmethod(open, "GET")
    post = partialmethod(open, "POST")


def create_app(state: GuardState) -> App:
    """What a guard answers."""
    app = App("guard")
    app.config["guard_state"] = state
    app.register_blueprint(_GUARD)
    return app


def plain(value: Any) -> Any:
    """What JSON does not know, as near as it has it: enums, numpy's numbers, paths."""
    for name in ("item", "value"):
        if hasattr(value, name):
            found = getattr(value, name)
            return found() if callable(found) else found
    return str(value)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """What a request has besides its headers."""
    source, parts = request.rfile, []
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return source.read(_size(request.headers.get("Content-Length") or "0", 10))
    while size := _size(source.readline(1000).partition(b";")[0].decode(), 16):
        parts.append(source.read(size))
        source.readline(1000)
    while source.readline(1000).strip():
        pass  # headers that come after it
    return b"".join(parts)


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if size < 0:
        raise ValueError(f"{text} is no length")
    return size


def listen(app: App, bind: str, port: int) -> int:
    """Serve an app by HTTP, requests side by side, on daemon threads; returns the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            try:
                body = _body(self)
            except (ValueError, MemoryError):  # and nobody knows where the next one begins
                self.close_connection, body = True, b""
            status, data = app.answer(self.command, self.path.partition("?")[0], body)
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:  # who asked did not wait
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not written down."""

    class Listener(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    if ":" in bind:
        import socket

        Listener.address_family = socket.AF_INET6
    http = Listener((bind, port), Handler)
    threading.Thread(target=http.serve_forever, name="areal-http", daemon=True).start()
    return int(http.server_address[1])
