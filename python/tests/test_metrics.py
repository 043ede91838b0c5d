"""One number of what ranks measured."""

from __future__ import annotations

import numpy as np
import pytest

import muster


def test_reduce_metrics() -> None:
    given = {
        "loss": [1.0, 3.0],
        "loss@sum": [1.0, 3.0],
        "len_max": np.array([1, 5]),
        "time_p50": (1, 2, 9),
        "n": 3,
        "none": [],
    }
    found = muster.reduce_metrics(given)
    assert found is given
    assert found == {
        "loss": 2.0,
        "loss@sum": 4.0,
        "len_max": 5.0,
        "time_p50": 2.0,
        "n": 3,
        "none": [],
    }
    with pytest.raises(ValueError, match="asks for 'median'"):
        muster.reduce_metrics({"x@median": [1]})


def test_how_is_said_by_the_name_or_else_by_a_function() -> None:
    given = {"a": [1, 4], "a_min": [1, 4], "a@std": [1, 1], "mean": [1, 3], "sum_a": [1, 4]}
    assert muster.reduce_metrics(given, np.max) == {
        "a": 4.0,
        "a_min": 1.0,
        "a@std": 0.0,
        "mean": 3.0,
        "sum_a": 4.0,
    }
