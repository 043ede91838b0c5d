"""Objects as this process knows them: bytes at hand, or a right to bytes in a store.

Owns what a value is made over: `Inline` bytes that came in a frame or go into
one, and `Stored` stretches of objects. A process that names an object has a
right to it, counted by the head; it is given back when the last Python object
that could name it is gone. How a store is talked to is `_leases`', how memory
is mapped is `_shm`'s.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from os import getpid
from typing import TYPE_CHECKING, Any, ClassVar

from . import _errors, _looks, _wire
from ._endings import Ending, endings, flusher, nobody, waiting, when_gone
from ._loans import Account, Loans
from ._looks import ALONE, Looks, references
from ._sources import Inline, Source, Window

if TYPE_CHECKING:
    import numpy

    from ._leases import Lease, Store
    from ._store import Stores

LARGE = 256 << 10  # buffers of so many bytes go into a store
_CROWD = 8 << 20  # what a frame may carry of smaller ones
_CALLERS = 1 << 32  # numbers of holders from here on are no workers
_TOLD = 1 << 32  # numbers of segments below this are told to others
_SMALL = 4 << 10  # with more than that, buffers from here on go too

_ONE_RELEASED = b"\x92\xa7release\x81\xa7objects\x91\x92\xcf"  # as release() packs it

_new = tuple.__new__
_bare: Any = object.__new__
_Bytes = Any  # numpy.ndarray of bytes


class Ledger:
    """What this process may name, and how it says that it needs something no more."""

    def __init__(self, welcome: dict[str, Any]) -> None:
        self._where = (
            str(welcome["store_dir"]),
            int(welcome["store_node"]),
            str(welcome["store_token"]),
            int(welcome["holder"]),
            bool(welcome.get("store_apart")),
        )
        self._stores: Stores | None = None
        self._pid = getpid()
        self._sorting = threading.Lock()
        self.counting = threading.RLock()  # while rights that came are counted
        self.ended: list[Ending] = []  # with accounts
        self.at_end = flusher(self.flush)
        #: Objects and counts, for the head; with a count of 0 it is a loan that is given back.
        self.given_back: list[tuple[int, int]] = []
        self.loans = loans = Loans(lends=self._where[3] < _CALLERS)
        self.fresh, self.read = loans.fresh, loans.read  # what `settle` is about
        self.looks = Looks(self.counting)  # at what is kept open
        #: The call that runs, if its reply takes along what was given back of its own arguments:
        #: until then the head holds those for the call anyway. Else 0.
        self.leg = 0
        self._pressing = False  # something else was given back
        #: Sends what was given back if that can be done without waiting.
        self.send: Callable[[], None] = _leave_it
        _Current.living.add(self)

    @property
    def stores(self) -> Stores:
        """The stores, none of which is connected to before it is needed."""
        if self._stores is None:
            from ._store import Stores

            self._stores = Stores(*self._where)
        return self._stores

    def flush(self) -> None:
        """Deal with rights that ended; in finalizers, so it waits for nothing."""
        if self._pid != getpid():
            return  # in a forked child, nothing of it is ours
        while self.ended:
            taken: list[bool] = []  # as in attempt
            try:
                taken.extend(map(self._sorting.acquire, (False,)))
                if not taken[0]:
                    break
                self._sort()
            finally:
                if taken and taken[0]:
                    self._sorting.release()
        if self.given_back and (self._pressing or not self.leg):
            self._pressing = False
            self.send()

    def settle(self, call: int) -> None:
        """A call has ended, and its reply takes along which loans have. For when there
        are some, ``fresh`` or ``read``."""
        with self._sorting, self.counting:
            self._sort()
            self.loans.settle(call, self.given_back)
        if self.ended:  # by a finalizer that found us sorting
            self.flush()

    def _sort(self) -> None:
        loans, fresh, kept = self.loans, self.fresh, self.loans.kept
        while self.ended:
            if loans.came:
                loans.count()
                continue
            ending = self.ended[0]  # no call since: if it came without a loan, it is counted
            account = ending.entry
            endings.pop(id(ending), None)  # as in forget
            for borrowed in account.borrowed:  # not to be seen any more when others are told
                borrowed.give_back(account)
            object = account.object
            if fresh:
                call = account.call
                held = fresh.get(call)
                if held is account:
                    del fresh[call]
                elif held is not None:
                    loans.leave(account)
            lent = (object in kept or self.read) and loans.gone(account)
            # No call between the two steps, after which a signal handler could run.
            if account.count:
                if account.leg != self.leg:
                    self._pressing = True
                if lent:
                    self.given_back += [(object, 0), (object, account.count)]
                else:
                    self.given_back += [(object, account.count)]
                del self.ended[0]
            elif account.maker is not None and account.object:
                account.maker.freed += [account.object]
                del self.ended[0]
                account.maker.flush()
            else:
                del self.ended[0]

    def release(self, first: int, ack: int = 0, number: int = 0) -> bytes:
        """The frame that tells the head of the first entries of what was given back."""
        told = self.given_back[:first]
        if len(told) == 1 and 0 < told[0][1] < 128:
            object, count = told[0]
            notice = b"%b%b%c" % (_ONE_RELEASED, object.to_bytes(8, "big"), count)
            return _wire.HEADER.pack(len(notice), _wire.KIND_NOTICE, 0, 0, 0, number, ack) + notice
        counts: Counter[int] = Counter()
        loans: Counter[int] = Counter()
        for object, count in told:
            if count:
                counts[object] += count
            else:
                loans[object] += 1
        said = {"objects": [*counts.items()]}
        if loans:
            said["lent"] = [*loans.items()]
        notice = _wire.pack(["release", said])
        frame: bytes = _wire.pack_frame(_wire.KIND_NOTICE, 0, notice, peer=number, ack=ack)[0]
        return frame

    def stock(self) -> list[tuple[int, int]]:
        """How often this process knows of each object, for a head that is told anew. What waits
        to be given back is left out, and nothing of it has to be said any more. Nobody may be
        sending meanwhile."""
        return self.stock_and_loans()[0]

    def stock_and_loans(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """`stock`, and how many of those counts are loans."""
        with self._sorting, self.counting:
            self._sort()
            del self.given_back[:]
            counts: Counter[int] = Counter()
            for account in waiting(Account):
                if account.ledger is self and account.count:
                    counts[account.object] += account.count
            return [*counts.items()], self.loans.counts()

    def retire(self) -> None:
        """The session is over; views that are held stay good."""
        if self._stores is not None:
            self._stores.retire()

    def abandon(self) -> None:
        """In a forked child: none of it is this process's. What the parent has a right to may be
        read here, too, for as long as it has; by a connection of our own, as the parent's loans
        end when its calls do, and nobody tells us."""
        self._sorting, self.counting = threading.Lock(), threading.RLock()  # whoever had them
        self.looks = Looks(self.counting)  # what the parent has open stays so
        for account in waiting(Account):
            if account.ledger is self and account.maker is None:
                account.forfeit()
        if self._stores is not None:
            self._stores.abandon()


def _leave_it() -> None:
    """Nobody is there yet who could send it."""


class _Current:
    """The ledger of this process, and all that somebody may still read by: those of sessions
    that are over, and in a forked child its parent's."""

    ledger: Ledger | None = None
    living: ClassVar[weakref.WeakSet[Ledger]] = weakref.WeakSet()


