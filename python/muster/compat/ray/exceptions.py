"""Ray's exceptions, and what each error of Muster is among them.

A user's exception arrives as an instance of its own class *and* of `RayTaskError`, with
the exception itself in ``cause``. Nothing here talks to anybody.
"""

from __future__ import annotations

import re

from ... import _errors
from ._state import actor_name

#: How one that is no Exception, and so is not rebuilt here, is told of.
_CANCELLED = "asyncio.exceptions.CancelledError"
#: How one is told of that has ended.
_GONE = re.compile(r"service (\S+) is no more")
#: The method of hosts, and of a crew's members, that runs the user's.
HOSTED = "run"


class RayError(Exception):
    """What all errors of this module are."""

    _told: str = ""  # its text, where that is not of its arguments

    def __str__(self) -> str:
        return self._told or super().__str__()


class RayTaskError(RayError):
    """A task or an actor's method raised ``cause``; the text tells where, with the traceback."""

    function_name: str = ""
    traceback_str: str = ""
    cause: BaseException

    def __init__(self, function_name: str, traceback_str: str, cause: BaseException) -> None:
        super().__init__(function_name, traceback_str, cause)
        self.function_name = function_name
        self.traceback_str = traceback_str
        self.cause = cause

    def __str__(self) -> str:
        return self.traceback_str


class TaskCancelledError(RayError):
    """The task was cancelled."""


class WorkerCrashedError(RayError):
    """The process that ran a task ended."""


class RayActorError(RayError):
    """An actor cannot be reached any more."""

    def __init__(
        self, actor_id: str | None = None, error_msg: str = "", actor_init_failed: bool = False
    ) -> None:
        super().__init__(actor_id, error_msg, actor_init_failed)
        self.actor_id = actor_id
        self.error_msg = error_msg or "the actor ended before it finished this call"
        self.actor_init_failed = actor_init_failed

    def __str__(self) -> str:
        return self.error_msg


class ActorDiedError(RayActorError):
    """An actor's process has ended, or its constructor raised."""


class RaySystemError(RayError):
    """Something went wrong that is no task's and no actor's fault."""


class ObjectStoreFullError(RayError):
    """There is no room for an object, in memory or on disk."""


class GetTimeoutError(RayError, TimeoutError):
    """`get` waited as long as it was told to. The calls go on."""


class ActorAlreadyExistsError(ValueError, RayError):
    """The name is taken by a living actor."""


class ConstructionFailed(Exception):
    """An actor's constructor raised: what each call of it is told, on the wire only."""


def translate(error: BaseException, actor: str | None = None, method: str = "") -> BaseException:
    """The error of a call as Ray has it; ``actor`` is the id of the actor that was called, and
    ``method`` what its host was to run, where the error can be no other call's.

    It stays Muster's error as well, with rank, node, logs and stacks.
    """
    if not isinstance(error, _errors.MusterError) or _errors.is_joint(error):
        return error
    if isinstance(error, _errors.ArgumentTypeError):
        return error  # a plain TypeError, as there
    if method and _errors.called(error)[1] == HOSTED:
        _errors.set_method(error, method)
    text = _in_users_words(error)
    made = _as_rays(error, text, actor)
    made._told = text
    return _errors.also(error, made, (translate, (error, actor)))


def _in_users_words(error: _errors.MusterError) -> str:
    """Its text, with the actor and its method in the place of the service and the host's."""
    text, (service, method) = str(error), _errors.called(error)
    if isinstance(error, _errors.NotFoundError) and (gone := _GONE.match(text)):
        service = gone[1]
    if not service:
        return text
    method = method or HOSTED
    text = text.replace(f"{service}.{HOSTED}", f"{service}.{method}")
    text = text.replace(f"of {HOSTED} on {service}", f"of {method} on {service}")
    if (named := actor_name(service)) is not None:
        text = text.replace(f"worker {service} (rank 0)", service)
        text = text.replace(f"service {service}", service)
        text = text.replace(service, f"actor {named[1]!r}")
    return text


def as_task_error(name: str, error: Exception) -> Exception:
    """The error of an argument as that of the call which it is for."""
    if isinstance(error, RayTaskError) or not isinstance(error, _errors.MusterError):
        return error
    made = RayTaskError(name, str(error), error)
    return _errors.also(error, made, (as_task_error, (name, error)))


#: What some of Muster's errors are, by their classes.
_KINDS: tuple[tuple[type[_errors.MusterError], type[RayError]], ...] = (
    (_errors.CallCancelledError, TaskCancelledError),
    (_errors.StoreFullError, ObjectStoreFullError),
    (_errors.DeadlineError, GetTimeoutError),
)


def _as_rays(error: _errors.MusterError, text: str, actor: str | None) -> RayError:
    if isinstance(error, _errors.RemoteError):
        cause = _errors.original(error) or error
        if isinstance(cause, ConstructionFailed):
            return ActorDiedError(actor, f"its constructor raised: {cause}", True)
        if error.message.startswith(_CANCELLED):  # by the actor itself
            return TaskCancelledError(text)
        if isinstance(cause, RayTaskError):  # one that was passed on: it tells where it began
            cause = cause.cause
        return RayTaskError(_errors.called(error)[1], text, cause)
    if isinstance(error, (_errors.WorkerDiedError, _errors.NodeLostError, _errors.NotFoundError)):
        return WorkerCrashedError(text) if actor is None else ActorDiedError(actor, text)
    if isinstance(
        error, (_errors.EncodingError, _errors.TooLargeError, _errors.InvalidArgumentError)
    ):
        return RayTaskError(error.method, text, error)
    kinds = (made for kind, made in _KINDS if isinstance(error, kind))
    return next(kinds, RaySystemError)(text)
