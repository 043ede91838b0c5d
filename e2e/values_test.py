"""Values come back equal and of the same type, however large, and nobody's own is changed."""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import muster
from muster import Cluster, PerRank, ResourceManager
from roles import Echo, Keeper
from running import cluster, session
from things import PLAIN, Plain, Sample, Text, numbered

MIB = 1 << 20


@pytest.fixture(scope="module", params=["1x2", "1x2+relay", "1x2+net+plain"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    with session(request.param), ResourceManager(2, 1) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Keeper, rm, name="keeper", device_mapping="0-1") as made:
        yield made


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=False)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b) and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


OTHERS = [
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc),
    datetime.timedelta(days=1, microseconds=3),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    pathlib.PurePosixPath("/a/b"),
    uuid.UUID(int=7),
]


@pytest.mark.parametrize("value", [*PLAIN, *OTHERS], ids=numbered([*PLAIN, *OTHERS]))
def test_value_comes_back_the_same(c: Cluster, value: Any) -> None:
    for wrapped in (value, [value], (value,), {"k": value}, [[(value, {"k": [value]})]]):
        for got in c.echo(wrapped):
            assert same(got, wrapped)
    assert c.workers[1].call("describe", value).endswith(repr(value)) or isinstance(
        value, (set, Plain)
    ), "and it was the same there"


DTYPES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 g c8 c16 S5 U3 M8[ns] m8[s] >i4 >f8 V8 O".split()  # noqa: SIM905


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 1, 1, 2)], ids=str)
def test_arrays(c: Cluster, dtype: str, shape: tuple[int, ...]) -> None:
    if dtype == "V8":
        value = np.zeros(shape, dtype="V8")
    elif dtype == "O":
        value = np.full(shape, None, dtype=object)
    else:
        value = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for got in c.echo([value, {"a": value}]):
        assert same(got, [value, {"a": value}])
        if dtype not in ("O",) and got[0].size:
            assert got[0].flags.writeable, "what was received is the receiver's own"


