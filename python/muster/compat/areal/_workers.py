"""A worker as the scheduler has it: how it is called, and how its end is told.

A `Native` worker is called by Muster. A `Command` is a server of the user's: its
process is Muster's to start, watch and end, and calls go by HTTP.
"""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ... import _errors
from ..._handles import WorkerHandle
from . import _api, _engines, _http, _json, _values

_CREATE_SECONDS = 300.0
_ENV_SECONDS = 30.0


class Again(Exception):
    """A call did not get through, or not in time: it may be tried again."""


@dataclass
class WorkerInfo:
    """One worker of a role."""

    worker: _api.Worker
    role: str
    handle: WorkerHandle
    #: What its devices and pool are, for those who are put beside it.
    share: Any = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """``role/index``."""
        return self.worker.id

    @property
    def port(self) -> int:
        """Where it speaks HTTP."""
        return int(self.worker.worker_ports[0])

    @property
    def pid(self) -> int:
        """Its process."""
        return self.handle.pid

    def check(self) -> None:
        """Raise WorkerFailedError if its process has ended."""
        state = self.handle._cluster._describe()["workers"][self.handle.rank]["state"]
        if state != "dead":
            return
        try:
            self.handle.env()
        except _errors.WorkerDiedError as error:
            raise failed(self.id, error) from error
        except _errors.NodeLostError as error:
            raise _api.RPCConnectionError(
                self.id, self.worker.ip, self.port, error.message
            ) from error

    def ready(self) -> bool:
        """Whether it answers by HTTP."""
        return _http.healthy(self.worker.ip, self.port)

    # --- what is asked of it: each gives a function that waits, and one that is awaited ---

    def ask(self, what: str, *args: Any, timeout: float) -> Any:
        """Start something; returns what `wait` and `awaited` take."""
        try:
            return getattr(self.handle, what).remote(*args, timeout=timeout)
        except _errors.MusterError as error:
            return error  # told where it is waited for

    def set_env(self, env: dict[str, str]) -> Any:
        """Change its environment."""
        return self.ask("put_env", env, timeout=_ENV_SECONDS)

    def make_engine(self, path: str, name: str, args: Any, kwargs: Any) -> Any:
        """Make an engine."""
        packed = _values.pack(list(args)), _values.pack(kwargs)
        return self.ask("make_engine", path, name, *packed, timeout=_CREATE_SECONDS)

    def call(
        self, name: str, method: str, args: Any, kwargs: Any, meta: Any, timeout: float
    ) -> Any:
        """Call an engine."""
        packed = _values.pack(list(args)), _values.pack(kwargs)
        return self.ask("run_engine", name, method, *packed, meta, timeout=timeout)

    def configure(self, config: Any, rank: int) -> Any:
        """Give it the experiment's configuration, of which it needs the seed."""
        return self.ask("configure", config.seed, rank, timeout=_CREATE_SECONDS)

    def wait(self, started: Any) -> Any:
        """The result of what was started."""
        if isinstance(started, BaseException):
            raise started
        from ... import get

        return _values.unpack(get(started))

    async def awaited(self, started: Any) -> Any:
        """The same, in an event loop: any, and a new one each time."""
        if isinstance(started, BaseException):
            raise started
        return _values.unpack(await started)


