"""A worker as the scheduler has it: how it is called, and how its end is told.

A `Native` worker is called by Muster. A `Command` is a server of the user's: its
process is Muster's to start, watch and end, and calls go by HTTP. A plain
`WorkerInfo` is a server that somebody else has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import _errors, _refs
from ..._handles import WorkerHandle
from . import _api, _client, _engines, guard
from ._areal import serialization
from ._client import Again, Late, Refusal
from ._trees import plain

logger = logging.getLogger("MusterScheduler")

_FORK_SECONDS = 120.0
#: Seconds that a process has between SIGTERM, in which engines are destroyed, and SIGKILL; what
#: it has started itself has three.
GRACE = 4.0


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

    def check(self) -> None:
        """Raise WorkerFailedError if its process has ended."""
        if self.process is not None and self.process.poll() is not None:
            code = self.process.returncode
            raise _api.WorkerFailedError(self.id, code, read_log_tail(self.log_file))

    def ready(self) -> bool:
        """Whether it answers by HTTP."""
        return _client.healthy(self.worker.ip, self.port)

    def end(self) -> None:
        """Have its process end."""
        if self.parent is not None:
            index = int(self.id.rpartition("/")[2])
            self.parent.tell("kill_forked_worker", role=self.role, worker_index=index)
        elif self.process is not None:
            self.process.terminate()

    def see_off(self) -> None:
        """Wait until its process has ended."""
        if self.process is not None:
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    # --- what is asked of it, by the name and the fields that its server knows it by ---

    def ask(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it, and wait for the result."""
        with self._telling(what, fields):
            return _result(_client.post(*self._request(what, fields, timeout)))

    async def awaited(self, what: str, timeout: float, **fields: Any) -> Any:
        """The same, in an event loop: any, and a new one each time."""
        with self._telling(what, fields):
            return _result(await _client.post_async(*self._request(what, fields, timeout)))

    def tell(self, what: str, **fields: Any) -> Any:
        """Post something, and wait for all of the answer."""
        return _client.post(*self._request(what, fields, _FORK_SECONDS))

    @contextlib.contextmanager
    def _telling(self, what: str, fields: Mapping[str, Any]) -> Iterator[None]:
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
        data = json.dumps(serialization().serialize_value(fields), default=guard.plain).encode()
        return f"http://{_client.join(self.worker.ip, self.port)}/{what}", data, timeout


def _result(answer: Any) -> Any:
    return serialization().deserialize_value(answer.get("result"))


@dataclass
class Command(WorkerInfo):
    """A worker whose process, which is Muster's, runs a command that speaks HTTP."""

    handle: WorkerHandle = field(kw_only=True)
    #: What its devices and pool are, for those who are put beside it.
    share: Any = field(kw_only=True)

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


@dataclass
class Native(Command):
    """A worker that is called by Muster."""

    def ask(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it, and wait for the result."""
        with self._telling(what, fields):
            if what == "set_env":  # at once, whatever it runs
                return self.handle.set_env(fields["env"])
            return _refs.get(self._start(what, timeout, fields))

    async def awaited(self, what: str, timeout: float, **fields: Any) -> Any:
        """The same, in an event loop."""
        if what == "set_env":
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, lambda: self.ask(what, timeout, **fields))
        with self._telling(what, fields):
            return await self._start(what, timeout, fields)

    def _start(self, what: str, timeout: float, fields: dict[str, Any]) -> Any:
        if what == "configure":
            fields = {"seed": fields["config"].seed, "rank": fields["rank"]}
        return getattr(self.handle, f"do_{what}").remote(**plain(fields), timeout=timeout)

    @contextlib.contextmanager
    def _telling(self, what: str, fields: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except _errors.WorkerDiedError as error:
            if error.cluster not in ("", self.handle._cluster.name):  # one that its engine called
                raise _engines.refusal(error, what, fields) from error
            raise failed(self.id, error) from error
        except _errors.DeadlineError as error:
            raise Late(f"Timeout: {error}") from error
        except (_errors.NodeLostError, _errors.HeadLostError) as error:
            raise Again(f"Connection error: {error}") from error
        except (_errors.RemoteError, _errors.WorkerImportError) as error:
            told = _engines.refusal(error, what, fields)
            if told.status == 404:
                raise Again(f"HTTP 404: {told.reason}") from error
            raise told from error


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
    if isinstance(error, _api.SchedulerError):
        return error
    if isinstance(error, Refusal):
        if "Failed to import" in error.reason:
            return _api.EngineImportError(engine, error.reason)
        return _api.EngineCreationError(info.id, error.reason, error.status)
    if isinstance(error, Late):
        return _api.EngineCreationError(info.id, f"Request timed out: {error}")
    if isinstance(error, Again):
        return _api.RPCConnectionError(info.id, info.worker.ip, info.port, str(error))
    return _api.EngineCreationError(info.id, f"Unexpected error: {error}")


class Attempts:
    """The attempts of one call: what the user's code raised is never tried again; what did not
    reach it, or not in time, is, after a pause that doubles."""

    def __init__(self, info: WorkerInfo, method: str, most: int, delay: float) -> None:
        self._info, self._method, self._most, self._delay = info, method, most, delay
        self._number = 1
        if most < 1:
            raise _api.EngineCallError(info.id, method, "no attempts", most)

    def failed(self, error: Exception) -> float:
        """Seconds until the next attempt; raises where there is none."""
        if not isinstance(error, (Again, Refusal, _errors.MusterError)):
            raise error
        if self._number >= self._most or not isinstance(error, Again):
            raise _api.EngineCallError(self._info.id, self._method, str(error), self._number) from (
                error.__cause__ or error
            )
        pause = self._delay * 2 ** (self._number - 1)
        logger.warning(
            "%s on %s did not succeed (attempt %d of %d): %s; again in %.1f s",
            *(self._method, self._info.id, self._number, self._most, error, pause),
        )
        self._number += 1
        return float(pause)