ODD_ARRAYS = {
    "structured": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "reversed": np.arange(10)[::-2],
    "transposed": np.arange(24).reshape(2, 3, 4).T,
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "strings": np.array(["a", "bb", "ä"]),
    "objects": np.array([{"a": 1}, [1, 2], None], dtype=object),
    "masked": np.ma.masked_array([1, 2, 3], mask=[False, True, False]),
    "readonly": np.frombuffer(b"abcdefgh", dtype="u1"),
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_odd_arrays(c: Cluster, name: str) -> None:
    value = ODD_ARRAYS[name]
    got = c.echo(value)[0]
    assert type(got) is type(value) and got.dtype == value.dtype
    assert got.tolist() == value.tolist()


@pytest.mark.parametrize("value", [np.int64(5), np.float32(1.5), np.bool_(True), np.str_("a")])
def test_numpy_scalars(c: Cluster, value: Any) -> None:
    got = c.echo(value)[0]
    assert type(got) is type(value) and got == value


def test_nan_stays_nan(c: Cluster) -> None:
    assert math.isnan(c.echo(float("nan"))[0])
    assert np.isnan(c.echo(np.array([np.nan]))[0][0])


def test_subclasses_keep_class_and_attributes(c: Cluster) -> None:
    text = Text("abc")
    text.note = "kept"
    got = c.echo(text)[0]
    assert (type(got), got, got.note) == (Text, "abc", "kept")


def test_records_are_rebuilt_without_being_made_again(c: Cluster) -> None:
    value = Sample("a")
    assert value.made == 1
    assert c.echo(value)[0] == value


def test_one_object_twice_and_itself(c: Cluster) -> None:
    """What pickle can carry is carried: cycles, and one object in two places."""
    plain: Any = Plain()
    plain.both = [plain, plain]
    got = c.echo(plain)[0]
    assert got.both[0] is got and got.both[1] is got
    cycle: list[Any] = []
    cycle.append(cycle)
    got = c.echo(cycle)[0]
    for _ in range(100):
        assert type(got) is list and len(got) == 1
        got = got[0]


def test_deep_nesting(c: Cluster) -> None:
    """As deep as it goes; beyond, an error, and the cluster works on."""
    for depth in (50, 400, 100_000):
        value: Any = []
        for _ in range(depth):
            value = [value]
        try:
            assert len(c.echo(value)) == 2
        except (muster.MusterError, RecursionError, ValueError) as error:
            assert depth > 100, error
            assert str(error)
    assert c.echo(1) == [1, 1]


def test_functions_and_lambdas(c: Cluster) -> None:
    offset = 10
    got = c.echo(lambda x: x + offset)[0]
    assert got(1) == 11


def test_the_callers_own_is_never_changed(c: Cluster) -> None:
    array, mapping, rows = np.zeros(4), {"k": [1]}, [1, 2]
    assert c.execute_all_sync("spoil", array)[0].tolist() == [7.0] * 4
    assert c.execute_all_sync("spoil", mapping)[0] == {"k": [1], "spoilt": True}
    assert c.execute_all_sync("spoil", rows)[1] == [1, 2, "spoilt"]
    assert (array.tolist(), mapping, rows) == ([0.0] * 4, {"k": [1]}, [1, 2])


def test_changing_an_argument_after_an_async_call(c: Cluster) -> None:
    array, rows = np.zeros(1000), [1, 2, 3]
    refs = [c.execute_rank_zero_async("echo", array), c.execute_rank_zero_async("echo", rows)]
    array += 1
    rows.clear()
    got = muster.get(refs)
    assert got[1] == [1, 2, 3]
    assert not got[0].any()


def test_results_are_independent(c: Cluster) -> None:
    ref = c.execute_rank_zero_async("echo", [np.zeros(3), [1]])
    first = muster.get(ref)
    assert muster.get(c.execute_rank_zero_async("echo", 1)) == 1
    first[0][0] = 5
    again = c.echo([np.zeros(3), [1]])
    again[0][1].append(2)
    assert again[1][1] == [1], "each rank's result is its own"


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 256 * 1024, MIB + 1, 64 * MIB + 1])
def test_bytes_of_any_size(c: Cluster, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert c.execute_rank_zero_sync("echo", value) == value


def test_large_arguments_to_all_and_back(c: Cluster) -> None:
    """100 MiB in, cast to two ranks, and 100 MiB back from each."""
    value = np.arange(100 * MIB // 8, dtype="i8")
    value.flags.writeable = False
    for got in c.echo(value):
        assert np.array_equal(got, value)
        got[0] = 5  # a large one is writable too
    assert value[0] == 0


def test_large_text_and_many_small_ones(c: Cluster) -> None:
    text = "ä" * (32 * MIB)
    assert c.execute_rank_zero_sync("echo", text) == text
    many = [f"row {i}" for i in range(100_000)]
    assert c.execute_rank_zero_sync("echo", many) == many


def test_large_result_alone(c: Cluster) -> None:
    assert len(c.execute_rank_zero_sync("make", 128 * MIB)) == 128 * MIB
    assert c.workers[1].call("make_array", (8 * MIB,)).nbytes == 64 * MIB


def test_large_rows_are_cut(rm: ResourceManager) -> None:
    rows = [np.full(MIB, i, dtype="u1") for i in range(40)]
    with cluster(Echo, rm, name="rows", device_mapping="0-1") as echo:
        got = echo.same(rows)
        assert len(got) == 40
        assert all(int(row[-1]) == i and row.nbytes == MIB for i, row in enumerate(got))
        each = echo.execute_all_sync("plain", PerRank([rows[3], rows[4]]))
        assert [int(args[0][0]) for _, args, _ in each] == [3, 4]


def test_many_arrays_in_one_argument(c: Cluster) -> None:
    value = [np.arange(i % 7) for i in range(5000)]
    got = c.execute_rank_zero_sync("echo", value)
    assert same(got, value)


def test_pickle_off(rm: ResourceManager) -> None:
    with cluster(Keeper, rm, name="strict", world_size=1, pickle="off") as strict:
        value = [1, "a", (2,), {3}, np.arange(3), 2**70, {1: 2}]
        assert same(strict.echo(value)[0], value)
        with pytest.raises(TypeError, match="pickle") as caught:
            strict.echo(Plain())
        assert isinstance(caught.value, muster.MusterError)
        assert strict.echo(1) == [1]
