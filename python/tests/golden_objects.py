"""Batch objects that Python and Go share: `python python/tests/golden_objects.py` writes them anew.

What is here is the source; column/testdata/objects.json is what Go reads, and
writes again byte for byte. A change of one is a change of docs/batches.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muster import _columns, _drafts, _layout
from muster._columns import Column, Fixed, Ragged

FILE = Path(__file__).parents[2] / "column" / "testdata" / "objects.json"

_RECORDS = np.dtype([("a", "<i2"), ("b", "<f4")])


def _given(**columns: Any) -> dict[str, Column]:
    return {name: _drafts.draft(name, _drafts.take(name, value)) for name, value in columns.items()}


def _numbers() -> dict[str, Column]:
    types = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16 >i4 |S3 <U2 |V3"
    times = "<M8[s] <M8[ms] <M8[us] <M8[ns] <M8[D] <m8[ns] <m8[7s]"
    return {
        type: Fixed(type, "numpy", np.arange(2 * np.dtype(type).itemsize, dtype="u1").view(type))
        if type != "|b1"
        else Fixed(type, "numpy", np.array([True, False]))
        for type in f"{types} {times}".split()
    }


def _torch() -> dict[str, Column]:
    two = np.array([0x3F80, 0x4000], "<i2")
    return {
        "bf16": Fixed("torch:bfloat16", "torch", two),
        "fp8": Fixed("torch:float8_e4m3fn", "torch", np.array([[1, 2, 3], [4, 5, 6]], "|u1")),
        "f4": Fixed("<f4", "torch", np.array([[1.5], [2.5]], "<f4")),
        "rows": Ragged("torch:bfloat16", "torch", (), rows=[two, two[:0]]),
    }


def _shapes() -> dict[str, Column]:
    return _given(
        two=np.arange(12, dtype="<i8").reshape(2, 2, 3),
        none=np.zeros((2, 0, 3), "<f4"),
        mask=np.array([[True, False], [False, False]]),
        record=np.array([(1, 1.5), (2, 2.5)], _RECORDS),
    )


def _ragged() -> dict[str, Column]:
    return _given(
        ids=[[1, 2, 3], [], [-4]],
        some=[np.arange(2, dtype="<f4"), None, np.zeros(0, "<f4")],
        pairs=[np.arange(6, dtype="<i2").reshape(3, 2), np.zeros((0, 2), "<i2"), None],
        truths=[[True], [False, True], []],
    )


def _packed() -> dict[str, Column]:
    return _given(
        text=["", "é日🙂", "plain"],
        some=[None, "b", None],
        data=[b"\x00\xff", b"", b"x" * 70],
        objects=[{"a": 1}, None, (2,)],
        array=np.array(["x", None, "z"], object),
    )


def _none() -> dict[str, Column]:
    return _given(n=np.zeros(1, "<i8"), rows=[np.zeros(0)], text=["x"])


def objects() -> dict[str, tuple[int, Mapping[str, Column]]]:
    """Every object by its name: rows and columns."""
    empty = {name: column.take(range(0)) for name, column in _none().items()}
    return {
        "numbers": (2, _numbers()),
        "torch": (2, _torch()),
        "shapes": (2, _shapes()),
        "ragged": (3, _ragged()),
        "packed": (3, _packed()),
        "no rows": (0, empty),
        "no columns": (0, {}),
    }


def build() -> list[dict[str, Any]]:
    """What the file has."""
    found = []
    for name, (rows, columns) in objects().items():
        size, fill = _layout.layout(rows, columns)
        content = np.empty(size, np.uint8)
        fill(content)
        types = {
            column: _columns.describe(c.kind, c.type, c.shape, c.lib)
            for column, c in columns.items()
        }
        found.append({"name": name, "rows": rows, "types": types, "hex": content.tobytes().hex()})
    return found


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(build(), indent=1) + "\n")
