"""One call at a time, on the main thread, which reads the connection itself.

This is the fast path: between the bytes of a call and the bytes of its answer
there is no other thread, queue or event loop.
"""

from __future__ import annotations

from os import getpid
from typing import Any

from .. import _wire
from .board import Interrupted
from .calls import Host
from .current import call as current
from .kept import ORIGIN, Leg, origin_of
from .line import Line

_MASK = (1 << 32) - 1  # of sequences, as they are acknowledged
_FEW = 64  # objects that are given back with a small reply


class Serial:
    """Runs the calls of a sync class in the order in which they come."""

    limit = 1

    def __init__(self, host: Host, line: Line, stream: _wire.FrameStream) -> None:
        self._host = host
        self._line = line
        self._stream = stream
        host.board.own_code.add(Serial.run.__code__)

    def run(self) -> None:
        """Serve calls until it is time to leave."""
        host, board, line, stream = self._host, self._host.board, self._line, self._stream
        given_back, ledger = line.given_back, line.ledger
        unpack = host.unpack
        way, kept = line.way, line.way.kept
        legs, note, acked = kept.legs, kept.legs.append, 0
        reply = line.reply_small
        line.begin()
        while True:
            frame = None if stream.dry else stream.next()
            if frame is None:
                if board.leaving is not None:  # a method caught the SystemExit of SIGTERM
                    raise SystemExit(board.leaving)
                try:
                    stream.fill()
                except (EOFError, _wire.CutError):
                    stream = way.after(stream)
                continue
            kind, leg, call, _, ack, body, parts = frame
            if kind != _wire.KIND_LEG:
                host.other(frame, kept)
                continue
            if ack and ack != acked:
                acked = ack
                if legs and legs[0][0] & _MASK == ack:  # as Kept.drop, for the one at a time
                    legs.popleft()
                else:
                    kept.drop(ack)
            entry: Leg | None
            if parts:
                if ledger is not None:
                    ledger.leg = call
                entry = way.receive(frame, stream)
            else:  # as in Kept.receive
                sequence = kept.received + 1
                entry = [sequence, call, body, None]
                note(entry)
                kept.received = sequence
            if way.stream is not stream:
                stream = way.after(stream)
                if entry is None or not way.knew(entry):
                    continue
            assert entry is not None
            name = "a method"
            error: BaseException | None = None
            method: Any = None
            args: Any = None
            kwargs: Any = None
            value: Any = None
            try:
                try:
                    name, method, args, kwargs, entry[ORIGIN] = unpack(body, parts)
                    current.set(call)
                    # From here to where it is 0 again a cancel may raise; see board.
                    board.current = call
                    board.last = call
                    if board.attention:
                        board.admit(call)
                    value = method(*args, **kwargs)
                    board.current = 0
                except BaseException as caught:
                    board.current = 0
                    error = caught
            except Interrupted as caught:  # it landed between the method's own exception and here
                board.current = 0
                error = caught
            # Nothing of a call is kept while the next one is waited for.
            frame = method = args = kwargs = None
            parts = ()
            if error is None:
                if leg & _wire.FLAG_MUTE:
                    value = None
                flags, body, bufs = host.result(name, value)
            elif isinstance(error, SystemExit):
                host.check_process()
                raise error
            else:
                if type(entry[ORIGIN]) is not int:
                    entry[ORIGIN] = origin_of(body)
                flags, body, bufs = host.failure(name, error)
            value = error = None  # what only they name is given back with the reply
            if ledger is not None:
                ledger.leg = 0
                if ledger.looks.fresh or ledger.looks.held:
                    ledger.looks.let_go()
                if ledger.fresh or ledger.read:
                    ledger.settle(call)
            if bufs or len(body) > _wire.JOIN or len(given_back) > _FEW:
                if getpid() != host.pid:
                    host.check_process()
                line.reply(entry, flags, body, bufs)
            elif not reply(entry, flags, body, stream):
                host.check_process()
                line.repeat(entry)
            body = None

    def cancel(self, call: int) -> str:
        """Cancel a call, from the control thread; return what became of it."""
        board = self._host.board
        if board.mark(call):
            return "queued"
        board.unmark(call)
        return "interrupted" if board.interrupt_main(call) else "done"
