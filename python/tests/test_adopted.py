"""Classes that travel as batches: an object goes as one, and comes back as itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster import Batch, _values
from muster._errors import EncodingError


class Rows:
    """A user's container of rows."""

    def __init__(self, batch: Batch, note: str) -> None:
        self.batch, self.note = batch, note

    def __muster_batch__(self) -> Batch:
        meta = {"muster.class": [f"{__name__}:Rows", self.note], "kept": 1}
        return Batch({name: self.batch[name] for name in self.batch.columns}, meta=meta)

    @classmethod
    def __from_muster_batch__(cls, batch: Batch) -> Rows:
        return cls(batch, batch.meta["muster.class"][1])


def back(value: Any) -> Any:
    buffers: list[Any] = []
    body = _values.encode(value, buffers)
    return _values.decode(body, buffers)


def test_there_and_back_at_any_depth() -> None:
    rows = Rows(Batch({"x": np.arange(5)}), "hello")
    for found in (back(rows), back([rows])[0], back({"a": (rows, 1)})["a"][0]):
        assert type(found) is Rows
        assert found.note == "hello" and found.batch.meta["kept"] == 1
        assert found.batch["x"].tolist() == [0, 1, 2, 3, 4]


def test_what_is_none_stays_a_batch() -> None:
    for meta in ({}, {"class": "x"}, {"a": 1, "muster.class": "json:Nothing"}):
        assert type(back(Batch({"x": np.arange(3)}, meta=meta))) is Batch


def test_a_class_that_is_not_here() -> None:
    batch = Batch({"x": np.arange(3)}, meta={"muster.class": "nowhere_to_be_found:Rows"})
    with pytest.raises(EncodingError, match=r"nowhere_to_be_found\.Rows cannot be imported here"):
        back(batch)