def ledger() -> Ledger | None:
    """The ledger of this process's session; None where there is none, or no store."""
    return _Current.ledger


def use(welcome: dict[str, Any] | None) -> Ledger | None:
    """Begin a ledger for the session that a Welcome opened; None ends the one before."""
    known = welcome is not None and bool(welcome.get("store_dir"))
    _Current.ledger = Ledger(welcome) if welcome is not None and known else None
    return _Current.ledger


def abandon() -> None:
    """In a forked child, and in a child of that: no ledger is this process's, nor are the
    connections by which its parent reads."""
    _looks.in_child()
    for ledger in [*_Current.living]:
        ledger.abandon()
    _Current.ledger = None


class Right:
    """A right to name an object, for all in this process who got it together."""

    __slots__ = ("__weakref__", "account", "ledger")

    def __init__(self, ledger: Ledger, object: int, maker: Store | None = None) -> None:
        self.ledger = ledger
        self.account = account = Account()
        account.ledger = ledger
        account.object = object
        account.maker = maker
        account.segment = account.leg = account.call = account.count = 0
        account.borrowed = account.lines = ()
        when_gone(self, account, ledger.ended, ledger.at_end)

    @property
    def object(self) -> int:
        """The object's number."""
        return self.account.object


class _Numpy:
    """What is needed of numpy, which is not loaded before it is needed. An import statement where
    rows are read would look through all of its machinery each time."""

    reading: tuple[Any, Any] | None = None


