"""Refs beyond calls: values that are put, and refs that are sent inside values.

A ref that is a part of a value, as in a list, is known to others from then on. What it
stands for goes to a keeper, a service of the session, as soon as it is there, by the process
that made the call. Who got the ref takes it from the keeper when it asks, which has it until
the session ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from . import _context, _errors, _worker
from ._kept import Closed, Kept, Laid, Plain, keep
from ._refs import DECODED, Ref

if TYPE_CHECKING:
    import asyncio

    from ._client import Connection

#: The keeper, as `muster.list_services` tells of it.
KEEPER = "muster.refs"
_ID_BYTES = 28
#: How often, in seconds, the keeper looks whether one lives whose value is waited for.
_LOOKS = 1.0
_NONE: Any = None  # the connection of a ref that waits for nothing


class Put(Ref):
    """A ref of a value that is here. What it stands for is made anew for each who asks."""

    __slots__ = ("_kept",)

    def __init__(self, kept: Kept | Laid | Plain) -> None:
        super().__init__(_NONE, 0)
        self._kept = kept
        self._state = DECODED

    def _result(self) -> Any:
        return self._kept.open()

    def _passed(self, whole: bool) -> Any:
        return self._kept.passed() if whole else self._kept.open()


def put(value: Any) -> Ref:
    """A ref of a value, as it is now; its large arrays are written to shared memory, once.

    It can be an argument of any number of calls, which then get the value by reference, or be
    sent inside a value. Arrays that come out of it may be written to, privately.
    """
    if isinstance(value, Ref):
        raise TypeError("put() takes a value, and this is a Ref already")
    _context.connection("put()")  # large parts go into its store
    return Put(keep(value))


def settled(value: Any) -> Ref:
    """A ref of this very object."""
    return Put(Plain(value))


def failed(error: BaseException) -> Ref:
    """A ref that raises."""
    ref = Ref(_NONE, 0)
    ref.fail(lambda: error)
    return ref


# --- refs inside values ------------------------------------------------------------------


class _Shared:
    """The refs of this process that have an id, and the keeper as it was last found."""

    lock = threading.Lock()
    alive: ClassVar[weakref.WeakValueDictionary[str, Ref]] = weakref.WeakValueDictionary()
    sent: ClassVar[weakref.WeakSet[Ref]] = weakref.WeakSet()
    connection: Connection | None = None
    keeper: Any = None


def ident_of(ref: Ref) -> str:
    """The id that a ref goes by in all processes: 56 hexadecimal digits."""
    with _Shared.lock:
        ident: str = getattr(ref, "_ident", "")
        if not ident:
            ident = ref._ident = os.urandom(_ID_BYTES).hex()
            _Shared.alive[ident] = ref
        return ident


def share(ref: Ref) -> str:
    """Have others find what a ref stands for; returns its id."""
    ident = ident_of(ref)
    with _Shared.lock:
        if ref in _Shared.sent:
            return ident
        _Shared.sent.add(ref)
    keeper = _keeper()
    if ref.done():
        _tell(keeper, ident, ref)
        return ident

    def tell(_: object) -> None:
        with suppress(_errors.MusterError):  # the session is over
            _tell(keeper, ident, ref)

    if (me := _worker._identity) is not None:
        keeper.expect.remote(ident, (me.cluster_name, me.rank, os.getpid()))
    # Not as an argument that the head waits for: what others share would wait behind it.
    ref.future().add_done_callback(tell)
    return ident


def _tell(keeper: Any, ident: str, ref: Ref) -> None:
    try:
        value = ref._passed(whole=True)
    except _errors.MusterError as error:
        keeper.fail.remote(ident, error)
    else:
        keeper.keep.remote(ident, value)


def received(ident: str) -> Ref:
    """A ref that came inside a value."""
    with _Shared.lock:
        found = _Shared.alive.get(ident)
        if found is None:
            found = _Shared.alive[ident] = Received(ident)
            _Shared.sent.add(found)
    return found


class Received(Ref):
    """A ref that another process made. Nobody is asked for its value before it is used."""

    __slots__ = ("_taken",)

    def __init__(self, ident: str) -> None:
        super().__init__(_NONE, 0)
        self._ident = ident
        self._taken: Ref | None = None

    @property
    def _connection(self) -> Connection:
        """The one that its value comes by: from now on, it does."""
        taken = self._taken
        if taken is None:
            taken = _keeper().take.remote(self._ident)
            self._taken, self._id = taken, taken._id
            self.follow(taken)
        return taken._connection

    @_connection.setter
    def _connection(self, connection: Connection) -> None:
        """It has none yet."""


def _keeper() -> Any:
    """The session's keeper, made when it is first needed."""
    connection = _context.connection("a ref inside a value")
    if _Shared.connection is not connection:
        from ._service import service

        _Shared.keeper, _Shared.connection = service(Keeper, KEEPER), connection
    return _Shared.keeper


class Keeper:
    """Has what refs stand for that were sent inside values."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._failed: dict[str, BaseException] = {}
        self._makers: dict[str, tuple[str, int, int]] = {}
        self._there: dict[str, asyncio.Event] = {}
        Closed.here = True

    async def keep(self, ident: str, value: Any) -> None:
        """Take a value."""
        self._kept[ident] = value
        self._event(ident).set()

    async def fail(self, ident: str, error: BaseException) -> None:
        """Take the error that is there in its place."""
        if not self._event(ident).is_set():
            self._failed[ident] = error
            self._event(ident).set()

    async def expect(self, ident: str, maker: tuple[str, int, int]) -> None:
        """Hear who will tell it: cluster, rank and process."""
        self._makers[ident] = maker

    async def take(self, ident: str) -> Any:
        """The value, or the error, as soon as it is here; or as its maker is no more."""
        import asyncio

        there = self._event(ident)
        while not there.is_set():
            try:
                await asyncio.wait_for(there.wait(), _LOOKS)
            except asyncio.TimeoutError:
                await self._look(ident)
        if ident in self._failed:
            raise self._failed[ident].with_traceback(None)
        return self._kept[ident]

    async def _look(self, ident: str) -> None:
        """See whether somebody is there who will tell it."""
        import asyncio

        maker = self._makers.get(ident)
        if maker is not None and await asyncio.to_thread(_is_gone, *maker):
            gone = "the process that made this ref's call has ended, before there was an answer"
            await self.fail(ident, _errors.WorkerDiedError(gone, worker=maker[0]))

    def _event(self, ident: str) -> asyncio.Event:
        import asyncio

        return self._there.setdefault(ident, asyncio.Event())


def _is_gone(cluster: str, rank: int, pid: int) -> bool:
    """Whether a worker's process has ended, or another has its place."""
    wanted = {"number": 0, "name": cluster}
    try:
        worker = _context.connection().request("cluster.describe", wanted)["workers"][rank]
    except _errors.NotFoundError:
        return True
    return bool(worker["state"] == "dead" or worker["pid"] != pid)
