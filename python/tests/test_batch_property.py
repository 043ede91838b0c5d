"""What goes into a batch comes out of it, whichever way it went: over random schemas."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schemas import chained, check, columns, picked, row_counts

from muster import Batch, _values

SEEDS = range(150)


def sent(batch: Batch) -> Batch:
    """The batch after its way over the wire, its buffers in other memory."""
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    made: Batch = Batch._decode(payload, [memoryview(bytearray(buf)) for buf in bufs])
    return made


def schemas(torch: bool) -> Callable[[int], tuple[random.Random, dict[str, Any]]]:
    def make(seed: int) -> tuple[random.Random, dict[str, Any]]:
        rng = random.Random(seed)
        return rng, columns(rng, row_counts(rng), torch)

    return make


@pytest.fixture(params=["numpy", "torch"])
def schema(request: pytest.FixtureRequest) -> Callable[[int], tuple[random.Random, dict[str, Any]]]:
    if request.param == "torch":
        pytest.importorskip("torch")
    return schemas(request.param == "torch")


@pytest.mark.parametrize("seed", SEEDS)
def test_sent_and_sliced(seed: int, schema: Any) -> None:
    rng, given = schema(seed)
    batch = Batch(given, meta={"seed": seed})
    check(batch, given)
    rows = len(batch)
    start, stop = sorted(rng.randrange(rows + 1) for _ in range(2))
    some = {name: picked(value, list(range(start, stop))) for name, value in given.items()}
    check(sent(batch[start:stop]), some)  # of a batch that was never sent
    back = sent(batch)
    check(back, given)
    check(batch, given)  # frozen by now
    assert back.meta == {"seed": seed}
    check(back[start:stop], some)
    check(sent(back[start:stop]), some)
    check(sent(sent(back)), given)


@pytest.mark.parametrize("seed", SEEDS)
def test_against_a_naive_model(seed: int, schema: Any) -> None:
    """A chain of slices, takes, concats and hops, beside plain lists of row numbers."""
    rng, given = schema(seed)
    total = len(next(iter(given.values())))
    source = Batch(given)
    pool = [(source, list(range(total)))]
    for _ in range(12):
        batch, rows = rng.choice(pool)
        how = rng.randrange(6)
        if how == 0:
            start, stop = sorted(rng.randrange(len(rows) + 1) for _ in range(2))
            step = rng.choice((1, 1, 2, -1))
            made = batch[start:stop:step], rows[start:stop:step]
        elif how == 1 and rows:
            some = [rng.randrange(-len(rows), len(rows)) for _ in range(rng.randrange(20))]
            made = batch[some], [rows[i] for i in some]
        elif how == 2:
            others = [rng.choice(pool) for _ in range(rng.randrange(1, 4))]
            joined = Batch.concat([batch, *(b for b, _ in others)])
            made = joined, rows + [row for _, its in others for row in its]
        elif how == 3:
            mask = [rng.random() < 0.5 for _ in rows]
            made = batch[np.array(mask, bool)], [r for r, m in zip(rows, mask, strict=True) if m]
        elif how == 4:
            made = sent(batch), rows
        else:
            n = rng.randrange(1, 5)
            at = rng.randrange(n)
            made = (
                batch.chunk(n)[at],
                rows[_bounds(len(rows), n, at) : _bounds(len(rows), n, at + 1)],
            )
        if len(made[1]) < 300:
            pool.append(made)
    for batch, rows in pool:
        assert len(batch) == len(rows)
        for name, value in given.items():
            check(batch.select(name), {name: picked(value, rows)})


def _bounds(rows: int, n: int, i: int) -> int:
    return i * (rows // n) + min(i, rows % n)


@pytest.mark.parametrize("seed", SEEDS)
def test_pickled(seed: int, schema: Any) -> None:
    rng, given = schema(seed)
    batch = Batch(given, meta={"seed": seed})
    for protocol in (2, 4, 5):
        back = pickle.loads(pickle.dumps(batch, protocol))
        check(back, given)
        assert back.meta == {"seed": seed}
    order = [rng.randrange(len(batch)) for _ in range(len(batch))]
    shuffled = sent(batch).take(order)
    expected = {name: picked(value, order) for name, value in given.items()}
    check(pickle.loads(pickle.dumps(shuffled)), expected)
    buffers: list[Any] = []
    data = pickle.dumps(shuffled, 5, buffer_callback=buffers.append)
    check(pickle.loads(data, buffers=[bytes(b) for b in buffers]), expected)
    check(copy.deepcopy(shuffled), expected)
    check(copy.copy(shuffled), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_through_arrow(seed: int, schema: Any, tmp_path: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    rng, given = schema(seed)
    batch = Batch(given, meta={"seed": seed, "of": [1.5, None, {"x": "y"}]})
    other = sent(batch)
    order = [rng.randrange(len(batch)) for _ in range(len(batch))]
    twice = {name: chained([value, value]) for name, value in given.items()}
    shuffled = {name: picked(value, order) for name, value in given.items()}
    cases: list[tuple[Batch, dict[str, Any] | None]] = [
        *((batch, given), (other, given), (other.take(order), shuffled)),
        *((Batch.concat([other, sent(batch)]), twice), (batch[1:-1], None)),
    ]
    for at, (made, expected) in enumerate(cases):
        if expected is None:
            rows = list(range(len(batch)))[1:-1]
            expected = {name: picked(value, rows) for name, value in given.items()}
        table = made.to_arrow()
        table.validate(full=True)
        assert table.num_rows == len(made) and table.column_names == made.columns
        back = Batch.from_arrow(table, pickle=True)
        check(back, expected)
        assert back.meta == batch.meta
        made.export(tmp_path / "x.arrow")
        with pa.memory_map(str(tmp_path / "x.arrow")) as file:
            read = pa.ipc.open_file(file).read_all()
            check(Batch.from_arrow(read, pickle=True), expected)
        kept = made.select(*(name for name in made.columns if not _without_elements(given[name])))
        if kept.columns and at == seed % len(cases):
            kept.export(tmp_path / "x.parquet")
            read = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "x.parquet")
            back = Batch.from_arrow(read, pickle=True)
            check(back, {name: expected[name] for name in kept.columns})


def _without_elements(value: Any) -> bool:
    """Whether rows, or elements of rows, have a dimension of 0, which Parquet has no type for."""
    first = next((row for row in value if row is not None), None) if len(value) else None
    dims = getattr(value, "shape", ())[1:]
    if isinstance(first, np.ndarray) or hasattr(first, "untyped_storage"):
        dims = (*dims, *getattr(first, "shape", ())[1 if isinstance(value, list) else 0 :])
    return 0 in dims


@pytest.mark.parametrize("seed", range(40))
def test_inside_other_values(seed: int, schema: Any) -> None:
    _, given = schema(seed)
    value = {"batch": Batch(given), "beside": [1, (2,)]}
    bufs: list[Any] = []
    body = _values.encode(value, bufs)
    back = _values.decode(body, [memoryview(bytearray(memoryview(buf).cast("B"))) for buf in bufs])
    assert back["beside"] == [1, (2,)]
    check(back["batch"], given)
