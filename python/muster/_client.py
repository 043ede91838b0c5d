"""A connection to the head, shared by all threads and event loops of a process.

There is no background thread. Whoever waits reads: the first waiter leads, reads
the socket and hands over what belongs to others; when it has its answer, a
follower takes the lead. An event loop that awaits has the socket among its
readers meanwhile. So a small blocking call costs one send and one recv in the
calling thread, and sync calls work inside a running loop.

Owns frames in and out and the table of what is unanswered. It never decodes a
value, and never decides what an answer means.
"""

from __future__ import annotations

import select
import socket
from _thread import RLock, get_ident
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any

from . import _errors, _objects, _wire
from ._endings import attempt, owned
from ._loops import Loops
from ._refs import PENDING, Ref, SplitCall
from ._waiting import Gate, Sink, unsent

_DONTWAIT = (socket.MSG_DONTWAIT,)
_NO_ANCILLARY: tuple[tuple[Any, ...]] = ((),)
_MOST_PARTS = 256  # buffers handed to one sendmsg; the kernel takes 1024
_KEEP = 8  # flag of a route: the result may become an argument
#: How often a thread that is stuck sending looks whether it has to read as well.
_SENDER_LOOKS = 0.02
#: How often a follower looks whether it has become the first: nobody may have
#: told it, where the one before was interrupted.
_FOLLOWER_LOOKS = 1.0

Turn = tuple[int, int]


