"""What a caller keeps for a head that comes after this one: all that is not answered yet.

Frames of Calls and Requests stay here, in the order of sending, until their
answer is read; with them the Cancel or Expire that followed, and the answers that
they name as futures, which a head has forgotten once they were acknowledged. See
"Coming back" in docs/wire.md. It only keeps; sending is `_sending`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import ceil
from time import monotonic
from typing import Any, NamedTuple

from . import _objects, _wire

Parts = Sequence[Any]  # the pieces of a frame

_FLAGS_AT = 5  # in the header of a frame
_NBUF_AT = 6


class Due(NamedTuple):
    """When a call has to be answered, and where its route says how long that is."""

    deadline: float  # on the monotonic clock
    at: int  # in the route: 0xcf, then u64


class Unanswered:
    """The frames of one caller. Whoever sends adds, whoever reads takes away."""

    def __init__(self) -> None:
        #: By id, in the order of sending.
        self.frames: dict[int, Parts] = {}
        #: How often each answer is needed that calls name as futures.
        self.wanted: dict[int, int] = {}
        self._ends: dict[int, list[bytes]] = {}  # what was sent to end a call
        self._dues: dict[int, Due] = {}  # of calls that have a deadline
        self._futures: dict[int, list[int]] = {}  # what calls name
        self._answers: dict[int, dict[int, tuple[Parts, Any]]] = {}  # with what holds objects
        # Of a worker's calls, by the call that they are in, with the flags of the frame.
        self._waits: dict[int, tuple[list[int], int]] = {}
        #: Whether there is anything beside frames.
        self.more = False

    def note_end(self, ident: int, frame: bytes) -> None:
        """A Cancel or an Expire goes out."""
        if ident in self.frames:
            self.more = True
            self._ends.setdefault(ident, []).append(frame)

    def note_due(self, ident: int, due: Due) -> None:
        """A call goes out that has a deadline: that runs on while there is no head."""
        self.more = True
        self._dues[ident] = due

    def note_wait(self, parent: int, idents: list[int], flags: int = 0) -> None:
        """A call that runs in this process says what it waits for."""
        self._waits[parent] = idents, flags
        if len(self._waits) > 64:
            self._waits = {p: wait for p, wait in self._waits.items() if self._open(wait[0])}

    def _open(self, idents: list[int]) -> list[int]:
        return [ident for ident in idents if ident in self.frames]

    def want(self, ident: int) -> None:
        """Keep what answers a call, from now on."""
        self.wanted[ident] = self.wanted.get(ident, 0) + 1

    def unwant(self, ident: int) -> None:
        """Keep it no more, unless somebody else needs it."""
        left = self.wanted.get(ident, 0) - 1
        if left > 0:
            self.wanted[ident] = left
        else:
            self.wanted.pop(ident, None)
            self._answers.pop(ident, None)

    def note_futures(self, ident: int, named: list[int]) -> None:
        """A call goes out that names answers of others."""
        self.more = True
        self._futures[ident] = named
        for other in named:
            self.want(other)

    def keep_answer(self, frame: _wire.Frame, line: Any) -> None:
        """Keep an answer if it is wanted. Once in the caller's hands it may be changed."""
        if frame.id not in self.wanted:
            return
        named = _objects.name(frame.bufs, line.ledger, line, [])
        lasting = [buf if type(buf) is _wire.Reference else bytes(buf) for buf in named]
        parts = _wire.pack_frame(
            _wire.KIND_ANSWER, frame.id, bytes(frame.body), lasting, frame.flags, ack=frame.ack
        )
        # By rank, as this may be done again when it was interrupted.
        rank = frame.ack if frame.flags & _wire.FLAG_RANK else -1
        self._answers.setdefault(frame.id, {})[rank] = (parts, frame.bufs)

    def has_answer(self, named: list[int]) -> bool:
        """Whether any of some futures was answered since it is wanted."""
        return any(ident in self._answers for ident in named)

    def answered(self, ident: int) -> None:
        """A call is answered, and its frame gone."""
        self._ends.pop(ident, None)
        self._dues.pop(ident, None)
        for other in self._futures.pop(ident, ()):
            self.unwant(other)
        self.more = bool(self._ends or self._futures or self._dues)

    def forget(self, ident: int) -> None:
        """A call was not sent after all."""
        self.frames.pop(ident, None)
        self.answered(ident)

    def clear(self) -> None:
        """Nothing is to be answered any more."""
        self.frames.clear()
        rest = (self.wanted, self._ends, self._dues, self._futures, self._answers, self._waits)
        for kept in rest:
            kept.clear()

    # --- for another head ----------------------------------------------------

    def again(self, ack: int) -> Iterator[Parts]:
        """All that a head has to be sent again. What is answered meanwhile is left out."""
        put: set[int] = set()
        for ident in list(self.frames):
            for other in self._futures.get(ident, ()):
                if other not in put:
                    put.add(other)
                    yield from [parts for parts, _ in self._answers.get(other, {}).values()]
            yield from self.one_again(ident, ack)
            for end in self._ends.get(ident, ()):
                yield [end]

    def one_again(self, ident: int, ack: int) -> Iterator[Parts]:
        """One frame as it is sent again, if it is still unanswered."""
        parts = self.frames.get(ident)
        if parts is not None:
            due = self._dues.get(ident)
            first, *rest = parts if due is None else _lowered(parts, due)
            flags = first[_FLAGS_AT] | _wire.FLAG_AGAIN
            head = (
                first[:_FLAGS_AT],
                bytes((flags,)),
                first[_FLAGS_AT + 1 : _wire.HEADER_SIZE - 4],
            )
            yield [
                b"".join((*head, ack.to_bytes(4, "little"), first[_wire.HEADER_SIZE :])),
                *rest,
            ]

    def waits(self) -> Iterator[Parts]:
        """What calls that run in this process wait for, still."""
        for parent, (idents, flags) in list(self._waits.items()):
            if left := self._open(idents):
                yield _wire.pack_frame(_wire.KIND_WAIT, parent, _wire.pack(left), flags=flags)
            else:
                self._waits.pop(parent, None)


def _lowered(parts: Parts, due: Due) -> Parts:
    """The frame of a call with what is left of its time; 1 where nothing is."""
    first, *rest = parts
    (nbuf,) = struct.unpack_from("<H", first, _NBUF_AT)
    # One byte of the body before the route, and one of the number before it.
    at = _wire.HEADER_SIZE + 8 * nbuf + 1 + due.at + 1
    left = max(1, ceil((due.deadline - monotonic()) * 1000)).to_bytes(8, "big")
    if at < len(first):
        return [b"".join((first[:at], left, first[at + 8 :])), *rest]
    body, *rest = rest  # a large one lies by itself
    at -= len(first)
    return [first, b"".join((body[:at], left, body[at + 8 :])), *rest]


class Hold:
    """A call being made, with the futures among its arguments.

    An argument that is found to be pending may be answered before the call is out: so
    the answer is wanted first, then looked for; who reads hands over first, then looks
    whether it is wanted.
    """

    __slots__ = ("_unanswered", "era", "named")

    def __init__(self, unanswered: Unanswered, era: int) -> None:
        self._unanswered = unanswered
        self.era = era  # how many heads there had been
        self.named: list[int] = []

    def want(self, ident: int) -> None:
        """Keep an answer until the call is out, which then keeps it itself."""
        self._unanswered.want(ident)
        self.named.append(ident)

    def end(self) -> None:
        """The call is out, or will not be made."""
        while self.named:
            self._unanswered.unwant(self.named.pop())


class MovedOn(Exception):
    """A call was made for a head that is gone, which knew what its futures stand for."""
