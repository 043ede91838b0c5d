"""Errors: the codes of the wire as exception classes, and the way there and back.

A user's exception arrives as an instance of its own class *and* of RemoteError,
with the worker, the node and the remote traceback in its text. This module does
no I/O, and decides nothing but which class an error has.
"""

from __future__ import annotations

import functools
import os
import struct
import traceback as _traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _pickling, _places

_PICKLE = 33  # extension code of a pickle, docs/wire.md
_NO_BUFFERS = struct.pack("<II", 0, 0)
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class _Message:
    """An attribute that is computed, but that users' exceptions may have for their own."""

    def __get__(self, error: MusterError | None, owner: object = None) -> str:
        if error is None:
            return ""
        return str(error.args[0]) if len(error.args) == 1 else Exception.__str__(error)


class MusterError(Exception):
    """What went wrong, with where in its attributes. Every error of Muster is one."""

    code: str = "internal"
    cluster: str = ""
    method: str = ""
    rank: int = -1  # -1 where no rank is meant
    worker: str = ""
    node: str = ""
    device: str = ""  # of a worker that died: "GPU 3"
    traceback: str = ""  # the remote one, as text
    logs: Sequence[str] = ()  # the worker's last lines
    stacks: Sequence[Mapping[str, Any]] = ()  # rank, worker, node, text of who had not answered
    groups: Sequence[Mapping[str, Any]] = ()  # ranks and place, of all who were asked for stacks
    exit_code: int = 0
    signal: str = ""  # "SIGKILL"
    others: Sequence[str] = ()  # what the other ranks were doing when it died
    message = _Message()  # what happened, without traceback, stacks and logs

    def __init__(self, message: object = "", *more: object, **details: Any) -> None:
        super().__init__(message, *more)
        for name, value in details.items():
            if name not in _DETAILS:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword {name!r}")
            setattr(self, name, value)

    def __init_subclass__(cls, _wraps: bool = False, **kwargs: Any) -> None:
        # A class that from_wire makes must not run the hooks of the user's class.
        if not _wraps:
            super().__init_subclass__(**kwargs)

    def __str__(self) -> str:
        text = self.message
        trace = self.traceback.rstrip("\n")
        if trace and trace not in "\n".join(self.logs):
            text += "\n\n" + trace
        if self.others:
            text += "\n\nwhat the others were doing:\n  " + "\n  ".join(self.others)
        text += _places.describe(self.groups, self.stacks)
        if self.logs:
            text += f"\n\nlast lines of {self.worker}:\n  " + "\n  ".join(self.logs)
        return text

    def __reduce__(self) -> Any:
        return _pickling.put_together, (type(self), *_pickling.take_apart(self))


_DETAILS = (
    "code",
    "cluster",
    "method",
    "rank",
    "worker",
    "node",
    "device",
    "traceback",
    "logs",
    "stacks",
    "groups",
    "exit_code",
    "signal",
    "others",
)


class RemoteError(MusterError):
    """The user's code in a worker raised. Also an instance of the class that was raised there,
    unless that cannot be rebuilt here."""

    code = "user"

    def __str__(self) -> str:
        return _with_origin(self.message, vars(self))


class WorkerDiedError(MusterError):
    """A worker's process ended: ``exit_code`` or ``signal`` say how, ``logs`` what it said
    last, ``others`` what the other ranks of its cluster were doing."""

    code = "worker_died"


class NodeLostError(MusterError):
    """A node's agent ended, or is out of reach."""

    code = "node_lost"


class HeadLostError(MusterError, ConnectionError):
    """The head ended, or is out of reach."""

    code = "head_lost"


class DeadlineError(MusterError, TimeoutError):
    """A deadline passed; ``stacks`` says what the ranks were doing that had not answered."""

    code = "timeout"


class CallCancelledError(MusterError):
    """The call was cancelled, by its caller or with a call that it belongs to."""

    code = "cancelled"


class DeadlockError(MusterError):
    """Waiting would never end: the calls wait for each other."""

    code = "deadlock"


class TaintedError(MusterError):
    """The worker had an exception injected and may be in any state: make it again, or, where
    its object is good for more, `WorkerHandle.clear_taint`."""

    code = "tainted"


