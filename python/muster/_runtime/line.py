"""A worker's end of the connection that its calls come by: what goes out on it, in order.

Replies name objects, and what is given back must come after the last frame that
names it. So both go by one place, a reply and what it sets free in one piece.
Calls that run on an event loop have a place of their own, in `loop`.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from .. import _objects, _wire
from .._endings import attempt


class Line:
    """Sends replies and notices. Any thread may use it, a finalizer too."""

    def __init__(self, sock: socket.socket, ledger: _objects.Ledger | None) -> None:
        self.sock = sock
        #: What waits to be given back; the same list for ever, so that a look at it is cheap.
        self.given_back: list[tuple[int, int]] = [] if ledger is None else ledger.given_back
        self._ledger = ledger
        self._lock = threading.Lock()
        self._unsent = b""  # of a notice that the kernel took in part

    def in_leg(self, call: int) -> None:
        """Say which call runs, with whose reply goes what is given back of its arguments."""
        if self._ledger is not None:
            self._ledger.leg = call

    def begin(self) -> None:
        """The worker has said that it is ready: from now on notices may go out."""
        if self._ledger is not None:
            self._ledger.send = self.flush
            self.flush()

    def reply(self, call: int, flags: int, body: bytes, bufs: list[Any]) -> None:
        """Send a result, and with it the rights that only its buffers had; bufs is then empty."""
        with self._lock:
            named = _objects.name(bufs, self._ledger, self, []) if bufs else ()
            parts = _wire.pack_frame(_wire.KIND_RESULT, call, body, named, flags)
            named = ()
            bufs.clear()
            if self._unsent:
                parts.insert(0, self._unsent)
                self._unsent = b""
            if self._ledger is not None and self.given_back:
                parts.append(self._release(self._ledger))
            _wire.send_parts(self.sock, parts)
        if self.given_back:
            self.flush()

    def flush(self) -> None:
        """Send what was given back, unless somebody is sending, who then does it."""
        while self.given_back and attempt(self._lock, self._push):
            pass

    def _push(self) -> bool:
        """Whether all could be sent; else it goes with the next reply."""
        assert self._ledger is not None
        self._unsent += self._release(self._ledger)
        try:
            sent = self.sock.send(self._unsent, socket.MSG_DONTWAIT)
        except OSError:  # no room, or the head is gone, which the reader sees too
            return False
        self._unsent = self._unsent[sent:]
        return not self._unsent

    def _release(self, ledger: _objects.Ledger) -> bytes:
        count = len(self.given_back)
        frame = ledger.release(count)
        del self.given_back[:count]
        return frame
