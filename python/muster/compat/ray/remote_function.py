"""Tasks: functions that ``remote`` decorated, and the workers that run them.

A task's worker is a service that runs one task at a time. Each process has workers of its
own for the tasks that it starts: a new one as long as all others are busy, up to a limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from ... import _context, _errors
from ..._refs import Ref
from . import _host, _names, _options, _state
from ._refs import ObjectRef, passed
from .actor import spread
from .exceptions import WorkerCrashedError, translate
from .util.placement_group import PATIENCE

#: Workers for tasks of one kind; tasks beyond that wait in line.
_MOST = max(16, os.cpu_count() or 1)


class RemoteFunction(_options.Remote):
    """A function that runs elsewhere: ``function.remote(...)``."""

    _is_actor = False

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the task; a ref of what it returns, or a list of them."""
        function = self.__muster_class__
        values = [passed(value) for value in (*args, *kwargs.values())]
        found = _host.locate(function)
        try:
            call = _crew(self._options).run(function.__name__, found, tuple(kwargs), values)
        except _errors.MusterError as error:
            raise translate(error) from None
        return spread(ObjectRef(call), self._options.get("num_returns") or 1)


class _Worker:
    """A task's worker, and how many tasks it has to do.

    One with devices ends when it has none, as Ray's does: others may want them.
    """

    def __init__(self, service: Any, passing: bool) -> None:
        self.service = service
        self.load = 0
        self.alive = True
        self._passing = passing
        self._failed: list[Ref] = []
        self._lock = threading.Lock()  # held for no longer than it takes to count

    def take(self) -> bool:
        """Count one more task; False where it cannot run any more."""
        with self._lock:
            self.load += self.alive
            return self.alive

    def start(self, args: tuple[Any, ...]) -> Ref:
        """Begin a task that was counted."""
        call: Ref = self.service.run.remote(*args)
        pending = [call]
        call.watch(lambda: self._done(pending))
        return call

    def _done(self, pending: list[Ref]) -> None:
        with self._lock:
            if not pending:
                return  # it was told twice
            call = pending.pop()
            if call.failed():
                self._failed.append(call)
            self.load -= 1
            if self.load or not self._passing or not self.alive:
                return
            self.alive = False
        threading.Thread(target=self.service.shutdown, daemon=True).start()

    def look(self) -> bool:
        """Whether it lives, by what has become of its tasks."""
        while self._failed:
            try:
                ObjectRef(self._failed.pop())._result()  # which goes on after a cancelled one
            except WorkerCrashedError:
                self.alive = False
            except Exception:
                pass  # the task's own
        return self.alive


class _Crew:
    """The workers of this process for tasks with the same options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def run(self, name: str, found: Any, keys: tuple[str, ...], values: list[Any]) -> Ref:
        with self._lock:
            worker = self._choose(name)
            try:
                return worker.start((found, keys, *values))
            except (_errors.WorkerDiedError, _errors.NotFoundError):
                self._workers.remove(worker)
                return self._choose(name).start((found, keys, *values))

    def _choose(self, name: str) -> _Worker:
        """A worker with nothing to do, else a new one; where none can be had, the one that has
        least to do. The task is counted."""
        _context.connection().poll()  # what it has done since
        for worker in [worker for worker in self._workers if not worker.look()]:
            self._workers.remove(worker)
            worker.service.shutdown()
        least = min(self._workers, key=lambda worker: worker.load, default=None)
        if least is None or (least.load and len(self._workers) < _MOST):
            try:
                return self._make(name, PATIENCE if least is None else 0)
            except _errors.ResourceError:
                if least is None:
                    raise
                # Those who have the devices do one after the other.
        return least if least.take() else self._choose(name)

    def _make(self, name: str, patience: float) -> _Worker:
        actor = _state.Actor(resources=_options.amounts(self._options, actor=False))
        label = _names.nameless(f"task-{name}")
        made = _options.create(_host.TaskHost, label, actor, self._options, patience)
        self._workers.append(_Worker(made, bool(_options.devices_asked(self._options))))
        self._workers[-1].take()
        return self._workers[-1]


class _Crews:
    """All crews of this process, of one session."""

    session: Any = None
    by_kind: ClassVar[dict[Any, _Crew]] = {}
    lock = threading.Lock()


def _crew(options: Mapping[str, Any]) -> _Crew:
    connection = _context.connection("a task")
    kind = _kind(options)
    with _Crews.lock:
        if _Crews.session is not connection:
            _Crews.session, _Crews.by_kind = connection, {}
        return _Crews.by_kind.setdefault(kind, _Crew(options))


def _kind(options: Mapping[str, Any]) -> Any:
    """What tasks have to share to run in the same workers."""
    group, index = _options.group_of(options)
    environment = _options.environment(options)
    return (
        tuple(sorted(environment.pop("env").items())),
        repr(environment),
        None if group is None else (group.id, index),
        _options.node_of(options) if group is None else None,
        _options.devices_asked(options),
    )
