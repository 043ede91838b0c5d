"""Refs beyond calls: values that are put, and refs that are sent inside values.

A ref that is a part of a value, as in a list, is known to others from then on. A small value
that was put goes with it. What others stand for goes to a keeper, a service of the session,
as soon as it is there, by the process that made the call. Who got the ref takes it from the
keeper when it asks, which has it until the session ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from . import _context, _errors, _worker
from ._kept import Closed, Kept, Laid, Plain, keep
from ._refs import DECODED, Ref

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from ._client import Connection

#: The keeper, as `muster.list_services` tells of it.
KEEPER = "muster.refs"
_ID_BYTES = 28
#: How many may wait for values at once; those who bring some are not to wait behind them.
_TAKERS = 1_000_000
#: How often, in seconds, the keeper looks whether one lives whose value is waited for.
_LOOKS = 1.0
#: Seconds after which a ref that nobody has told of is one that a keeper had who died.
_UNTOLD = 60.0
#: Bytes of a value that goes with its ref.
_SMALL = 65536
_GONE = (_errors.WorkerDiedError, _errors.NotFoundError)
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

    def __reduce__(self) -> Any:
        small = self._kept.small(_SMALL) if isinstance(self._kept, Kept) else None
        return super().__reduce__() if small is None else (came, (ident_of(self), *small))


def came(ident: str, body: bytes, parts: list[bytes]) -> Ref:
    """A ref that came inside a value together with what it stands for: nobody else keeps it."""
    with _Shared.lock:
        found = _Shared.alive.get(ident)
        if found is None:
            found = _Shared.alive[ident] = Put(Kept(body, parts, None))
            found._ident = ident
    return found


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


def share(ref: Ref) -> tuple[str, int, str]:
    """Have others find what a ref stands for; returns its id, the keeper's number, and the
    session's name."""
    ident, keeper = ident_of(ref), _keeper()
    with _Shared.lock:
        if ref in _Shared.sent:
            return ident, _number(), _session()
    if ref.done():
        _settle(keeper, ident, ref)
    else:
        me = _worker._identity
        maker = None if me is None else (me.cluster_name, me.rank, os.getpid())
        _tell(keeper, "expect", ident, maker)
        # Not as an argument that the head waits for: what others share would wait behind it.
        # In no call's name: that which sends it does not wait for it.
        future = Context().run(ref.future)
        future.add_done_callback(lambda _: _settle_late(keeper, ident, ref))
    with _Shared.lock:  # not before: who pickles tries it twice, and is to fail twice
        _Shared.sent.add(ref)
        return ident, _number(), _session()


def taken(ref: Ref) -> Ref:
    """A call of the keeper's that gives what a ref stands for, which is no call's answer: so that
    the head can wait for it in its place."""
    ident, *_ = share(ref)
    asked: Ref = _keeper().take.remote(ident)
    return asked


def _settle(keeper: Any, ident: str, ref: Ref) -> None:
    """Tell the keeper what a ref stands for, or why there is nothing: of the call, or of what
    its maker does with the answer."""
    try:
        _tell(keeper, "keep", ident, ref._passed(whole=True))
    except Exception as error:
        _tell(keeper, "fail", ident, _errors.to_wire(error))


def _settle_late(keeper: Any, ident: str, ref: Ref) -> None:
    with suppress(_errors.MusterError):  # the session is over
        _settle(keeper, ident, ref)


def _tell(keeper: Any, method: str, ident: str, what: Any, again: bool = True) -> None:
    """Call the keeper. If it has died there is another, and what it cannot take is a failure."""

    def look(done: Future[Any]) -> None:
        error = done.exception()
        with suppress(_errors.MusterError):  # the session is over
            if isinstance(error, _GONE):
                _forget(keeper)
                if again and (_context.in_worker() or _context.session() is not None):
                    _tell(_keeper(), method, ident, what, again=False)
            elif method == "keep" and error is not None:
                _tell(keeper, "fail", ident, _errors.to_wire(error))

    getattr(keeper, method).remote(ident, what).future().add_done_callback(look)


def received(ident: str, number: int, session: str = "") -> Ref:
    """A ref that came inside a value, from who knows the keeper of that number, in a session."""
    with _Shared.lock:
        if number > _number() > 0 and session == _session():
            _drop()  # it is an earlier one, so it has died
        found = _Shared.alive.get(ident)
        if found is None:
            found = _Shared.alive[ident] = Received(ident, session)
            _Shared.sent.add(found)
    return found


