"""Views of batches: what was only read is let go of, what was written stays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakestore import Stores
from test_batch_writes import sent

from muster import Batch, _looks, _objects, _pages, _wire

ROWS = 20_000


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores() as made:
        yield made
        made.store.wait_for(lambda: not made.store.views())


def made() -> Batch:
    return sent(
        Batch(
            {
                "x": np.arange(ROWS),
                "r": [np.arange(n % 5) for n in range(ROWS)],
                "o": np.array([np.arange(n % 5) for n in range(ROWS)], object),
                "t": ["a"] * ROWS,
            }
        )
    )


def let_go(stores: Stores) -> int:
    """How much is looked at, after what nobody needs was let go of."""
    stores.ledger.looks.let_go()
    # A request is answered after what was said before it.
    stores.ledger.stores.own().allocate(1, _objects.Right(stores.ledger, 0).account)
    return stores.store.views()


def test_what_was_read_is_let_go(stores: Stores) -> None:
    batch = made()
    other, (low, high) = batch.take([7, 3]), batch.chunk(2)
    for _ in range(2):
        for name in ("x", "r", "o"):
            assert int(batch[name][3].max()) == (2 if name != "x" else 3)
            assert stores.store.views() == 1
            assert let_go(stores) == 0
        assert batch[4]["x"] == 4 and batch[4]["t"] == "a" and stores.store.views() == 1
        assert let_go(stores) == 0
        assert [len(row) for row in other["r"]] == [2, 3] and other["x"].tolist() == [7, 3]
        assert low["x"][-1] + 1 == high["x"][0] and low["t"] == high["t"]
        assert len(batch.to_numpy()) == 4 and sum(row["x"] for row in low) > 0
        assert let_go(stores) == 0
    assert len(stores.store.requests) < 40, "all of it is opened together"
    del other, batch, low, high


def test_it_stays_open_while_it_is_read(stores: Stores) -> None:
    batch = made()
    assert sum(int(batch["x"][n]) for n in range(100)) == 4950
    assert sum(len(batch["r"][n]) + len(batch[n]["o"]) for n in range(100)) == 400
    assert [verb for verb, _ in stores.store.requests].count("open") == 1
    del batch


@pytest.mark.parametrize("name", ["x", "r", "o"])
def test_what_was_written_stays(stores: Stores, name: str) -> None:
    batch = made()
    if name == "x":
        batch["x"][9] = 7
    else:
        batch[name][9][...] = 7
    for _ in range(2):
        assert let_go(stores) == 1, "what was written is nowhere else"
        assert np.all(batch[name][9] == 7) and np.all(batch[:10][name][9] == 7)
        assert np.all(batch[9][name] == 7) and np.all(batch.to_numpy()[name][9] == 7)
    part = batch.select(name)[5:10]
    del batch
    assert let_go(stores) == 1 and np.all(part[name][4] == 7), "a slice shows it, too"
    assert np.all(sent(part)[name][4] != 7), "and sends what was put"
    del part


@pytest.mark.parametrize("name", ["x", "r"])
def test_what_somebody_has_is_what_the_batch_shows(stores: Stores, name: str) -> None:
    batch = made()
    whole, part = batch[name], batch[name][9:14]
    assert let_go(stores) == 1 and batch[name] is whole
    del whole
    assert let_go(stores) == 1, "it lies under a part of it"
    part[0] += 1
    if name == "r":
        part[0][...] = 10
    del part
    for _ in range(2):
        assert let_go(stores) == 1
        assert np.all(batch[name][9] == 10)
    del batch


def test_rows_in_a_list_stay(stores: Stores) -> None:
    batch = made()
    batch["r"][3] = np.full(9, 5)
    batch["o"][3] = None
    batch["t"][3] = "b"
    let_go(stores)
    assert batch["r"][3].tolist() == [5] * 9 and batch["o"][3] is None and batch["t"][3] == "b"
    del batch


def test_other_shapes_stay(stores: Stores) -> None:
    batch = made()
    batch["x"].shape = (2, ROWS // 2)
    let_go(stores)
    assert batch["x"].shape == (2, ROWS // 2)
    del batch


def test_where_the_kernel_does_not_tell_what_was_written(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pages._Kernel, "pagemap", None)
    batch = made()
    assert batch["x"][3] == 3 and let_go(stores) == 1, "all that was read stays"
    assert batch["x"][3] == 3 and let_go(stores) == 1
    del batch
    assert let_go(stores) == 0


def test_tensors(stores: Stores) -> None:
    torch = pytest.importorskip("torch")
    given = {
        "x": torch.arange(ROWS, dtype=torch.bfloat16),
        "r": [torch.arange(n % 5) for n in range(ROWS)],
        "z": [torch.tensor(n) for n in range(ROWS)],
    }
    batch = sent(Batch(given))
    for name in given:
        assert int(batch[name][3].max()) == {"x": 3, "r": 2, "z": 3}[name]
        assert let_go(stores) == 0
    batch["x"].requires_grad_()
    batch["r"][4].zero_()
    batch["z"][4].fill_(9)
    assert let_go(stores) == 1
    assert batch["x"].requires_grad and batch["r"][4].sum() == 0 and batch["z"][4] == 9
    del batch
    batch = sent(Batch(given))
    part = batch["x"][:5]
    assert let_go(stores) == 1
    part.fill_(2)
    del part
    assert let_go(stores) == 1 and batch["x"][4] == 2
    del batch


def test_what_a_forked_child_may_see_stays(stores: Stores) -> None:
    batch, later = made(), made()
    assert batch["x"][3] == 3
    _looks.before_fork()  # what the SDK does at a fork
    _looks.after_fork()
    assert later["x"][3] == 3
    assert let_go(stores) == 1
    del batch
    assert let_go(stores) == 0
    del later


def test_a_fork_waits_for_who_lets_go(stores: Stores) -> None:
    """Or the child would have what the parent gives back a moment later."""
    inside, tries, goes, done = threading.Event(), threading.Event(), threading.Event(), []

    class Reading:
        def _let_go(self, stretches: dict[int, Any]) -> bool:
            inside.set()
            goes.wait(30)
            done.append("let go")
            return False

    def forks() -> None:
        tries.set()
        _looks.before_fork()
        done.append("forked")
        _looks.after_fork()

    reading = Reading()
    stores.ledger.looks.note(reading)
    threads = [threading.Thread(target=stores.ledger.looks.let_go), threading.Thread(target=forks)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    assert tries.wait(30)
    goes.set()
    for thread in threads:
        thread.join(30)
    assert done == ["let go", "forked"]


def lent(ledger: _objects.Ledger, call: int, made: Batch) -> Batch:
    """A batch as it comes with a leg."""
    bufs: list[Any] = []
    payload = made._encode(bufs)
    (stored,) = bufs
    segment = stored.right.account.segment
    came: list[Any] = [_wire.Reference(stored.right.object, 0, stored.nbytes, False, segment)]
    _objects.claim(came, ledger, leg=True, call=call)
    batch: Batch = Batch._decode(payload, came)
    return batch


def test_a_loan_ends_when_what_was_read_is_let_go(stores: Stores) -> None:
    ledger, whole = stores.ledger, Batch({"x": np.arange(ROWS), "y": np.arange(ROWS)})
    ledger.loans.lends = True  # as a worker's
    kept, wrote, looked = (lent(ledger, 1, whole) for _ in range(3))
    for batch in (kept, wrote, looked):
        assert batch["x"][3] == 3 and batch[4] == {"x": 4, "y": 4}
    view = looked["y"][:5]
    wrote["x"][3] = 9
    assert not stores.store.views()
    let_go(stores)
    ledger.settle(1)
    assert len(ledger.read) == 2, "one was written, and one is looked at"
    assert wrote["x"][3] == 9 and wrote[:5]["x"][3] == 9 and not stores.store.views()
    assert kept["x"][3] == 3 and stores.store.views() == 1, "it is opened"
    view[4] = 7
    del view
    let_go(stores)
    ledger.settle(2)
    assert looked["y"][4] == 7 and wrote["x"][3] == 9 and kept["x"][3] == 3
    del kept, wrote, looked, batch, whole


def test_nothing_is_lost_between_threads(stores: Stores) -> None:
    """Who writes and lets go at once finds it again, while others let go of all there is."""
    columns = {"x": np.arange(1000 * 20).reshape(1000, 20), "r": [np.arange(4)] * 1000}
    batch, over = sent(Batch(columns)), threading.Event()

    def lets_go() -> None:
        while not over.is_set():
            stores.ledger.looks.let_go()

    others = [threading.Thread(target=lets_go) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for n in range(300):
            batch = sent(Batch(columns)) if n % 10 == 0 else batch
            batch["x"][n] = -n
            assert batch["x"][n, 5] == -n
            batch["r"][5][:] = n
            assert batch["r"][5].tolist() == [n] * 4
            batch["r"][10 + n % 10] = None
            assert batch["r"][10 + n % 10] is None
    finally:
        over.set()
        for other in others:
            other.join()
    del batch


def test_many_that_went_are_forgotten(stores: Stores) -> None:
    batch = made()
    gone = weakref.ref(batch)
    for n in range(30):
        assert batch[n : n + 1]["x"][0] == n
    assert not stores.ledger.looks.fresh
    del batch
    assert gone() is None
