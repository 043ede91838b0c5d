"""AReaL's worker protocol over HTTP, for those of its parts that speak HTTP to workers.

Requests are served side by side; whatever concerns engines is handed to the one
thread that runs them. There is no authentication, as AReaL's clients know none:
the server binds the address that the worker is reached at and no other.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import muster

from . import _engines, _json, _tensors
from ._client import healthy

if TYPE_CHECKING:
    from ._host import Host

#: How long a fork may take until it answers.
_FORK_SECONDS = 60.0

Reply = tuple[int, Any]


class Refused(Exception):
    """A request that cannot be served, with its status."""

    def __init__(self, status: int, message: str, more: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reply: Reply = status, {"error": message, **(more or {})}


class Server:
    """Listens on a worker's first port."""

    def __init__(
        self, host: Host, bind: str, port: int, run: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self.host = host
        self.run = run  # on the engine thread
        handler = type("Handler", (_Handler,), {"owner": self})
        kind = type("Listener", (ThreadingHTTPServer,), {"request_queue_size": 128})
        if ":" in bind:
            import socket

            kind.address_family = socket.AF_INET6  # type: ignore[attr-defined]
        self._http = kind((bind, port), handler)
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])

    def start(self) -> None:
        """Serve on a daemon thread."""
        threading.Thread(target=self._http.serve_forever, name="areal-http", daemon=True).start()

    def answer(self, verb: str, path: str, body: bytes) -> Reply:
        """Serve one request."""
        if path not in _AT_ONCE and not self.host.is_warm:
            self.run(self.host.warm)
        if path.startswith("/data/") and path not in ("/data/batch", "/data/clear"):
            return self._shard(verb, path.removeprefix("/data/"), body)
        serve = _ROUTES.get((verb, path))
        if serve is None:
            raise Refused(404, f"there is no {verb} {path} here")
        return 200, serve(self, _object(verb, body))

    # --- about the worker ------------------------------------------------

    def health(self, _: Any) -> Any:
        """Say what there is."""
        names = list(self.host.engines())
        return {
            "status": "healthy",
            "engine_count": len(names),
            "engines": names,
            "forked_children": len(self.host.children),
        }

    def configure(self, data: dict[str, Any]) -> Any:
        """Take the experiment's configuration, of which workers need the seed."""
        config = _json.deserialize_value(_needed(data, "config"))
        rank = _needed(data, "rank")
        if isinstance(config, dict):  # also one of a class that is not known here
            seed = config.get("seed", (config.get("data") or {}).get("seed"))
        else:
            seed = getattr(config, "seed", None)
        if seed is None:
            raise Refused(400, "'config' has no seed")
        self.run(lambda: self.host.configure(seed, rank))
        return {"status": "success", "message": "Worker configured.", "result": None}

    def set_env(self, data: dict[str, Any]) -> Any:
        """Change the environment."""
        env = _needed(data, "env")
        if not isinstance(env, dict):
            raise Refused(400, "'env' must be a dictionary")
        # At once, whatever runs, for engines and forks to come.
        os.environ.update({str(key): str(value) for key, value in env.items()})
        return {"status": "success"}

    def alloc_ports(self, data: dict[str, Any]) -> Any:
        """Reserve ports for whom it may concern."""
        count = _needed(data, "count")
        if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
            raise Refused(400, "'count' must be a positive integer")
        ports = muster.hold_ports(count)
        return {"status": "success", "ports": ports, "host": self.host.address}

    # --- engines ---------------------------------------------------------

    def create_engine(self, data: dict[str, Any]) -> Any:
        """Make an engine."""
        path, name = _text(data, "engine"), _text(data, "engine_name")
        args = _json.deserialize_value(data.get("init_args") or [])
        kwargs = _json.deserialize_value(data.get("init_kwargs") or {})
        try:
            self.run(lambda: self.host.make_engine(path, name, args, kwargs))
        except (_engines.EngineExistsError, _engines.EngineTypeError) as error:
            raise Refused(400, str(error)) from None
        except Exception as error:
            if getattr(error, "code", "") == "import":
                raise Refused(400, f"Failed to import engine '{path}': {error}") from None
            raise Refused(500, f"Failed to instantiate engine: {error}") from error
        return {
            "status": "success",
            "message": f"Engine '{name}' created and initialized",
            "engine_name": name,
            "result": None,
        }

    def call(self, data: dict[str, Any]) -> Any:
        """Call an engine; tensors that it returns stay here, and are named."""
        method, name = _text(data, "method"), _text(data, "engine_name")
        host = self.host
        try:
            engine = host.find_engine(name)
        except _engines.UnknownEngineError as error:
            raise Refused(404, str(error)) from None
        args = _engines.localize(_json.deserialize_value(data.get("args") or []))
        kwargs = _engines.localize(_json.deserialize_value(data.get("kwargs") or {}))
        meta = data.get("rpc_meta")
        try:
            result = self.run(lambda: _engines.call(engine, method, args, kwargs, meta))
        except _engines.UnknownMethodError as error:
            raise Refused(400, str(error)) from None
        except Exception as error:
            raise Refused(500, f"Engine method '{method}' failed: {error}") from error
        result = _engines.remotize(result, host.node_addr)
        return {"status": "success", "result": _json.serialize_value(result)}

    # --- forks -----------------------------------------------------------

    def fork(self, data: dict[str, Any]) -> Any:
        """Start a process with this one's environment: a command as it is (``raw_cmd``), or a
        module that is told who it is, and waited for."""
        role, index = _needed(data, "role"), _needed(data, "worker_index")
        raw, env = data.get("raw_cmd"), data.get("env") or {}
        address = self.host.address
        if raw is not None:
            pid = self.host.fork_process(role, index, [str(word) for word in raw], env)
            return {"status": "success", "host": address, "pid": pid}
        [port] = muster.hold_ports(1)
        from dataclasses import replace

        who = replace(self.host.identity, role=role, index=index)
        module = data.get("command") or "muster.compat.areal.rpc_server"
        words = [sys.executable, "-m", module, "--host", address, *who.arguments(port)]
        pid = self.host.fork_process(role, index, words, env)
        if not _wait_healthy(address, port, _FORK_SECONDS, pid):
            self.host.children.end(role, index)
            raise Refused(500, f"{role}/{index} was not ready within {_FORK_SECONDS:.0f} s")
        return {"status": "success", "host": address, "port": port, "pid": pid}

    def kill_forked_worker(self, data: dict[str, Any]) -> Any:
        """End a fork."""
        role, index = _needed(data, "role"), _needed(data, "worker_index")
        pid = self.host.children.end(role, index)
        if pid is None:
            raise Refused(404, f"Forked worker {role}/{index} not found")
        message = f"Killed forked worker {role}/{index} (pid={pid})"
        return {"status": "success", "message": message}

    # --- tensors ---------------------------------------------------------

    def _shard(self, verb: str, shard: str, body: bytes) -> Reply:
        home = _tensors.home()
        if verb == "PUT":
            home.store(shard, _json.deserialize_value(json.loads(body)))
            return 200, {"status": "ok", "shard_id": shard}
        if verb != "GET":
            raise Refused(405, f"a shard cannot be asked to {verb}")
        try:
            tensor = home.fetch(shard)
        except KeyError:
            return 404, {"status": "error", "message": f"Shard {shard} not found"}
        return 200, _json.serialize_value(tensor)

    def many_shards(self, data: dict[str, Any]) -> Any:
        """Several tensors at once."""
        home, found, missing = _tensors.home(), [], []
        for shard in _shard_ids(data):
            try:
                found.append(home.fetch(shard))
            except KeyError:
                missing.append(shard)
        if missing:
            message = "One or more requested shards were not found"
            more = {"status": "error", "message": message, "missing_shard_ids": missing}
            raise Refused(400, message, more)
        return _json.serialize_value(found)

    def clear_shards(self, data: dict[str, Any]) -> Any:
        """Let go of tensors."""
        home = _tensors.home()
        count = sum(home.remove(shard) for shard in _shard_ids(data))
        return {"status": "ok", "cleared_count": count, **home.storage_stats()}


