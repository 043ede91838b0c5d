"""What a worker has got and was not released of, for a head that comes after this one.

A leg is here from the moment at which it was read until the head has said that
its result has reached the caller: so a head that asks learns what ran, what runs
and what came of it, and nothing runs twice. See "Coming back" in docs/wire.md.

Only the thread that reads calls adds legs and drops them; `wayback` looks at
them from another. A leg is a list, as that costs least.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .. import _wire

#: [sequence, call, origin, result]. In the place of the origin is the leg's body for as long as
#: nobody has decoded it. The result is its frame, in one piece or a list of them; None before.
Leg = list[Any]
ORIGIN, RESULT = 2, 3

_HALF = 1 << 31
_MASK = (1 << 32) - 1
_FLAGS_AT = 5  # in the header of a frame


class Kept:
    """The legs of one worker, oldest first."""

    __slots__ = ("legs", "received")

    def __init__(self) -> None:
        self.legs: deque[Leg] = deque()
        self.received = 0  # legs ever, which is the sequence of the last

    def receive(self, call: int, body: Any) -> Leg:
        """Note a leg. In this order, as somebody may look in between."""
        leg: Leg = [self.received + 1, call, body, None]
        self.legs.append(leg)
        self.received += 1
        return leg

    def forget(self, leg: Leg) -> None:
        """Take back the last leg: no head was told of it, so it comes again."""
        self.legs.pop()
        self.received = leg[0] - 1

    def drop(self, through: int) -> None:
        """The results of all legs up to a sequence have reached their callers."""
        legs = self.legs
        while legs and (through - legs[0][0]) & _MASK < _HALF and legs[0][RESULT] is not None:
            legs.popleft()

    def notice(self, body: Any) -> None:
        """Take a notice of the head's; those that are not of results mean nothing here."""
        verb, message = _wire.unpack(body)
        if verb != "acked":
            return
        if through := message.get("through"):
            self.drop(through)
        calls = set(message.get("calls") or ())
        if calls:
            left = [leg for leg in self.legs if leg[1] not in calls or leg[RESULT] is None]
            self.legs.clear()
            self.legs.extend(left)

    def stock(self) -> Stock:
        """All that there is at this moment; from any thread."""
        received = self.received  # before the legs: one that comes in between is among them
        return Stock(received, list(self.legs))


class Stock:
    """What a head is told of legs."""

    def __init__(self, received: int, legs: list[Leg]) -> None:
        self._found = [(leg, leg[RESULT]) for leg in legs]  # results come in meanwhile
        self.received = max(received, legs[-1][0]) if legs else received
        #: The sequences of the legs whose results are sent again.
        self.repeated = {leg[0] for leg, result in self._found if result is not None}

    def told(self) -> list[list[int]]:
        """Each leg's sequence, call, origin, and whether it is done."""
        return [
            [leg[0] & _MASK, leg[1], _origin(leg[ORIGIN]), 0 if result is None else 1]
            for leg, result in self._found
        ]

    def results(self, stream: _wire.FrameStream) -> list[bytes]:
        """The pieces of all results for a stream, in frames that may have been sent before."""
        pieces: list[bytes] = []
        for _, result in self._found:
            if result is not None:
                first, *rest = (result,) if isinstance(result, bytes) else result
                flags = first[_FLAGS_AT] | _wire.FLAG_AGAIN
                first = b"%b%c%b" % (first[:_FLAGS_AT], flags, first[_FLAGS_AT + 1 :])
                pieces += _wire.numbered(stream.number(), [first, *rest])
        return pieces


def lasting(parts: list[Any]) -> list[bytes]:
    """The pieces of a result as they can be kept: an object may change what it returned."""
    return [part if type(part) is bytes else memoryview(part).tobytes("A") for part in parts]


def _origin(found: Any) -> int:
    return found if isinstance(found, int) else origin_of(found)


def origin_of(body: Any) -> int:
    """The origin in a leg's body, whose arguments need not be readable; 0 where there is none."""
    unpacker = msgpack.Unpacker(unicode_errors="surrogatepass")
    try:
        unpacker.feed(bytes(memoryview(body)[:4096]))
        unpacker.read_array_header()
        unpacker.skip()  # the method
        unpacker.skip()  # the call that it was made from
        return int(unpacker.unpack())
    except Exception:
        return 0
