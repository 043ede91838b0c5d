"""What is large leaves the body of a frame, whatever it is and wherever it lies in a value."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_values import same, trip

from muster import _bulk, _values
from muster._values import Broadcast, PerRank, decode, encode, encode_payload

LONG = 256 << 10
CROWD = 8 << 20


@dataclasses.dataclass
class Sample:
    """A plain dataclass, which travels by its fields."""

    text: Any
    ids: Any = None


class Opaque:
    """What only pickle can send."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and same(self.held, other.held)

    __hash__ = None  # type: ignore[assignment]


class Wide(np.ndarray[Any, Any]):
    """An array of a class of its own."""


def text(size: int = LONG, of: str = "a") -> str:
    return of * size


def strided() -> Any:
    return np.arange(1 << 17, dtype=np.int64).reshape(1 << 8, 1 << 9)


VALUES: dict[str, Callable[[], Any]] = {
    "text": text,
    "text of many bytes a letter": lambda: text(LONG // 2, "é"),
    "halves of surrogate pairs": lambda: text(LONG // 3 + 1, "\udc80"),
    "text in a list": lambda: ["short", text(), 3],
    "text in a dict": lambda: {"a": {"b": [text()]}},
    "text in a tuple": lambda: (1, (text(),)),
    "text in tuples in a list": lambda: [(1, text()), (2, "b")],
    "text in a set": lambda: {text(), "b"},
    "text in a dataclass": lambda: [Sample(text()), Sample("b")],
    "text in an object": lambda: Opaque(text()),
    "bytes in an object": lambda: Opaque(bytes(LONG)),
    "bytearray": lambda: bytearray(LONG),
    "bytearray in a list": lambda: [bytearray(LONG), bytearray(3)],
    "memoryview": lambda: memoryview(bytes(LONG)),
    "memoryview that can be written": lambda: [memoryview(bytearray(LONG))],
    "memoryview of numbers": lambda: memoryview(bytes(LONG)).cast("i", [LONG // 16, 4]),
    "memoryview of every other": lambda: memoryview(bytes(4 * LONG))[::2],
    "array of the standard library": lambda: array.array("d", range(LONG // 8)),
    "array": strided,
    "array in Fortran order": lambda: np.asfortranarray(strided()),
    "strided array": lambda: strided()[::2, ::2],
    "array backwards": lambda: strided()[::-1, ::-1],
    "array of records": lambda: np.zeros(LONG, [("a", "<i4"), ("b", "<f8")]),
    "array of aligned records": lambda: np.zeros(LONG, np.dtype("u1,f8", align=True)),
    "every other aligned record": lambda: np.zeros(LONG, np.dtype("u1,f8", align=True))[::2],
    "array of text": lambda: np.array(["a" * 100] * 4000),
    "array of objects": lambda: np.array([text(), {"a": 1}], object),
    "array of many small objects": lambda: np.array([{"n": n} for n in range(40_000)], object),
    "array of a class of its own": lambda: strided().view(Wide),
    "0-d array of a long item": lambda: np.zeros((), f"V{LONG}"),
    "array in a dataclass": lambda: Sample("a", strided()),
    "array in an object": lambda: Opaque({"x": [strided()]}),
    "large int": lambda: [Opaque(1 << (8 * LONG))],
}


def by_frame(value: Any) -> int:
    """How many bytes of a value would go by the frame, however long."""
    bufs: list[Any] = []
    body = encode(value, bufs)
    return len(body) + sum(n for n in (memoryview(b).nbytes for b in bufs) if n < LONG)


@pytest.mark.parametrize("name", VALUES)
def test_large_parts_leave_the_body(name: str) -> None:
    value = VALUES[name]()
    assert by_frame(value) < 16 << 10
    back = trip(value)
    assert type(back) is type(value)
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else same(back, value)


@pytest.mark.parametrize("name", VALUES)
def test_large_parts_of_arguments_leave_it_too(name: str) -> None:
    value = VALUES[name]()
    for args, kwargs in (
        ([1, value], {}),
        ([], {"value": value}),
        ([PerRank([value, 2])], {}),
        ([Broadcast(value)], {}),
    ):
        bufs: list[Any] = []
        assert len(encode_payload(args, kwargs, bufs)) < 16 << 10
        assert max(memoryview(buf).nbytes for buf in bufs) >= LONG


def test_what_is_not_long_stays() -> None:
    for value in (
        text(LONG - 1),
        [text(LONG - 1), text(LONG - 1, "b")],
        text(LONG // 2 - 1, "é"),
        bytearray(LONG - 1),
        {text(LONG): 1},  # a key
        list(range(100_000)),
        [(n, "a") for n in range(50_000)],
        [{"n": n, "t": "text"} for n in range(30_000)],
        [Sample("a", n) for n in range(30_000)],
    ):
        bufs: list[Any] = []
        body = encode(value, bufs)
        assert not bufs and len(body) >= LONG - 64
        assert same(decode(body, bufs), value)


def test_a_value_is_encoded_once_more_for_what_is_long_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text is looked for in bodies that are large, and nowhere else."""
    looked: list[int] = []
    holds = _bulk._holds

    def counting(size: int, level: Any) -> bool:
        looked.append(size)
        return holds(size, level)

    monkeypatch.setattr(_bulk, "_holds", counting)
    encode([{"a": "b", "n": [1, 2.5]}] * 100, [])
    encode([{"a": "bc" * 1000, "n": [1, 2.5]}] * 1000, [])
    encode([{"a": "bc" * 1000, "n": [1, 2.5]}] * 4000, [])
    encode_payload(["a" * 1000, [1, 2]], {"k": {"a": 1}}, [])
    encode_payload([["a" * 60_000] * 10], {}, [])
    assert not looked
    encode(["a" * (LONG - 6)], [])
    assert looked == [LONG]


MUCH: dict[str, Callable[[], Any]] = {
    "texts": lambda: [text(20_000, chr(97 + n % 26)) for n in range(1000)],
    "bytes": lambda: [bytes([n % 256]) * 20_000 for n in range(1000)],
    "bytearrays": lambda: [bytearray(20_000) for _ in range(1000)],
    "tuples of texts": lambda: [(n, text(20_000)) for n in range(1000)],
    "dicts of texts": lambda: [{"n": n, "text": text(20_000)} for n in range(1000)],
    "dataclasses": lambda: [Sample(text(20_000), n) for n in range(1000)],
    "objects": lambda: [Opaque(n, text(20_000)) for n in range(1000)],
    "arrays": lambda: {f"a{n}": np.full(5000, n) for n in range(400)},
}


@pytest.mark.parametrize("name", MUCH)
def test_much_that_is_not_short_leaves_the_body_too(name: str) -> None:
    """A list of them is still cut by the head, each with buffers of its own."""
    value = MUCH[name]()
    bufs: list[Any] = []
    body = encode(value, bufs)
    assert len(body) < 1 << 20 and len(bufs) >= 400
    assert sum(memoryview(buf).nbytes for buf in bufs) > CROWD
    assert same(trip(value), value)


def test_more_parts_than_a_frame_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_values, "_MAX_BUFFERS", 600)
    value: list[Any] = [*[bytes(16 << 10)] * 500, *["a" * (16 << 10)] * 500, Opaque(text())]
    bufs: list[Any] = []
    body = encode(value, bufs)
    assert len(bufs) == 600
    back = decode(body, bufs)
    assert back == value


def test_without_pickle_text_leaves_it_as_well() -> None:
    bufs: list[Any] = []
    assert len(encode({"a": [text()]}, bufs, "off")) < 100 and len(bufs) == 1


def test_tensors_in_objects_are_buffers() -> None:
    torch = pytest.importorskip("torch", reason="needs torch: it is about its tensors")
    whole = torch.arange(1 << 20, dtype=torch.float32)
    value = Opaque(whole[:65536], whole[::16], torch.ones(1 << 17, dtype=torch.bfloat16), whole[:2])
    assert by_frame(value) < 16 << 10
    back = trip(value)
    for one, other in zip(back.held, value.held, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
        one += 1  # it can be written to
    learnt = torch.nn.Parameter(torch.ones(1 << 17))
    assert by_frame(Opaque(learnt)) < 16 << 10
    again = trip(Opaque(learnt)).held[0]
    assert type(again) is torch.nn.Parameter and again.requires_grad and torch.equal(again, learnt)


def test_arrow_in_values_is_buffers() -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: it is about its tables")
    table = arrow.table({"a": np.arange(1 << 17), "b": ["some text"] * (1 << 17)})
    for value in (table, [table], {"t": (table.column("a"),)}, arrow.py_buffer(bytes(LONG))):
        assert by_frame(value) < 16 << 10
    assert trip({"t": table})["t"].equals(table)