class InvalidArgumentError(MusterError, ValueError):
    """An argument that cannot be, by its value."""

    code = "invalid"


class NameTakenError(InvalidArgumentError):
    """The name is a living service's."""

    code = "taken"


class ArgumentTypeError(MusterError, TypeError):
    """An argument that cannot be, by its type, or a wrong signature."""

    code = "type"


class NotFoundError(MusterError, LookupError):
    """No cluster, pool or worker of that name."""

    code = "not_found"


class MethodNotFoundError(NotFoundError, AttributeError):
    """The worker class has no such method."""


class PlacementError(MusterError, ValueError):
    """The cluster cannot be placed on its pool."""

    code = "placement"


class ResourceError(MusterError):
    """What was asked for is not there, or held by others."""

    code = "resources"


class WorkerImportError(MusterError, ImportError):
    """A worker class, or what it needs, cannot be imported."""

    code = "import"


class StartupError(MusterError):
    """A worker did not become ready."""

    code = "startup"


class LayoutError(MusterError, ValueError):
    """A worker reported an impossible rank layout."""

    code = "layout"


class EncodingError(MusterError, TypeError):
    """A value that cannot be encoded or decoded."""

    code = "encoding"


class TooLargeError(MusterError, ValueError):
    """A message over the limit of one frame."""

    code = "too_large"


class ProtocolError(MusterError):
    """A malformed frame or value, or a wrong version."""

    code = "protocol"


class AuthError(MusterError, PermissionError):
    """A wrong or missing token."""

    code = "auth"


class LimitError(MusterError, OSError):
    """Open files, memory or disk ran out."""

    code = "limit"


class StoreFullError(MusterError, MemoryError):
    """A node's store has no room left, in memory or on disk."""

    code = "store_full"


class ReleasedError(MusterError, ValueError):
    """What was given back, or lay in the store of a session that is over, is used again."""

    code = "released"


class InternalError(MusterError):
    """A bug of Muster's own."""


_CLASSES: dict[str, type[MusterError]] = {
    cls.code: cls
    for cls in (
        RemoteError,
        WorkerDiedError,
        NodeLostError,
        HeadLostError,
        DeadlineError,
        CallCancelledError,
        DeadlockError,
        TaintedError,
        InvalidArgumentError,
        NameTakenError,
        ArgumentTypeError,
        NotFoundError,
        PlacementError,
        ResourceError,
        WorkerImportError,
        StartupError,
        LayoutError,
        EncodingError,
        TooLargeError,
        ProtocolError,
        AuthError,
        LimitError,
        StoreFullError,
        ReleasedError,
        InternalError,
    )
}
_OURS = frozenset((*_CLASSES.values(), MethodNotFoundError, MusterError))


# --- to the wire -----------------------------------------------------------------


def to_wire(
    exc: BaseException,
    *,
    worker: str = "",
    node: str = "",
    rank: int = -1,
    cluster: str = "",
    method: str = "",
    pickle: str = "on",
) -> dict[str, Any]:
    """The Error map of an exception that was raised here, in the worker that is named.

    An error that came from another worker keeps its class and where it began; its traceback
    then tells both.
    """
    here = {"worker": worker, "node": node, "rank": rank, "cluster": cluster, "method": method}
    wire: dict[str, Any]
    if isinstance(exc, RemoteError) or (isinstance(exc, MusterError) and type(exc) in _OURS):
        wire = _details(exc)
        local = _format_passed_on(exc)
        if worker and wire["worker"] not in ("", worker):
            local = f"passed on by {_where(here)}:\n{local}"
        texts = (str(wire["traceback"]), local)
        wire["traceback"] = "\n\n".join(text.rstrip("\n") for text in texts if text)
        for name, value in here.items():
            if wire[name] in ("", -1):
                wire[name] = value
    else:
        wire = {"code": "user", "message": _one_line(exc), "exit_code": 0, **here}
        wire["traceback"] = format_traceback(exc)
    if wire["code"] == "user" and pickle == "on":
        wire["exception"] = _pickled(exc)
    return {name: value for name, value in wire.items() if name in _ALWAYS or value}


