"""Leases of objects under interrupts: whatever a signal handler raises, nothing is lost."""

from __future__ import annotations

import gc
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakestore import Stores
from test_leases import content, publish, put, received, stores

from muster import _objects, _wire

__all__ = ["stores"]  # a fixture


class Stop(BaseException):
    """As KeyboardInterrupt: what no `except Exception` takes for an error of its own."""


@pytest.fixture
def alarms() -> Iterator[None]:
    def stop(_number: int, _frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_request_leaves_the_connection_usable(stores: Stores, alarms: None) -> None:
    store = stores.store
    number = publish(put(1))
    for begin in (lambda: put(2), lambda: received(number).root()):
        store.answering.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # until it is heard
        with pytest.raises(Stop):
            begin()
        store.answering.set()
        assert np.array_equal(put(3).root(), content(3))
        gc.collect()
        store.wait_for(lambda: len(store.objects) <= 1)
        store.wait_for(lambda: store.views() == 0)  # what came too late was given back
    assert len(store.clients) == 1


def test_interrupts_at_any_point_lose_nothing(
    stores: Stores, alarms: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is raised at the first step of a finalizer is dropped by Python. pytest would keep it
    # to show it, with its frames and what they hold.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    store, chance = stores.store, random.Random(1)
    put(0)  # connects
    interrupted = 0
    deadline = time.monotonic() + 5
    seed = 0
    while interrupted < 200 and time.monotonic() < deadline:
        number, seed = 0, seed + 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3))
                source = put(seed, 1 << 17)
                view = source.root()
                view[0] = 1
                number = publish(source)
                del source, view
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            interrupted += 1
        if number:
            array = received(number, 1 << 17).root()
            assert np.array_equal(array, content(seed, 1 << 17))
            del array
    source = view = None  # type: ignore[assignment]
    gc.collect()
    put(0)  # what was interrupted is made good by who comes next
    for number in {number for number, _ in stores.ledger.given_back}:
        store.drop(number)  # as the head
    assert interrupted > 20 and len(store.clients) == 1
    store.wait_for(lambda: not store.objects)


def test_interrupts_at_any_point_lose_no_end_of_a_loan(
    stores: Stores, alarms: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # as above
    ledger, chance = stores.ledger, random.Random(2)
    ledger.loans.lends = True  # as a worker's
    made = put(1)
    _objects.name([made], ledger, object(), [])
    number, segment = made.right.object, made.right.account.segment
    counts, loans = 1, 0  # as the head has them
    interrupted = call = 0
    deadline = time.monotonic() + 5
    kept: list[Any] = []
    while interrupted < 300 and time.monotonic() < deadline:
        call += 1
        legs: list[list[Any]] = []
        for _ in range(4):
            legs.append([_wire.Reference(number, 0, 1 << 20, False, segment)])
            _objects.claim(legs[-1], ledger, leg=True, call=call)
        counts, loans = counts + 4, loans + 4
        kept.append(legs[0])
        view = legs[1][0].root() if call % 2 else None
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-4))
                legs.pop()
                ledger.settle(call)
                del view
                kept = kept[-4:]
                legs.clear()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            interrupted += 1
        view = None
        legs.clear()
    for again in range(
        1, call + 200
    ):  # what was interrupted, as early as that may be, is made good
        ledger.settle(again)
    for _, count in ledger.given_back:
        counts, loans = counts - count, loans - (not count)
    assert interrupted > 20
    assert loans == 0 and counts == 1 + len(kept) and not ledger.fresh and not ledger.read
    kept.clear()
    assert ledger.loans.kept == {number: 1}, "made here"


def test_a_signal_handler_may_use_the_store_that_it_interrupted(stores: Stores) -> None:
    store = stores.store
    put(0)
    done: list[bool] = []

    def use(_number: int, _frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        store.answering.set()
        done.append(np.array_equal(put(5).root(), content(5)))

    before = signal.signal(signal.SIGALRM, use)
    try:
        store.answering.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # until it is heard
        assert np.array_equal(put(6).root(), content(6))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done == [True] and len(store.clients) == 2
