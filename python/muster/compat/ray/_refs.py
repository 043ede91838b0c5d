"""ObjectRef, and the ways to wait for it: `get`, `wait`, `put`, `cancel`.

A ref stands for a call of Muster's, for a value that was put, or for one that another
process made and sent here inside a value; the last lies with a keeper, a service of the
session. Refs of Muster's own are taken wherever an ObjectRef is.
"""

from __future__ import annotations

import itertools
import os
import weakref
from abc import ABCMeta
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ... import _context, _errors, _service
from ... import _refs as _native
from ..._refs import PENDING, Ref, _deadline, _gather
from . import _state
from ._values import Box, Failure, Plain, boxed, unboxed
from .exceptions import GetTimeoutError, translate

if TYPE_CHECKING:
    import asyncio

_KEEPER = "ray-keeper"


class _Numbers:
    """Ids of this process's refs."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._process = os.urandom(20).hex()
        self._count = itertools.count(1)

    def next(self) -> str:
        return f"{self._process}{next(self._count):016x}"


_numbers = _Numbers()
_alive: weakref.WeakValueDictionary[str, ObjectRef]


class ObjectRef(metaclass=ABCMeta):  # noqa: B024  (for what isinstance says of Muster's refs)
    """The future value of a call, or one that was put.

    It can be awaited, hashed, and sent to others. As an argument of a call it stands for its
    value; inside an argument it stays a ref.
    """

    __slots__ = ("__weakref__", "_actor", "_box", "_id", "_index", "_ref", "_sent")

    def __init__(
        self,
        ref: Ref | None,
        *,
        box: Box | None = None,
        ident: str = "",
        actor: str | None = None,
        index: int = -1,
    ) -> None:
        self._id = ident or _numbers.next()
        self._ref = ref
        self._box = box
        self._actor = actor
        self._index = index  # of several values that a call returned together
        self._sent = bool(ident)  # others know of it
        _alive[self._id] = self

    def hex(self) -> str:
        """The id, as text."""
        return self._id

    def binary(self) -> bytes:
        """The id."""
        return bytes.fromhex(self._id)

    def is_nil(self) -> bool:
        """False: there is no ref of nothing."""
        return False

    def future(self) -> Future[Any]:
        """The value as a future of concurrent.futures."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                value = self._result()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        _when_done(self, settle)
        return future

    def as_future(self) -> asyncio.Future[Any]:
        """The value as a future of the running event loop."""
        import asyncio

        return asyncio.ensure_future(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._box is None:
            try:
                yield from _call_of(self).__await__()
            except _errors.MusterError:
                pass  # told below, in Ray's words
        return self._result()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._id == getattr(other, "_id", None)

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectRef({self._id})"

    def __reduce__(self) -> Any:
        _send(self)
        return _received, (self._id,)

    def _result(self) -> Any:
        """The value, or the error; waits where it is not here."""
        if self._box is not None:
            return self._box.open()
        try:
            value = _native.get(_call_of(self))
        except _errors.MusterError as error:
            if isinstance(error, _errors.CallCancelledError):
                _clear(error)
            raise translate(error, self._actor) from None
        value = unboxed(value)
        return value if self._index < 0 else value[self._index]


_alive = weakref.WeakValueDictionary()
ObjectRef.register(Ref)  # for isinstance: they can be used in the same places


def _call_of(ref: ObjectRef) -> Ref:
    """Muster's own ref behind one that has no value here."""
    if ref._ref is None:
        ref._ref = _keeper().take.remote(ref._id)
    return ref._ref


def _ours(ref: Any) -> ObjectRef:
    """An ObjectRef for one of Muster's own refs."""
    return ObjectRef(ref, actor="") if isinstance(ref, Ref) else ref


def _clear(error: _errors.CallCancelledError) -> None:
    """A method that was interrupted may have left anything behind: Ray goes on all the same."""
    try:
        _context.connection().request("cluster.clear", {"number": 0, "name": error.cluster})
    except _errors.MusterError:
        pass  # it has ended


def _when_done(ref: ObjectRef, act: Callable[[], None]) -> None:
    """Act now where the value is here, else from a thread as soon as it is."""
    if ref._box is not None or _call_of(ref).done():
        act()
    else:
        _call_of(ref).future().add_done_callback(lambda _: act())


# --- refs inside values ----------------------------------------------------------------


class _Kept:
    """The keeper as this process last found it."""

    keeper: Any = None


def _keeper() -> Any:
    """The session's keeper, made when it is first needed."""
    known = _Kept.keeper
    if known is None or known._cluster._group().connection is not _context.connection():
        from ._host import Keeper

        _Kept.keeper = known = _service.service(Keeper, _KEEPER)
    return known


def _send(ref: ObjectRef) -> None:
    """Have the keeper get a ref's value: it is about to be known to others."""
    if ref._sent:
        return
    ref._sent = True
    keeper, ident = _keeper(), ref._id
    if ref._box is None and not _call_of(ref).done():
        passed = keeper.keep.remote(ident, _call_of(ref), ref._index)  # the head waits for it
        _when_done(ObjectRef(passed), lambda: _tell_failure(keeper, ident, passed, ref))
        return
    keeper.keep.remote(ident, _as_box(ref))


def _tell_failure(keeper: Any, ident: str, passed: Ref, ref: ObjectRef) -> None:
    try:
        _native.get(passed)
    except _errors.MusterError as error:
        if isinstance(error, _errors.HeadLostError):
            return  # the session is over
        keeper.keep.remote(ident, _as_box(ref))


def _as_box(ref: ObjectRef) -> Box:
    if ref._box is not None:
        return ref._box
    try:
        return boxed(ref._result())
    except Exception as error:
        return Failure(error)


def _received(ident: str) -> ObjectRef:
    """A ref that came inside a value."""
    return _alive.get(ident) or ObjectRef(None, ident=ident)


# --- refs as arguments -----------------------------------------------------------------


def passed(value: Any) -> Any:
    """An argument as a call takes it: Muster's ref, or a box, in the place of an ObjectRef."""
    if not isinstance(value, ObjectRef):
        return value
    ref = _ours(value)
    if ref._box is not None or ref._index >= 0:
        return _as_box(ref)
    call = _call_of(ref)
    if call.done() and call.failed():  # told by the call that takes it, not here
        return _as_box(ref)
    return call


def argument(value: Any) -> Any:
    """An argument of a constructor, in the actor: what a ref stands for."""
    return get(value) if isinstance(value, ObjectRef) else unboxed(value)


# --- the calls -------------------------------------------------------------------------


def get(object_refs: Any, *, timeout: float | None = None) -> Any:
    """The value of a ref, or the values of a list of them; raises what a call raised.

    After ``timeout`` seconds it raises `GetTimeoutError`; the calls go on.
    """
    alone = isinstance(object_refs, ObjectRef)
    if not alone and not isinstance(object_refs, list):
        raise ValueError(
            f"get() takes an ObjectRef or a list of them, not a {type(object_refs).__name__}"
        )
    refs = _listed([object_refs] if alone else object_refs, "get")
    deadline = _until(None if timeout == -1 else timeout)  # for ever, as Ray has it
    calls = [_call_of(ref) for ref in refs if ref._box is None]
    pending = [call for call in dict.fromkeys(calls) if call._state == PENDING]
    if pending and not _gather(pending, len(pending), deadline, stop_at_failure=True):
        raise GetTimeoutError(f"{len(pending)} of {len(refs)} values were not here in {timeout} s")
    for ref in refs:
        if ref._box is None and _call_of(ref).failed():
            ref._result()  # raises
    values = [ref._result() for ref in refs]
    return values[0] if alone else values


def _listed(refs: Sequence[Any], who: str) -> list[ObjectRef]:
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(
                f"{who}() takes ObjectRefs, and one entry is a {type(ref).__name__}: {ref!r}"
            )
    return [_ours(ref) for ref in refs]


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
    refs = _listed(ray_waitables, "wait")
    deadline = _until(timeout)
    if not refs:
        return [], []
    if len(set(ray_waitables)) != len(refs):
        raise ValueError("wait() takes each ref once")
    if not 0 < num_returns <= len(refs):
        raise ValueError(
            f"num_returns is {num_returns}, with {len(refs)} refs; it goes from 1 to that"
        )
    calls = [_call_of(ref) for ref in refs if ref._box is None]
    missing = num_returns - (len(refs) - len(calls))
    if missing > 0:
        _gather(calls, missing, deadline, stop_at_failure=False)
    here = [ref._box is not None or _call_of(ref).done() for ref in refs]
    done = [ref for ref, is_here in zip(ray_waitables, here, strict=True) if is_here]
    chosen = set(done[:num_returns])
    return done[:num_returns], [ref for ref in ray_waitables if ref not in chosen]


def put(value: Any) -> ObjectRef:
    """A ref of a value. Its large parts are written to shared memory, once."""
    if isinstance(value, ObjectRef):
        raise TypeError("put() takes a value, and this is an ObjectRef already")
    return ObjectRef(None, box=boxed(value))


def cancel(ray_waitable: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Stop a call; its ref then raises `TaskCancelledError`, unless it has ended before.

    With ``force`` the process of a task is killed if it does not stop by itself.
    """
    if not isinstance(ray_waitable, ObjectRef):
        raise TypeError(
            f"cancel() takes the ref of a call, not a {type(ray_waitable).__name__}; "
            "actors are ended by kill()"
        )
    ref = _ours(ray_waitable)
    if force and ref._actor is not None:
        raise ValueError("force=True is for tasks: it would end the actor; use kill() for that")
    if ref._box is None:
        _call_of(ref).cancel(kill=force)


def settled(value: Any) -> ObjectRef:
    """A ref of this very object."""
    return ObjectRef(None, box=Plain(value))


def failed(error: BaseException, actor: str | None = None) -> ObjectRef:
    """A ref that raises."""
    return ObjectRef(None, box=Failure(error), actor=actor)


def namespace_of(given: str | None) -> str:
    """A namespace that was given, or the job's."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"namespace is {given!r}; it is text")
    if given == "":
        raise ValueError('"" is not a namespace')
    return given or _state.namespace()
