"""What this process may read where it lies, without a word with the store that has it.

The head lends an object with a leg. While that stands, the object stays in memory,
and where it is; so it ends with the call, unless somebody looks at the bytes.
Whoever keeps the object and looks later opens it. This module decides; `_objects`
tells the head.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._leases import Borrowed, Store
    from ._objects import Ledger

_LOOKS = 8  # loans of calls before that are looked at when a call ends
_ENDED = -1  # the segment of what is not lent any more


class Account:
    """What is to be given back for an object in the end."""

    __slots__ = (
        "borrowed",
        "call",
        "count",
        "ledger",
        "leg",
        "lines",
        "maker",
        "object",
        "segment",
        "watched",
    )

    ledger: Ledger
    object: int
    watched: bool
    segment: int  # where it lies, if it was made here or is lent; below 0: not lent any more
    leg: int  # the call with whose arguments it came, if its reply takes along what is given back
    call: int  # the same of whatever was lent
    borrowed: tuple[Borrowed, ...]  # where it is looked at, if it was lent
    count: int  # as the head has it
    maker: Store | None  # the store's connection, if it was made here
    lines: tuple[Any, ...]  # connections by which the head was told of what was made

    def forfeit(self) -> None:
        """In a forked child: whatever was lent is lent to the parent alone."""
        self.segment, self.borrowed = _ENDED, ()


class Loans:
    """The loans that stand. The locks of the ledger guard it."""

    def __init__(self) -> None:
        self.fresh: dict[int, Account] = {}  # of calls that run, by identity
        self.read: dict[int, Account] = {}  # looked at when their call ended
        self._kept: Counter[int] = Counter()  # objects with rights whose loan has ended

    def settle(self, call: int) -> list[tuple[int, int]]:
        """A call has ended: the objects whose loans end with it, as they are given back."""
        before = [*islice(self.read.values(), _LOOKS)]
        ended = []
        for account in [a for a in self.fresh.values() if a.call in (call, 0)] + before:
            self.fresh.pop(id(account), None)
            self.read.pop(id(account), None)
            if any(borrowed.root() is not None for borrowed in account.borrowed):
                self.read[id(account)] = account  # after all others
                continue
            account.segment = _ENDED
            for borrowed in account.borrowed:
                borrowed.give_back(account)
            account.borrowed = ()
            self._kept[account.object] += 1
            ended.append((account.object, 0))
        return ended

    def gone(self, account: Account) -> bool:
        """A right has ended; whether it has to be said that its loan has, too: where another
        right to the object is left, the head cannot tell whose the loan was."""
        self.read.pop(id(account), None)
        segment, account.segment = account.segment, 0
        object = account.object
        if segment != _ENDED:
            return segment > 0 and account.maker is None and object in self._kept
        self._kept[object] -= 1
        if not self._kept[object]:
            del self._kept[object]
        return False

    def busy(self) -> bool:
        """Whether `gone` has to be asked."""
        return bool(self.read or self._kept)

    def counts(self) -> list[tuple[int, int]]:
        """How many there are of each object."""
        accounts = [*self.fresh.values(), *self.read.values()]
        return [*Counter(account.object for account in accounts).items()]