def _reading() -> tuple[Any, Any]:
    import numpy

    _Numpy.reading = numpy.frombuffer, numpy.uint8
    return _Numpy.reading


class Stored:
    """A stretch of an object in a store."""

    __slots__ = ("__weakref__", "_kept", "_lease", "_memory", "_root", "nbytes", "offset", "right")

    _root: Callable[[], _Bytes | None]
    _memory: Callable[[], Any]
    _lease: Callable[[], Lease | None]  # of the root, where not all is here
    _kept: Any  # the root, or the memory, where it is to stay

    def __init__(self, right: Right, offset: int, nbytes: int) -> None:
        self.right = right
        self.offset = offset
        self.nbytes = nbytes
        self._root = self._memory = self._lease = nobody
        self._kept = None

    def root(self) -> numpy.ndarray[Any, Any]:
        """The content as a writable array; the same one for as long as it is held."""
        root: numpy.ndarray[Any, Any] | None = self._root()
        if root is None:
            made, lease = self._mapped()
            with self.right.ledger.counting:
                root = self._root()
                if root is None:
                    root, self._lease = made, lease
                    self._root = weakref.ref(root)
        return root

    def _mapped(self) -> tuple[numpy.ndarray[Any, Any], Any]:
        frombuffer, kind = _Numpy.reading or _reading()
        memory = self.memory()
        if memory is not None:
            return frombuffer(memory, kind, self.nbytes, self.offset), nobody
        object = self.right.object
        lease = self.right.ledger.stores.open([object])[object]
        return frombuffer(_within(self, lease), kind), (
            weakref.ref(lease) if lease.partial else nobody
        )

    def memory(self) -> Any:
        """What it lies in, from the beginning of its object on, as a ctypes array, the same one for
        as long as it is held: of what came with a leg, and lies where that says. Else None."""
        memory = self._memory()
        if memory is None:
            memory = _borrowed(self.right, self.offset + self.nbytes, self)
        return memory

    def keep(self) -> None:
        """Keep open what is, until `let_go`."""
        root = self._root()
        self._kept = self._memory() if root is None else root

    def let_go(self) -> bool:
        """Let go of what was kept open and nobody looks at; whether somebody does. What was
        written to it stays, for as long as this does: a root that is made anew would not show it."""
        with self.right.ledger.counting:
            root, memory, kept = self._root, self._memory, self._kept
            base, gone, looked_at = kept, False, True
            try:
                # Nobody can come by it now who has no view of it.
                self._root = self._memory = nobody
                self._kept = None
                base = root()
                if base is None:
                    base = memory()
                kept = None
                looked_at = base is not None and references(base) > ALONE
                if not looked_at and memory() is not None:
                    base = memory()  # of which a root is made again
                    looked_at = references(base) > ALONE
                gone = not looked_at and (base is None or not self._written(base))
            finally:
                if not gone:
                    self._kept, self._root, self._memory = base, root, memory
        return looked_at

    def _written(self, base: Any) -> bool:
        import ctypes

        from . import _pages

        if isinstance(base, ctypes.Array):
            start = ctypes.addressof(base) + self.offset
        else:
            start = base.ctypes.data
        return _pages.written(*_pages.around(start, start + self.nbytes))

    @property
    def partial(self) -> bool:
        """Whether the root lies on another node, and not all of it is here."""
        return self._lease is not nobody

    def need(self, spans: Sequence[tuple[int, int]]) -> None:
        """Wait until bytes are here; somebody holds the root."""
        lease = self._lease()
        if lease is not None:
            lease.need([(self.offset + start, self.offset + stop) for start, stop in spans])

    def buffer(self) -> Stored:
        """Itself: who sends it makes a reference of it."""
        return self

    def device_address(self) -> tuple[int, int, Any] | None:
        """The shared mapping of its segment."""
        lease = self.right.ledger.stores.open([self.right.object])[self.right.object]
        window = Window(lease.segment.readable(), lease)
        return window.address, window.length, window


