"""What this process may read where it lies, without a word with the store that has it.

The head lends an object with a leg. While that stands, the object stays in memory,
and where it is; so it ends with the call, unless somebody looks at the bytes.
Whoever keeps the object and looks later opens it. This module decides; `_objects`
tells the head.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._leases import Borrowed, Store
    from ._objects import Ledger

_LOOKS = 8  # loans of calls before that are looked at when a call ends
_ENDED = -1  # the segment of what is not lent any more
_COUNTED = -1  # the call of what is no loan, and is counted
_GONE = -2  # the call of what was


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
    call: int  # the same of whatever was lent; below 0: see Loans
    borrowed: tuple[Borrowed, ...]  # where it is looked at, if it was lent
    count: int  # as the head has it
    maker: Store | None  # the store's connection, if it was made here
    lines: tuple[Any, ...]  # connections by which the head was told of what was made

    def forfeit(self) -> None:
        """In a forked child: whatever was lent is lent to the parent alone."""
        self.segment, self.borrowed = _ENDED, ()


class Loans:
    """The loans that stand. The locks of the ledger guard it.

    A signal handler may raise after any call in here. So what has to happen together
    has no call in between, and what was begun is found again by who comes next.
    """

    def __init__(self, lends: bool) -> None:
        self.lends = lends  # whether this process is lent anything: scripts are not
        #: Of calls that run, by call: an account, or some by identity.
        self.fresh: dict[int, Account | dict[int, Account]] = {}
        self.read: dict[int, Account] = {}  # looked at when their call ended
        #: Rights without a loan that came, and are not counted yet. Added to without a lock.
        self.came: deque[Account] = deque()
        #: How many rights without a loan there are, by object. Guarded by who sorts.
        self.kept: dict[int, int] = {}
        self._over: dict[int, None] = {}  # calls that have ended and are not dealt with

    def join(self, account: Account) -> None:
        """One more of a call that has others, maybe."""
        held = self.fresh.get(account.call, {})
        if not isinstance(held, dict):
            held = {id(held): held}
        held[id(account)] = account
        self.fresh[account.call] = held

    def leave(self, account: Account) -> None:
        """One less of a call that has others."""
        held = self.fresh.get(account.call)
        if isinstance(held, dict):
            held.pop(id(account), None)
            if not held:
                self.fresh.pop(account.call, None)

    def settle(self, call: int, given_back: list[tuple[int, int]]) -> None:
        """A call has ended: the objects whose loans end with it are given back."""
        before = [*islice(self.read.values(), _LOOKS)]
        self._over[call] = None
        for over in (*self._over, 0):
            held = self.fresh.get(over)
            if held is not None:
                for account in [*held.values()] if isinstance(held, dict) else [held]:
                    self._end(account, given_back)
                self.fresh.pop(over, None)
            self._over.pop(over, None)
        for account in before:
            self._end(account, given_back)

    def _end(self, account: Account, given_back: list[tuple[int, int]]) -> None:
        key = id(account)
        if not account.count or account.call < 0:  # it never came to be, or has ended
            self.read.pop(key, None)
            return
        if any(borrowed.root() is not None for borrowed in account.borrowed):
            if key in self.read:
                del self.read[key]
            self.read[key] = account  # after all others
            return
        for borrowed in account.borrowed:
            borrowed.give_back(account)
        account.borrowed = ()
        object = account.object
        count, ended = self.kept.get(object, 0) + 1, ((object, 0),)
        # No call between these.
        given_back += ended
        self.kept[object] = count
        account.segment = _ENDED
        account.call = _COUNTED
        self.read.pop(key, None)

    def count(self) -> None:
        """Count rights without a loan that came. It is asked before their ends are looked at."""
        while self.came:
            account = self.came[0]
            if account.call != _COUNTED:
                count = self.kept.get(account.object, 0) + 1
                # No call between these.
                self.kept[account.object] = count
                account.call = _COUNTED
            del self.came[0]

    def gone(self, account: Account) -> bool:
        """A right has ended; whether it has to be said that its loan has, too: where a right
        without one is left, the head cannot tell whose the loan was. It may be asked again."""
        self.read.pop(id(account), None)
        object = account.object
        if account.call != _COUNTED:
            return account.segment > 0 and account.maker is None and object in self.kept
        # No call from here on.
        count = self.kept[object] - 1
        if count:
            self.kept[object] = count
        else:
            del self.kept[object]
        account.call = _GONE
        account.segment = 0
        return False

    def counts(self) -> list[tuple[int, int]]:
        """How many there are of each object."""
        found: Counter[int] = Counter()
        for held in (*self.fresh.values(), self.read):
            for account in [*held.values()] if isinstance(held, dict) else [held]:
                if account.count and account.call >= 0:
                    found[account.object] += 1
        return [*found.items()]
