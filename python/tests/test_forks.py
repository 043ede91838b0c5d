"""Forked children: what they read is what their parent has a right to, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakestore import Segment, Stores
from test_leases import in_child
from test_loans import SIZE, leg, put

from muster import _context, _objects


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores() as made:
        yield made


def move(stores: Stores, number: int) -> None:
    """What a spill and a read bring about: the object lies elsewhere, another where it was."""
    store = stores.store
    with store.changed:
        object = store.objects[number]
        old = object.segment
        fd = os.memfd_create("fake-store")
        os.ftruncate(fd, old.capacity)
        os.pwrite(fd, os.pread(old.fd, old.capacity, 0), 0)
        place = max(store.segments) + 1000
        object.segment = store.segments[place] = Segment(place, fd, old.capacity)
        os.pwrite(old.fd, bytes([9]) * old.capacity, 0)


@pytest.mark.parametrize("looked", ["not yet", "in the call", "before, in another view"])
def test_what_was_lent_to_the_parent_is_opened(stores: Stores, looked: str) -> None:
    ledger, made = stores.ledger, put(3)
    kept = leg(ledger, 1, made)
    view: Any = kept[0].root() if looked != "not yet" else None
    if looked == "before, in another view":
        ledger.settle(1)
        assert ledger.read
    del view
    ready, go = os.pipe()

    def child() -> bool:
        ledger.abandon()  # what the SDK does after a fork
        os.close(go)
        os.read(ready, 1)  # until the parent's call has ended, and its object has moved
        return bool(np.all(kept[0].root() == 3)) and bool(
            np.all(np.frombuffer(_objects.views(kept)[0], np.uint8)[:SIZE] == 3)
        )

    def parent() -> None:
        try:
            ledger.settle(1)
            assert not ledger.fresh and not ledger.read
            move(stores, made.right.object)
        finally:
            os.close(go)

    assert in_child(child, parent) == 0
    os.close(ready)


def test_a_child_of_a_child_has_a_connection_of_its_own(stores: Stores) -> None:
    """Both ask at the same time; answers that went astray would be wrong, or never come."""
    source = put(3)

    def reads() -> bool:
        return all(np.all(source.root() == 3) for _ in range(200))

    def grandchild() -> bool:
        _context._after_fork()
        return reads()

    def child() -> bool:
        _context._after_fork()
        good = [reads()]
        return in_child(grandchild, lambda: good.append(reads())) == 0 and all(good)

    assert in_child(child) == 0
    assert reads() and len(stores.store.clients) == 3
