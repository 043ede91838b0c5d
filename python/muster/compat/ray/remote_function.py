"""Tasks: functions that ``remote`` decorated. Those with the same options are a crew's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from ... import WorkerConfig, _context, _errors
from ..._crew import Crew
from . import _host, _options, _state
from ._refs import ObjectRef, failed, passed
from .actor import spread
from .exceptions import as_task_error, translate


class RemoteFunction(_options.Remote):
    """A function that runs elsewhere: ``function.remote(...)``."""

    _is_actor = False

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the task; a ref of what it returns, or a list of them."""
        function, returns = self.__muster_class__, _options.returns(self._options)
        try:
            values = [passed(value) for value in args]
            named = {key: passed(value) for key, value in kwargs.items()}
        except Exception as error:
            return spread(failed(as_task_error(function.__name__, error)), returns)
        try:
            call = _crew(self._options).run(function, *values, **named)
        except _errors.MusterError as error:
            raise translate(error) from None
        return spread(ObjectRef(call), returns)


class _Crews:
    """All crews of this process, of one session."""

    session: Any = None
    by_kind: ClassVar[dict[Any, Crew]] = {}
    lock = threading.Lock()


def _crew(options: Mapping[str, Any]) -> Crew:
    connection = _context.connection("a task")
    kind = _kind(options)
    with _Crews.lock:
        if _Crews.session is not connection:
            _Crews.session, _Crews.by_kind = connection, {}
        if kind not in _Crews.by_kind:
            gpus = _options.devices_asked(options)
            _Crews.by_kind[kind] = Crew(WorkerConfig(gpus=gpus), make=_maker(options))
        return _Crews.by_kind[kind]


def _maker(options: Mapping[str, Any]) -> Any:
    actor = _state.Actor(resources=_options.amounts(options, actor=False))
    return lambda name, patience: _options.create(_host.TaskHost, name, (actor,), options, patience)


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
