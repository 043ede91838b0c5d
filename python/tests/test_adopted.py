"""Classes that travel as batches: an object goes as one, and comes back as itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster import Batch, _metas, _values
from muster._errors import EncodingError


class Rows:
    """A user's container of rows."""

    def __init__(self, batch: Batch, note: str) -> None:
        self.batch, self.note = batch, note

    def __muster_batch__(self) -> Batch:
        made = Batch({name: self.batch[name] for name in self.batch.columns})
        sent: Batch = _metas.stand_for(made, [f"{__name__}:Rows", self.note], {"kept": 1})
        return sent

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
    for meta in ({}, {"class": "x"}, {"a": {"muster.class": "json:Nothing"}}):
        assert type(back(Batch({"x": np.arange(3)}, meta=meta))) is Batch
    later = Batch({"x": np.arange(3)}, meta={"a": 1})
    later._metas = [_metas.Meta({"a": 1, "muster.class": "json:Nothing"})]
    assert type(back(later)) is Batch


def test_a_class_that_is_not_here() -> None:
    batch = _metas.stand_for(Batch({"x": np.arange(3)}), "nowhere_to_be_found:Rows", {})
    with pytest.raises(EncodingError, match=r"nowhere_to_be_found\.Rows cannot be imported here"):
        back(batch)


def test_no_meta_that_is_given_names_one() -> None:
    rows = Batch({"x": np.arange(3)})
    metas: list[dict[str, Any]] = [
        {"muster.class": "json:Nothing"},
        {"a": 1, "muster.class": ["json:Nothing"]},
    ]
    for meta in metas:
        with pytest.raises(ValueError, match=r"'muster\.class', which .* import .*json:Nothing"):
            Batch({"x": np.arange(3)}, meta=meta)
        with pytest.raises(ValueError, match=r"'muster\.class', which .* import .*json:Nothing"):
            rows.with_meta(**meta)
