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
        return _send_plainly(url, body, timeout)
    reply = getattr(requests, verb)(url, data=body, headers=_JSON, timeout=timeout)
    return reply.status_code, reply.json if reply.status_code in _TELLING else lambda: reply.text


def _send_plainly(url: str, body: bytes | None, timeout: float) -> tuple[int, Callable[[], Any]]:
    try:
        asked = urllib.request.Request(url, body, _JSON)
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
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
