"""The byte vectors that Python and Go share: `python python/tests/golden.py` writes them anew.

What is here is the source; wire/testdata/golden.json is what Go reads. A change
of a vector is a change of the protocol: docs/wire.md has its version.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from muster import _values, _wire
from muster._values import Broadcast, FutureMark, PerRank

FILE = Path(__file__).parents[2] / "wire" / "testdata" / "golden.json"


@dataclasses.dataclass
class Point:
    x: int
    y: object


class Vector(NamedTuple):
    name: str
    kind: int
    flags: int
    id: int
    peer: int
    ack: int
    body: bytes
    bufs: tuple[bytes, ...] = ()


def _p(message: object) -> bytes:
    return _wire.pack(message)


_ERROR = {"code": "auth", "message": "wrong token", "rank": -1, "exit_code": 0}
_HELLO = {"magic": "muster", "version": 1, "release": "0.1.0", "role": "worker", "token": "t"}
_ROUTE = [3, "train_step", 0, None, 0, 0, 2]

FRAMES = [
    Vector("hello", 1, 0, 0, 0, 0, _p({**_HELLO, "pid": 7, "worker": 3})),
    Vector("welcome", 2, 0, 0, 0, 0, _p({"version": 1, "release": "0.1.0", "session": "s"})),
    Vector("refused", 2, 1, 0, 0, 0, _p(_ERROR)),
    Vector("request", 3, 0, 1, 0, 0, _p(["plan", {"pool": 1, "clusters": []}])),
    Vector("response", 4, 0, 1, 0, 0, _p({})),
    Vector("response error", 4, 1, 2, 0, 0, _p(_ERROR)),
    Vector("notice", 5, 0, 0, 0, 0, _p(["log", {"lines": []}])),
    Vector("call", 8, 0, 2**64 - 1, 0, 2**32 - 1, _p([_ROUTE, [[[1, 2, 3]], {}]])),
    Vector("answer", 9, 0, 5, 0, 0, _p([2, 4, 6])),
    Vector("answer of a rank", 9, 2, 5, 3, 0, _p("three")),
    Vector("leg", 10, 4, 77, 0, 0, _p(["train_step", 0, 1 << 32 | 5, [[[1]], {"k": None}]])),
    Vector("result", 11, 0, 77, 0, 0, _p(None)),
    Vector("result with info", 11, 8, 77, 0, 0, _p([{"rank": 0, "world_size": 1}, 1.5])),
    Vector("cancel", 12, 0, 5, 0, 0, _p(None)),
    Vector("wait", 13, 0, 77, 0, 0, _p([5, 6])),
    Vector("expire", 14, 0, 5, 0, 0, _p(None)),
    Vector("open", 16, 0, 0, 9, 0, _p(_HELLO)),
    Vector("close", 17, 0, 0, 9, 0, _p(None)),
    Vector("fanout", 18, 0, 0, 0, 0, _p([9, 10]), (b"".join(_wire.pack_frame(5, 0, b"\xc0")),)),
    Vector("one buffer", 11, 0, 1, 0, 0, b"\xc7\x08\x22" + struct.pack("<II", 0, 1), (b"abc",)),
    Vector("buffers, one empty", 11, 0, 1, 0, 0, b"\xc0", (b"", b"xy", b"\x00" * 9)),
    Vector("no body", 11, 0, 1, 0, 0, b""),
]

VALUES: list[tuple[str, Any]] = [
    ("none", None),
    ("true", True),
    ("small int", 7),
    ("negative int", -33),
    ("least int64", -(2**63)),
    ("largest uint64", 2**64 - 1),
    ("float", 1.5),
    ("negative zero", -0.0),
    ("infinity", float("inf")),
    ("str", "héllo"),
    ("lone surrogate", "a\udc80"),
    ("bytes", b"\x00\xff"),
    ("list", [1, "a", None]),
    ("list of 16", [0] * 16),
    ("dict", {"a": 1, 2: "b", None: 1.5, (1, 2): []}),
    ("tuple", (1, "a")),
    ("empty tuple", ()),
    ("nested tuples", ((1,), [(2, 3)])),
    ("set", {1}),
    ("frozenset", frozenset(["a"])),
    ("dataclass", Point(1, (2,))),
    ("2**64", 2**64),
    ("-2**63-1", -(2**63) - 1),
    ("-2**71", -(2**71)),
    ("complex", 1 - 2j),
    ("range", range(0, 10, 3)),
    ("bytearray", bytearray(b"ab")),
]

MARKS: list[tuple[str, Any]] = [
    ("per rank", PerRank([1, [2], (3,)])),
    ("broadcast", Broadcast([1, 2])),
    ("future", FutureMark(2**63, -1)),
    ("future of a rank", FutureMark(5, 3)),
]


def numpy_values() -> list[tuple[str, Any]]:
    import numpy as np

    return [
        ("numpy scalar", np.float32(1.5)),
        ("numpy bool", np.bool_(True)),
        ("ndarray", np.arange(6, dtype="<i4").reshape(2, 3)),
        ("Fortran order", np.asfortranarray(np.arange(4, dtype="<i2").reshape(2, 2))),
        ("big endian", np.array([1.5], ">f8")),
        ("structured", np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")])),
        ("0-d", np.array(7, "<i8")),
        ("empty array", np.empty((0, 3), "<f4")),
        ("two arrays", [np.zeros(1, "u1"), np.ones(2, "u1")]),
    ]


def _frame(kind: int, length: int, nbuf: int = 0, rest: bytes = b"") -> bytes:
    return _wire.HEADER.pack(length, kind, 0, nbuf, 0, 0, 0) + rest


MALFORMED: list[tuple[str, bytes, str]] = [
    ("claims too much", _frame(5, 2**30 + 1), "claims 1073741825 bytes"),
    ("claims all", _frame(5, 2**32 - 1), "claims 4294967295 bytes"),
    ("kind 0", _frame(0, 1, 0, b"\xc0"), "unknown kind 0"),
    ("kind 7", _frame(7, 1, 0, b"\xc0"), "unknown kind 7"),
    ("kind 255", _frame(255, 1, 0, b"\xc0"), "unknown kind 255"),
    ("table larger than frame", _frame(5, 15, 2, b"\x00" * 15), "cannot hold a table of 2"),
    (
        "buffer longer than frame",
        _frame(5, 9, 1, struct.pack("<Q", 2) + b"\xc0"),
        "longer than the frame",
    ),
    (
        "buffer lengths that overflow",
        _frame(5, 17, 2, struct.pack("<QQ", 2**64 - 1, 2) + b"\xc0"),
        "longer than the frame",
    ),
]

TRUNCATED: list[tuple[str, bytes]] = [
    ("header cut short", b"\x01\x00\x00"),
    ("body cut short", _frame(5, 10, 0, b"\xc0")),
    ("buffer cut short", _frame(5, 19, 1, struct.pack("<Q", 10) + b"\xc0" + b"x" * 9)),
]


def encoded(value: Any) -> tuple[bytes, list[bytes]]:
    bufs: list[Any] = []
    if isinstance(value, (PerRank, Broadcast, FutureMark)):
        payload = _values.encode_payload((value,), {}, bufs)
        body = payload[2:-1]  # b"\x92\x91" before, b"\x80" behind
    else:
        body = _values.encode(value, bufs)
    return body, [bytes(buf) for buf in bufs]


def build() -> dict[str, Any]:
    def value(name: str, obj: Any) -> dict[str, Any]:
        body, bufs = encoded(obj)
        hexes = [buf.hex() for buf in bufs]
        return {
            "name": name,
            "python_repr": ascii(obj),
            "body_hex": body.hex(),
            "bufs_hex": hexes,
        }

    frames = []
    for v in FRAMES:
        whole = _wire.pack_frame(v.kind, v.id, v.body, v.bufs, v.flags, v.peer, v.ack)
        entry: dict[str, Any] = v._asdict()
        entry["body_hex"] = entry.pop("body").hex()
        entry["bufs_hex"] = [buf.hex() for buf in entry.pop("bufs")]
        entry["frame_hex"] = b"".join(whole).hex()
        frames.append(entry)
    return {
        "version": _wire.VERSION,
        "frames": frames,
        "values": [value(*v) for v in VALUES + numpy_values() + MARKS] + _constants(),
        "malformed": [{"name": n, "hex": d.hex(), "error": e} for n, d, e in MALFORMED],
        "truncated": [{"name": n, "hex": d.hex()} for n, d in TRUNCATED],
    }


def _constants() -> list[dict[str, Any]]:
    """Values whose bytes depend on the version of Python or torch, or are long: written out."""
    big = struct.pack("<II", 0, 1)
    pickled = struct.pack("<II", 0, 0) + b"\x80\x05N."
    tensor = big + _p(["bfloat16", [1, 2]])
    return [
        _constant("pickle", "None", 33, pickled, []),
        _constant("long bytes", "b'abc'", 34, big, [b"abc"]),
        _constant("long str", "'h\u00e9\udc80'", 37, big, [b"h\xc3\xa9\xed\xb2\x80"]),
        _constant("long bytearray", "bytearray(b'abc')", 38, big, [b"abc"]),
        _constant("long pickle", "None", 33, big, [pickled[8:]]),
        _constant(
            "tensor", "torch.ones((1, 2), dtype=torch.bfloat16)", 35, tensor, [b"\x80?\x80?"]
        ),
    ]


def _constant(name: str, shown: str, code: int, data: bytes, bufs: list[bytes]) -> dict[str, Any]:
    body = msgpack.packb(msgpack.ExtType(code, data))
    hexes = [buf.hex() for buf in bufs]
    return {"name": name, "python_repr": shown, "body_hex": body.hex(), "bufs_hex": hexes}


if __name__ == "__main__":
    import golden  # under its own name, which the dataclass in it carries

    FILE.write_text(json.dumps(golden.build(), indent=1) + "\n")