class Connection:
    """Frames to and from the head. Every method may be called from any thread."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        how_ended: Callable[[], str],
        current_call: Callable[[], int] | None = None,
    ) -> None:
        #: The objects of this process; None where there are no stores.
        self.ledger: _objects.Ledger | None = None
        self._named: dict[int, list[Any]] = {}  # by unanswered calls of a worker's
        # Calls that name objects, which the head holds until it is acknowledged that
        # they were answered; and whether that has to be said with no call to follow.
        self._to_acknowledge: set[int] = set()
        self._acknowledges = False
        self._sock = sock
        self._fd = sock.fileno()
        self._stream = _wire.FrameStream(sock)
        # The frame being handed over. It stays here when an exception is thrown
        # into the reader, and is handed over again: takers ignore what they have.
        self._frame: _wire.Frame | None = None
        self._how_ended = how_ended
        self._current_call = current_call
        self._pending: dict[int, Sink] = {}
        self._ids = count(1)
        self._answers = 0
        self._holds = 0  # calls being sent whose arguments are refs
        self._held_ack = 0
        self._failure: Callable[[], BaseException] | None = None
        self._send_lock = RLock()
        # The frame that is under way and how much of it each send took. It stays
        # here when an exception is thrown into the sender, and the next sender
        # finishes it.
        self._outgoing: tuple[Sequence[Any], list[int]] | None = None
        # Who waits, in order of coming; the first leads. A turn is (thread, number).
        # Coming and going are single C calls, which an interrupt cannot split.
        self._turns: dict[Turn, Gate | None] = {}
        self._numbers = count()
        self._loops = Loops(self._fd, self.poll, self._at_rest)
        self._later: deque[list[Any]] = deque()
        self._closing = False

    # --- calls -----------------------------------------------------------

    def call(self, route: bytes, payload: bytes, buffers: Sequence[Any], finish: Any = None) -> Ref:
        """Send one call; its answer comes as one."""
        ref = Ref(self, next(self._ids), -1, finish)
        self._start(ref, ref._id, route, payload, buffers)
        return ref

    def split_call(
        self, route: bytes, payload: bytes, buffers: Sequence[Any], ranks: Sequence[int]
    ) -> list[Ref]:
        """Send one call whose ranks are answered one by one."""
        ident = next(self._ids)
        split = SplitCall(self, ident, ranks)
        self._start(split, ident, route, payload, buffers)
        return split.refs

    def _start(
        self, sink: Sink, ident: int, route: bytes, payload: bytes, buffers: Sequence[Any]
    ) -> None:
        self._pending[ident] = sink
        try:
            if buffers and self.ledger is not None:
                self._note_named(ident, route, buffers)
            self._send(_wire.KIND_CALL, ident, b"\x92" + route + payload, buffers)
        except BaseException:
            self._pending.pop(ident, None)
            self._named.pop(ident, None)
            self._to_acknowledge.discard(ident)
            raise

    def _note_named(self, ident: int, route: bytes, buffers: Sequence[Any]) -> None:
        """Take note of a call that names objects."""
        stored = [buf for buf in buffers if type(buf) is _objects.Stored]
        if stored and self._current_call is not None:
            # A worker gives rights back by its other connection, which may be quicker.
            self._named[ident] = stored
        if stored and route[-1] & _KEEP:
            self._to_acknowledge.add(ident)

    @contextmanager
    def holding_acks(self) -> Generator[None, None, None]:
        """Acknowledge nothing more meanwhile: what is not acknowledged, the head keeps.

        Between the moment at which an argument was found to be a pending ref and
        the sending of the call, its answer may come in another thread. Once that is
        acknowledged, the head has nothing left to put in the argument's place.
        """
        with self._send_lock:
            if not self._holds:
                self._held_ack = self._answers
            self._holds += 1
        try:
            yield
        finally:
            with self._send_lock:
                self._holds -= 1

    def cancel(self, ident: int, kill: bool = False) -> None:
        """Ask the head to cancel a call of this connection."""
        self._send(_wire.KIND_CANCEL, ident, b"\xc3" if kill else b"\xc0")

    def expire(self, ident: int) -> None:
        """Give up waiting for a call: have it answered with an error and stacks."""
        self._send(_wire.KIND_EXPIRE, ident, b"\xc0")

    def parent(self) -> int:
        """The call that the caller runs in; 0 outside workers."""
        return 0 if self._current_call is None else self._current_call()

    def tell_waiting(self, refs: Iterable[Ref]) -> None:
        """In a worker, tell the head what this call waits for, so that it sees cycles."""
        if self._current_call is None:
            return
        parent = self._current_call()
        ids = sorted({ref._id for ref in refs if ref._state == PENDING})
        if parent and ids:
            self._send(_wire.KIND_WAIT, parent, _wire.pack(ids))

    def request(
        self, verb: str, message: dict[str, Any], timeout: float | None = None
    ) -> dict[str, Any]:
        """Ask the head for something other than a call and wait for its response."""
        return self.response(self.ask(verb, message), verb, timeout)

    def ask(self, verb: str, message: dict[str, Any]) -> Ref:
        """Send a request; `response` waits for what comes back."""
        while self._later:
            told = _wire.pack(self._later.popleft())
            self._send(_wire.KIND_REQUEST, next(self._ids), told)
        reply = Ref(self, next(self._ids))
        self._pending[reply._id] = reply
        try:
            self._send(_wire.KIND_REQUEST, reply._id, _wire.pack([verb, message]))
        except BaseException:
            self._pending.pop(reply._id, None)
            raise
        return reply

    def later(self, verb: str, message: dict[str, Any]) -> None:
        """Leave a request to be sent before the next one; takes no lock, waits for nothing."""
        self._later.append([verb, message])

    def response(self, reply: Ref, verb: str, timeout: float | None) -> dict[str, Any]:
        deadline = None if timeout is None else monotonic() + timeout
        if not self.wait_one(reply, deadline):
            raise _errors.DeadlineError(f"the head did not answer {verb} within {timeout:g} s")
        return reply_map(reply)

    def hello(self, role: str, token: str, timeout: float, **extra: Any) -> dict[str, Any]:
        """Introduce ourselves, before anything else; returns the head's Welcome."""
        self._sock.settimeout(timeout)
        try:
            return _wire.hello(self._stream, role, token, **extra)
        finally:
            self._sock.settimeout(None)

    # --- sending ---------------------------------------------------------

    def _send(self, kind: int, ident: int, body: bytes, buffers: Sequence[Any] = ()) -> None:
        if self._failure is not None:
            raise self._failure()
        ack = (self._held_ack if self._holds else self._answers) & 0xFFFFFFFF  # as in _ack
        told: list[_objects.Account] = []
        parts = [] if buffers else _wire.pack_frame(kind, ident, body, ack=ack)
        with self._send_lock:
            if self._outgoing is not None:
                self._finish_sending()
            sent: list[int] = []
            try:
                if buffers:  # who names an object first also sends first
                    named = _objects.name(buffers, self.ledger, self, told)
                    parts = _wire.pack_frame(kind, ident, body, named, ack=ack)
                self._outgoing = (parts, sent)
                if len(parts) > 1:
                    self._finish_sending()
                else:
                    try:
                        sent.extend(map(self._sock.send, parts, _DONTWAIT))  # as in _push
                    except BlockingIOError:
                        pass
                    if sent and sent[0] == len(parts[0]):
                        self._outgoing = None
                    else:
                        self._finish_sending()
            except OSError as error:
                self._outgoing = None
                self.poll()  # the head may have said why
                self._fail(error)
                if self._failure is not None:
                    raise self._failure() from None
            except BaseException:
                if not sum(sent):
                    self._outgoing = None  # nothing went out: as if it never was
                    _objects.unname(told, self)
                raise
        ledger = self.ledger
        if self._acknowledges:
            self.flush()
        elif ledger is not None and ledger.given_back:
            ledger.send()
        if self._failure is not None:
            raise self._failure()

    def _ack(self) -> int:
        return (self._held_ack if self._holds else self._answers) & 0xFFFFFFFF

    def flush(self) -> None:
        """Tell the head what was given back, unless somebody is sending, who then does it.

        Called by finalizers: in any thread, at any point of its code, so it neither waits
        nor interferes with what its own thread is in the middle of.
        """
        lock = self._send_lock
        while self._has_to_tell() and not owned(lock) and attempt(lock, self._push_release):
            pass

    def _has_to_tell(self) -> bool:
        ledger = self.ledger
        if ledger is None:
            return False
        return self._acknowledges or (ledger.given_back != [] and ledger.send == self.flush)

    def _push_release(self) -> bool:
        """Send a notice, or leave it to whoever sends next; whether it could be sent at once."""
        ledger = self.ledger
        if ledger is None or self._outgoing is not None:
            return False
        # A worker's rights go by the connection that its calls come by.
        count = len(ledger.given_back) if ledger.send == self.flush else 0
        parts, sent = [ledger.release(count, self._ack())], list[int]()
        # No call between these, after which a signal handler could run.
        self._outgoing = (parts, sent)
        self._acknowledges = False
        del ledger.given_back[:count]
        try:
            self._push(parts, sent)
        except OSError:
            self._outgoing = None  # the connection is gone, and all rights with it
            return False
        if sum(sent) == len(parts[0]):
            self._outgoing = None
        return self._outgoing is None

    def _push(self, parts: Sequence[Any], sent: list[int]) -> None:
        """Give the kernel what it takes at once. The count cannot be lost by an interrupt."""
        try:
            if len(parts) == 1:
                sent.extend(map(self._sock.send, parts, _DONTWAIT))
            else:
                some = list(parts[:_MOST_PARTS])
                sent.extend(map(self._sock.sendmsg, (some,), _NO_ANCILLARY, _DONTWAIT))
        except BlockingIOError:
            pass

    def _finish_sending(self) -> None:
        """Send the rest of the frame under way, reading meanwhile.

        The head stops reading while it is over its limits, and it may be waiting
        for us to read: a sender that only waited would wait for ever.
        """
        assert self._outgoing is not None
        parts, sent = self._outgoing
        turn = (get_ident(), next(self._numbers))
        try:
            self._turns[turn] = None
            self._push_all(parts, sent, turn)
        finally:
            self._turns.pop(turn, None)
            self._wake_first()
        self._outgoing = None

    def _push_all(self, parts: Sequence[Any], sent: list[int], turn: Turn) -> None:
        while rest := unsent(parts, sum(sent)):
            self._push(rest, sent)
            if not unsent(parts, sum(sent)):
                break
            leading = self._leads(turn)
            events = select.POLLOUT | (select.POLLIN if leading else 0)
            if self._poll(events, None if leading else _SENDER_LOOKS) & ~select.POLLOUT:
                self._receive_now()

    # --- receiving -------------------------------------------------------

    def wait_one(self, ref: Ref, deadline: float | None = None) -> bool:
        """Wait for one ref; False when the deadline passed first."""
        turn = (get_ident(), next(self._numbers))
        try:
            self._turns[turn] = None
            if len(self._turns) == 1 or self._leads(turn):
                return self._receive_until(ref, deadline)
        finally:
            self._turns.pop(turn, None)
            if self._turns:
                self._wake_first()
        return self._follow(lambda: ref._state != PENDING, (ref,), deadline)

    # Loops stand in functions of their own, without the try block that they would be
    # in: Python 3.13 leaves the jump back of a loop out of its block's range, and an
    # exception that a signal handler throws there would pass the finally by.

    def _receive_until(self, ref: Ref, deadline: float | None) -> bool:
        while ref._state == PENDING:
            if not self._receive(deadline):
                return ref._state != PENDING
        return True

    def wait(self, done: Callable[[], bool], refs: Sequence[Ref], deadline: float | None) -> bool:
        """Wait until ``done()``, which can only change when one of the refs does."""
        return self._follow(done, refs, deadline)

    def _follow(
        self, done: Callable[[], bool], refs: Sequence[Ref], deadline: float | None
    ) -> bool:
        """Sleep until ``done()`` while another thread reads, or until it is our turn to."""
        gate, turn = Gate(), (get_ident(), next(self._numbers))
        try:
            self._turns[turn] = gate
            return self._follow_until(done, refs, deadline, gate, turn)
        finally:
            self._turns.pop(turn, None)
            self._wake_first()
            for ref in refs:
                ref.unwatch(gate.open)

    def _follow_until(
        self,
        done: Callable[[], bool],
        refs: Sequence[Ref],
        deadline: float | None,
        gate: Gate,
        turn: Turn,
    ) -> bool:
        for ref in refs:
            ref.watch(gate.open)
        while not done():
            if self._leads(turn):
                if not self._receive(deadline):
                    return done()
                continue
            left = _FOLLOWER_LOOKS
            if deadline is not None:
                left = min(left, deadline - monotonic())
                if left <= 0:
                    return False
            gate.wait(left)
        return True

    def _leads(self, turn: Turn) -> bool:
        """Whether it is this turn's to read.

        A turn of the same thread that is first belongs to code which this one
        interrupted (a signal handler's call), and can only go on after it.
        """
        while len(self._turns) > 1:
            try:
                first = next(iter(self._turns))
            except (RuntimeError, StopIteration):  # it changed under our eyes
                continue
            return first is turn or first[0] == turn[0]
        return True

    def _wake_first(self) -> None:
        """Tell who reads next, if anybody waits."""
        if self._turns:
            try:
                gate = next(iter(self._turns.values()))
            except (RuntimeError, StopIteration):
                return  # whoever changed it does the same
            if gate is not None:
                gate.open()

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""
        if self._turns or self._failure is not None:
            return  # the one who waits reads
        turn = (get_ident(), next(self._numbers))
        try:
            self._turns[turn] = None
            if self._leads(turn):
                self._receive_now()
        finally:
            self._turns.pop(turn, None)
            self._wake_first()

    def _receive(self, deadline: float | None) -> bool:
        """As leader: wait for bytes and deliver them; False when the deadline passed."""
        if (self._frame is not None or self._stream.holds()) and self._deliver():
            return True
        if deadline is not None:
            left = deadline - monotonic()
            if left <= 0 or not self._poll(select.POLLIN, left):
                return False
        try:
            self._stream.fill(0 if deadline is None else socket.MSG_DONTWAIT)
            self._deliver()
        except BlockingIOError:
            pass  # poll may promise what is not there
        except (OSError, EOFError, _errors.ProtocolError) as error:
            self._fail(error)
        return True

    def _receive_now(self) -> None:
        """As leader: deliver everything that is there."""
        try:
            self._deliver()
            while True:
                self._stream.fill(socket.MSG_DONTWAIT)
                self._deliver()
        except BlockingIOError:
            pass
        except (OSError, EOFError, _errors.ProtocolError) as error:
            self._fail(error)

    def _deliver(self) -> bool:
        """Hand over every whole frame; whether there was any."""
        some, stream = False, self._stream
        while True:
            if self._frame is None:
                self._frame = stream.next()
            if self._frame is None:
                return some
            self._take(self._frame)
            self._frame = None
            if not stream.holds():
                return True
            some = True

    def _take(self, frame: _wire.Frame) -> None:
        kind, flags, ident, _, rank, body, buffers = frame
        if kind == _wire.KIND_ANSWER:
            self._answers += 1
        elif kind != _wire.KIND_RESPONSE:
            return
        if buffers and self.ledger is not None:
            _objects.claim(buffers, self.ledger)
            if self._current_call is not None:
                self._acknowledges = True
        sink = self._pending.get(ident)
        if sink is not None and sink.deliver(flags, rank, body, buffers):
            self._pending.pop(ident, None)
            if self._named:
                self._named.pop(ident, None)
            if ident in self._to_acknowledge:
                self._to_acknowledge.discard(ident)
                self._acknowledges = True
        if self._acknowledges:
            self.flush()

    def _poll(self, events: int, seconds: float | None) -> int:
        poller = select.poll()
        poller.register(self._fd, events)
        found = poller.poll(None if seconds is None else max(0.0, seconds) * 1000)
        return found[0][1] if found else 0

    # --- event loops -----------------------------------------------------

    def arrival(self, ref: Ref) -> Generator[Any, None, None]:
        """What ``await ref`` waits on: the ref is done when it returns."""
        self.tell_waiting((ref,))
        yield from self._loops.arrival(ref)

    def _at_rest(self) -> None:
        """No event loop has the socket among its readers any more."""
        if self._closing:
            self._sock.close()

    # --- the end ---------------------------------------------------------

    def alive(self) -> bool:
        return self._failure is None

    def _fail(self, error: Exception | None) -> None:
        """The stream is over: everything unanswered fails, and all that comes later."""
        if self._failure is None:
            text = self._how_ended() if not self._closing else "muster.shutdown() was called"
            if isinstance(error, _errors.ProtocolError):
                text = str(error)
            self.end(lambda: _errors.HeadLostError(text))

    def end(self, failure: Callable[[], BaseException]) -> None:
        """Fail what is unanswered and all that comes later with ``failure()``."""
        if self._failure is None:
            self._failure = failure
        while self._pending:
            try:
                _, sink = self._pending.popitem()
            except KeyError:
                break
            sink.fail(self._failure)
        self._named.clear()
        self._to_acknowledge.clear()
        self._wake_first()

    def close(self, failure: Callable[[], BaseException]) -> None:
        """Hang up. Waiting threads and loops get ``failure()``."""
        self._closing = True
        self.end(failure)
        self.hang_up()  # wakes a leader in recv
        if not self._loops.waiting():
            self._sock.close()

    def hang_up(self) -> None:
        """End the stream without taking a lock: the head notices, and so does our reader."""
        self._closing = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def abandon(self, failure: Callable[[], BaseException]) -> None:
        """In a forked child: let go of the parent's connection without touching it."""
        self._closing = True
        self._failure = failure
        self._pending = {}
        self._loops = Loops(-1, self.poll, self._at_rest)
        self._turns = {}
        self._send_lock = RLock()
        self._sock.close()


def reply_map(reply: Ref) -> dict[str, Any]:
    """The map in a response; its error is raised."""
    if reply._answer is None:
        reply._result()  # raises: the connection ended
    assert reply._answer is not None
    flags, body, _ = reply._answer
    message = _wire.unpack(body)
    if flags & _wire.FLAG_ERROR:
        raise _errors.from_wire(message)
    if not isinstance(message, dict):
        raise _errors.ProtocolError(f"the head answered {message!r} where a map was expected")
    return message
