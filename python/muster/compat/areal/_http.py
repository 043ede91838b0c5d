"""HTTP between workers: who asks, who answers, and how a worker says no, by HTTP or not.

Asked is by what AReaL itself uses, requests and aiohttp, where they are installed, else by
Python's own. A call that is awaited by aiohttp has no thread of its own. There is no
authentication, as AReaL's clients know none: a server binds the address that its worker is
reached at and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partialmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

_JSON = {"Content-Type": "application/json"}
#: What comes with these is JSON.
_TELLING = (200, 400, 500)


class Again(Exception):
    """A call did not get through: it may be tried again."""


class Late(Again):
    """A call was not answered in time: it may be tried again."""


class Refusal(Exception):
    """What a worker that was reached did not do, with the status that HTTP has for it."""

    def __init__(self, status: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status, self.reason, self.more = status, reason, more


@contextlib.contextmanager
def refusing(what: str, status: int = 500) -> Iterator[None]:
    """Whatever is raised, as a refusal to do something."""
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(status, f"{what}: {said(error)}") from error


def said(error: BaseException) -> str:
    """What was raised, without the remote traceback, which its cause has."""
    return str(getattr(error, "message", error)) or type(error).__name__


def join(host: str, port: int) -> str:
    """An address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- who asks -----------------------------------------------------------------------


def post(url: str, body: bytes, timeout: float) -> Any:
    """What a worker answers; `Refusal`, `Again` or `Late` where it does not."""
    with _troubles():
        status, read = _send("post", url, body, timeout)
        found = read()
    return _answer(status, found)


async def post_async(url: str, body: bytes, timeout: float) -> Any:
    """The same, in an event loop."""
    try:
        aiohttp: Any = import_module("aiohttp")
    except ImportError:
        return await asyncio.get_running_loop().run_in_executor(None, post, url, body, timeout)
    with _troubles():
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.post(url, data=body, headers=_JSON) as reply,
        ):
            found = await (reply.json() if reply.status in _TELLING else reply.text())
    return _answer(reply.status, found)


def healthy(host: str, port: int, timeout: float = 2.0) -> bool:
    """Whether a worker answers."""
    try:
        return _send("get", f"http://{join(host, port)}/health", None, timeout)[0] == 200
    except (OSError, ValueError):
        return False


def _send(verb: str, url: str, body: bytes | None, timeout: float) -> tuple[int, Callable[[], Any]]:
    """The status of a reply, and how to read it."""
    try:
        requests = import_module("requests")
    except ImportError:
        try:
            request = urllib.request.Request(url, body, _JSON)
            reply = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            status, data = reply.status, reply.read().decode("utf-8", "replace")
        return status, lambda: json.loads(data) if status in _TELLING else data
    reply = getattr(requests, verb)(url, data=body, headers=_JSON, timeout=timeout)
    return reply.status_code, reply.json if reply.status_code in _TELLING else lambda: reply.text


def _answer(status: int, body: Any) -> Any:
    if status == 200:
        return body
    if status in _TELLING:
        raise Refusal(status, str(body.get("error", body)))
    raise Again("Service unavailable" if status == 503 else f"HTTP {status}: {body}")


@contextlib.contextmanager
def _troubles() -> Iterator[None]:
    """Whatever a client raises, as what callers go by."""
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"TimeoutError", "Timeout"}:
            raise Late(f"Timeout: {error}") from error
        raise Again(f"Connection error: {error}") from error


# --- who answers --------------------------------------------------------------------

#: What serves a request: its verb and path, and what is done with the app's state and the fields.
#: With a path that ends in ``*`` those are the ``name`` in its place and the ``value``.
Routes = dict[tuple[str, str], Callable[[Any, Any], Any]]


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
            with refusing("Internal server error"):
                return 200, json.dumps(self._serve(verb, path, body), default=plain).encode()
        except Refusal as error:
            if error.__cause__ is not None:  # what an engine raised belongs in the log, as a whole
                sys.stderr.write("".join(traceback.format_exception(error.__cause__)))
            reply = {"status": "error", "error": error.reason, "message": error.reason}
            return error.status, json.dumps(reply | error.more).encode()

    def _serve(self, verb: str, path: str, body: bytes) -> Any:
        folder, _, last = path.rpartition("/")
        serve, one = self._routes.get((verb, path)), self._routes.get((verb, f"{folder}/*"))
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
class Client(contextlib.AbstractContextManager["Client"]):
    """Asks an app, for tests."""

    app: App

    def __exit__(self, *_: object) -> None:
        pass

    def open(self, verb: str, path: str, *, data: str = "", **given: Any) -> Answer:
        """Have a request answered: ``json`` is a value, ``data`` text as it is."""
        body = json.dumps(given["json"]) if "json" in given else data
        return Answer(*self.app.answer(verb, path, body.encode()))

    get = partialmethod(open, "GET")
    post = partialmethod(open, "POST")


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
            except (ValueError, OverflowError, MemoryError):
                self.close_connection, body = True, b""  # who knows where the next one begins
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
        address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        request_queue_size = 128
        daemon_threads = True

    http = Listener((bind, port), Handler)
    threading.Thread(target=http.serve_forever, name="areal-http", daemon=True).start()
    return int(http.server_address[1])