_ALWAYS = frozenset(("code", "message", "rank", "exit_code"))


def _details(exc: MusterError) -> dict[str, Any]:
    own = vars(exc).get("_muster")
    if own is None:
        own = {name: getattr(exc, name) for name in _DETAILS}
        own["message"] = exc.message
    wire = {name: own[name] for name in (*_DETAILS, "message")}
    wire["logs"], wire["stacks"] = list(wire["logs"]), [dict(s) for s in wire["stacks"]]
    wire["groups"] = [dict(g) for g in wire["groups"]]
    wire["others"] = list(wire["others"])
    return wire


def _pickled(exc: BaseException) -> bytes:
    """The exception as a value, or nothing where it cannot be one."""
    plain = original(exc) if isinstance(exc, RemoteError) else exc
    if plain is None:
        return b""  # it could not be rebuilt here, so not further on either
    try:
        data = _NO_BUFFERS + _pickling.dumps_exception(plain)
        packed: bytes = msgpack.packb(msgpack.ExtType(_PICKLE, data))
    except Exception:
        return b""
    return packed


def original(error: RemoteError) -> BaseException | None:
    """What the user's code raised, as it was there; None where it could not be rebuilt here."""
    if is_joint(error):
        error = vars(error)["_of"]
    kind = vars(type(error)).get("_wraps")
    if kind is None:
        return None
    args, members, state = _pickling.take_apart(error)
    own = state.pop("_muster", {"shown": ()})
    state = {name: value for name, value in state.items() if name not in own["shown"]}
    return _pickling.put_together(kind, args, members, state)


def _one_line(exc: BaseException) -> str:
    return "".join(_traceback.format_exception_only(type(exc), exc)).rstrip("\n")


def format_traceback(exc: BaseException) -> str:
    """The traceback with its causes, without Muster's own frames at its start."""
    text = "".join(_traceback.format_exception(type(exc), exc, _skip_ours(exc)))
    # In a worker the script goes by another name; its user knows this one.
    return text.replace("__muster_main__.", "__main__.")


def _format_passed_on(exc: MusterError) -> str:
    """The frames that an error passed here, without the text that it already carries."""
    frames = _traceback.format_tb(_skip_ours(exc))
    return "Traceback (most recent call last):\n" + "".join(frames) if frames else ""


def _skip_ours(exc: BaseException) -> Any:
    tb = exc.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tb = tb.tb_next
    return tb or exc.__traceback__


# --- from the wire -----------------------------------------------------------------


def from_wire(wire: Mapping[str, Any], bufs: Iterable[Any] = ()) -> MusterError:
    """The exception that an Error map stands for, ready to be raised."""
    details = {name: wire[name] for name in _DETAILS if name in wire}
    code, message = str(wire.get("code", "internal")), str(wire.get("message", ""))
    if code == "user":
        return _remote(wire.get("exception", b""), message, details)
    cls = _CLASSES.get(code, MusterError)
    if cls is NotFoundError and wire.get("method"):
        cls = MethodNotFoundError
    return cls(message, **details)


def _remote(value: bytes, message: str, details: dict[str, Any]) -> MusterError:
    if value:
        try:
            exc = _unpickled(value)
            if not isinstance(exc, Exception):
                # SystemExit or KeyboardInterrupt there must not end the script here.
                return RemoteError(message, **details)
            return _wrap(exc, message, details)
        except Exception as why:
            message += f"\n\n(its class could not be rebuilt here: {type(why).__name__}: {why})"
    return RemoteError(message, **details)


def _unpickled(value: bytes) -> object:
    ext = msgpack.unpackb(value)
    if not isinstance(ext, msgpack.ExtType) or ext.code != _PICKLE:
        raise ProtocolError("the exception of an error is not a pickle")
    return _pickling.loads(memoryview(ext.data)[len(_NO_BUFFERS) :])


