"""Tasks: functions that ``remote`` decorated, and the workers that run them.

A task's worker is a service that runs one task at a time. Each process has workers of its
own for the tasks that it starts: a new one as long as all others are busy, up to a limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from ... import _context, _errors, _service
from ..._refs import Ref
from . import _devices, _host, _names, _options, _state
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
    """A task's worker and the tasks that it was given."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.alive = True
        self.calls: list[Ref] = []

    def load(self) -> int:
        """How many of its tasks are not done; -1 where it cannot run any more."""
        done = [call for call in self.calls if call.done()]
        self.calls = [call for call in self.calls if call not in done]
        for call in done:
            self._look_at(call)
        return len(self.calls) if self.alive else -1

    def _look_at(self, call: Ref) -> None:
        if not call.failed():
            return
        try:
            ObjectRef(call)._result()  # which goes on after a cancelled one
        except WorkerCrashedError:
            self.alive = False
        except Exception:
            pass  # the task's own

    def start(self, args: tuple[Any, ...]) -> Ref:
        call: Ref = self.service.run.remote(*args)
        self.calls.append(call)
        return call


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
        loads = [worker.load() for worker in self._workers]
        for worker in [worker for worker in self._workers if not worker.alive]:
            self._workers.remove(worker)
            worker.service.shutdown()
        loads = [load for load in loads if load >= 0]
        least = self._workers[loads.index(min(loads))] if loads else None
        if least is not None and (0 in loads or len(loads) >= _MOST):
            return least
        try:
            config, share = _options.configured(self._options, PATIENCE if least is None else 0)
        except _errors.ResourceError:
            if least is None:
                raise
            return least  # those who have the devices do one after the other
        if share is not None:
            share.lend()  # what tasks use of a group, its actors may use after them
        actor = _state.Actor(resources=_options.amounts(self._options, actor=False))
        label = _names.nameless(f"task-{name}")
        made = _service.create(_host.TaskHost, label, (actor,), config=config)
        if share is not None:
            share.use(made)
        self._workers.append(_Worker(made))
        return self._workers[-1]

    def give_up_devices(self) -> None:
        """End the workers that hold devices and have nothing to do."""
        if not _options.devices_asked(self._options) or not self._lock.acquire(blocking=False):
            return
        try:
            idle = [worker for worker in self._workers if worker.load() == 0]
            self._workers = [worker for worker in self._workers if worker not in idle]
        finally:
            self._lock.release()
        for worker in idle:
            worker.service.shutdown()


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


def _give_up_devices() -> None:
    for crew in list(_Crews.by_kind.values()):
        crew.give_up_devices()


_devices.when_wanted(_give_up_devices)


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
