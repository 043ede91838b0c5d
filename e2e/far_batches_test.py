"""Batches between nodes whose stores are apart: what travels, how often, and what is left."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster import Batch, Cluster, Dispatch, MusterError, PerRank, ResourceManager, Worker, register
from running import cluster, eventually, session
from stages import MIB, objects, stores

CHUNK = 4 * MIB


class Reader(Worker):
    """Reads some of what it is given, and keeps it."""

    kept: Any = None

    @register(Dispatch.ONE_TO_ALL)
    def agent(self) -> int:
        """The agent's process, whose child every worker is."""
        return os.getppid()

    @register(Dispatch.ONE_TO_ALL)
    def total(self, rows: Batch, names: list[str]) -> list[int]:
        return [int(sum(map(np.sum, rows[name]))) for name in names]

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def part(self, rows: Batch) -> list[int]:
        return [int(rows["x"].sum()), len(rows)]

    @register(Dispatch.ONE_TO_ALL)
    def value(self, value: Any) -> int:
        return int(np.asarray(value).sum())

    @register(Dispatch.ONE_TO_ALL)
    def make(self, rows: int) -> Batch:
        return Batch({"x": numbers(rows) + self.rank})

    @register(Dispatch.ONE_TO_ALL)
    def keep(self, rows: Batch) -> None:
        self.kept = rows["x"]

    @register(Dispatch.ONE_TO_ALL)
    def late(self, rows: Batch, folder: str) -> str:
        """Reads a row, and, once it may, the rest; what goes wrong has to leave no garbage."""
        gc.collect()
        gc.disable()
        try:
            first = int(rows[:1]["x"][0, 0])
            Path(folder, f"begun-{self.rank}").touch()
            assert eventually(Path(folder, "go").exists, 60)
            return f"{first}, {int(rows['x'].sum())}"
        except MusterError as error:
            return str(error)

    @register(Dispatch.ONE_TO_ALL)
    def kept_total(self) -> int:
        return int(self.kept.sum())

    @register(Dispatch.ONE_TO_ALL)
    def let_go(self) -> None:
        self.kept = None


def numbers(rows: int) -> np.ndarray[Any, Any]:
    """Rows of 8 KiB."""
    return np.arange(rows * 1024, dtype=np.int64).reshape(rows, 1024)


def copies() -> dict[str, int]:
    """Bytes of other nodes' objects that are here, by node."""
    return {
        node["node"]: sum(o["here_bytes"] for o in node["objects"] if o["state"] == "copy")
        for node in stores()
    }


@contextmanager
def readers(virtual: str, nodes: int, per_node: int = 2) -> Iterator[Cluster]:
    with (
        session(virtual),
        ResourceManager(per_node, nodes) as rm,
        cluster(Reader, rm, name="r", device_mapping=f"0-{nodes * per_node - 1}") as made,
    ):
        yield made
        assert eventually(lambda: not objects()), objects()


@pytest.fixture(scope="module", params=["3x2+net", "3x2+net+plain"])
def r(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with readers(request.param, 3) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "r" in request.fixturenames:
        assert eventually(lambda: not objects()), objects()


def test_a_broadcast_is_on_every_node_once(r: Cluster) -> None:
    x = numbers(4 * CHUNK // 8192)
    sent = Batch({"x": x})
    assert r.total(sent, ["x"]) == [[int(x.sum())]] * 6
    here = copies()
    assert here.pop("node-0") == 0
    assert all(x.nbytes < found < x.nbytes + CHUNK for found in here.values()), here
    assert r.total(sent, ["x"]) == [[int(x.sum())]] * 6
    del sent


def test_rows_go_where_they_are_needed(r: Cluster) -> None:
    """Each node gets its third, rounded to chunks, and the beginning, which has the header."""
    x = numbers(18 * CHUNK // 8192)
    sent = Batch({"x": x})
    found = r.part(sent)
    assert [n for _, n in found] == [len(x) // 6] * 6
    assert sum(total for total, _ in found) == int(x.sum())
    here = copies()
    assert here.pop("node-0") == 0
    for bytes_here in here.values():
        assert x.nbytes // 3 <= bytes_here <= x.nbytes // 3 + 3 * CHUNK


def test_columns_that_nobody_reads_stay_where_they_are(r: Cluster) -> None:
    rows = 8 * CHUNK // 8192
    ragged = [np.full(3000 + i % 7, i, np.int64) for i in range(400)]
    x = numbers(rows)[:400]
    sent = Batch(
        {
            "unread": np.zeros((400, 40_000), np.int64),
            "x": x,
            "ragged": ragged,
            "texts": [f"{i}" * 5000 for i in range(400)],
        }
    )
    totals = [int(x.sum()), int(sum(map(np.sum, ragged)))]
    assert r.total(sent, ["x", "ragged"]) == [totals] * 6
    here = copies()
    assert max(here.values()) < 40 * MIB, here
    assert np.array_equal(sent["unread"], np.zeros((400, 40_000)))


def test_picked_rows(r: Cluster) -> None:
    x = numbers(20 * CHUNK // 8192)
    sent = Batch({"x": x, "t": [f"row {i}" for i in range(len(x))]})
    picked = [5, len(x) - 1, 6, 700, 700]
    assert r.total(sent[picked], ["x"]) == [[int(x[picked].sum())]] * 6
    assert max(copies().values()) <= 5 * CHUNK
    assert sent[picked]["t"] == [f"row {i}" for i in picked]


def test_what_workers_make_is_read_here_and_elsewhere(r: Cluster) -> None:
    made = r.make(2 * CHUNK // 8192)
    for rank, batch in enumerate(made):
        assert np.array_equal(batch["x"], numbers(2 * CHUNK // 8192) + rank)
    whole = Batch.concat(made)
    assert r.total(whole, ["x"]) == [[sum(int(b["x"].sum()) for b in made)]] * 6
    del made, whole, batch


def test_large_values(r: Cluster) -> None:
    """Buffers of one message share an object; a rank's node gets those of its own."""
    values = [np.full(CHUNK // 8, rank, np.int64) for rank in range(6)]
    assert r.value(PerRank(values)) == [int(value.sum()) for value in values]
    here = copies()
    assert max(here.values()) <= 4 * CHUNK, here


def test_what_is_held_on_another_node_stays(r: Cluster) -> None:
    x = numbers(3 * CHUNK // 8192)
    r.keep(Batch({"x": x}))
    assert r.kept_total() == [int(x.sum())] * 6
    r.let_go()


def test_many_small_objects(r: Cluster) -> None:
    for i in range(30):
        x = np.full((64, 1024), i, np.int64)
        assert r.total(Batch({"x": x}), ["x"]) == [[int(x.sum())]] * 6