_ROUTES: dict[tuple[str, str], Callable[[Server, Any], Any]] = {
    ("GET", "/health"): Server.health,
    ("POST", "/configure"): Server.configure,
    ("POST", "/set_env"): Server.set_env,
    ("POST", "/alloc_ports"): Server.alloc_ports,
    ("POST", "/create_engine"): Server.create_engine,
    ("POST", "/call"): Server.call,
    ("POST", "/fork"): Server.fork,
    ("POST", "/kill_forked_worker"): Server.kill_forked_worker,
    ("POST", "/data/batch"): Server.many_shards,
    ("DELETE", "/data/clear"): Server.clear_shards,
}


#: What needs nothing of AReaL, whose import takes long.
_AT_ONCE = ("/health", "/set_env", "/alloc_ports", "/fork", "/kill_forked_worker")


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, has the server answer it, writes the reply."""

    protocol_version = "HTTP/1.1"
    owner: Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        try:
            status, reply = self.owner.answer(self.command, path, body)
            data = json.dumps(reply, default=plain).encode()
        except Refused as error:
            (status, reply), cause = error.reply, error.__cause__
            data = json.dumps(reply).encode()
            if cause is not None:  # what an engine raised belongs in the log, as a whole
                sys.stderr.write("".join(traceback.format_exception(cause)))
        except Exception as error:
            traceback.print_exc()
            status = 500
            text = f"Internal server error: {error}"
            data = json.dumps({"error": text, "status": "error", "message": text}).encode()
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


def plain(value: Any) -> Any:
    """What JSON does not know, as near as it has it: enums, numpy's numbers, paths."""
    for name in ("item", "value"):
        if hasattr(value, name):
            found = getattr(value, name)
            return found() if callable(found) else found
    return str(value)


def _object(verb: str, body: bytes) -> dict[str, Any]:
    if verb == "GET":
        return {}
    try:
        data = json.loads(body or b"null")
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Refused(400, "Invalid JSON in request body")
    return data


def _needed(data: dict[str, Any], key: str) -> Any:
    if data.get(key) is None:
        raise Refused(400, f"Missing '{key}' field in request")
    return data[key]


def _text(data: dict[str, Any], key: str) -> str:
    value = _needed(data, key)
    if not isinstance(value, str) or not value:
        raise Refused(400, f"Missing '{key}' field in request")
    return value


def _shard_ids(data: dict[str, Any]) -> list[str]:
    ids = data.get("shard_ids", [])
    if not isinstance(ids, list) or not all(isinstance(entry, str) for entry in ids):
        message = "'shard_ids' must be a list"
        raise Refused(400, message, {"status": "error", "message": message})
    return ids


def _wait_healthy(host: str, port: int, seconds: float, pid: int) -> bool:
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        if healthy(host, port):
            return True
        if not os.path.exists(f"/proc/{pid}"):
            return False
        sleep(0.1)
    return False