class Received(Ref):
    """A ref that another process made. Nobody is asked for its value before it is used."""

    __slots__ = ("_keeper", "_session", "_taken")

    as_made = False  # it comes as it is kept, which may be closed

    def __init__(self, ident: str, session: str) -> None:
        super().__init__(_NONE, 0)
        self._ident = ident
        self._session = session  # that it was made in, where that is known
        self._keeper: Any = None
        self._taken: Ref | None = None

    @property
    def _connection(self) -> Connection:
        """The one that its value comes by: from now on, it does."""
        taken = self._taken
        if taken is None:
            self._keeper = _keeper()
            if self._session and self._session != _session():
                self.fail(_of_a_session_that_is_over)
                return _context.connection()
            taken = self._keeper.take.remote(self._ident)
            self._taken, self._id = taken, taken._id
            self.follow(taken)
        return taken._connection

    @_connection.setter
    def _connection(self, connection: Connection) -> None:
        """It has none yet."""

    def __reduce__(self) -> Any:
        ident, number, now = share(self)
        return received, (ident, number, self._session or now)

    def _result(self) -> Any:
        try:
            return super()._result()
        except _GONE as error:
            if error.cluster in (KEEPER, ""):  # not the one that it tells of
                _forget(self._keeper)
            raise


def _of_a_session_that_is_over() -> BaseException:
    return _errors.ReleasedError(
        "this ref was made in a session that is over, and what it stands for ended with it: keep "
        "values, not refs, from one session to the next"
    )


def _keeper() -> Any:
    """The session's keeper, made when it is first needed."""
    connection = _context.connection("a ref inside a value")
    if _Shared.connection is not connection:
        from ._service import service

        if _Shared.connection is not None:
            _forget(_Shared.keeper)  # of a session that is over
        config = {"max_concurrency": _TAKERS}
        _Shared.keeper = service(Keeper, KEEPER, config=config)
        _Shared.connection = connection
    return _Shared.keeper


def _forget(keeper: Any) -> None:
    """It has ended, and what it had is gone: refs are told anew when they are sent again."""
    with _Shared.lock:
        if _Shared.keeper is keeper:
            _drop()


def _drop() -> None:
    _Shared.connection = _Shared.keeper = None
    _Shared.sent.clear()


def _number() -> int:
    return 0 if _Shared.keeper is None else int(_Shared.keeper._cluster._number)


def _session() -> str:
    """The name of the keeper's session."""
    return "" if _Shared.connection is None else _Shared.connection.session


class Keeper:
    """Has what refs stand for that were sent inside values."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._failed: dict[str, dict[str, Any]] = {}
        self._makers: dict[str, tuple[str, int, int] | None] = {}
        self._there: dict[str, asyncio.Event] = {}
        Closed.here = True

    async def keep(self, ident: str, value: Any) -> None:
        """Take a value. One who passes a ref on may have said that it has none."""
        self._kept[ident] = value
        self._failed.pop(ident, None)
        self._event(ident).set()

    async def fail(self, ident: str, error: dict[str, Any]) -> None:
        """Take the error that is there in its place, as it goes over the wire."""
        if not self._event(ident).is_set():
            self._failed[ident] = error
            self._event(ident).set()

    async def expect(self, ident: str, maker: tuple[str, int, int] | None) -> None:
        """Hear who will tell it: cluster, rank and process; None: the script."""
        self._makers.setdefault(ident, maker)

    async def take(self, ident: str) -> Any:
        """The value, or the error, as soon as it is here; or as its maker is no more."""
        import asyncio

        there, asked = self._event(ident), monotonic()
        while not there.is_set():
            try:
                await asyncio.wait_for(there.wait(), _LOOKS)
            except asyncio.TimeoutError:
                await self._look(ident, monotonic() - asked)
        if ident in self._failed:
            raise _errors.from_wire(self._failed[ident])
        return self._kept[ident]

    async def _look(self, ident: str, waited: float) -> None:
        """See whether somebody is there who will tell it."""
        import asyncio

        maker = self._makers.get(ident)
        if maker is not None and await asyncio.to_thread(_is_gone, *maker):
            gone = "the process that made this ref's call has ended, before there was an answer"
            await self._lose(ident, gone, maker[0])
        elif ident not in self._makers and waited > _UNTOLD:
            gone = f"what this ref stands for was lost: service {KEEPER}, which had it, has died"
            await self._lose(ident, gone, KEEPER)

    async def _lose(self, ident: str, why: str, worker: str) -> None:
        await self.fail(ident, _errors.to_wire(_errors.WorkerDiedError(why, worker=worker)))

    def _event(self, ident: str) -> asyncio.Event:
        import asyncio

        return self._there.setdefault(ident, asyncio.Event())


def _is_gone(cluster: str, rank: int, pid: int) -> bool:
    """Whether a worker's process has ended, or another has its place. One that is in its
    constructor is not known by its process yet."""
    request = _context.connection().request
    try:
        found = [request("cluster.describe", {"number": 0, "name": cluster})]
    except _errors.NotFoundError:  # also where it is not up yet
        found = [one for one in request("status", {})["clusters"] if one["name"] == cluster]
    workers = [one["workers"][rank] for one in found if rank < len(one["workers"])]
    return not any(
        worker["state"] == "starting" or (worker["state"] != "dead" and worker["pid"] == pid)
        for worker in workers
    )
