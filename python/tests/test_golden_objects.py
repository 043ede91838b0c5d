"""The batch objects that Python and Go share."""

from __future__ import annotations

import json

import golden_objects
import numpy as np
import pytest

from muster import _layout


def test_objects_are_reproduced() -> None:
    stored = json.loads(golden_objects.FILE.read_text())
    assert golden_objects.build() == stored, "run python/tests/golden_objects.py, and tell Go"


@pytest.mark.parametrize("name", golden_objects.objects())
def test_objects_are_read(name: str) -> None:
    stored = {v["name"]: v for v in json.loads(golden_objects.FILE.read_text())}[name]
    content = np.frombuffer(bytearray.fromhex(stored["hex"]), np.uint8)
    header = _layout.read_header(content)
    rows, columns = golden_objects.objects()[name]
    assert header.rows == rows
    for column, given in columns.items():
        read = _layout.load(content, header, column)
        assert (read.kind, read.type, read.lib) == (given.kind, given.type, given.lib)
        assert [b.array().tobytes() for b in read.buffers()] == [
            b.array().tobytes() for b in given.buffers()
        ]
