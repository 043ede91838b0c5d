"""A connection to a store: objects made and opened there, and leases that end by themselves.

One request is out at a time; notices, which end what requests began, go out in
between. Those come from finalizers, which may run in any thread, inside any
lock: they leave word in a list and send it only if nobody else is sending;
whoever is, sends it after its own.

An exception that a signal handler raises (Ctrl-C) may come at any point: bytes
on their way out or in are kept where the next request finds them, and what an
interrupted request was given is given back.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from . import _errors, _wire
from ._endings import attempt, flusher, forget, nobody, when_gone
from ._pages import written
from ._shm import CHUNK, Mapping, Segment, array_type, make_room

_CONNECT_SECONDS = 30.0
_MOST_OPENED = 200  # objects in one request: the kernel passes on 253 descriptors at once
_MOST_NEEDED = 10_000  # chunks in one request
_CHUNK = 64 << 10
_ANCILLARY = socket.CMSG_SPACE(256 * array.array("i").itemsize)
_DONTWAIT = (socket.MSG_DONTWAIT,)

Reply = dict[str, Any]
Span = tuple[int, int]


class Loan:
    """What a lease has to give back."""

    __slots__ = ("here", "lender", "mapping", "object", "segment", "size", "watched")

    def __init__(self, object: int) -> None:
        self.object = object
        self.lender: Store | None = None  # whom to ask for what is not here; None: all is
        self.here: set[int] = {0}  # chunks that are, as far as we know
        self.watched = False  # it will be given back
        self.segment: Segment | None = None
        self.mapping: Mapping | None = None
        self.size = 0

    def wipe(self) -> None:
        """Before the store is told: nothing that was written here may be seen any more. What was
        only read is the segment's own, and need not be mapped again for the next."""
        segment, mapping = self.segment, self.mapping
        if segment is not None and mapping is not None:
            if written(mapping.address, mapping.length):
                segment.wipe(mapping)
            self.mapping = None
            segment.take_back(mapping)


