"""Writes into what was read from a batch: who sees them, in this process and in others."""

from __future__ import annotations

import os
from typing import Any

import fakestore
import numpy as np
import pytest

from muster import Batch, _objects


def sent(batch: Batch) -> Batch:
    """As it comes in a frame, which packs its buffers without gaps, or from a store."""
    bufs: list[Any] = []
    payload = batch._encode(bufs)
    its = [None if isinstance(buf, _objects.Stored) else bytes(buf) for buf in bufs]
    frame = memoryview(bytearray(payload + b"".join(buf for buf in its if buf is not None)))
    came: list[Any] = []
    at = len(payload)
    for buf, inline in zip(bufs, its, strict=True):
        if inline is None:
            came.append(_objects.Stored(buf.right, buf.offset, buf.nbytes))
        else:
            came.append(frame[at : at + len(inline)])
            at += len(inline)
    made: Batch = Batch._decode(payload, came)
    return made


@pytest.mark.parametrize("rows", [4, 4000])  # which ride in frames, and which do not
def test_writes_are_not_sent(rows: int) -> None:
    for n in range(1, 20):  # the name moves what lies behind it
        with fakestore.Stores():
            mine = Batch({"x": np.ones((rows, 4)), "y" * n: np.ones(rows)})
            came = sent(mine)
            for one in (mine, came, came.select("x"), came[: rows // 2]):
                one["x"][:] = 7
                assert one["x"].min() == 7  # to who wrote it
                assert sent(one)["x"].max() == 1
            del mine, came, one


def test_writes_are_not_sent_by_many() -> None:
    """Very many that ride in frames are put together when they are sent."""
    many = [sent(Batch({"x": np.ones(4)})) for _ in range(20)]
    for one in many:
        one["x"][:] = 7
    whole = Batch.concat(many)
    assert whole["x"].min() == 7 and sent(whole)["x"].max() == 1


def test_a_forked_child_reads() -> None:
    """As a DataLoader with workers does, over a batch that was read before the fork, and not."""
    with fakestore.Stores() as stores:
        batches = [sent(Batch({"x": np.arange(20000), "t": ["a"] * 20000})) for _ in range(3)]
        kept, seen = batches[1]["x"], batches[2][:10000]["x"]
        child = os.fork()
        if not child:
            code = 1
            try:
                stores.ledger.abandon()  # what the SDK does after a fork
                _objects.use(None)
                for batch in batches:
                    batch["x"][0] = 5
                    assert batch["x"].sum() == np.arange(20000).sum() + 5 and batch["t"][-1] == "a"
                    assert batch[7]["x"] == 7 and len(batch[:5].to_dict()["t"]) == 5
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept[0] == seen[0] == batches[0]["x"][0] == 0
        del batches, kept, seen
        stores.store.wait_for(lambda: not stores.store.views())
