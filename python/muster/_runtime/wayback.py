"""How a worker finds the head again when its call connection has ended.

That end alone is no reason to leave: the head may have been killed, and another
one takes over within a second. So a worker goes on with what it runs, dials the
same address again and tells what it has (`kept`). It leaves when its agent says
so, by a signal or by ending itself, when the head does not know it any more, or
when no head was there for the grace.

A thread of its own does that, as a head waits for workers that are in the middle
of a method, too. Between it and the thread that reads calls there is no lock:
reading a leg means to note it, then to look whether the stream that it came by is
still the one; the way back takes the stream away, then looks at what was noted.
Whichever comes second sees the other. Likewise a result is noted, then sent; the
way back ends the old connection, then looks.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from .. import _context, _environment, _errors, _objects, _wire
from . import linux
from .board import Board
from .kept import Kept, Leg, Stock

#: Seconds between two attempts, at first and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.2


class Line(Protocol):
    """What results go out by."""

    def rejoin(self, stream: _wire.FrameStream) -> None:
        """Tell a head all that `WayBack.told` says, and go on over its connection, about which
        `WayBack.resume` hears. OSError when that has ended already."""


class WayBack:
    """A worker's tie to whichever head there is."""

    def __init__(
        self,
        stream: _wire.FrameStream,
        address: str,
        mine: dict[str, Any],
        board: Board,
        ledger: _objects.Ledger | None,
    ) -> None:
        self.kept = Kept()
        #: What calls come by at the moment; None while there is no connection.
        self.stream: _wire.FrameStream | None = stream
        #: The sequences of results that the head got again when we came back.
        self.repeated: set[int] = set()
        #: The notice of being ready as it would be now.
        self.ready: Callable[[], dict[str, Any]] = dict
        self._told = 0  # the last leg that the head was told of
        self._lock = threading.Lock()  # legs with objects, and who looks at both
        self._back = threading.Event()
        self._address = address
        self._mine = mine  # number and token, for the hello
        self._board = board
        self._ledger = ledger
        self._line: Line

    def watch(self, line: Line) -> None:
        """Look after the connection from now on."""
        self._line = line
        threading.Thread(target=self._run, name="muster-way-back", daemon=True).start()

    # --- for who reads calls -----------------------------------------------------

    def receive(self, frame: _wire.Frame, stream: _wire.FrameStream) -> Leg | None:
        """Note a leg and the rights that come with it; None when it is none any more: its
        stream has ended, and it comes again by the next."""
        _, _, call, _, _, body, bufs = frame
        with self._lock:
            if self.stream is not stream:
                return None
            if bufs and self._ledger is not None:
                _objects.claim(bufs, self._ledger, leg=True, call=call)
            kept = self.kept  # as in Kept.receive
            leg: Leg = [kept.received + 1, call, body, None]
            kept.legs.append(leg)
            kept.received += 1
            return leg

    def after(self, stream: _wire.FrameStream) -> _wire.FrameStream:
        """Wait for the stream that comes after one that has ended."""
        while True:
            if self._board.leaving is not None:
                raise SystemExit(self._board.leaving)
            now = self.stream
            if now is not None and now is not stream:
                return now
            self._back.clear()
            if self.stream is now:
                self._back.wait(_LONGEST_PAUSE)

    def knew(self, leg: Leg) -> bool:
        """Whether the head was told of a leg that was read when its stream had just ended; if
        not, it is forgotten, and comes again."""
        if leg[0] <= self._told:
            return True
        self.kept.forget(leg)
        return False

    # --- the way back --------------------------------------------------------------

    def _run(self) -> None:
        # These have to reach the main thread; see control.
        signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, linux.CANCEL_SIGNAL}
        )
        try:
            while True:
                stream = self.stream
                assert stream is not None
                _wait_for_end(stream.sock)
                if self._board.leaving is not None:
                    return
                self._cut(stream)
                self._return()
        except SystemExit as end:
            self._board.end(end.code)
        except BaseException:
            traceback.print_exc()
            self._board.end(1)

    def _cut(self, stream: _wire.FrameStream) -> None:
        """No leg is taken from this stream any more, and nothing can be sent."""
        with self._lock:
            self.stream = None
        with contextlib.suppress(OSError):
            stream.sock.shutdown(socket.SHUT_RDWR)

    def _return(self) -> None:
        while True:
            stream = self._find()
            try:
                self._line.rejoin(stream)
                return
            except OSError:
                stream.sock.close()  # it went as it had come

    def told(self, stream: _wire.FrameStream) -> tuple[list[Any], Stock]:
        """All that a head is told first by a stream, in pieces, and what of it there was."""
        with self._lock:
            objects: list[tuple[int, int]] = []
            lent: list[tuple[int, int]] = []
            if self._ledger is not None:
                _context.take_in()  # answers to our own calls bring rights, too
                objects, lent = self._ledger.stock_and_loans()
            stock = self.kept.stock()
        back = {
            "received": stock.received & 0xFFFFFFFF,
            "legs": stock.told(),
            "objects": objects,
            "lent": lent,
            "ready": self.ready(),
        }
        first = _notice(stream, "back", back)
        return [*first, *stock.results(stream), *_notice(stream, "resent", {})], stock

    def resume(self, stream: _wire.FrameStream, stock: Stock) -> None:
        """A head was told ``stock``; calls come by this stream now."""
        self._board.calls = stream.sock
        self.repeated = stock.repeated
        self._told = stock.received
        self.stream = stream
        self._back.set()

    def _find(self) -> _wire.FrameStream:
        """Wait for a head that welcomes us; SystemExit when it is time to leave instead."""
        grace = _environment.head_grace()
        deadline = time.monotonic() + grace
        pause = _FIRST_PAUSE
        while True:
            if self._board.leaving is not None:
                raise SystemExit(self._board.leaving)
            left = deadline - time.monotonic()
            if left <= 0:
                sys.stderr.write(
                    f"{self._board.worker} ends: its head was gone, and no other was there within "
                    f"{grace:g} s (MUSTER_HEAD_GRACE)\n"
                )
                raise SystemExit(1)
            stream = self._dial(left)
            if stream is not None:
                return stream
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _dial(self, seconds: float) -> _wire.FrameStream | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            sock.connect(self._address)
            stream = _wire.FrameStream(sock)
            _wire.hello(stream, _wire.ROLE_WORKER, **self._mine, back=1)
            sock.settimeout(None)
            return stream
        except (_wire.CutError, _errors.LimitError):
            pass  # it is on its way out, or has no room at the moment
        except _errors.MusterError as error:
            if self._board.leaving is None:
                sys.stderr.write(f"{self._board.worker} ends: its head will not have it: {error}\n")
            sock.close()
            raise SystemExit(1) from None
        except OSError:
            pass
        sock.close()
        return None


def _wait_for_end(sock: socket.socket) -> None:
    """Wait until the other end has hung up, whatever there is to be read."""
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    while not poller.poll():
        pass


def _notice(stream: _wire.FrameStream, verb: str, body: dict[str, Any]) -> list[Any]:
    message = _wire.pack([verb, body])
    return _wire.pack_frame(_wire.KIND_NOTICE, 0, message, peer=stream.number())
