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
from dataclasses import dataclass, field
from typing import Any

from ... import _errors
from ..._handles import WorkerHandle
from . import _api, _client, _engines, _json, _values, guard
from ._client import Again, Refusal

logger = logging.getLogger("MusterScheduler")

_FORK_SECONDS = 120.0
#: Seconds that a process has between SIGTERM, in which engines are destroyed, and SIGKILL; what
#: it has started itself has three.
GRACE = 4.0


@dataclass
class WorkerInfo:
    """One worker of a role, called by HTTP; its fields are AReaL's."""

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
            self.parent.tell("/kill_forked_worker", {"role": self.role, "worker_index": index})
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

    # --- what is asked of it: started, and then waited for, or awaited ---

    def start(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it, by the name and the fields that its server knows it by."""
        if what == "call":
            self.check()
        return self._request(f"/{what}", _json.serialize_value(fields), timeout)

    def tell(self, path: str, body: Any) -> Any:
        """Post something, and wait for all of the answer."""
        return _client.post(self._request(path, body, _FORK_SECONDS))

    def wait(self, started: Any) -> Any:
        """The result of what was started."""
        try:
            return _result(_client.post(started))
        except Again:
            self.check()
            raise

    async def awaited(self, started: Any) -> Any:
        """The same, in an event loop: any, and a new one each time."""
        try:
            return _result(await _client.post_async(started))
        except Again:
            self.check()
            raise

    def _request(self, path: str, body: Any, timeout: float) -> _client.Request:
        # What cannot be sent is told here.
        data = json.dumps(body, default=guard.plain).encode()
        return _client.Request(
            f"http://{guard.join(self.worker.ip, self.port)}{path}", data, timeout
        )


def _result(answer: Any) -> Any:
    return _json.deserialize_value(answer.get("result"))


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

    def start(self, what: str, timeout: float, **fields: Any) -> Any:
        """Ask something of it."""
        if what == "set_env":  # at once, whatever it runs
            return lambda: self.handle.set_env(fields["env"])
        if what == "configure":
            fields = {"seed": fields["config"].seed, "rank": fields["rank"]}
        try:
            asked = getattr(self.handle, f"do_{what}")
            return asked.remote(**_values.pack(fields), timeout=timeout)
        except _errors.MusterError as error:
            return error  # told where it is waited for

    def wait(self, started: Any) -> Any:
        """The result of what was started."""
        if isinstance(started, BaseException):
            raise started
        from ... import get

        return _values.unpack(get(started))

    async def awaited(self, started: Any) -> Any:
        """The same, in an event loop."""
        if isinstance(started, BaseException):
            raise started
        if callable(started):
            return await asyncio.get_running_loop().run_in_executor(None, started)
        return _values.unpack(await started)


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
        reason = self._reason(error)
        if self._number >= self._most:
            raise _api.EngineCallError(self._info.id, self._method, reason, self._number)
        pause = self._delay * 2 ** (self._number - 1)
        logger.warning(
            "%s on %s did not succeed (attempt %d of %d): %s; again in %.1f s",
            *(self._method, self._info.id, self._number, self._most, reason, pause),
        )
        self._number += 1
        return float(pause)

    def _reason(self, error: Exception) -> str:
        """Why a call that may be tried again did not succeed; raises for one that may not."""
        if isinstance(error, Again):
            return str(error)
        if isinstance(error, _engines.UnknownEngineError):
            return f"HTTP 404: {_engines.said(error)}"
        if isinstance(error, _errors.DeadlineError):
            return f"Timeout: {error}"
        if isinstance(error, (_errors.NodeLostError, _errors.HeadLostError)):
            return f"Connection error: {error}"
        if isinstance(error, _errors.WorkerDiedError):
            raise failed(self._info.id, error) from error
        if isinstance(error, _engines.UnknownMethodError):
            reason = _engines.said(error)
        elif isinstance(error, _errors.RemoteError):
            reason = f"Engine method '{self._method}' failed: {_engines.said(error)}"
        elif isinstance(error, (Refusal, _errors.MusterError)):
            reason = str(error)
        else:
            raise error
        raise _api.EngineCallError(self._info.id, self._method, reason, self._number) from error
