"""Values against the golden vectors, random ones, payloads, and bytes that are none."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import golden
import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest
from test_values import Color, Config, Frozen, Pair, Text, same, trip

from muster import _pickling, _values
from muster._errors import EncodingError, MusterError, ProtocolError
from muster._values import Broadcast, FutureMark, PerRank, decode, encode, encode_payload


def test_golden_values_are_reproduced() -> None:
    stored = json.loads(golden.FILE.read_text())
    assert golden.build() == stored, "run python/tests/golden.py, and raise the version"


@pytest.mark.parametrize(
    ("name", "obj"), golden.VALUES + golden.numpy_values() + golden.MARKS, ids=lambda x: str(x)[:20]
)
def test_golden_values_are_parsed(name: str, obj: Any) -> None:
    stored = {v["name"]: v for v in json.loads(golden.FILE.read_text())["values"]}[name]
    bufs = [bytearray.fromhex(buf) for buf in stored["bufs_hex"]]
    assert same(decode(bytes.fromhex(stored["body_hex"]), bufs), obj)


def test_golden_constants_are_parsed() -> None:
    stored = {v["name"]: v for v in json.loads(golden.FILE.read_text())["values"]}
    assert decode(bytes.fromhex(stored["pickle"]["body_hex"])) is None
    assert decode(bytes.fromhex(stored["long bytes"]["body_hex"]), [b"abc"]) == b"abc"


def generate(rng: random.Random, depth: int) -> Any:
    """A random value."""
    leaves: list[Any] = [
        lambda: rng.choice([None, True, False, math.nan, -0.0, "", b"", "\ud800"]),
        lambda: rng.randint(-(2 ** rng.randint(0, 80)), 2 ** rng.randint(0, 80)),
        lambda: rng.uniform(-1e9, 1e9),
        lambda: "".join(chr(rng.randint(0, 0x10FFFF)) for _ in range(rng.randint(0, 8))),
        lambda: rng.randbytes(rng.randint(0, 40)),
        lambda: bytearray(rng.randbytes(3)),
        lambda: np.frombuffer(rng.randbytes(8), rng.choice(["u1", "<i4", ">f8"])),
        lambda: complex(rng.random(), rng.random()),
        lambda: range(rng.randint(-5, 5), rng.randint(-50, 50), rng.choice([-2, 1, 2**65])),
        lambda: rng.choice([Color.RED, Pair(1, "b"), Frozen(3), np.int16(4), Text("t")]),
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)()
    items = [generate(rng, depth - 1) for _ in range(rng.randint(0, 5))]
    kind = rng.randrange(5)
    if kind == 0:
        return items
    if kind == 1:
        return tuple(items)
    if kind == 2:
        return {key(rng): item for item in items}
    if kind == 3:
        return {key(rng) for _ in items}
    return Config("c", (), items)


def key(rng: random.Random) -> Any:
    return rng.choice([rng.randint(-9, 9), str(rng.random()), (rng.randint(0, 9), "k"), None, 2.5])


def test_random_values_come_back() -> None:
    rng = random.Random(1)
    for _ in range(1500):
        value = generate(rng, 4)
        assert same(trip(value), value), value


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage must not be run."""

    def loads(data: Any, buffers: Any = ()) -> Any:
        raise ValueError("garbage")

    monkeypatch.setattr(_pickling, "loads", loads)


def mutations(rng: random.Random, seconds: float) -> Iterator[tuple[bytes, list[bytearray]]]:
    stored = json.loads(golden.FILE.read_text())["values"]
    corpus = [(bytes.fromhex(v["body_hex"]), v["bufs_hex"]) for v in stored]
    end = time.monotonic() + seconds
    for _ in range(30_000):
        body, bufs = rng.choice(corpus)
        data = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            how = rng.randrange(4)
            if how == 0 and at < len(data):
                data[at] = rng.randrange(256)
            elif how == 1:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            elif how == 2:
                del data[at : at + rng.randint(1, 4)]
            else:
                data[at:at] = rng.choice(corpus)[0]
        yield bytes(data), [bytearray.fromhex(buf) for buf in bufs][: rng.randint(0, 3)]
        if time.monotonic() > end:
            return


@pytest.mark.usefixtures("no_pickle")
def test_mutated_values_are_values_or_errors_of_ours() -> None:
    rng = random.Random(2)
    refused = 0
    for body, bufs in mutations(rng, 8):
        try:
            decode(body, bufs)
        except (ProtocolError, EncodingError):
            refused += 1
    assert refused > 100


@pytest.mark.usefixtures("no_pickle")
def test_random_bytes_are_values_or_errors_of_ours() -> None:
    rng = random.Random(3)
    for _ in range(20_000):
        data = rng.randbytes(rng.randint(0, 60))
        if rng.random() < 0.7:  # an extension, so that its inside is reached
            code = rng.choice([1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21, 32, 33, 34, 35, 7, 40])
            data = msgpack.packb(msgpack.ExtType(code, data))
        try:
            decode(data, [b"12345678"])
        except MusterError as error:
            assert isinstance(error, (ProtocolError, EncodingError))


def test_hostile_nesting_ends_in_an_error() -> None:
    data = b"\xc0"
    for _ in range(5000):
        data = msgpack.packb(msgpack.ExtType(6, data))
    with pytest.raises(ProtocolError, match="nested"):
        decode(data)
    for body in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b""):
        with pytest.raises(ProtocolError):
            decode(body)


# --- payloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 15, 16, 70000])
def test_payloads(n: int) -> None:
    for args, kwargs in (
        (tuple(range(n)), {}),
        ((1, "a"), {"k": (1,)}),
        (tuple([i] for i in range(min(n, 100))), {f"k{i}": {i} for i in range(min(n, 20))}),
        ((2**70,), {"a": -(2**70)}),
    ):
        bufs: list[Any] = []
        back = decode(encode_payload(args, kwargs, bufs), bufs)
        assert same(back, [list(args), kwargs])


def test_marks_in_payloads() -> None:
    args = (PerRank((1, (2,))), Broadcast([3]), FutureMark(7, 2), 4)
    assert _values.marked(args, {}) and _values.marked((), {"k": args[2]})
    assert not _values.marked((1, [PerRank([])]), {"k": None})
    back = decode(encode_payload(args, {"k": Broadcast(None)}, []))
    assert back == [list(args), {"k": Broadcast(None)}]
    assert repr(back[0][:3]) == "[PerRank([1, (2,)]), Broadcast([3]), FutureMark(7, 2)]"


def test_threads_do_not_disturb_each_other() -> None:
    value = [(i, {"k": (i, {i})}) for i in range(200)]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            if trip(value) != value:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_encoding_within_encoding() -> None:
    back = trip([Recursive(), (Recursive(),)])
    assert back[0].inner == [1, (2,)]


class Recursive:
    def __reduce__(self) -> Any:
        return _recursive, (encode([1, (2,)], []),)


def _recursive(data: bytes) -> Any:
    made = Recursive()
    made.inner = decode(data)  # type: ignore[attr-defined]
    return made
