"""`Crew`: functions run in processes that are made as they are needed.

Each member is a service that runs one function at a time. Owns which members there are in
this process, and who has least to do; where they run is the head's to decide.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from . import _context, _errors, _modules
from ._config import WorkerConfig, as_worker_config
from ._refs import Ref
from ._resources import ResourceManager
from ._service import Service, create, get_service

#: Seconds that the first member waits for GPUs that others have.
_PATIENCE = 30.0
_GONE = (_errors.WorkerDiedError, _errors.NodeLostError, _errors.NotFoundError)


class Runner:
    """What a member's process has: it runs what it is given."""

    def run(self, found: _modules.Located, keys: Sequence[str], /, *values: Any) -> Any:
        """Run a function; the last of the values are keyword arguments. A coroutine is awaited."""
        result = called(found.find(), keys, values)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


def called(function: Callable[..., Any], keys: Sequence[str], values: Sequence[Any]) -> Any:
    """Call a function with values, of which the last are those of the keys."""
    first = len(values) - len(keys)
    return function(*values[:first], **dict(zip(keys, values[first:], strict=True)))


def _check(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse here what would be refused there."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some that are C's have none
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _errors.ArgumentTypeError(
            f"{name}() cannot be called so: {error}. Its signature is {name}{signature}",
            code="type",
            method=name,
        ) from None


async def _awaited(thing: Any) -> Any:
    return await thing


class Crew:
    """Runs functions elsewhere: ``crew.run(function, *args, **kwargs)`` returns a `Ref`.

    A function goes to a member that has nothing to do. Where all are busy a new one is made, up
    to ``most`` (as many as the machine has cores, and 16 at least); then to the one with least
    to do. ``config`` is what surrounds a member; with ``gpus``, of which each has its own, one
    that has nothing to do ends, as others may want them. A member that dies takes its functions
    with it and is replaced. The crew is this process's own; it ends with `shutdown`, or with the
    script.
    """

    def __init__(
        self,
        config: WorkerConfig | Mapping[str, Any] | None = None,
        *,
        most: int | None = None,
    ) -> None:
        self._config = WorkerConfig() if config is None else as_worker_config(config)
        self._most = max(16, os.cpu_count() or 1) if most is None else most
        if self._most < 1:
            raise ValueError(f"most is {most}; a crew has one member at least")
        patience = self._config.gpus_timeout
        self._patience = _PATIENCE if patience is None else patience
        self._members: list[_Member] = []
        self._making = 0
        self._changed = threading.Condition()  # its lock is not held while a process is made

    @classmethod
    def shared(cls, config: WorkerConfig | Mapping[str, Any] | None = None) -> Crew:
        """The crew of this process for all who ask with that config: made for the first, and anew
        in each session."""
        config = WorkerConfig() if config is None else as_worker_config(config)
        connection = _context.connection("a crew")
        with _Shared.lock:
            if _Shared.session is not connection:
                _Shared.session, _Shared.crews = connection, []
            for crew in _Shared.crews:
                if crew._config == config and _pools(crew._config) == _pools(config):
                    return crew
            made = cls(config)
            _Shared.crews.append(made)
            return made

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ref:
        """Have a function run; a ref of what it returns."""
        name = getattr(function, "__name__", type(function).__name__)
        _check(function, name, args, kwargs)
        given = (_modules.located(function), tuple(kwargs), *args, *kwargs.values())
        return self._choose(name).start(given)

    def shutdown(self) -> None:
        """End all members, also inside a function. It may be used again."""
        with self._changed:
            self._changed.wait_for(lambda: not self._making)
            members, self._members = self._members, []
        for member in members:
            member.service.shutdown()

    def _choose(self, name: str) -> _Member:
        """A member with nothing to do, else a new one; where none can be had, the one that has
        least to do. The function is counted."""
        _context.connection("a crew").poll()  # what they have done since
        refused = False  # those who have the GPUs do one after the other
        while True:
            with self._changed:
                least = self._least()
                full = refused or len(self._members) + self._making >= self._most
                if least is not None and (full or not least.load):
                    if least.take():
                        return least
                    continue
                if least is None and self._making:
                    self._changed.wait()
                    continue
                self._making += 1
            made: _Member | None = None
            try:
                made = self._member(name, self._patience if least is None else 0)
                return made
            except _errors.ResourceError:
                if least is None:
                    raise
                refused = True
            finally:
                with self._changed:
                    self._members += [] if made is None else [made]
                    self._making -= 1
                    self._changed.notify_all()

    def _least(self) -> _Member | None:
        """The member that has least to do; those that have ended are let go of."""
        for member in [member for member in self._members if not member.look()]:
            self._members.remove(member)
            member.service.shutdown()
        return min(self._members, key=lambda member: member.load, default=None)

    def _member(self, name: str, patience: float) -> _Member:
        """A new member, with one function to do."""
        label = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)[:60]
        config = replace(self._config, gpus_timeout=patience)
        made = create(Runner, f"task-{label}.{uuid.uuid4().hex[:12]}", config=config)
        return _Member(made, bool(self._config.gpus))


class _Shared:
    """The crews that `Crew.shared` has made, of one session."""

    session: Any = None
    crews: ClassVar[list[Crew]] = []
    lock = threading.Lock()


def _pools(config: WorkerConfig) -> list[int]:
    """The pools of a config, which are not compared with it."""
    given = config.resource_manager
    several = [given] if isinstance(given, ResourceManager) else given or []
    return [pool.id for pool in several]


class _Member:
    """A member, and how much it has to do: one function at first."""

    def __init__(self, service: Service, passing: bool) -> None:
        self.service = service
        self.load = 1
        self._alive = True
        self._passing = passing  # it ends when it has nothing to do
        self._failed: list[Ref] = []
        self._lock = threading.Lock()  # held for no longer than it takes to count

    def take(self) -> bool:
        """Count one more; False where it cannot run any more."""
        with self._lock:
            self.load += self._alive
            return self._alive

    def start(self, given: tuple[Any, ...]) -> Ref:
        """Begin what was counted."""
        pending: list[Ref | None] = [None]
        try:
            call = pending[0] = self.service.run.remote(*given)
        except BaseException:
            self._done(pending)
            raise
        call.watch(lambda: self._done(pending))
        return call

    def _done(self, pending: list[Ref | None]) -> None:
        with self._lock:
            if not pending:
                return  # it was told twice
            call = pending.pop()
            if call is not None and call.failed():
                self._failed.append(call)
            self.load -= 1
            if self.load or not self._passing or not self._alive:
                return
            self._alive = False
        threading.Thread(target=self.service.shutdown, daemon=True).start()

    def look(self) -> bool:
        """Whether it lives, by what has become of what it did."""
        while self._failed:
            try:
                self._failed.pop()._result()
            except _GONE:  # it has, or what the function called has
                self._alive = self._alive and self._is_there()
            except _errors.CallCancelledError as error:
                if error.cluster == self.service.name:
                    clear(error)
            except Exception:
                pass  # the function's own
        return self._alive

    def _is_there(self) -> bool:
        try:
            get_service(self.service.name)
        except _errors.NotFoundError:
            return False
        return True


def clear(error: _errors.CallCancelledError) -> None:
    """Have a worker go on that was interrupted, and may have left anything behind."""
    try:
        asked = {"number": 0, "name": error.cluster}
        _context.connection().request("cluster.clear", asked)
    except _errors.MusterError:
        pass  # it has ended
