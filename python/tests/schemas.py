"""Columns of every kind, made from a seed, and a strict look at what came back."""

from __future__ import annotations

import datetime
import math
import random
import struct
import sys
from typing import Any

import numpy as np

from muster import Batch

DTYPES = [
    *("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"),
    *("<c8", "<c16", ">i4", ">f8", ">c8", "<M8[ns]", "<M8[D]", "<M8[25s]", "<m8[ms]", "<M8"),
    *("|S5", "|S1", "<U3", ">U2", "|V3", np.dtype("g").str, np.dtype("G").str),
]
RECORDS: list[Any] = [
    [("a", "<i4"), ("b", ">f8")],
    [("x", "<f2", (2,)), ("y", [("z", "|S3")])],
    {"names": ["a", "b"], "formats": ["<i2", "<i8"], "offsets": [0, 16], "itemsize": 32},
]
TORCH = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex64", "complex128"),
    *("complex32", "uint16", "uint32", "uint64"),
]
TEXTS = ["", "a", "é", "𝄞 clef", "\x00", "line\nline", "中文", "x" * 300]


def array(rng: random.Random, dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array of random bits, so that NaNs have payloads; sometimes not contiguous."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        made = np.array([rng.random() < 0.5 for _ in range(math.prod(shape))], bool).reshape(shape)
    elif dtype.kind == "U":
        flat = ["".join(rng.choices("aé𝄞", k=rng.randrange(4))) for _ in range(math.prod(shape))]
        made = np.array(flat, dtype).reshape(shape)
    elif dtype.names is not None:
        made = np.zeros(shape, dtype)
        for name in dtype.names:
            made[name] = array(rng, dtype[name].base, made[name].shape)
    else:
        made = np.frombuffer(rng.randbytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        made = made.copy()
    if shape and rng.random() < 0.3:
        how = rng.choice(("step", "reverse", "fortran"))
        if how == "fortran":
            return np.asfortranarray(made)
        if how == "reverse":
            return made[::-1]
        return np.repeat(made, 2, axis=0)[::2]
    return made


def shape(rng: random.Random) -> tuple[int, ...]:
    return rng.choice([(), (), (), (3,), (1,), (2, 3), (0,), (2, 0, 3), (1, 1, 1)])


def dtype(rng: random.Random) -> Any:
    return rng.choice(RECORDS) if rng.random() < 0.15 else rng.choice(DTYPES)


def holes(rng: random.Random, rows: list[Any]) -> list[Any]:
    if rng.random() < 0.5:
        return rows
    return [None if rng.random() < 0.3 else row for row in rows]


def _fixed(rng: random.Random, rows: int) -> Any:
    return array(rng, dtype(rng), (rows, *shape(rng)))


def _ragged(rng: random.Random, rows: int) -> Any:
    what, dims = dtype(rng), shape(rng)
    return holes(rng, [array(rng, what, (rng.randrange(5), *dims)) for _ in range(rows)])


def _arrays_apart(rng: random.Random, rows: int) -> Any:
    # Contiguous: numpy pickles others in the machine's own byte order.
    return [array(rng, dtype(rng), shape(rng)).copy() for _ in range(rows)]


def _texts(rng: random.Random, rows: int) -> Any:
    texts = ["ab", "c"] if rng.random() < 0.3 else TEXTS
    return holes(rng, [rng.choice(texts) for _ in range(rows)])


def _bytes(rng: random.Random, rows: int) -> Any:
    return holes(rng, [rng.randbytes(rng.randrange(20)) for _ in range(rows)])


def _numbers(rng: random.Random, rows: int) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.choice((0, -1, 2**63 - 1, -(2**63))) for _ in range(rows)]
    if kind == 1:
        return [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(rows)]
    if kind == 2:
        return [rng.random() < 0.5 for _ in range(rows)]
    return [rng.choice((1, 2.5, True, None, 2**80)) for _ in range(rows)]


def _lists(rng: random.Random, rows: int) -> Any:
    kind = rng.randrange(4)
    make: Any = (
        lambda: rng.randrange(-5, 2**40),
        rng.random,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((1, 2.0, "x", 2**70)),
    )[kind]
    return holes(rng, [[make() for _ in range(rng.randrange(4))] for _ in range(rows)])


def _scalars(rng: random.Random, rows: int) -> Any:
    return list(array(rng, rng.choice(("<f4", "<i8", "|b1", "<M8[s]")), (rows,)))


def _objects(rng: random.Random, rows: int) -> Any:
    things: list[Any] = [
        *({"a": (1, 2)}, {1, 2}, datetime.date(2024, 2, 29), "lone \udc80", b"x", 7, None, []),
        (1, [2]),
    ]
    made = [rng.choice(things) for _ in range(rows)]
    return made if rng.random() < 0.5 else objects(made)


def _object_arrays(rng: random.Random, rows: int) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return objects(_texts(rng, rows))
    if kind == 1:
        return objects(_ragged(rng, rows))
    if kind == 2:
        return objects([rng.choice((1, 2.5)) for _ in range(rows)])
    made = np.empty((rows, 2), object)
    for row in made:
        row[:] = [rng.choice((1, "a", None)) for _ in range(2)]
    return made


def _tensor(rng: random.Random, rows: int) -> Any:
    return tensor(rng, rng.choice(TORCH), (rows, *shape(rng)))


def _tensors(rng: random.Random, rows: int) -> Any:
    what, dims = rng.choice(TORCH), shape(rng)
    return holes(rng, [tensor(rng, what, (rng.randrange(5), *dims)) for _ in range(rows)])


def tensor(rng: random.Random, name: str, dims: tuple[int, ...]) -> Any:
    torch: Any = sys.modules["torch"]
    kind = getattr(torch, name)
    size = torch.empty(0, dtype=kind).element_size()
    data = array(rng, "|b1" if name == "bool" else "|u1", (math.prod(dims) * size,)).copy()
    if data.size == 0:
        return torch.empty(dims, dtype=kind)
    made = torch.from_numpy(data).view(torch.uint8).view(kind).reshape(dims)
    if len(dims) > 1 and rng.random() < 0.3:
        return made.transpose(0, 1).contiguous().transpose(0, 1)
    return made


MAKERS = [
    *(_fixed, _fixed, _ragged, _texts, _bytes, _numbers, _lists, _scalars, _objects),
    *(_object_arrays, _arrays_apart),
]
TORCH_MAKERS = [_tensor, _tensors]


def objects(rows: list[Any]) -> Any:
    made = np.empty(len(rows), object)
    for at, row in enumerate(rows):
        made[at] = row
    return made


def columns(rng: random.Random, rows: int, torch: bool = False) -> dict[str, Any]:
    """A random schema, and rows of it."""
    makers = MAKERS + TORCH_MAKERS * 3 if torch else MAKERS
    return {
        f"{rng.choice('abcé')}{at}": rng.choice(makers)(rng, rows)
        for at in range(rng.randrange(1, 7))
    }


def row_counts(rng: random.Random) -> int:
    return rng.choice((0, 1, 1, 2, 3, 7, 8, 9, 17, 40))


# --- looking ---------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, and of the same types all the way down."""
    return bool(_same(a, b))


def _same(a: Any, b: Any) -> Any:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if hasattr(a, "tobytes"):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.kind == "O":
            return same(a.ravel().tolist(), b.ravel().tolist())
        if a.dtype.names is not None:
            return all(same(np.asarray(a[n]), np.asarray(b[n])) for n in a.dtype.names)
        return a.tobytes() == b.tobytes()
    if hasattr(a, "untyped_storage"):
        return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)
    return bool(a == b)


def _bits(tensor: Any) -> bytes:
    torch: Any = sys.modules["torch"]
    if not tensor.numel():
        return b""
    flat: bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return flat


def check(batch: Batch, expected: dict[str, Any]) -> None:
    """Every column of a batch against what it should be."""
    assert batch.columns == list(expected)
    for name, value in expected.items():
        found = batch[name]
        assert len(found) == len(value) == len(batch), name
        assert same(found, value), (name, value, found)


def picked(value: Any, rows: list[int]) -> Any:
    """Rows of a column, the slow and certain way."""
    if isinstance(value, list):
        return [value[row] for row in rows]
    return value[np.array(rows, np.int64)]


def chained(values: list[Any]) -> Any:
    """Columns of one kind, one after another."""
    if isinstance(values[0], list):
        return [row for value in values for row in value]
    if isinstance(values[0], np.ndarray):
        made = np.ndarray((sum(map(len, values)), *values[0].shape[1:]), values[0].dtype)
        return np.concatenate(values, out=made)  # by itself it makes another type of records
    torch: Any = sys.modules["torch"]
    carriers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = values[0].element_size()
    if size not in carriers:
        return torch.cat(values)
    return torch.cat([v.view(carriers[size]) for v in values]).view(values[0].dtype)
