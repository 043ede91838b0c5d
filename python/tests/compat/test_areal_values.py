"""Values between AReaL's controllers and engines: by Muster's wire, and as JSON over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from muster._values import decode, encode
from muster.compat.areal._trees import plain
from muster.compat.areal.stand_in import rtensor, serialization


class Color(Enum):
    RED = 1


class Level(str, Enum):
    LOW = "low"


@dataclass
class Inner:
    sizes: tuple[int, ...] = (1, 2)
    process: Any = None


@dataclass
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    more: dict[str, Any] = field(default_factory=dict)


def there_and_back(value: Any) -> Any:
    return serialization.deserialize_value(
        json.loads(json.dumps(serialization.serialize_value(value)))
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "text",
        [1, [2, None]],
        {"a": {"b": []}},
        b"\x00\xff",
        Color.RED,
        Level.LOW,
        Outer("x", Inner([1, 2]), {"k": [Inner([])]}),  # type: ignore[arg-type]
        {"type": "tensor", "of": "the user"},
        {"type": "dataclass"},
        {"type": ["no", "mark"]},
    ],
    ids=repr,
)
def test_json(value: Any) -> None:
    assert there_and_back(value) == value


def test_json_as_areal_has_it() -> None:
    assert there_and_back((1, (2,))) == [1, [2]]
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        assert there_and_back({"process": process}) == {"process": None}
    assert serialization.serialize_value(Inner()) == {
        "type": "dataclass",
        "class_path": f"{__name__}.Inner",
        "data": {"sizes": [1, 2], "process": None},
    }
    with pytest.raises(TypeError, match="object cannot be sent over HTTP"):
        serialization.serialize_value(object())


def test_arrays() -> None:
    np = pytest.importorskip("numpy")
    for array in (np.arange(6, dtype=np.float16).reshape(2, 3), np.zeros((0, 3)), np.array(["ab"])):
        back = there_and_back(array)
        assert back.dtype == array.dtype and back.shape == array.shape
        assert (back == array).all() and back.flags.writeable
    assert there_and_back(np.int64(3)) == 3
    with pytest.raises(ValueError, match="object"):
        serialization.serialize_value(np.array([object()]))


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool):
        tensor = torch.ones((2, 3)).to(dtype)[:, :2]
        back = there_and_back(tensor)
        assert back.dtype is dtype and torch.equal(back, tensor)
    assert there_and_back(torch.empty((0, 2))).shape == (0, 2)
    empty = there_and_back(torch.empty((4, 5), dtype=torch.int64, device="meta"))
    assert empty.is_meta and empty.shape == (4, 5) and empty.dtype is torch.int64
    assert there_and_back(torch.float16) is torch.float16


def test_what_need_not_change_is_left_alone() -> None:
    config = Outer("x", more={"k": [1, 2], "t": (1, 2)})
    assert plain(config) is config
    rows = {"rows": [1, {"a": "b"}]}
    assert plain(rows) is rows


def test_plain() -> None:
    assert plain((1, (2,), {"a": (3,)})) == [1, [2], {"a": [3]}]
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        before = Outer("x", Inner(process=process), {"k": [process]})
        after = plain(before)
        assert after.inner.process is None and after.more == {"k": [None]}
        assert after.inner.sizes == (1, 2), "a field that is a tuple is meant to be one"
        assert before.inner.process is process, "what was given is left as it is"


def sent(value: Any) -> tuple[Any, int]:
    """What arrives of a value by Muster's wire, and the bytes that it took."""
    bufs: list[Any] = []
    body = encode(plain(value), bufs)
    views = [memoryview(bytearray(memoryview(buf).cast("B"))) for buf in bufs]
    return decode(body, views), len(body) + sum(view.nbytes for view in views)


def test_shards_travel_without_their_rows() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.arange(60000.0).reshape(20000, 3)
    kept = rtensor.RTensor.remotize({"a": (rows, 1)}, "here:1")
    shard = kept["a"][0].shard
    arrived, size = sent(kept)
    [back, one] = arrived["a"]
    assert one == 1 and size < 1000
    assert isinstance(back, rtensor.RTensor) and back.data.is_meta and back.shard == shard
    assert (back.shape, back.dtype, back.ndim) == (rows.shape, rows.dtype, 2)
    assert back.device.type == "meta"
    assert rtensor.RTensor.collect_shards([back, {"x": back}]) == {
        "here:1": [shard.shard_id, shard.shard_id]
    }
    assert torch.equal(rtensor.fetch(shard.shard_id), rows)
    assert rtensor.storage_stats()["total_bytes"] >= rows.nbytes
    within = sent(Outer("x", more={"t": [kept["a"][0]]}))[0].more["t"][0]
    assert isinstance(within, rtensor.RTensor) and within.shard == back.shard
    back.data = rows
    again, size = sent(back)
    assert torch.equal(again.to_local(), rows) and size > rows.nbytes, "rows that are here go along"
    assert rtensor.remove(shard.shard_id) == 1 and rtensor.remove(shard.shard_id) == 0
    with pytest.raises(KeyError):
        rtensor.fetch(shard.shard_id)
