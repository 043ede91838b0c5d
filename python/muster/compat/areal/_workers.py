"""A worker as the scheduler has it: how it is called, and how its end is told.

A `Native` worker is called by Muster. A `Command` is a server of the user's: its
process is Muster's to start, watch and end, and calls go by HTTP. A plain
`WorkerInfo` is a server that somebody else has started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ... import _errors, _refs
from ..._handles import WorkerHandle
from . import _api, _http
from ._areal import serialization
from ._http import Again, Late, Refusal
from ._roles import GRACE
from ._trees import plain

logger = logging.getLogger("MusterScheduler")

_FORK_SECONDS = 120.0


@dataclass
class WorkerInfo:
    """One worker of a role, called by HTTP; its fields are AReaL's, by which others make some."""

    worker: _api.Worker
    #: Its process, where this script has started it by itself.
    process: subprocess.Popen[Any] | None
    role: str
    gpu_devices: list[int] = field(default_factory=list)
    created_at: float = 0.0
    log_file: str = ""
    env_vars: dict[str, str] = field(default_factory=dict)
    #: The worker that has forked it, and ends it.
    parent: WorkerInfo | None = None

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
        """Its process, where it is known."""
        return 0 if self.process is None else self.process.pid

    @property
    def address(self) -> str:
        """The same, as URLs have it."""
        return _http.join(self.worker.ip, self.port)

    def check(self) -> None:
        """Raise WorkerFailedError if its process has ended."""
        if self.process is not None and self.process.poll() is not None:
            code = self.process.returncode
            raise _api.WorkerFailedError(self.id, code, read_log_tail(self.log_file))

    def end(self) -> None:
        """Have its process end, and wait for it."""
        if self.parent is not None:
            index = int(self.id.rpartition("/")[2])
            self.parent.tell("kill_forked_worker", role=self.role, worker_index=index)
        elif self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    # --- what is asked of it, by the name and the fields that its server knows it by ---

    def ask(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it, and wait for the result."""
        with self._telling(what):
            return _result(_http.post(*self._request(what, fields, timeout)))

    async def awaited(self, what: str, timeout: float, **fields: Any) -> Any:
        """The same, in an event loop: any, and a new one each time."""
        with self._telling(what):
            return _result(await _http.post_async(*self._request(what, fields, timeout)))

    def tell(self, what: str, **fields: Any) -> Any:
        """Post something, and wait for all of the answer."""
        return _http.post(*self._request(what, fields, _FORK_SECONDS))

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Whatever goes wrong, as `Again`, `Late`, `Refusal` or WorkerFailedError."""
        if what == "call":
            self.check()
        try:
            yield
        except Again:
            self.check()
            raise

    def _request(self, what: str, fields: Any, timeout: float) -> tuple[str, bytes, float]:
        # What cannot be sent is told here.
        data = json.dumps(serialization().serialize_value(fields), default=_http.plain).encode()
        return f"http://{self.address}/{what}", data, timeout


def _result(answer: Any) -> Any:
    return serialization().deserialize_value(answer.get("result"))


@dataclass
class Command(WorkerInfo):
    """A worker whose process, which is Muster's, runs a command that speaks HTTP."""

    handle: WorkerHandle = field(kw_only=True)

    @property
    def pid(self) -> int:
        """Its process."""
        return self.handle.pid

    def check(self) -> None:
        """Raise WorkerFailedError if its process has ended."""
        if self.handle._cluster._describe()["workers"][self.handle.rank]["state"] != "dead":
            return
        try:
            self.handle.env()
        except _errors.WorkerDiedError as error:
            raise failed(self.id, error) from error
        except _errors.NodeLostError as error:
            raise _api.RPCConnectionError(
                self.id, self.worker.ip, self.port, error.message
            ) from error


@dataclass
class Native(Command):
    """A worker that is called by Muster."""

    def ask(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it, and wait for the result."""
        with self._telling(what):
            if what == "set_env":  # at once, whatever it runs
                return self.handle.set_env(fields["env"])
            return _refs.get(self._start(what, timeout, fields))

    async def awaited(self, what: str, timeout: float, **fields: Any) -> Any:
        """The same, in an event loop."""
        if what == "set_env":
            return await asyncio.to_thread(self.ask, what, timeout, **fields)
        with self._telling(what):
            return await self._start(what, timeout, fields)

    def _start(self, what: str, timeout: float, fields: dict[str, Any]) -> Any:
        if what == "configure":
            fields = {"seed": fields["config"].seed, "rank": fields["rank"]}
        return getattr(self.handle, f"do_{what}").remote(**plain(fields), timeout=timeout)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except Refusal as error:
            if error.status == 404:
                raise Again(f"HTTP 404: {error.reason}") from error
            raise Refusal(error.status, error.reason) from error
        except _errors.WorkerDiedError as error:
            raise failed(self.id, error) from error
        except _errors.DeadlineError as error:
            raise Late(f"Timeout: {error}") from error
        except (_errors.NodeLostError, _errors.HeadLostError) as error:
            raise Again(f"Connection error: {error}") from error
        except (_errors.RemoteError, _errors.WorkerImportError) as error:
            raise Refusal(500, f"Failed to {what}: {_http.said(error)}") from error


def read_log_tail(log_file: str, lines: int = 50) -> str:
    """The last lines of a log."""
    try:
        with open(log_file, encoding="utf-8", errors="backslashreplace") as file:
            return "".join(file.readlines()[-lines:])
    except OSError as error:
        return f"[Could not read log file: {error}]"


def failed(worker_id: str, error: _errors.MusterError) -> Exception:
    """How a process ended: its exit code as subprocess has it, and its last lines."""
    code = error.exit_code
    if error.signal:
        code = -int(getattr(signal, error.signal, signal.SIGKILL))
    return _api.WorkerFailedError(worker_id, code, "\n".join(error.logs))


def creation_error(info: WorkerInfo, engine: str, error: Exception) -> Exception:
    """Why an engine could not be made, as AReaL tells it."""
    match error:
        case _api.SchedulerError():
            return error
        case Refusal() if "Failed to import" in error.reason:
            return _api.EngineImportError(engine, error.reason)
        case Refusal():
            return _api.EngineCreationError(info.id, error.reason, error.status)
        case Late():
            return _api.EngineCreationError(info.id, f"Request timed out: {error}")
        case Again():
            return _api.RPCConnectionError(info.id, info.worker.ip, info.port, str(error))
    return _api.EngineCreationError(info.id, f"Unexpected error: {error}")


@dataclass
class Call:
    """A call of an engine, and its attempts: what the user's code raised is never tried again;
    what did not reach it, or not in time, is, after a pause that doubles."""

    info: WorkerInfo
    asked: dict[str, Any]
    timeout: float
    most: int
    pause: float
    _number: int = 0

    def __enter__(self) -> None:
        """Begin an attempt."""
        if self.most < 1:
            raise _api.EngineCallError(self.info.id, self.asked["method"], "no attempts", self.most)
        self._number += 1

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> bool:
        """Whether there is another, after a pause; else what was raised is."""
        if not isinstance(error, (Again, Refusal, _errors.MusterError)):
            return False
        method = self.asked["method"]
        if self._number >= self.most or not isinstance(error, Again):
            raise _api.EngineCallError(self.info.id, method, str(error), self._number) from (
                error.__cause__ or error
            )
        self.pause *= 2 if self._number > 1 else 1
        logger.warning(
            "%s on %s did not succeed (attempt %d of %d): %s; again in %.1f s",
            *(method, self.info.id, self._number, self.most, error, self.pause),
        )
        return True
