"""ObjectRef, and the ways to wait for it: `get`, `wait`, `put`, `cancel`.

A ref of Ray's is one of Muster's, whose errors are told as Ray tells them. Those of Muster's
own are taken wherever an ObjectRef is.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ... import _errors, _futures, _sharing
from ... import _refs as _native
from ..._crew import clear
from ..._refs import Ref, _deadline, _gather, parts_of
from .exceptions import GetTimeoutError, RayActorError, as_task_error, translate


class ObjectRef(metaclass=ABCMeta):  # noqa: B024  (for what isinstance says of Muster's refs)
    """The future value of a call, or one that was put.

    It can be awaited, hashed, and sent to others. As an argument of a call it stands for its
    value; inside an argument it stays a ref.
    """

    __slots__ = ("__weakref__", "_actor", "_method", "_ref")

    def __init__(self, ref: Ref, actor: str | None = None, method: str = "") -> None:
        self._ref = ref
        self._actor = actor
        self._method = method  # what a host runs, for its errors

    def hex(self) -> str:
        """The id, as text."""
        return _sharing.ident_of(self._ref)

    def future(self) -> Future[Any]:
        """The value as a future of concurrent.futures."""
        return _futures.of(self)  # which awaits it

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            yield from self._ref.__await__()
        except _errors.MusterError:
            pass  # told below, in Ray's words
        return self._result()

    def __eq__(self, other: object) -> bool:
        return type(other) is ObjectRef and self._ref is other._ref

    def __hash__(self) -> int:
        return hash(self._ref)

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"

    def __reduce__(self) -> Any:
        return ObjectRef, (self._ref, self._actor, self._method)

    def _result(self) -> Any:
        """The value, or the error; waits where it is not here."""
        try:
            return _native.get(self._ref)
        except _errors.MusterError as error:
            if isinstance(error, _errors.CallCancelledError):
                clear(error)  # Ray goes on all the same
            raise translate(error, self._actor, self._method) from None


ObjectRef.register(Ref)  # for isinstance: they can be used in the same places

# --- refs of calls, and as their arguments ---------------------------------------------------


def failed(error: BaseException, actor: str | None = None) -> ObjectRef:
    """A ref that raises."""
    return ObjectRef(_sharing.failed(error), actor)


def meant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Arguments as a call of Muster's takes them; raises what a ref raises that is done."""
    return [*map(_meant, args)], {name: _meant(arg) for name, arg in kwargs.items()}


def _meant(value: Any) -> Any:
    if type(value) is not ObjectRef:
        return value
    return value._result() if value._ref.done() and value._ref.failed() else value._ref


def started(
    start: Callable[[Any, Any], Ref], name: str, args: Any, kwargs: Any, actor: str | None = None
) -> ObjectRef:
    """The ref of a call; what an argument raises, or an actor that is dead, is told by it."""
    try:
        args, kwargs = meant(args, kwargs)
    except Exception as error:
        return failed(as_task_error(name, error), actor)
    # With refs among the arguments, what it raises may be theirs.
    refs = any(isinstance(arg, Ref) for arg in (*args, *kwargs.values()))
    try:
        return ObjectRef(start(args, kwargs), actor, "" if refs else name)
    except _errors.MusterError as error:
        refused = translate(error, actor)
        if not isinstance(refused, RayActorError):
            raise refused from None
        return failed(refused, actor)


def spread(ref: ObjectRef, returns: int | None) -> Any:
    """One ref, or one for each of the values that a call returns together."""
    if returns in (None, 1):
        return ref
    if not isinstance(returns, int) or returns < 0:
        raise ValueError(f"num_returns is {returns!r}; Muster takes a whole number")
    parts = parts_of(ref._ref, returns)
    return [ObjectRef(part, ref._actor, ref._method) for part in parts] or None


# --- the calls -------------------------------------------------------------------------------


def get(object_refs: Any, *, timeout: float | None = None) -> Any:
    """The value of a ref, or the values of a list of them; raises what a call raised.

    After ``timeout`` seconds it raises `GetTimeoutError`; the calls go on.
    """
    alone = isinstance(object_refs, ObjectRef)
    if not alone and not isinstance(object_refs, list):
        raise ValueError(
            f"get() takes an ObjectRef or a list of them, not a {type(object_refs).__name__}"
        )
    refs = [_checked(ref, "get") for ref in ([object_refs] if alone else object_refs)]
    calls = list(dict.fromkeys(ref._ref for ref in refs))
    deadline = _until(None if timeout == -1 else timeout)  # for ever, as Ray has it
    if not _gather(calls, len(calls), deadline, stop_at_failure=True):
        raise GetTimeoutError(f"not all of {len(refs)} values were here in {timeout} s")
    for ref in refs:
        if ref._ref.failed():
            ref._result()  # raises
    values = [ref._result() for ref in refs]
    return values[0] if alone else values


def _checked(ref: Any, who: str) -> ObjectRef:
    """A ref that was given, or an ObjectRef for one of Muster's own."""
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"{who}() takes ObjectRefs, not a {type(ref).__name__}: {ref!r}")
    own: Any = ref
    return ref if type(ref) is ObjectRef else ObjectRef(own, "")


def _until(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout is {timeout}; it is 0 or more, or None")
    return _deadline(timeout)


def wait(
    ray_waitables: Any,
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` of the refs are done; returns (done, others), in order."""
    if not isinstance(ray_waitables, list):
        raise TypeError(f"wait() takes a list of ObjectRefs, not a {type(ray_waitables).__name__}")
    calls = {_checked(given, "wait")._ref: given for given in ray_waitables}
    _until(timeout)  # refuses what is none
    if not ray_waitables:
        return [], []
    if len(calls) != len(ray_waitables):
        raise ValueError("wait() takes each ref once")
    done, others = _native.wait(calls, num_returns, timeout)
    return [calls[call] for call in done], [calls[call] for call in others]


def put(value: Any) -> ObjectRef:
    """A ref of a value. Its large parts are written to shared memory, once."""
    if isinstance(value, ObjectRef):
        raise TypeError("put() takes a value, and this is an ObjectRef already")
    return ObjectRef(_sharing.put(value))


def cancel(ray_waitable: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Stop a call; its ref then raises `TaskCancelledError`, unless it has ended before.

    With ``force`` the process of a task is killed if it does not stop by itself.
    """
    ref = _checked(ray_waitable, "cancel")
    if force and ref._actor is not None:
        raise ValueError("force=True is for tasks: it would end the actor; use kill() for that")
    ref._ref.cancel(kill=force)