def views(sources: Sequence[Stored]) -> list[memoryview]:
    """The bytes of stretches of objects, writable and private to whoever gets them. Stretches
    of the same object share one lease."""
    lent = _lent(sources)
    if None not in lent:
        return lent  # type: ignore[return-value]
    leases: dict[tuple[int, int], Lease] = {}
    asked = [source.right for source, view in zip(sources, lent, strict=True) if view is None]
    for ledger in {id(right.ledger): right.ledger for right in asked}.values():
        opened = ledger.stores.open([right.object for right in asked if right.ledger is ledger])
        leases |= {(id(ledger), object): lease for object, lease in opened.items()}
    found = []
    for source, view in zip(sources, lent, strict=True):
        if view is not None:
            found.append(view)
            continue
        lease = leases[id(source.right.ledger), source.right.object]
        lease.need([(source.offset, source.offset + source.nbytes)])
        found.append(_within(source, lease))
    return found


def _within(source: Stored, lease: Lease) -> memoryview:
    """A stretch of an object that was opened."""
    from . import _shm

    if source.offset + source.nbytes > lease.size:
        raise _errors.ProtocolError(
            f"a reference to {source.nbytes} bytes from {source.offset} on, of an object of "
            f"{lease.size} bytes"
        )
    return _shm.view(lease.address + source.offset, source.nbytes, lease)


def _lent(sources: Sequence[Stored]) -> list[memoryview | None]:
    """The bytes of what came with a leg, where they can be looked at without asking."""
    found: list[memoryview | None] = []
    whole: memoryview | None = None
    last: Right | None = None
    for source in sources:
        right = source.right
        if right is not last:  # stretches of an object come together
            memory, last = _borrowed(right, 0), right
            whole = None if memory is None else memoryview(memory).cast("B")
        start, end = source.offset, source.offset + source.nbytes
        found.append(None if whole is None or end > len(whole) else whole[start:end])
    return found


def _borrowed(right: Right, end: int, stored: Stored | None = None) -> Any:
    """All of an object that came with a leg, seen by nobody else, as a ctypes array; None where
    it is to be opened, or has no so many bytes. Where it is for a stretch, by that alone."""
    account, ledger = right.account, right.ledger
    if account.segment <= 0 or account.maker is not None:
        return None
    with ledger.counting:
        if stored is not None:
            memory = stored._memory()  # of another thread
            if memory is not None or stored._root() is not None:
                return memory
        memory = _mapped(right, end)
        if memory is not None and stored is not None:
            stored._memory = weakref.ref(memory)
        return memory


def _mapped(right: Right, end: int) -> Any:
    account, ledger = right.account, right.ledger
    if account.segment <= 0:  # meanwhile
        return None
    for borrowed in account.borrowed:
        memory = borrowed.memory(right, end)
        if memory is not None:
            return memory
    for store in (ledger._stores or ledger.stores).known.get(account.object >> 48, ()):
        more = store.borrow(account)
        if more is not None:
            return more.memory(right, end)
    return None


# --- buffers of frames ---------------------------------------------------------------------


def from_buffer(buf: Any) -> Source:
    """The source that an element of a frame's buffers stands for."""
    if type(buf) is Stored:
        return buf
    if type(buf) is _wire.Reference:
        known = ledger()
        if known is None:
            raise _errors.ProtocolError(f"{buf} came where there is no store")
        return Stored(Right(known, buf.object), buf.offset, buf.length)
    return Inline(buf)