class Command(WorkerInfo):
    """A worker whose process runs a command, which speaks HTTP."""

    def ask(self, what: str, *args: Any, timeout: float) -> Any:
        """Not by Muster: see `_post`."""
        raise NotImplementedError(what)

    def _post(self, path: str, body: Any, timeout: float) -> Callable[[], Any]:
        data = json.dumps(
            body, default=_http.plain
        ).encode()  # now, so that a value that cannot be sent is told here
        url = f"http://{_http.join(self.worker.ip, self.port)}{path}"

        def post() -> Any:
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=timeout) as reply:
                    return _json.deserialize_value(json.loads(reply.read()).get("result"))
            except urllib.error.HTTPError as error:
                raise _refused(error) from None
            except TimeoutError as error:
                raise Again(f"Timeout: {error}") from error
            except (OSError, ValueError) as error:
                self.check()
                raise Again(f"Connection error: {error}") from error

        return post

    def set_env(self, env: dict[str, str]) -> Any:
        """Change its environment."""
        return self._post("/set_env", {"env": env}, _ENV_SECONDS)

    def make_engine(self, path: str, name: str, args: Any, kwargs: Any) -> Any:
        """Make an engine."""
        body = {
            "engine": path,
            "engine_name": name,
            "init_args": _json.serialize_value(list(args)),
            "init_kwargs": _json.serialize_value(kwargs),
        }
        return self._post("/create_engine", body, _CREATE_SECONDS)

    def call(
        self, name: str, method: str, args: Any, kwargs: Any, meta: Any, timeout: float
    ) -> Any:
        """Call an engine."""
        body = {
            "method": method,
            "engine_name": name,
            "args": _json.serialize_value(list(args)),
            "kwargs": _json.serialize_value(kwargs),
        }
        if meta is not None:
            body["rpc_meta"] = meta
        return self._post("/call", body, timeout)

    def configure(self, config: Any, rank: int) -> Any:
        """Give it the experiment's configuration."""
        body = _json.serialize_value({"config": config, "role": self.role, "rank": rank})
        return self._post("/configure", body, _CREATE_SECONDS)

    def wait(self, started: Any) -> Any:
        """The result of what was started."""
        return started()

    async def awaited(self, started: Any) -> Any:
        """The same, in an event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, started)


class Refusal(Exception):
    """What a server that was reached did not do."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _refused(error: urllib.error.HTTPError) -> Exception:
    text = error.read().decode("utf-8", "replace")
    try:
        text = json.loads(text).get("error", text)
    except (ValueError, AttributeError):
        pass
    if error.code in (400, 500):
        return Refusal(error.code, text)
    if error.code == 503:
        return Again("Service unavailable")
    return Again(f"HTTP {error.code}: {text}")


def failed(worker_id: str, error: _errors.MusterError) -> Exception:
    """How a process ended: its exit code as subprocess has it, and its last lines."""
    code = error.exit_code
    if error.signal:
        code = -int(getattr(signal, error.signal, signal.SIGKILL))
    return _api.WorkerFailedError(worker_id, code, "\n".join(error.logs))


def reason_of(info: WorkerInfo, method: str, attempt: int, error: Exception) -> str:
    """Why a call that may be tried again did not succeed; raises for one that may not.

    What the user's code raised is never tried again; what did not reach it, or
    not in time, is.
    """
    if isinstance(error, Again):
        return str(error)
    if isinstance(error, Refusal):
        raise _api.EngineCallError(info.id, method, str(error), attempt) from error
    if isinstance(error, _engines.UnknownEngineError):
        return f"HTTP 404: {_first(error)}"
    if isinstance(error, _engines.UnknownMethodError):
        raise _api.EngineCallError(info.id, method, _first(error), attempt) from error
    if isinstance(error, _errors.RemoteError):
        reason = f"Engine method '{method}' failed: {_first(error)}"
        raise _api.EngineCallError(info.id, method, reason, attempt) from error
    if isinstance(error, _errors.WorkerDiedError):
        raise failed(info.id, error) from error
    if isinstance(error, _errors.DeadlineError):
        return f"Timeout: {error}"
    if isinstance(error, (_errors.NodeLostError, _errors.HeadLostError)):
        return f"Connection error: {error}"
    if isinstance(error, _errors.MusterError):
        raise _api.EngineCallError(info.id, method, str(error), attempt) from error
    raise error


def _first(error: BaseException) -> str:
    """What was raised, without the remote traceback, which its cause has."""
    message = getattr(error, "message", None)
    return str(message if message is not None else error) or type(error).__name__
