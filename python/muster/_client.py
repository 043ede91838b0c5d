"""A connection to the head, shared by all threads and event loops of a process.

There is no background thread: whoever waits reads (`_reading`), whoever sends
sends (`_sending`). So a small blocking call costs one send and one recv in the
calling thread, and sync calls work inside a running loop.

It outlives the stream that it began with. When that ends, `_comeback` finds a
head again, which is told what is unanswered, and all goes on; only when there is
no way back, or none is wanted, everything unanswered fails.

It never decodes a value, and never decides what an answer means.
"""

from __future__ import annotations

import socket
import threading
from _thread import RLock
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from time import monotonic
from typing import Any

from . import _errors, _objects, _wire
from ._comeback import Comeback, Stopped, Way
from ._loops import Loops
from ._reading import looks_up
from ._refs import PENDING, Ref, SplitCall
from ._sending import Sender
from ._unanswered import Due, Hold, Parts
from ._waiting import Sink
from ._ways import back, resent

_WAITING, _KEEP = 2, 8  # flags of a route: the caller blocks; the result may become an argument
_STOP_PATIENCE = 5.0


class Connection(Sender):
    """Frames to and from the head. Every method may be called from any thread."""

    def __init__(
        self,
        stream: _wire.FrameStream,
        way: Way,
        current_call: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(stream, current_call)
        self.comeback = Comeback(self, way)
        self._ids = count(1)
        self._later: deque[list[Any]] = deque()
        self._closing = False
        self._cut_stream: _wire.FrameStream | None = None  # the last that ended
        self._refusal = ""  # why the head hung up, in its own words
        self.session = ""  # the name of the session, where it is known
        #: In a worker, the thread of the event loop that all its calls run on; else 0.
        self.loop_thread = 0

    # --- calls -----------------------------------------------------------

    def call(
        self,
        route: bytes,
        payload: bytes,
        buffers: Sequence[Any],
        finish: Any = None,
        hold: Hold | None = None,
        due: Due | None = None,
    ) -> Ref:
        """Send one call; its answer comes as one. ``hold`` has the futures that it names."""
        ref = Ref(self, next(self._ids), -1, finish)
        self._start(ref, ref._id, route, payload, buffers, hold, due)
        return ref

    def split_call(
        self,
        route: bytes,
        payload: bytes,
        buffers: Sequence[Any],
        ranks: Sequence[int],
        hold: Hold | None = None,
        due: Due | None = None,
    ) -> list[Ref]:
        """Send one call whose ranks are answered one by one."""
        ident = next(self._ids)
        split = SplitCall(self, ident, ranks)
        self._start(split, ident, route, payload, buffers, hold, due)
        return split.refs

    def _start(
        self,
        sink: Sink,
        ident: int,
        route: bytes,
        payload: bytes,
        buffers: Sequence[Any],
        hold: Hold | None,
        due: Due | None,
    ) -> None:
        if self._later:
            self._send_left()
        ledger = self.ledger
        if ledger is not None and (ledger.looks.fresh or ledger.looks.held):
            ledger.looks.let_go()  # who runs it may need the room
        self._pending[ident] = sink
        try:
            if due is not None:
                self._unanswered.note_due(ident, due)
            if buffers:
                if self.ledger is not None and (self.current_call is not None or route[-1] & _KEEP):
                    self._note_named(ident, route, buffers)
                if not route[-1] & _WAITING:
                    buffers = [_lasting(buf) for buf in buffers]
            self._send(_wire.KIND_CALL, ident, b"\x92" + route + payload, buffers, True, hold)
        except BaseException:
            self._pending.pop(ident, None)
            self._named.pop(ident, None)
            self._to_acknowledge.discard(ident)
            if ident not in self._frames:
                self._unanswered.forget(ident)
            raise

    def _note_named(self, ident: int, route: bytes, buffers: Sequence[Any]) -> None:
        """Take note of a call that names objects."""
        stored = [buf for buf in buffers if type(buf) is _objects.Stored]
        if stored and self.current_call is not None:
            # A worker gives rights back by its other connection, which may be quicker.
            self._named[ident] = stored
        if stored and route[-1] & _KEEP:
            self._to_acknowledge.add(ident)

    @contextmanager
    def holding_acks(self) -> Generator[Hold, None, None]:
        """Acknowledge nothing more meanwhile: what is not acknowledged, the head keeps.

        Between the moment at which an argument was found to be a pending ref and
        the sending of the call, its answer may come in another thread. Once that is
        acknowledged, the head has nothing left to put in the argument's place.
        """
        with self._send_lock:
            if not self._holds:
                self._held_ack = self._answers
            self._holds += 1
        hold = Hold(self._unanswered, self._era)
        try:
            yield hold
        finally:
            hold.end()
            with self._send_lock:
                self._holds -= 1

    def cancel(self, ident: int, kill: bool = False) -> None:
        """Ask the head to cancel a call of this connection."""
        self._end_call(_wire.KIND_CANCEL, ident, b"\xc3" if kill else b"\xc0")

    def expire(self, ident: int) -> None:
        """Give up waiting for a call: have it answered with an error and stacks."""
        self._end_call(_wire.KIND_EXPIRE, ident, b"\xc0")

    def _end_call(self, kind: int, ident: int, body: bytes) -> None:
        self._unanswered.note_end(ident, _wire.pack_frame(kind, ident, body)[0])
        self._send(kind, ident, body)

    def stalls(self) -> bool:
        """Whether a wait of this thread's holds up all that its worker runs, though it runs
        several calls."""
        return self.loop_thread != 0 and threading.get_ident() == self.loop_thread

    def tell_waiting(self, refs: Iterable[Ref], blocks: bool = False) -> None:
        """In a worker, tell the head what this call waits for, so that it sees cycles."""
        if self.current_call is None:
            return
        parent = self.current_call()
        ids = sorted({ref._id for ref in refs if ref._state == PENDING})
        if parent and ids:
            flags = _wire.FLAG_WHOLE if blocks and self.stalls() else 0
            self._unanswered.note_wait(parent, ids, flags)
            self._send(_wire.KIND_WAIT, parent, _wire.pack(ids), flags=flags)

    def arrival(self, ref: Ref) -> Generator[Any, None, None]:
        """What ``await ref`` waits on: the ref is done when it returns."""
        self.tell_waiting((ref,))
        yield from super().arrival(ref)
        self.tidy()

    def request(
        self,
        verb: str,
        message: dict[str, Any],
        timeout: float | None = None,
        buffers: Sequence[Any] = (),
    ) -> dict[str, Any]:
        """Ask the head for something other than a call and wait for its response. Who is
        interrupted there gets none of what it asked for: no pool, no cluster, no service."""
        reply = self.ask(verb, message, buffers)
        try:
            return self.response(reply, verb, timeout)
        except _errors.MusterError:
            raise
        except BaseException:
            with suppress(_errors.MusterError):  # the session is over
                self.cancel(reply._id)
            raise

    def ask(self, verb: str, message: dict[str, Any], buffers: Sequence[Any] = ()) -> Ref:
        """Send a request; `response` waits for what comes back."""
        self._send_left()
        reply = Ref(self, next(self._ids))
        self._pending[reply._id] = reply
        try:
            if self.current_call is not None and buffers:  # as in _note_named
                self._named[reply._id] = list(buffers)
            body = _wire.pack([verb, message])
            self._send(_wire.KIND_REQUEST, reply._id, body, buffers, keep=True)
        except BaseException:
            self._pending.pop(reply._id, None)
            self._named.pop(reply._id, None)
            raise
        return reply

    def later(self, verb: str, message: dict[str, Any]) -> None:
        """Leave a request to be sent before the next one or the next call, or by who waits for
        an answer; takes no lock, waits for nothing."""
        self._later.append([verb, message])

    def tidy(self) -> None:
        """Send what was left while this thread waited for answers."""
        if self._later and self._failure is None:
            with suppress(_errors.MusterError):  # the next one is told why
                self._send_left()

    def _send_left(self) -> None:
        while self._later:
            told = _wire.pack(self._later.popleft())
            self._send(_wire.KIND_REQUEST, next(self._ids), told, keep=True)

    def response(self, reply: Ref, verb: str, timeout: float | None) -> dict[str, Any]:
        deadline = None if timeout is None else monotonic() + timeout

        def stirs() -> bool:
            return reply._state != PENDING or bool(self._later)

        while reply._state == PENDING:
            if not self.wait(stirs, (reply,), deadline):
                raise _errors.DeadlineError(f"the head did not answer {verb} within {timeout:g} s")
            self._send_left()  # what the response waits for may be among it
        return reply_map(reply)

    # --- coming back -----------------------------------------------------

    def socket(self) -> socket.socket:
        """What it goes by at the moment, or went."""
        return self._sock

    def away(self) -> bool:
        """Whether there is no head at the moment, and one is being looked for."""
        return self._failure is None and self._cut_stream is self._stream

    def _readable(self) -> int:
        stream = self._stream
        return -1 if stream is self._cut_stream else stream.fileno()

    def _ended(self, stream: _wire.FrameStream, error: Exception, deadline: float | None) -> bool:
        if self._failure is not None or stream is not self._stream:
            return True
        broken = isinstance(error, _errors.ProtocolError) and not isinstance(error, _wire.CutError)
        if self._closing or self._refusal or broken:
            self.lost(self._refusal or str(error))
            return True
        self._cut_stream = stream
        _hang_up(stream.sock)  # else who sends might still believe in it
        self._loops.leave()
        self.comeback.begin()
        if deadline == 0.0:
            return True
        return self.comeback.wait(
            lambda: self._stream is not stream or self._failure is not None, deadline
        )

    def rejoin(self, stream: _wire.FrameStream) -> None:
        """Tell a head that has welcomed us what there is, and go on over its connection."""
        try:
            with self._send_lock:
                if self._closing or self._failure is not None:
                    stream.sock.close()
                    raise Stopped
                self._tell(self._move(stream))
        except OSError:
            _hang_up(stream.sock)
            self.poll()  # the head may have said why
            raise

    def _move(self, stream: _wire.FrameStream) -> Iterator[Parts]:
        """Take another connection in the place of the old one; what is to be sent on it first.
        Who waits goes on by it at once, so that it is also read while that is sent."""
        objects: list[tuple[int, int]] = []
        if self.ledger is not None and self.current_call is None:  # else our worker tells
            objects = self.ledger.stock()
        ack = self._held_ack = self._read & 0xFFFFFFFF
        old, unanswered = self._sock, self._unanswered
        self._outgoing = None
        self._acknowledges = False
        self._era += 1
        looks_up(stream.sock)
        self._sock = stream.sock
        self._stream = stream
        self._loops.move(old)
        self.comeback.moved()
        first, last = [back(ack, objects)], [resent()]
        return chain((first,), unanswered.again(ack), (last,), unanswered.waits())

    def _told(self, frame: _wire.Frame) -> None:
        if frame.kind == _wire.KIND_CLOSE and not frame.peer:
            message = _wire.unpack(frame.body)
            self._refusal = str(message.get("message", "")) if isinstance(message, dict) else ""
        elif frame.kind == _wire.KIND_NOTICE:
            verb, message = _wire.unpack(frame.body)
            if verb == "again":
                # Not by who reads: a sender may be waiting for it to read on.
                threading.Thread(
                    target=self._send_again, args=(message["calls"],), daemon=True
                ).start()

    def _send_again(self, calls: list[int]) -> None:
        """A worker did not get its part of some calls, and the head has no bytes of them."""
        with self._send_lock:
            if self._failure is not None:
                return
            if self._outgoing is not None:
                self._finish_interrupted()
            try:
                for ident in calls:
                    self._tell(self._unanswered.one_again(ident, self._ack()))
            except OSError:
                self._cut()

    # --- the end ---------------------------------------------------------

    def alive(self) -> bool:
        """Whether calls can be made; also while a head is being looked for."""
        return self._failure is None

    def lost(self, why: str) -> None:
        """The head is gone for good: everything unanswered fails, and all that comes later."""
        text = why if not self._closing else "muster.shutdown() was called"
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
        self._unanswered.clear()
        self.comeback.moved()
        self._wake_first()

    def leave(self) -> None:
        """Say that this process goes on without the head: what it has there may stop at once."""
        if self._failure is None and not self.away():
            try:
                self._send(_wire.KIND_NOTICE, 0, _wire.pack(["leave", {}]))
            except _errors.MusterError:
                pass  # it knows, then

    def close(self, failure: Callable[[], BaseException]) -> None:
        """Hang up. Waiting threads and loops get ``failure()``."""
        self._closing = True
        self.end(failure)
        self.hang_up()  # wakes a leader in recv
        self.comeback.join(_STOP_PATIENCE)
        if not self._loops.waiting():
            self._sock.close()

    def hang_up(self) -> None:
        """End the stream without taking a lock: the head notices, and so does our reader."""
        self._closing = True
        self.comeback.way.stop()
        _hang_up(self._sock)

    def _at_rest(self) -> None:
        if self._closing:
            self._sock.close()

    def abandon(self, failure: Callable[[], BaseException]) -> None:
        """In a forked child: let go of the parent's connection without touching it."""
        self._closing = True
        self._failure = failure
        self._pending = {}
        self._loops = Loops(lambda: -1, self.poll, self._at_rest)
        self._turns = {}
        self._send_lock = RLock()
        self.comeback.way.abandon()
        self._sock.close()


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _lasting(buf: Any) -> Any:
    """A buffer as it can be kept: its owner may change it once the call is out."""
    if type(buf) is _objects.Stored:
        return buf
    view = memoryview(buf)
    return buf if view.readonly else view.tobytes("A")


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