def _wrap(exc: Exception, message: str, details: dict[str, Any]) -> RemoteError:
    """exc as an instance of its own class and of RemoteError."""
    made: Any = type(exc)
    cls = _both(made)
    args, members, state = _pickling.take_apart(exc)
    # The user's own attributes win over ours of the same name.
    taken = set(state).union(*(vars(c) for c in type(exc).__mro__ if c not in _OURS))
    shown = {name: value for name, value in details.items() if name not in taken}
    full: dict[str, Any] = {name: getattr(RemoteError, name) for name in _DETAILS}
    state |= shown
    state["_muster"] = {**full, **details, "message": message, "shown": tuple(shown)}
    revived = _pickling.put_together(cls, args, members, state)
    assert isinstance(revived, RemoteError)
    return revived


class _Wrapper(RemoteError):
    """Base of the classes that are made for users' exceptions."""

    _wraps: ClassVar[type[Exception]]

    def __str__(self) -> str:
        own = vars(self)["_muster"]
        try:
            text = self._wraps.__str__(self)
        except Exception:
            text = str(own["message"])
        return _with_origin(text, own)

    def __repr__(self) -> str:
        return self._wraps.__repr__(self)

    def __reduce__(self) -> Any:
        return from_wire, ({**_details(self), "exception": _pickled(self)},)


@functools.lru_cache(maxsize=1024)
def _both(cls: Any) -> type[RemoteError]:
    names: dict[str, Any] = {"_wraps": cls, "__doc__": cls.__doc__ or ""}
    names |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    for base in reversed(cls.__mro__):  # their attributes come before ours of the same name
        if base not in _OURS:
            names |= {n: v for n, v in vars(base).items() if n in _DETAILS or n == "message"}
    made = types.new_class(
        cls.__name__, (_Wrapper, cls), {"_wraps": True}, lambda ns: ns.update(names)
    )
    assert issubclass(made, RemoteError)
    return made


def also(error: MusterError, other: Exception, again: tuple[Any, ...]) -> Exception:
    """An error as one that is of another's class, too, and has its attributes and text; so other
    systems' interfaces tell of it. ``again`` is how it is made where it is sent to."""
    kinds: tuple[Any, Any] = type(other), type(error)
    try:
        cls = _joint(*kinds)
    except TypeError:  # classes that do not go together
        return other
    args, members, state = _pickling.take_apart(error)
    state |= vars(other) | {"_of": error, "_again": again}
    made = _pickling.put_together(cls, args, members, state)
    assert isinstance(made, Exception)
    return made


def called(error: MusterError) -> tuple[str, str]:
    """The cluster and the method of an error, whatever a user's class has for these names."""
    own = vars(error).get("_muster")
    return (error.cluster, error.method) if own is None else (own["cluster"], own["method"])


def set_method(error: MusterError, method: str) -> None:
    """Have an error tell of another method, as of the one that the called one ran."""
    own = vars(error).get("_muster")
    if own is None or "method" in own["shown"]:
        error.method = method
    if own is not None:
        own["method"] = method


def is_joint(error: BaseException) -> bool:
    """Whether `also` made it."""
    return "_joint" in vars(type(error))


@functools.lru_cache(maxsize=1024)
def _joint(other: Any, cls: Any) -> type[Exception]:
    user = vars(cls).get("_wraps")
    name = other.__name__ if user is None else f"{other.__name__}({user.__name__})"
    names = {"_joint": True, "__module__": other.__module__, "__reduce__": _made_again}
    return types.new_class(name, (other, cls), {"_wraps": True}, lambda ns: ns.update(names))


def _made_again(error: Any) -> Any:
    return error._again


def _with_origin(text: str, details: Mapping[str, Any]) -> str:
    trace = str(details.get("traceback", "")).rstrip("\n")
    where = _where(details)
    if not trace:
        return f"{text}\n\nraised in {where}" if where else text
    return f"{text}\n\nraised in {where or 'a worker'}, remote traceback:\n{trace}"


def _where(details: Mapping[str, Any]) -> str:
    worker, node = details.get("worker", ""), details.get("node", "")
    rank, method = details.get("rank", -1), details.get("method", "")
    text = f"worker {worker}" if worker else ""
    if rank >= 0:
        text += f" (rank {rank})" if text else f"rank {rank}"
    if node:
        text += f" on {node}" if text else node
    if method:
        text += f", method {method}" if text else f"method {method}"
    return text