class Lease:
    """An object that was opened. Its bytes stay as they are while this lives."""

    __slots__ = ("__weakref__", "_loan")

    def __init__(self, loan: Loan) -> None:
        self._loan = loan

    @property
    def address(self) -> int:
        """Where the object begins, privately mapped."""
        assert self._loan.mapping is not None
        return self._loan.mapping.address

    @property
    def segment(self) -> Segment:
        """What the object lies in."""
        assert self._loan.segment is not None
        return self._loan.segment

    @property
    def size(self) -> int:
        """How many bytes the object has."""
        return self._loan.size

    @property
    def partial(self) -> bool:
        """Whether it lies on another node, and not all of it is here."""
        return self._loan.lender is not None

    def need(self, spans: Sequence[Span]) -> None:
        """Wait until bytes, from and (not included) to, are here."""
        loan = self._loan
        if loan.lender is None:
            return
        wanted = {
            chunk
            for start, stop in spans
            if start < stop
            for chunk in range(start // CHUNK, -(-stop // CHUNK))
        }
        wanted -= loan.here
        if wanted:
            loan.lender.need(loan.object, wanted)
            loan.here |= wanted


class _Never:
    """The ending of a lease that nobody got."""

    __slots__ = ("entry",)

    def __init__(self, loan: Loan) -> None:
        self.entry = loan


class _Pending:
    """A request that is out, or whose answer nobody has taken yet."""

    __slots__ = ("message", "number", "undo")

    def __init__(self, number: int, undo: Callable[[Reply], None]) -> None:
        self.number = number
        self.undo = undo  # gives back what an answer brought; may be done twice
        self.message: Reply | None = None  # the answer; empty if it was an error


class Granted(Protocol):
    """Who answers for a new object, 0 until there is one, and for where it lies."""

    object: int
    segment: int


class Lent(Protocol):
    """What the head has lent with a leg, for as long as there is a right to it."""

    segment: int
    borrowed: tuple[Borrowed, ...]


class Borrowed:
    """A private mapping of what was lent; kept for as long as that is, and used again for the
    next view when nobody looks at it any more."""

    __slots__ = ("mapping", "root", "segment", "store")

    store: Store
    segment: Segment
    mapping: Mapping | None
    root: Any  # what was made of it last, or nobody

    def memory(self, owner: object, end: int) -> Any:
        """All of it, as it was put, as a ctypes array; ``owner`` lives for as long as somebody
        looks at it. None while somebody does, and where it has fewer bytes than ``end``."""
        mapping = self.mapping
        if mapping is None or end > mapping.length or self.root() is not None:
            return None
        if self.root is not nobody and written(mapping.address, mapping.length):
            self.segment.wipe(mapping)
        root = array_type(mapping.length.bit_length()).from_address(mapping.address)
        root.owner = owner  # as in array_at
        self.root = weakref.ref(root)
        return root

    def give_back(self, lent: Lent) -> None:
        """Nobody will look at it any more. May be done again, if it was interrupted."""
        mapping, store = self.mapping, self.store
        if mapping is not None:
            if written(mapping.address, mapping.length):
                self.segment.wipe(mapping)
            self.mapping = None
            segment = self.segment
            if segment._idle or segment._closed:
                segment.take_back(mapping)
            else:  # as there
                segment._idle.append(mapping)
        store._borrowed.pop(id(lent), None)
        if store._retired:
            store.flush()


class Store:
    """A connection to the store of one node. Methods may be called from any thread."""

    def __init__(self, path: str, name: str, token: str, holder: int) -> None:
        self._name = name
        self._pid = os.getpid()
        self._turn = threading.Lock()  # who makes a request
        self._asking = 0  # the thread that has the turn
        self._numbers = count(1)
        self._pending: _Pending | None = None
        self._raw: list[Any] = []  # what was received of the next frame, with descriptors
        self._segments: dict[int, Segment] = {}
        self._sending = threading.Lock()  # guards what follows
        self._outgoing = b""
        self._took: list[int] = []  # how much of it the kernel has just taken
        self._ended: list[Any] = []  # endings with loans
        self.freed: list[int] = []  # objects of ours to be given up: nobody was told of them
        self._opened = 0  # leases ever; changed by who has the turn
        self._closed = 0  # of them, those that ended; changed by who sends
        self._borrowed: dict[int, Lent] = {}  # what is looked at and was not asked for
        self.writing: list[None] = []  # an entry for each object that is being written
        self._retired = False
        self._full = False  # descriptors were lost, so that not all segments are known
        self.dead = ""  # why it cannot be used any more
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(_CONNECT_SECONDS)
            self._sock.connect(path)
            _wire.hello(self._sock, _wire.ROLE_STORE, token, holder=holder)
            self._sock.settimeout(None)
        except _errors.MusterError:  # some of which are OSErrors too
            self._sock.close()
            raise
        except OSError as error:
            self._sock.close()
            raise _errors.NodeLostError(
                f"the store of {name} cannot be reached at {path}: {error.strerror or error}. "
                "Is its agent still running?"
            ) from None
        except BaseException:
            self._sock.close()
            raise

    def free_for_use(self) -> bool:
        """Whether a request can be made now; not by code that interrupted one, in its thread."""
        return not self.dead and not self._full and self._asking != get_ident()

    # --- what is asked for --------------------------------------------------------
    #
    # Who asks takes what the answer brought before it clears _pending, and there is
    # no call between the two, after which a signal handler could run: else the next
    # one who asks gives it back.

    def allocate(self, size: int, granted: Granted) -> Segment:
        """Make an object, which ``granted`` then answers for, and the segment that it begins."""

        def undo(late: Reply) -> None:
            object = late["object"]
            self.freed += [object]
            self._pending = None

        with self._turn:
            try:
                self._asking = get_ident()
                reply = self._ask("alloc", {"size": size}, undo)
                segment = self._segments.get(reply["segment"])
                granted.segment = reply["segment"]
                granted.object = reply["object"]
                self._pending = None
            finally:
                self._asking = 0
        if segment is None:
            raise self._descriptors_lost()
        return segment

    def open(self, objects: Sequence[int]) -> list[Lease]:
        """A lease of each object, with a private mapping of its segment."""
        leases: list[Lease] = []
        for start in range(0, len(objects), _MOST_OPENED):
            leases += self._open(objects[start : start + _MOST_OPENED])
        return leases

    def _open(self, objects: Sequence[int]) -> list[Lease]:
        loans = [Loan(object) for object in objects]

        def undo(_late: Reply) -> None:
            for loan in loans:
                if not loan.watched:
                    ended = _Never(loan)
                    self._ended += [ended]
                    loan.watched = True

        with self._turn:
            try:
                self._asking = get_ident()
                reply = self._ask("open", {"objects": list(objects), "some": True}, undo)
                leases = self._lease(loans)
                self._pending = None
            finally:
                self._asking = 0
        partial = reply.get("partial", ())
        for loan, (number, size) in zip(loans, reply["objects"], strict=True):
            segment = self._segments.get(number)
            if segment is None:
                raise self._descriptors_lost()
            mapping = segment.lend()
            loan.segment, loan.mapping = segment, mapping
            loan.size = size
            if loan.object in partial:
                loan.lender = self
        return leases

    def need(self, object: int, chunks: set[int]) -> None:
        """Wait until chunks of an object that was opened are here."""
        spans = [(chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in sorted(chunks)]
        for start in range(0, len(spans), _MOST_NEEDED):
            with self._turn:
                try:
                    self._asking = get_ident()
                    some = spans[start : start + _MOST_NEEDED]
                    self._ask("need", {"object": object, "spans": some}, _keep)
                    self._pending = None
                finally:
                    self._asking = 0

    def _lease(self, loans: list[Loan]) -> list[Lease]:
        leases = []
        for loan in loans:
            lease = Lease(loan)
            when_gone(lease, loan, self._ended, flusher(self.flush))
            leases.append(lease)
        return leases

    def borrow(self, lent: Lent) -> Borrowed | None:
        """A mapping of what was lent, if it lies in a segment that is known here. The store is
        told nothing of it, and nothing when it is returned."""
        segment = self._segments.get(lent.segment)
        if segment is None or self.dead:
            return None
        self._borrowed[id(lent)] = lent
        borrowed = Borrowed()
        borrowed.store = self
        borrowed.segment = segment
        borrowed.root = nobody
        try:
            borrowed.mapping = segment._idle.pop()  # as in lend
        except IndexError:
            borrowed.mapping = segment.lend()
        lent.borrowed += (borrowed,)
        return borrowed

    def _descriptors_lost(self) -> _errors.LimitError:
        """The kernel drops descriptors for which there is no room, without a word."""
        self._full = True
        return _errors.LimitError(
            f"no open files are left for the shared memory of the store of {self._name}: raise "
            "the limit (ulimit -n), or hold fewer large objects at a time"
        )

    def seal(self, object: int, size: int, what: str) -> None:
        """Say that an object is complete."""
        frame = _notice(["seal", {"object": object, "size": size, "what": what}])
        with self._sending:
            self._check()
            self._outgoing += frame
            self._push_all()
        self.flush()

    # --- requests -----------------------------------------------------------------

    def _ask(self, verb: str, message: Reply, undo: Callable[[Reply], None]) -> Reply:
        self._make_good()
        pending = _Pending(next(self._numbers), undo)
        body = _wire.pack([verb, message])
        frame = _wire.pack_frame(_wire.KIND_REQUEST, pending.number, body)[0]
        with self._sending:
            self._check()
            self._pending = pending
            self._outgoing += frame
            self._push_all()
        self.flush()
        return self._read(pending)

    def _make_good(self) -> None:
        """Give back what somebody was to be given who was interrupted."""
        pending = self._pending
        if pending is None:
            return
        if pending.message is None:
            with self._sending:
                self._push_all()
            try:
                self._read(pending)
            except _errors.NodeLostError:
                raise
            except _errors.MusterError:
                return  # it got nothing
        if pending.message:
            pending.undo(pending.message)
        self._pending = None

    def _read(self, pending: _Pending) -> Reply:
        """Wait for an answer; its descriptors are put where they belong."""
        while True:
            data = b"".join(part[0] for part in self._raw)
            if len(data) >= _wire.HEADER_SIZE:
                length, kind, flags, _, number, *_ = _wire.HEADER.unpack_from(data)
                if len(data) >= _wire.HEADER_SIZE + length:
                    break
            self._receive()
        message = _wire.unpack(data[_wire.HEADER_SIZE :])
        if kind != _wire.KIND_RESPONSE or number != pending.number or type(message) is not dict:
            raise self._over(f"it sent {message!r}")
        if flags & _wire.FLAG_ERROR:
            error = _errors.from_wire(message)
            self._raw = []
            self._pending = None
            try:
                raise error
            finally:
                del error  # whose traceback has frames that hold leases
        self._adopt(message)
        opened = len(message.get("objects", ()))
        self._raw = []
        self._opened += opened
        pending.message = message
        return message

    def _receive(self) -> None:
        try:
            self._raw.extend(
                map(self._sock.recvmsg, (_CHUNK,), (_ANCILLARY,), (socket.MSG_CMSG_CLOEXEC,))
            )
        except OSError as error:
            raise self._over(error.strerror or str(error)) from None
        if not self._raw[-1][0]:
            raise self._over("it hung up")

    def _adopt(self, message: Reply) -> None:
        """Take in what a response says of segments. May be done again, if it was interrupted."""
        for number in message["stale"]:
            segment = self._segments.pop(number, None)
            if segment is not None:
                segment.close()
        fds = array.array("i")
        for _, ancillary, _, _ in self._raw:
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        for number, fd in zip(message["fds"], fds, strict=False):
            if number not in self._segments:
                self._segments[number] = Segment(fd)
        if fds:
            make_room(max(fds))

    # --- sending ------------------------------------------------------------------

    def flush(self) -> None:
        """Send what finalizers left, unless somebody is sending: who then does it after that."""
        if self._pid != os.getpid():
            return  # in a forked child, nothing of it is ours
        while (self._ended or self.freed) and attempt(self._sending, self._push_endings):
            pass
        if self._retired and not self.in_use():
            self.close()

    def _push_endings(self) -> bool:
        """Put into words what ended; whether all of it could be sent."""
        frames = b""
        count, freed = len(self._ended), len(self.freed)
        endings = self._ended[:count]
        for ending in endings:
            forget(ending)
            ending.entry.wipe()
        loans = [ending.entry for ending in endings]
        if loans:
            counts = Counter(loan.object for loan in loans)
            frames = _notice(["close", {"objects": [*counts.items()]}])
        told = len(loans)
        for object in filter(None, self.freed[:freed]):
            frames += _notice(["free", {"object": object}])
        # No call in these, after which a signal handler could run: all or nothing.
        self._outgoing += frames
        self._closed += told
        del self._ended[:count]
        del self.freed[:freed]
        try:
            return self._push()
        except OSError as error:
            self._fail(error.strerror or str(error))
            return False

    def _push_all(self) -> None:
        try:
            while not self._push():
                poller = select.poll()
                poller.register(self._sock, select.POLLOUT)
                poller.poll()
        except OSError as error:
            raise self._fail(error.strerror or str(error)) from None

    def _push(self) -> bool:
        """Give the kernel what it takes at once; whether that was all."""
        if self._took:
            self._settle()
        if self.dead:
            self._outgoing = b""
        while self._outgoing:
            try:
                self._took.extend(map(self._sock.send, (self._outgoing,), _DONTWAIT))
            except BlockingIOError:
                return False
            self._settle()
        return True

    def _settle(self) -> None:
        self._outgoing = self._outgoing[self._took[0] :]
        self._took = []

    # --- the end ------------------------------------------------------------------

    def _check(self) -> None:
        if self.dead:
            raise _errors.NodeLostError(f"the store of {self._name} is lost: {self.dead}")

    def _fail(self, why: str) -> _errors.NodeLostError:
        """The connection is over. What is mapped stays readable: nobody recycles it now."""
        if not self.dead:
            self.dead = why
        return _errors.NodeLostError(
            f"the store of {self._name} is lost: {self.dead}. Did its agent end?"
        )

    def _over(self, why: str) -> _errors.NodeLostError:
        """As who has the turn: nothing more will come."""
        self._pending = None
        self._raw = []
        return self._fail(why)

    def in_use(self) -> bool:
        """Whether an object is looked at, or written."""
        return self._opened > self._closed or bool(self.writing) or bool(self._borrowed)

    def retire(self) -> None:
        """Hang up once the last lease has ended: a view is good for as long as it is held."""
        self._retired = True
        self.flush()

    def close(self) -> None:
        """Hang up and let go of all segments, unless a request is under way: it then fails."""
        self.dead = self.dead or "muster.shutdown() was called"
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if self._turn.acquire(blocking=False):
            try:
                self._sock.close()
                while self._segments:
                    self._segments.popitem()[1].close()
            finally:
                self._turn.release()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connection and descriptors; views stay."""
        self.dead = "this process was forked from the one that connected to it"
        self._sock.close()
        for segment in self._segments.values():
            segment.abandon()


def _keep(_late: Reply) -> None:
    """What nobody waits for any more may come all the same."""


def _notice(notice: list[Any]) -> bytes:
    frame: bytes = _wire.pack_frame(_wire.KIND_NOTICE, 0, _wire.pack(notice))[0]
    return frame
