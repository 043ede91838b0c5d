"""HTTP to workers: by what AReaL itself uses for it, where that is there, else by Python's own.

A call that is awaited by aiohttp has no thread of its own, however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .guard import join

_JSON = {"Content-Type": "application/json"}
#: What comes with these is JSON.
_TELLING = (200, 400, 500)


class Again(Exception):
    """A call did not get through: it may be tried again."""


class Late(Again):
    """A call was not answered in time: it may be tried again."""


class Refusal(Exception):
    """What a server that was reached did not do."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Request:
    """What is posted to a worker."""

    url: str
    body: bytes
    timeout: float


def post(request: Request) -> Any:
    """What a worker answers; `Refusal`, `Again` or `Late` where it does not."""
    with _troubles():
        status, body = _send(request)
    return _answer(status, body)


async def post_async(request: Request) -> Any:
    """The same, in an event loop."""
    aiohttp = _installed("aiohttp")
    if aiohttp is None:
        return await asyncio.get_running_loop().run_in_executor(None, post, request)
    with _troubles():
        limit = aiohttp.ClientTimeout(total=request.timeout)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.post(request.url, data=request.body, headers=_JSON) as reply,
        ):
            status = reply.status
            body = await (reply.json() if status in _TELLING else reply.text())
    return _answer(status, body)


def healthy(host: str, port: int, timeout: float = 2.0) -> bool:
    """Whether a worker answers."""
    url = f"http://{join(host, port)}/health"
    requests = _installed("requests")
    try:
        if requests is not None:
            return bool(requests.get(url, timeout=timeout).status_code == 200)
        with urllib.request.urlopen(url, timeout=timeout) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def _send(request: Request) -> tuple[int, Any]:
    requests = _installed("requests")
    if requests is not None:
        reply = requests.post(
            request.url, data=request.body, headers=_JSON, timeout=request.timeout
        )
        status = reply.status_code
        return status, reply.json() if status in _TELLING else reply.text
    asked = urllib.request.Request(request.url, request.body, _JSON)
    try:
        with urllib.request.urlopen(asked, timeout=request.timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        return error.code, json.loads(text) if error.code in _TELLING else text


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


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None
