"""HTTP to workers, and how a worker says no, by HTTP or not.

By what AReaL itself uses, requests and aiohttp, where they are installed, else by
Python's own. A call that is awaited by aiohttp has no thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


def join(host: str, port: int) -> str:
    """An address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Request:
    """What is sent to a worker."""

    url: str
    body: bytes | None
    timeout: float
    verb: str = "post"


def post(request: Request) -> Any:
    """What a worker answers; `Refusal`, `Again` or `Late` where it does not."""
    with _troubles():
        status, body = _send(request)
        found = body()
    return _answer(status, found)


async def post_async(request: Request) -> Any:
    """The same, in an event loop."""
    try:
        aiohttp: Any = import_module("aiohttp")
    except ImportError:
        return await asyncio.get_running_loop().run_in_executor(None, post, request)
    with _troubles():
        limit = aiohttp.ClientTimeout(total=request.timeout)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(request.url, data=request.body, headers=_JSON) as reply,
        ):
            body = await (reply.json() if reply.status in _TELLING else reply.text())
    return _answer(reply.status, body)


def healthy(host: str, port: int, timeout: float = 2.0) -> bool:
    """Whether a worker answers."""
    try:
        return _send(Request(f"http://{join(host, port)}/health", None, timeout, "get"))[0] == 200
    except (OSError, ValueError):
        return False


def _send(request: Request) -> tuple[int, Callable[[], Any]]:
    """The status of a reply, and how to read it."""
    asked = {"data": request.body, "headers": _JSON, "timeout": request.timeout}
    try:
        reply = getattr(import_module("requests"), request.verb)(request.url, **asked)
        return (
            reply.status_code,
            reply.json if reply.status_code in _TELLING else lambda: reply.text,
        )
    except ImportError:
        pass
    try:
        with urllib.request.urlopen(
            urllib.request.Request(request.url, request.body, _JSON), timeout=request.timeout
        ) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, data = error.code, error.read()
    return (
        status,
        lambda: json.loads(data) if status in _TELLING else data.decode("utf-8", "replace"),
    )


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
