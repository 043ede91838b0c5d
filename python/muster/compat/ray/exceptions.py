"""Ray's exceptions, and what each error of Muster is among them.

A user's exception arrives as an instance of its own class *and* of `RayTaskError`, with
the exception itself in ``cause``. Nothing here talks to anybody.
"""

from __future__ import annotations

import functools
from typing import Any

from ... import _errors, _pickling

#: How one that is no Exception, and so is not rebuilt here, is told of.
_CANCELLED = "asyncio.exceptions.CancelledError"


class RayError(Exception):
    """What all errors of this module are."""


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


class ActorUnavailableError(RayActorError):
    """An actor cannot be reached now. Muster waits instead, so it is never raised."""


class RaySystemError(RayError):
    """Something went wrong that is no task's and no actor's fault."""


class NodeDiedError(RayError):
    """A node was lost with what ran there."""


class ObjectStoreFullError(RayError):
    """There is no room for an object, in memory or on disk."""


class ObjectLostError(RayError):
    """An object is gone."""


class OwnerDiedError(ObjectLostError):
    """An object is gone with the process that made it."""


class OutOfMemoryError(RayError):
    """Memory ran out."""


class GetTimeoutError(RayError, TimeoutError):
    """`get` waited as long as it was told to. The calls go on."""


class RuntimeEnvSetupError(RayError):
    """A runtime_env that cannot be made."""


class ActorPlacementGroupRemoved(RayError):
    """The placement group of an actor was removed."""


class TaskPlacementGroupRemoved(RayError):
    """The placement group of a task was removed."""


class ActorUnschedulableError(RayError):
    """There is no place for an actor."""


class TaskUnschedulableError(RayError):
    """There is no place for a task."""


class ActorAlreadyExistsError(ValueError, RayError):
    """The name is taken by a living actor."""


class ActorHandleNotFoundError(ValueError, RayError):
    """A handle of another session."""


class ConstructionFailed(Exception):
    """An actor's constructor raised: what each call of it is told, on the wire only."""


def translate(error: BaseException, actor: str | None = None) -> BaseException:
    """The error of a call as Ray has it; ``actor`` is the id of the actor that was called.

    It stays Muster's error as well, with rank, node, logs and stacks.
    """
    if not isinstance(error, _errors.MusterError) or "_translated" in type(error).__dict__:
        return error
    return _with(_as_rays(error, str(error), actor), error)


def _as_rays(error: _errors.MusterError, text: str, actor: str | None) -> RayError:
    if isinstance(error, _errors.RemoteError):
        cause = _cause(error)
        if isinstance(cause, ConstructionFailed):
            return ActorDiedError(actor, f"its constructor raised: {cause}", True)
        if error.message.startswith(_CANCELLED):  # by the actor itself
            return TaskCancelledError(text)
        if isinstance(cause, RayTaskError):  # one that was passed on: it tells where it began
            cause = cause.cause
        return RayTaskError(error.method, text, cause)
    if isinstance(error, _errors.CallCancelledError):
        return TaskCancelledError(text)
    if isinstance(error, (_errors.WorkerDiedError, _errors.NodeLostError, _errors.NotFoundError)):
        return WorkerCrashedError(text) if actor is None else ActorDiedError(actor, text)
    if isinstance(error, (_errors.EncodingError, _errors.TooLargeError)):
        return RayTaskError(error.method, text, error)
    if isinstance(error, _errors.StoreFullError):
        return ObjectStoreFullError(text)
    if isinstance(error, _errors.DeadlineError):
        return GetTimeoutError(text)
    return RaySystemError(text)


def _cause(error: _errors.RemoteError) -> BaseException:
    """What was raised, as it was there."""
    kind = type(error).__dict__.get("_wraps")
    if kind is None:
        return error  # it could not be rebuilt here
    args, members, state = _pickling.take_apart(error)
    state = _errors._without_details(state)
    if _OURS.issubset(state):  # it was passed on by somebody who had it from here
        state = {name: value for name, value in state.items() if name not in _OURS}
    return _pickling.put_together(kind, args, members, state)


_OURS = frozenset(("function_name", "traceback_str", "cause"))


def _with(made: RayError, error: _errors.MusterError) -> RayError:
    """An error of Ray's that is the one of Muster's, too."""
    kinds: tuple[Any, Any] = type(made), type(error)
    try:
        cls = _joined(*kinds)
    except TypeError:  # a class that refuses to be inherited from
        return made
    args, members, state = _pickling.take_apart(error)
    both = _pickling.put_together(cls, args, members, state | vars(made))
    assert isinstance(both, RayError)
    return both


@functools.lru_cache(maxsize=1024)
def _joined(kind: Any, muster: Any) -> type[RayError]:
    user = muster.__dict__.get("_wraps")
    names: dict[str, Any] = {"_translated": True, "__module__": __name__, "__reduce__": _reduce}
    if user is not None:
        names["_wraps"] = user  # who passes it on sends this
    name = kind.__name__ if user is None else f"{kind.__name__}({user.__name__})"
    made: type[RayError] = type(name, (kind, muster), names)
    return made


def _reduce(self: Any) -> Any:
    kind, muster = type(self).__bases__
    args, members, state = _pickling.take_apart(self)
    ours = {name: value for name, value in state.items() if name in vars(_blank(kind))}
    theirs = {name: value for name, value in state.items() if name not in ours}
    return _together, (kind, ours, _pickling.put_together(muster, args, members, theirs))


def _together(kind: type[RayError], ours: dict[str, Any], error: _errors.MusterError) -> RayError:
    made = _blank(kind)
    vars(made).update(ours)
    return _with(made, error)


def _blank(kind: type[RayError]) -> RayError:
    if issubclass(kind, RayTaskError):
        return kind("", "", Exception())
    return kind()