def claim(bufs: Any, ledger: Ledger, leg: bool = False, call: int = 0) -> None:
    """Take the rights that come with a frame, in the places of its references. With a leg come
    loans: its objects may be read where they lie until its call has ended (`Ledger.settle`).

    It may be done again when it was interrupted: a right counts once it has its place.
    """
    if len(bufs) == 1 and type(bufs[0]) is _wire.Reference:  # as in _claim
        object, offset, length, _, segment = bufs[0]
        with ledger.counting:
            account, right, stored = Account(), _bare(Right), _bare(Stored)
            account.ledger = right.ledger = ledger
            account.object = object
            account.maker = None
            account.count = 0
            account.borrowed = account.lines = ()
            account.leg, account.segment = (ledger.leg, segment) if leg else (0, 0)
            account.call = call
            right.account = account
            if account.segment:
                if ledger.fresh.setdefault(call, account) is not account:
                    ledger.loans.join(account)
            elif ledger.loans.lends:
                ledger.loans.came.append(account)
            when_gone(right, account, ledger.ended, ledger.at_end)
            stored.right = right
            stored.offset = offset
            stored.nbytes = length
            stored._root = stored._memory = stored._lease = nobody
            stored._kept = None
            bufs[0] = stored
            account.count = 1
    elif _wire.Reference in map(type, bufs):
        with ledger.counting:
            _claim(bufs, ledger, leg, call)


def _claim(bufs: Any, ledger: Ledger, leg: bool, call: int) -> None:
    rights: dict[int, Right] = {}
    for buf in bufs:
        if type(buf) is Stored:
            rights[buf.right.object] = buf.right
    for i, buf in enumerate(bufs):
        if type(buf) is _wire.Reference:
            right = rights.get(buf.object)
            if right is None:
                right = rights[buf.object] = Right(ledger, buf.object)
                account = right.account
                if leg:
                    account.leg, account.call = ledger.leg, call
                    account.segment = buf.segment
                if account.segment:
                    ledger.loans.join(account)
                elif ledger.loans.lends:
                    ledger.loans.came.append(account)
            bufs[i] = Stored(right, buf.offset, buf.length)
    for right in rights.values():
        right.account.count = 1


#: Whether buffers of these types lie in a store already.
are_stored = frozenset((Stored,)).issuperset


def stow(buffers: list[Any], what: str) -> None:
    """Move the large ones of a message's buffers into a store, if there is one."""
    if _Current.ledger is None or are_stored(map(type, buffers)):
        return
    sizes = [0 if type(buf) is Stored else memoryview(buf).nbytes for buf in buffers]
    least = LARGE
    if sum(size for size in sizes if size < LARGE) > _CROWD:
        least = _SMALL
    chosen = [i for i, size in enumerate(sizes) if size >= least]
    if chosen:
        from . import _store

        _store.stow(buffers, chosen, what)


def name(
    buffers: Sequence[Any], ledger: Ledger | None, line: Any, told: list[Account]
) -> list[Any]:
    """The buffers as a frame on a connection has them, which is sent next. ``told`` collects
    what the head is told of by it for the first time; see `unname`."""
    named: list[Any] = []
    reference = _wire.Reference
    for buf in buffers:
        if type(buf) is not Stored:
            named.append(buf)
            continue
        account = buf.right.account
        if account.ledger is not ledger:
            raise _errors.ReleasedError(
                "what is sent lay in the store of a session that muster.shutdown() ended"
            )
        new, segment = False, 0
        if account.maker is not None and line not in account.lines:
            told.append(account)
            account.lines += (line,)
            account.count += 1
            if account.ledger.loans.lends:
                account.ledger.loans.came.append(account)
            new = True
            if account.segment < _TOLD:
                segment = account.segment
        named.append(_new(reference, (account.object, buf.offset, buf.nbytes, new, segment)))
    return named


def unname(told: list[Account], line: Any) -> None:
    """The frame was not sent: the head knows nothing of what it would have been told."""
    for account in told:
        if line in account.lines:
            account.lines = tuple(other for other in account.lines if other is not line)
            account.count -= 1
