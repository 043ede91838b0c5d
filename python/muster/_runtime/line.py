"""A worker's end of the connection that its calls come by: what goes out on it, in order.

Replies name objects, and what is given back must come after the last frame that
names it. So both go by one place, a reply and what it sets free in one piece. A
reply is kept before it is sent: one that does not get out is told to the next
head (`wayback`). Calls that run on an event loop have a place of their own, in
`loop`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from .. import _objects, _wire
from .._endings import attempt
from .kept import RESULT, Leg, lasting
from .wayback import WayBack

_AFTER = _wire.AFTER
_pack_header = _wire.HEADER.pack


class Line:
    """Sends replies and notices. Any thread may use it, a finalizer too."""

    def __init__(self, sock: socket.socket, ledger: _objects.Ledger | None, way: WayBack) -> None:
        self.sock = sock
        self.way = way
        #: What waits to be given back; the same list for ever, so that a look at it is cheap.
        self.given_back: list[tuple[int, int]] = [] if ledger is None else ledger.given_back
        #: Whose `leg` says which call runs, with whose reply goes what is given back of its arguments.
        self.ledger = ledger
        self._lock = threading.Lock()
        self._unsent = b""  # of a notice that the kernel took in part

    def begin(self) -> None:
        """The worker has said that it is ready: from now on notices may go out."""
        if self.ledger is not None:
            self.ledger.send = self.flush
            self.flush()

    def reply_small(self, leg: Leg, flags: int, body: bytes, stream: _wire.FrameStream) -> bool:
        """`reply` for a result without buffers that one system call takes, by the stream that
        its leg came by; whether it got out."""
        out, given_back = True, self.given_back
        with self._lock:
            waits = self._unsent != b""
            if not waits:
                number = stream.gave = _AFTER[stream.gave]
                leg[RESULT] = frame = (
                    _pack_header(len(body), _wire.KIND_RESULT, flags, 0, leg[1], number, 0) + body
                )
                ledger = self.ledger
                if given_back and ledger is not None and stream.sock is self.sock:
                    count = len(given_back)  # as in _release
                    number = stream.gave = _AFTER[number]
                    frame += ledger.release(count, 0, number)
                    del given_back[:count]
                try:
                    stream.sock.sendall(frame)
                except OSError:
                    out = False
        if waits:
            self.reply(leg, flags, body, [])  # after what waits
        elif given_back:  # by somebody who found us sending
            self.flush()
        return out

    def reply(self, leg: Leg, flags: int, body: bytes, bufs: list[Any]) -> None:
        """Send a result, and with it the rights that only its buffers had; bufs is then empty."""
        with self._lock:
            if bufs or len(body) > _wire.JOIN:
                named = _objects.name(bufs, self.ledger, self, [])
                number = self._number()
                parts = lasting(
                    _wire.pack_frame(_wire.KIND_RESULT, leg[1], body, named, flags, number)
                )
                named = []
                bufs.clear()
            else:
                number, size = self._number(), len(body)
                header = _pack_header(size, _wire.KIND_RESULT, flags, 0, leg[1], number, 0)
                parts = [header + body]
            leg[RESULT] = parts
            if self._unsent:
                parts = [self._unsent, *parts]
                self._unsent = b""
            if self.ledger is not None and self.given_back:
                parts = [*parts, self._release(self.ledger)]
            self._send(parts)
        if self.given_back:
            self.flush()

    def settle(self, call: int) -> None:
        """A call has ended, and its reply is about to go out."""
        ledger = self.ledger
        if ledger is not None:
            if ledger.looks.fresh or ledger.looks.held:
                ledger.looks.let_go()
            if ledger.fresh or ledger.read:
                ledger.settle(call)

    def tell(self, notice: bytes) -> None:
        """Send a notice. Where there is no head, the next one is told all anyway."""
        with self._lock:
            frame = _wire.pack_frame(_wire.KIND_NOTICE, 0, notice, peer=self._number())
            parts = [self._unsent, *frame] if self._unsent else frame
            self._unsent = b""
            self._send(parts)

    def repeat(self, leg: Leg) -> None:
        """Send a result again that did not get out, unless the next head has been told of it,
        or will be."""
        with self._lock:
            if self.way.stream is not None and leg[0] not in self.way.repeated:
                result = leg[RESULT]
                parts = [result] if isinstance(result, bytes) else result
                self._send(_wire.numbered(self._number(), parts))

    def _number(self) -> int:
        """The number of the next frame, if there is anybody to send it to."""
        stream = self.way.stream
        return 0 if stream is None else stream.number()

    def _send(self, parts: list[Any]) -> None:
        try:
            if sum(map(len, parts)) <= _wire.JOIN:
                self.sock.sendall(b"".join(parts))
            else:
                _wire.send_parts(self.sock, parts)
        except OSError:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # so that the way back begins

    def rejoin(self, stream: _wire.FrameStream) -> None:
        """Tell another head all that there is, and go on over its connection."""
        with self._lock:
            self._unsent = b""
            parts, stock = self.way.told(stream)
            _wire.send_parts(stream.sock, parts)
            self.sock = stream.sock
            self.way.resume(stream, stock)

    def flush(self) -> None:
        """Send what was given back, unless somebody is sending, who then does it."""
        while self.given_back and attempt(self._lock, self._push):
            pass

    def _push(self) -> bool:
        """Whether all could be sent; else it goes with the next reply."""
        assert self.ledger is not None
        self._unsent += self._release(self.ledger)
        try:
            sent = self.sock.send(self._unsent, socket.MSG_DONTWAIT)
        except OSError:  # no room, or the head is gone, which the reader sees too
            return False
        self._unsent = self._unsent[sent:]
        return not self._unsent

    def _release(self, ledger: _objects.Ledger) -> bytes:
        count = len(self.given_back)
        frame = ledger.release(count, 0, self._number())
        del self.given_back[:count]
        return frame
