"""What befalls calls, as an error of Muster's and of Ray's at once.

Pipelines written for ROLL catch Ray's; Muster's know the rank, the node and the
stacks. These are both, and a user's exception is of its own class as well.
"""

from __future__ import annotations

import functools
from typing import Any

from ... import _errors, _pickling
from ..ray import exceptions


class DiedError(_errors.WorkerDiedError, exceptions.ActorDiedError):
    """A worker's process has ended."""


class LostError(_errors.NodeLostError, exceptions.ActorDiedError):
    """A worker's node is lost."""


class LateError(_errors.DeadlineError, exceptions.GetTimeoutError):
    """A call took longer than ``roll_RPC_TIMEOUT``."""


class CancelledError(_errors.CallCancelledError, exceptions.TaskCancelledError):
    """A call was cancelled."""


class RaisedError(_errors.RemoteError, exceptions.RayTaskError):
    """A method raised what cannot be rebuilt here."""


_KINDS: dict[type[_errors.MusterError], type[_errors.MusterError]] = {
    _errors.WorkerDiedError: DiedError,
    _errors.NodeLostError: LostError,
    _errors.DeadlineError: LateError,
    _errors.CallCancelledError: CancelledError,
    _errors.RemoteError: RaisedError,
}
#: What befalls a call that was sent; all else is wrong with the call, and told as it is.
BEFALLS = tuple(_KINDS)


class _Raised(exceptions.RayTaskError):
    """What Ray's users ask of an exception that a method raised."""

    @property
    def cause(self) -> BaseException:  # type: ignore[override]
        """The exception as it was raised there."""
        return exceptions._cause(self)  # type: ignore[arg-type]

    @property
    def traceback_str(self) -> str:  # type: ignore[override]
        """The text, with the remote traceback."""
        return str(self)

    @property
    def function_name(self) -> str:  # type: ignore[override]
        """The method."""
        return str(vars(self)["_muster"]["method"])

    def as_instanceof_cause(self) -> exceptions.RayTaskError:
        """Itself: it is one."""
        return self


@functools.lru_cache(maxsize=1024)
def _raised(kind: Any) -> Any:
    """A class for a user's exceptions, of theirs, Muster's and Ray's."""
    names = {"_wraps": kind.__dict__["_wraps"], "__module__": kind.__module__}
    return type(kind.__name__, (kind, _Raised), names)


def told(error: _errors.MusterError) -> BaseException:
    """The error of a call, as Ray's too."""
    its: Any = type(error)
    kind: Any = _KINDS.get(its)
    if kind is None:
        if "_wraps" not in its.__dict__:
            return error
        kind = _raised(its)
    return _pickling.put_together(kind, *_pickling.take_apart(error))
