"""What came with a leg and is kept: its loan ends with the call, unless somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakestore import Stores

from muster import _loans, _objects, _store, _wire
from muster._objects import Ledger, Stored

SIZE = 1 << 20


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores() as made:
        made.ledger.loans.lends = True  # as a worker's
        yield made


def elsewhere(seed: int) -> Stored:
    """An object full of a number, as if another process had made it."""
    source = _store.place(SIZE, lambda out: out.fill(seed), "a test")
    assert isinstance(source, Stored)
    return source


def put(seed: int) -> Stored:
    """An object full of a number, of which the head was told by this process."""
    source = elsewhere(seed)
    _objects.name([source], source.right.ledger, object(), [])
    return source


def leg(ledger: Ledger, call: int, *sources: Stored) -> list[Any]:
    """Objects as they come with a leg."""
    bufs: list[Any] = [
        _wire.Reference(s.right.object, 0, SIZE, False, s.right.account.segment) for s in sources
    ]
    _objects.claim(bufs, ledger, leg=True, call=call)
    return bufs


def said(ledger: Ledger) -> Any:
    """What the head is told now."""
    count = len(ledger.given_back)
    frame = ledger.release(count)
    del ledger.given_back[:count]
    return _wire.unpack(frame[24:])[1]


def test_a_loan_ends_with_its_call_and_what_is_kept_is_opened(stores: Stores) -> None:
    ledger, made, other = stores.ledger, elsewhere(3), elsewhere(4)
    number = made.right.object
    kept = leg(ledger, 1, made, other)
    kept.pop()
    assert said(ledger) == {"objects": [[other.right.object, 1]]}
    ledger.settle(1)
    assert said(ledger) == {"objects": [], "lent": [[number, 1]]}
    assert not ledger.fresh and not ledger.read
    assert np.all(kept[0].root() == 3) and stores.store.views() == 1, "the store is asked"
    kept.clear()
    assert said(ledger) == {"objects": [[number, 1]]}
    stores.store.wait_for(lambda: stores.store.views() == 0)


def test_a_loan_stands_while_somebody_looks(stores: Stores) -> None:
    ledger, made = stores.ledger, put(3)
    number = made.right.object
    kept = leg(ledger, 1, made)
    view = kept[0].root()[5:]
    view[:] = 9
    ledger.settle(1)
    assert not ledger.given_back and ledger.stock_and_loans()[1] == [(number, 1)]
    assert np.all(kept[0].root()[5:] == 9) and not stores.store.views()
    del view
    ledger.settle(2)  # with any later call
    assert said(ledger) == {"objects": [], "lent": [[number, 1]]}
    assert ledger.stock_and_loans() == ([(number, 2)], []), "one as its maker"
    assert np.all(kept[0].root() == 3), "what was put, as ever with a new view"


def test_calls_that_run_keep_their_loans(stores: Stores) -> None:
    ledger, made = stores.ledger, put(3)
    one, two = leg(ledger, 1, made), leg(ledger, 2, made)
    ledger.settle(2)
    assert said(ledger)["lent"] == [[made.right.object, 1]]
    assert np.all(one[0].root() == 3) and not stores.store.views()
    assert np.all(two[0].root() == 3) and stores.store.views() == 1


def test_the_head_hears_whose_loan_ended(stores: Stores) -> None:
    """Of two rights to the same object one is kept without its loan; the other goes with it."""
    ledger, made = stores.ledger, elsewhere(3)
    number = made.right.object
    kept = leg(ledger, 1, made)
    ledger.settle(1)
    said(ledger)
    again = leg(ledger, 2, made)
    again.clear()
    assert said(ledger) == {"objects": [[number, 1]], "lent": [[number, 1]]}
    kept.clear()
    assert said(ledger) == {"objects": [[number, 1]]}
    leg(ledger, 3, made).clear()
    assert said(ledger) == {"objects": [[number, 1]]}, "as ever, when nothing else is left"


def test_many_views_are_looked_at_by_turns(stores: Stores) -> None:
    ledger, made = stores.ledger, put(3)
    number = made.right.object
    kept = [leg(ledger, call, made) for call in range(1, 41)]
    views = [bufs[0].root() for bufs in kept]
    for call in range(1, 41):
        ledger.settle(call)
    assert not ledger.given_back and len(ledger.read) == 40
    del views
    for call in range(100, 105):
        ledger.settle(call)
    assert said(ledger) == {"objects": [], "lent": [[number, 40]]}


def result(ledger: Ledger, source: Stored) -> list[Any]:
    """An object as it comes with an answer: without a loan."""
    bufs: list[Any] = [_wire.Reference(source.right.object, 0, SIZE, False, 0)]
    _objects.claim(bufs, ledger)
    return bufs


def test_the_head_hears_of_loans_beside_rights_that_never_were(stores: Stores) -> None:
    """What this process made, or got as a result, comes with a leg as well, and goes again."""
    ledger, made, other = stores.ledger, put(3), elsewhere(4)
    own, number = made.right.object, other.right.object
    leg(ledger, 1, made).clear()
    assert said(ledger) == {"objects": [[own, 1]], "lent": [[own, 1]]}
    got, again = result(ledger, other), result(ledger, other)
    leg(ledger, 2, other).clear()
    assert said(ledger) == {"objects": [[number, 1]], "lent": [[number, 1]]}
    again.clear()
    assert said(ledger) == {"objects": [[number, 1]]}
    leg(ledger, 3, other, made).clear()
    told = said(ledger)
    assert sorted(told["lent"]) == sorted(told["objects"]) == sorted([[own, 1], [number, 1]])
    got.clear()
    assert said(ledger) == {"objects": [[number, 1]]}
    leg(ledger, 4, other).clear()
    assert said(ledger) == {"objects": [[number, 1]]}, "nothing else is left"
    del made
    assert said(ledger) == {"objects": [[own, 1]]} and not ledger.loans.kept


def test_the_end_of_a_call_looks_at_its_own_loans_alone(stores: Stores) -> None:
    """However many calls run."""
    ledger, made = stores.ledger, elsewhere(3)
    number = made.right.object
    running = [leg(ledger, call, made) for call in range(1, 101)]
    looked: list[int] = []

    class Looks(_loans.Loans):
        def _end(self, account: _loans.Account, given_back: list[tuple[int, int]]) -> None:
            looked.append(account.call)
            super()._end(account, given_back)

    ledger.loans.__class__ = Looks
    ledger.settle(50)
    assert looked == [50] and len(ledger.fresh) == 99
    assert said(ledger) == {"objects": [], "lent": [[number, 1]]}
    assert ledger.stock_and_loans() == ([(number, 100)], [(number, 99)])
    running.clear()
    assert said(ledger)["objects"] == [[number, 100]]
    assert not ledger.fresh and not ledger.loans.kept


def test_some_of_a_call_go_before_it_ends(stores: Stores) -> None:
    ledger, sources = stores.ledger, [elsewhere(seed) for seed in range(3)]
    first, second, third = [source.right.object for source in sources]
    bufs = leg(ledger, 1, *sources)
    more = leg(ledger, 1, sources[2])  # another of the same call
    del bufs[0]
    assert said(ledger) == {"objects": [[first, 1]]}
    assert sorted(ledger.stock_and_loans()[1]) == [(second, 1), (third, 2)]
    bufs.clear()
    assert sorted(said(ledger)["objects"]) == [[second, 1], [third, 1]]
    more.clear()
    assert said(ledger) == {"objects": [[third, 1]]} and not ledger.fresh
