"""device_mapping where its ids are needed before there is a cluster."""

from __future__ import annotations

from typing import Any

import pytest

import muster


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("list(range(0, 8))", list(range(8))),
        ("range(0, 8, 2)", [0, 2, 4, 6]),
        ("[0, 1] + list(range(4, 6))", [0, 1, 4, 5]),
        ("0-3,6", [0, 1, 2, 3, 6]),
        ("0-1, 4-5", [0, 1, 4, 5]),
        ("list(range(16 - 12, 16 // 2))", [4, 5, 6, 7]),
        ("(2, 3)", [2, 3]),
        ("3", [3]),
        ("0-3+8-11", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("[0-3]", [0, 1, 2, 3]),
        ("[0-1, 4] + list(range(6, 8))", [0, 1, 4, 6, 7]),
        ("3-3,4", [3, 4]),
        ("list(range(0, 4)) + list(range(8, 12))", [0, 1, 2, 3, 8, 9, 10, 11]),
        ("[0, 1] * 2", [0, 1, 0, 1]),
        (" [0,1] ", [0, 1]),
        ([3, 1], [3, 1]),
        (range(2), [0, 1]),
    ],
)
def test_mappings(text: Any, ids: list[int]) -> None:
    assert muster.device_ids(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        *("", "[0,", "__import__('os')", "open('x')", "[0, 'a']", "[-1]", "[1.5]"),
        *("range(1 // 0)", "5-3", "[8-4, 8-3]", "[0] * 10000000000", "range(10000000000)"),
    ],
)
def test_mappings_that_name_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="device_mapping="):
        muster.device_ids(text)


def test_lists_that_name_nothing() -> None:
    with pytest.raises(ValueError, match="-1 is no id, a whole number from 0"):
        muster.device_ids([0, -1])
    with pytest.raises(TypeError, match="an id in device_mapping is '1'"):
        muster.device_ids(["1"])  # type: ignore[list-item]
