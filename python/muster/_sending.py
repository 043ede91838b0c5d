"""The sending half of a connection to the head: one frame at a time, whoever sends it.

A frame that is interrupted half way is finished by the next sender. One that
cannot be sent because the connection has ended is kept, if it is a Call or a
Request, and goes to the next head; so sending does not fail for that reason.
"""

from __future__ import annotations

import contextlib
import select
import socket
from _thread import RLock, get_ident
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _objects, _wire
from ._endings import attempt, owned
from ._loans import Account
from ._reading import LEADER_LOOKS, Reader, Turn
from ._unanswered import Hold, MovedOn, Parts
from ._waiting import unsent

_AFTER = _wire.AFTER
_DONTWAIT = (socket.MSG_DONTWAIT,)
_NO_ANCILLARY: tuple[tuple[Any, ...]] = ((),)
_MOST_PARTS = 256  # buffers handed to one sendmsg; the kernel takes 1024
#: How often a thread that is stuck sending looks whether it has to read as well.
_SENDER_LOOKS = 0.02


class Sender(Reader):
    """Frames to the head, beside those from it. Every method may be called from any thread."""

    def __init__(self, stream: _wire.FrameStream, current_call: Callable[[], int] | None) -> None:
        super().__init__(stream, current_call)
        self._holds = 0  # calls being sent whose arguments are refs
        self._held_ack = 0
        self._era = 0  # how many heads there have been before this one
        self._send_lock = RLock()
        # The frame that is under way and how much of it each send took. It stays
        # here when an exception is thrown into the sender, and the next sender
        # finishes it.
        self._outgoing: tuple[Sequence[Any], list[int]] | None = None

    def _send(
        self,
        kind: int,
        ident: int,
        body: bytes,
        buffers: Sequence[Any] = (),
        keep: bool = False,
        hold: Hold | None = None,
        flags: int = 0,
    ) -> None:
        """Send a frame; one to ``keep`` is kept until it is answered. MovedOn where a hold is of
        a time before the head of now, and has to be made anew."""
        if self._failure is not None:
            raise self._failure()
        ack = (self._held_ack if self._holds else self._answers) & 0xFFFFFFFF  # as in _ack
        told: list[Account] = []
        cut = False
        with self._send_lock:
            if self._outgoing is not None:
                self._finish_interrupted()
            sent: list[int] = []
            stream = self._stream
            try:
                if hold is not None:
                    self._note_futures(ident, hold)
                named: Sequence[Any] = ()
                if buffers:  # who names an object first also sends first
                    named = _objects.name(buffers, self.ledger, self, told)
                last = stream.gave
                number = _AFTER[last]
                parts: Parts = _wire.pack_frame(kind, ident, body, named, flags, number, ack)
                if keep:
                    self._frames[ident] = parts
                # A signal handler that has sent a frame just now has the number. From here on
                # there is no call after which one could run; later it finds this frame, and
                # sends it first.
                if stream.gave == last:
                    stream.gave = number
                    self._outgoing = (parts, sent)
                else:
                    parts = self._begin(parts, sent)
                try:
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
                except OSError:
                    cut = self._cut()
            except BaseException:
                if not sum(sent):  # nothing went out: as if it never was
                    if self._outgoing is not None and self._outgoing[1] is sent:
                        stream.gave = _wire.number_before(self._outgoing[0])
                        self._outgoing = None
                    if keep:
                        self._unanswered.forget(ident)
                    _objects.unname(told, self)
                raise
        if cut:
            self.poll()  # who reads also finds the way back
        ledger = self.ledger
        if self._acknowledges:
            self.flush()
        elif ledger is not None and ledger.given_back:
            ledger.send()
        if self._failure is not None:
            raise self._failure()

    def _begin(self, parts: Parts, sent: list[int]) -> Parts:
        """Give a frame the next number, and have it be the one that is under way."""
        stream = self._stream
        while True:
            last = stream.gave
            number = _AFTER[last]
            parts = _wire.numbered(number, parts)
            if stream.gave == last:  # as in _send
                stream.gave = number
                self._outgoing = (parts, sent)
                return parts

    def _note_futures(self, ident: int, hold: Hold) -> None:
        if hold.era != self._era and self._unanswered.has_answer(hold.named):
            raise MovedOn
        if hold.named:
            self._unanswered.note_futures(ident, list(hold.named))

    def _cut(self) -> bool:
        """The connection does not take any more: that is its end for who reads, too, once all
        that has come is read."""
        self._outgoing = None
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        return True

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
        parts, sent = self._begin_release(ledger, count)
        try:
            self._push(parts, sent)
        except OSError:
            self._outgoing = None  # the next head is told what is left
            return False
        if sum(sent) == len(parts[0]):
            self._outgoing = None
        return self._outgoing is None

    def _begin_release(self, ledger: _objects.Ledger, count: int) -> tuple[list[bytes], list[int]]:
        stream, sent = self._stream, list[int]()
        while True:
            last = stream.gave
            number = _AFTER[last]
            parts = [ledger.release(count, self._ack(), number)]
            if stream.gave == last:
                # No call between these, after which a signal handler could run.
                stream.gave = number
                self._outgoing = (parts, sent)
                self._acknowledges = False
                del ledger.given_back[:count]
                return parts, sent

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

    def _finish_interrupted(self) -> None:
        """Send the rest of a frame whose sender was interrupted."""
        try:
            self._finish_sending()
        except OSError:
            self._cut()

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
            found = self._poll(events, LEADER_LOOKS if leading else _SENDER_LOOKS)
            if leading and found & ~select.POLLOUT:
                self._receive_now()

    def _tell(self, frames: Iterable[Parts]) -> None:
        """Send frames, one after the other, with the lock in hand; OSError when that is over."""
        for parts in frames:
            self._begin(parts, [])
            try:
                self._finish_sending()
            finally:
                self._outgoing = None
