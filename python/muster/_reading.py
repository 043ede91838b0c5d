"""The reading half of a connection to the head: who waits, and who reads meanwhile.

Whoever waits reads: the first waiter leads, reads the socket and hands over what
belongs to others; when it has its answer, a follower takes the lead. An event
loop that awaits has the socket among its readers meanwhile.

Owns the stream of frames in, the table of who wants which answer and the turns
of those who wait. What the end of a stream means is `_client`'s to say.
"""

from __future__ import annotations

import select
import socket
import struct
from _thread import get_ident
from collections.abc import Callable, Generator, Sequence
from itertools import count
from time import monotonic
from typing import Any

from . import _errors, _objects, _wire
from ._loops import Loops
from ._refs import PENDING, Ref
from ._unanswered import Unanswered
from ._waiting import Gate, Sink

#: How often a follower looks whether it has become the first: nobody may have
#: told it, where the one before was interrupted.
_FOLLOWER_LOOKS = 1.0
#: How often one who reads leaves the kernel, so that the handlers of signals run: one that comes
#: between the interpreter's last look for signals and a wait would be heard when that is over.
LEADER_LOOKS = 1.0
_RECEIVES_FOR = struct.pack("@ll", int(LEADER_LOOKS), 0)

_ANSWER = _wire.KIND_ANSWER
_ANSWERING = (_ANSWER, _wire.KIND_RESPONSE)

Turn = tuple[int, int]


def looks_up(sock: socket.socket) -> None:
    """Have a receive that waits come back now and then, with BlockingIOError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVES_FOR)


class Reader:
    """Frames from the head. Every method may be called from any thread."""

    def __init__(self, stream: _wire.FrameStream, current_call: Callable[[], int] | None) -> None:
        #: The objects of this process; None where there are no stores.
        self.ledger: _objects.Ledger | None = None
        #: In a worker, says which call the caller runs in; None outside workers.
        self.current_call = current_call
        self._sock = stream.sock
        self._stream = stream
        # The frame being handed over. It stays here when an exception is thrown
        # into the reader, and is handed over again: takers ignore what they have.
        self._frame: _wire.Frame | None = None
        self._read = 0  # Answers taken from the stream, each counted once
        self._answers = 0  # of them, those that were handed over
        self._pending: dict[int, Sink] = {}
        self._unanswered = Unanswered()
        self._frames = self._unanswered.frames
        self._wanted = self._unanswered.wanted
        self._named: dict[int, list[Any]] = {}  # by unanswered calls of a worker's
        # Calls that name objects, which the head holds until it is acknowledged that
        # they were answered; and whether that has to be said with no call to follow.
        self._to_acknowledge: set[int] = set()
        self._acknowledges = False
        self._failure: Callable[[], BaseException] | None = None
        # Who waits, in order of coming; the first leads. A turn is (thread, number).
        # Coming and going are single C calls, which an interrupt cannot split.
        self._turns: dict[Turn, Gate | None] = {}
        self._numbers = count()
        self._loops = Loops(self._readable, self.poll, self._at_rest)
        looks_up(stream.sock)

    def flush(self) -> None:
        """Tell the head what was given back."""
        raise NotImplementedError

    def _ended(self, stream: _wire.FrameStream, error: Exception, deadline: float | None) -> bool:
        """A stream is over, and what came by it is handed over: wait until there is another, or
        none is to be expected; False when the deadline passed first."""
        raise NotImplementedError

    def _readable(self) -> int:
        """The descriptor by which answers come at the moment; -1 where none do."""
        raise NotImplementedError

    def _told(self, frame: _wire.Frame) -> None:
        """Take a frame that answers nothing."""
        raise NotImplementedError

    def _at_rest(self) -> None:
        """No event loop has the socket among its readers any more."""
        raise NotImplementedError

    # --- waiting ---------------------------------------------------------

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
        while self._turns:
            try:
                gate = next(iter(self._turns.values()))
            except RuntimeError:
                continue  # it changed under our eyes: one that came does not tell the first
            except StopIteration:
                return
            if gate is not None:
                gate.open()
            return

    def arrival(self, ref: Ref) -> Generator[Any, None, None]:
        """What ``await ref`` waits on: the ref is done when it returns."""
        yield from self._loops.arrival(ref)

    # --- reading ---------------------------------------------------------

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
        stream = self._stream
        if (self._frame is not None or not stream.dry) and self._deliver(stream):
            return True
        if deadline is not None:
            left = deadline - monotonic()
            if left <= 0 or not self._poll(select.POLLIN, min(left, LEADER_LOOKS)):
                return left > LEADER_LOOKS
        try:
            stream.fill(0 if deadline is None else socket.MSG_DONTWAIT)
            self._deliver(stream)
        except BlockingIOError:
            pass  # nothing came for a while, or poll promised what is not there
        except (OSError, EOFError, _errors.ProtocolError) as error:
            return self._ended(stream, error, deadline)
        return True

    def _receive_now(self) -> None:
        """As leader: deliver everything that is there."""
        stream = self._stream
        try:
            self._deliver(stream)
            while True:
                stream.fill(socket.MSG_DONTWAIT)
                self._deliver(stream)
        except BlockingIOError:
            pass
        except (OSError, EOFError, _errors.ProtocolError) as error:
            self._ended(stream, error, 0.0)

    def _deliver(self, stream: _wire.FrameStream) -> bool:
        """Hand over every whole frame; whether there was any."""
        some = False
        while True:
            frame = self._frame
            if frame is None:
                # No call of C code in these, after which a signal handler could run.
                frame = self._frame = stream.next()
                if frame is None:
                    return some
                if frame[0] == _ANSWER:
                    self._read += 1
            self._take(frame)
            self._frame = None
            self._answers = self._read
            if self._acknowledges:
                self.flush()
            if stream.dry:
                return True
            some = True

    def _take(self, frame: _wire.Frame) -> None:
        kind, flags, ident, _, rank, body, buffers = frame
        if kind not in _ANSWERING:
            self._told(frame)
            return
        if buffers and self.ledger is not None:
            _objects.claim(buffers, self.ledger)
            if self.current_call is not None:
                self._acknowledges = True
        sink = self._pending.get(ident)
        if sink is None:  # nobody waits any more
            if not flags & _wire.FLAG_RANK:
                self._frames.pop(ident, None)
                if self._unanswered.more:
                    self._unanswered.answered(ident)
            return
        over = sink.deliver(flags, rank, body, buffers)
        if self._wanted:  # after it was handed over; see Hold
            self._unanswered.keep_answer(frame, self)
        if over:
            self._pending.pop(ident, None)
            self._frames.pop(ident, None)
            if self._unanswered.more:
                self._unanswered.answered(ident)
            if self._named:
                self._named.pop(ident, None)
            if ident in self._to_acknowledge:
                self._to_acknowledge.discard(ident)
                self._acknowledges = True

    def _poll(self, events: int, seconds: float) -> int:
        fd = self._sock.fileno()
        if fd < 0:
            return select.POLLHUP  # it was closed just now
        poller = select.poll()
        poller.register(fd, events)
        found = poller.poll(max(0.0, seconds) * 1000)
        return found[0][1] if found else 0
