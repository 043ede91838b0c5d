"""Writes into what was read from a batch: who sees them."""

from __future__ import annotations

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
