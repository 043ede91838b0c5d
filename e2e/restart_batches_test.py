"""The head is killed while large batches lie in stores, are on their way, and are held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import muster
from muster import Batch, Broadcast
from restart_test import IN_TIME, NODES, kill_head
from running import cluster, eventually, pool, session
from stages import MIB, Stage, objects, stores

pytestmark = pytest.mark.chaos


def numbers(seed: int, size: int = 64 * MIB) -> np.ndarray:
    """So many bytes, in rows of 8 KiB."""
    rows = size // 8192
    made = np.arange(rows * 1024, dtype=np.int64).reshape(rows, 1024)
    made += seed
    return made


@NODES
def test_batches_stay(virtual: str, tmp_path: Path) -> None:
    """Held here, held in workers, in a call that runs, in one that waits, in an answer."""
    with (
        session(virtual),
        pool(2, 2) as rm,
        cluster(Stage, rm, name="a", device_mapping="0-1") as a,
        cluster(Stage, rm, name="b", device_mapping="2-3") as b,
    ):
        here = Batch({"x": numbers(1)})
        made = a.double(here)  # lies where it was made; here is a handle of it
        b.keep(Batch({"x": numbers(2)}))
        running = b.slow(
            Batch({"x": numbers(3)}),
            Broadcast([IN_TIME]),
            Broadcast([str(tmp_path)]),
            blocking=False,
        )
        answered = a.double(Batch({"x": numbers(4)}), blocking=False)
        waiting = a.double(running, blocking=False)
        assert eventually((tmp_path / "begun-b-0").exists, IN_TIME)
        assert eventually(answered.done, IN_TIME)
        kill_head()
        del here
        (tmp_path / "go").touch()
        assert np.array_equal(made["x"], numbers(1) * 2)
        assert np.array_equal(muster.get(answered, IN_TIME)["x"], numbers(4) * 2)
        assert np.array_equal(muster.get(running, IN_TIME)["x"], numbers(3))
        assert np.array_equal(muster.get(waiting, IN_TIME)["x"], numbers(3) * 2)
        half = 64 * MIB // 8192 // 2
        assert b.sums(timeout=IN_TIME) == [
            [int(numbers(2)[:half].sum())],
            [int(numbers(2)[half:].sum())],
        ]
        kill_head()
        assert np.array_equal(
            muster.get(a.double(made, blocking=False), IN_TIME)["x"], numbers(1) * 4
        )
        b.let_go(timeout=IN_TIME)
        del made, running, waiting, answered
        assert eventually(lambda: objects() == [], IN_TIME), objects()


def test_batches_that_are_made_while_there_is_no_head(tmp_path: Path) -> None:
    with (
        session("2x2"),
        pool(2, 2) as rm,
        cluster(Stage, rm, name="a", device_mapping="0-3") as a,
    ):
        for n in range(3):
            kill_head()
            refs = [a.double(Batch({"x": numbers(k, 8 * MIB)}), blocking=False) for k in range(3)]
            for k, ref in enumerate(refs):
                assert np.array_equal(muster.get(ref, IN_TIME)["x"], numbers(k, 8 * MIB) * 2), n
            del refs, ref
        assert eventually(lambda: objects() == [], IN_TIME), objects()


def test_loans_are_known_to_the_next_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers keep unread can still be spilled; what they look at stays as it is."""
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    size, each = 4 * MIB, 5
    with session("1x2"), pool(2) as rm, cluster(Stage, rm, name="a", device_mapping="0-1") as a:
        for seed in range(each):
            a.keep_handle(a.double(Batch({"x": numbers(seed, size)})))
            a.keep(a.double(Batch({"x": numbers(100 + seed, size)})))
        kill_head()
        for seed in range(each, 4 * each):  # more than there is room for
            a.keep_handle(a.double(Batch({"x": numbers(seed, size)})), timeout=IN_TIME)
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        sums = a.sums(timeout=IN_TIME)
        half = size // 8192 // 2
        for rank, rows in enumerate((slice(None, half), slice(half, None))):
            whole = [2 * int(numbers(seed, size).sum()) for seed in range(4 * each)]
            own = [2 * int(numbers(100 + seed, size)[rows].sum()) for seed in range(each)]
            mixed = [n for pair in zip(whole, own, strict=False) for n in pair]
            assert sums[rank] == mixed + whole[each:]
        a.let_go(timeout=IN_TIME)
        assert eventually(lambda: objects() == [], IN_TIME), objects()


def test_what_a_script_holds_can_be_spilled_under_the_next_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "48MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    size, each = 4 * MIB, 10
    with session("1x1"), pool(1) as rm, cluster(Stage, rm, name="a", device_mapping="0") as a:
        held = [a.double(Batch({"x": numbers(seed, size)})) for seed in range(each)]
        kill_head()
        for seed in range(each, 2 * each):  # more than there is room for
            held.append(a.double(Batch({"x": numbers(seed, size)}), timeout=IN_TIME))
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        for seed, batch in enumerate(held):
            assert np.array_equal(batch["x"], numbers(seed, size) * 2)
        del held, batch
        assert eventually(lambda: objects() == [], IN_TIME), objects()
