from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import socket
import subprocess
import sys
import textwrap
import threading
import uuid
from typing import Any, Generic, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import pytest

from muster import _values
from muster._errors import EncodingError, ProtocolError
from muster._values import Broadcast, PerRank, decode, encode, encode_payload


def numbered(values: list[Any]) -> list[str]:
    """Names of test cases that are the same in every process, as no repr of a set is."""
    return [f"{i}-{type(value).__name__}" for i, value in enumerate(values)]


def trip(obj: Any, pickle: str = "on") -> Any:
    """obj after its way over the wire, its buffers in fresh writable memory."""
    bufs: list[Any] = []
    body = encode(obj, bufs, pickle)
    assert isinstance(body, bytes)
    return decode(body, [memoryview(bytearray(memoryview(buf).cast("B"))) for buf in bufs])


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)):
        return bool(a == b) and {type(x) for x in a} == {type(x) for x in b}
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype.names:  # what is between its fields is not part of a value
            return bool(a.dtype == b.dtype) and same(a.tolist(), b.tolist())
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if dataclasses.is_dataclass(a) and hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return bool(a == b)


class Color(enum.IntEnum):
    RED = 1


class Mode(enum.Enum):
    A = "a"


class Text(str):
    pass


class Pair(NamedTuple):
    x: int
    y: str


class Thing:
    def __init__(self, x: object) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is Thing and self.x == other.x

    __hash__ = None  # type: ignore[assignment]


def function(x: int) -> int:
    return x + 1


PLAIN: list[Any] = [
    *(None, True, False, 0, -1, 127, 128, -33, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**63), -(2**63) - 1, -(2**64), 2**1000, -(2**1000), -(2**71), 2**71, 255 << 64),
    *(0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308),
    *("", "a", "é" * 300, "\x00", "a\ud800b", "\udcff", "🙂", "x" * 70000),
    *(b"", b"\x00\xff", b"x" * 300, b"x" * 70000),
    *([], {}, (), set(), frozenset(), [[]], [{}], ((),), {"": ()}),
    *(
        {"a": 1},
        {1: 2, None: 3, 1.5: 4, (1, (2, "x")): 5, b"k": 6, frozenset([1]): 7},
    ),
    {True: 1, math.inf: 2},
    *({(1, 2), (3, 4)}, {1, "a", None, 1.5, (1,)}, {frozenset([1]), frozenset()}),
    *(range(0), range(5), range(10, 0, -3), range(2**70), range(-(2**64), 2**64, 2**33)),
    *(1 + 2j, complex(-0.0, math.inf), 0j),
    *(bytearray(), bytearray(b"abc"), [bytearray(b"x")], {"k": bytearray(b"y")}),
    *((bytearray(b"x"),), [[{"a": [bytearray(b"z"), 1]}]]),
    *([1, [2, [3, [4, (5, {6, 7})]]]], [0] * 70000, {str(i): i for i in range(70000)}),
]


@pytest.mark.parametrize("obj", PLAIN, ids=numbered(PLAIN))
def test_plain_values_keep_value_and_type_without_pickle(obj: Any) -> None:
    assert same(trip(obj, pickle="off"), obj)
    assert same(trip([obj, (obj,)], pickle="off"), [obj, (obj,)])


class Default(collections.defaultdict):  # type: ignore[type-arg]
    pass


PICKLED: list[Any] = [
    *(Color.RED, Mode.A, Text("a"), Pair(1, "a"), Thing([1, (2,)])),
    *(collections.OrderedDict(a=1, b=2), collections.Counter("aab"), collections.deque([1])),
    *(collections.defaultdict(list, {"a": [1]}), Default(int, {"x": 1})),
    *(datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), datetime.timedelta(1)),
    *(decimal.Decimal("1.50"), pathlib.PurePosixPath("/a"), uuid.UUID(int=7)),
    *(function, Thing, int, len, NotImplemented, Ellipsis, array.array("d", [1.5])),
    *(msgpack.ExtType(1, b"x"), msgpack.Timestamp(1, 2), slice(1, 2)),
]


@pytest.mark.parametrize("obj", PICKLED, ids=numbered(PICKLED))
def test_others_keep_value_and_type_by_pickle(obj: Any) -> None:
    for wrap in (obj, [obj], {"k": [obj]}, (obj, 1)):
        assert same(trip(wrap), wrap)
    with pytest.raises(EncodingError, match="pickle"):
        trip(obj, pickle="off")


def test_memoryviews_come_back_as_memoryviews() -> None:
    for view in (
        memoryview(b"abc"),
        memoryview(bytearray(b"abc")),
        memoryview(array.array("i", [1, 2, 3])),
        memoryview(bytes(12)).cast("i", [3, 1]),
        memoryview(b"abcdef")[::2],
        memoryview(b""),
    ):
        for back in (trip(view), trip([view])[0], trip({"k": (view,)})["k"][0]):
            assert type(back) is memoryview
            assert (back, back.format, back.shape) == (view, view.format, view.shape)
            assert back.readonly == view.readonly


def test_long_bytes_leave_the_body_wherever_they_are() -> None:
    long = bytes(range(256)) * 1024
    for obj in (long, [long, b"short"], {"a": [long]}, (long,), [long, long]):
        bufs: list[Any] = []
        assert len(encode(obj, bufs)) < 1000
        assert bufs and bufs[0] is long
        assert same(trip(obj), obj)
    bufs = []
    assert len(encode(long[1:], bufs)) > len(long) and not bufs


# --- numpy -------------------------------------------------------------------------------

DTYPES = [
    *("?", "i1", "u1", "<i2", ">i2", "<u4", ">u8", "<i8", "<f2", ">f4", "<f8", "g", "<c8", "G"),
    *("<M8[ns]", ">M8[D]", "<m8[s]", "m8", "S3", "<U2", ">U2", "V5", "S0"),
    [("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "S2")])],
    np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24}),
    np.dtype([("a", "u1"), ("b", "<f8")], align=True),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_every_dtype_and_shape(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 2, 24 * dtype.itemsize).astype("u1")
    flat = np.ndarray((24,), dtype, bytearray(raw.tobytes()))
    cube = flat.reshape(2, 3, 4)
    for arr in (
        *(flat, cube, np.asfortranarray(cube), cube.T, flat[::2], flat[::-1], cube[:, 1:2, ::3]),
        *(flat[:0], cube[:, :0], flat[:1].reshape(()), np.broadcast_to(flat[0], (3, 2))),
    ):
        back = trip(arr)
        assert type(back) is np.ndarray and same(back, arr)
        assert back.flags.writeable
        assert same(trip({"k": [arr]})["k"][0], arr)


def test_contiguous_arrays_are_not_copied_either_way() -> None:
    for arr in (np.arange(12.0).reshape(3, 4), np.asfortranarray(np.ones((3, 4)))):
        bufs: list[Any] = []
        body = encode(arr, bufs, "off")
        assert np.shares_memory(np.asarray(bufs[0]), arr)
        memory = bytearray(bufs[0])
        back = decode(body, [memory])
        assert np.shares_memory(np.frombuffer(memory, "u1"), back)
        assert back.flags.f_contiguous == arr.flags.f_contiguous
        back[0, 0] = 7.0


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_beyond_plain_bytes_are_pickled() -> None:
    objects = np.array([1, "a", None], object)
    assert trip(objects).tolist() == objects.tolist()
    masked = np.ma.array([1, 2], mask=[True, False])
    assert type(trip(masked)) is np.ma.MaskedArray and trip(masked).mask.tolist() == [True, False]
    assert type(trip(np.matrix([[1]]))) is np.matrix
    assert type(trip(np.rec.array([(1,)], dtype=[("a", "i4")]))) is np.recarray
    with pytest.raises(EncodingError, match="ndarray"):
        trip(objects, pickle="off")
    big = Thing(np.arange(100_000))
    bufs: list[Any] = []
    assert len(encode(big, bufs)) < 1000 and len(bufs) == 1  # out of band
    assert (trip(big).x == big.x).all()


@pytest.mark.parametrize("dtype", [d for d in DTYPES[:18] if d not in ("V5",)], ids=str)
def test_numpy_scalars(dtype: str) -> None:
    scalar = np.ones(1, np.dtype(dtype).newbyteorder("="))[0]
    assert same(trip(scalar, pickle="off"), scalar)


def test_odd_numpy_scalars() -> None:
    for scalar in (np.str_("a"), np.bytes_(b"a"), np.float64("nan"), np.datetime64("NaT")):
        assert same(trip(scalar), scalar)
    assert type(trip(np.True_)) is np.bool_ and type(trip({np.int8(1): 2}).popitem()[0]) is np.int8


def test_more_arrays_than_a_frame_has_room_for() -> None:
    arrays = [np.array([i], "<i4") for i in range(_values._MAX_BUFFERS + 100)]
    bufs: list[Any] = []
    body = encode(arrays, bufs)
    assert len(bufs) == _values._MAX_BUFFERS
    assert [int(a[0]) for a in decode(body, bufs)] == list(range(len(arrays)))


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        *(torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16), torch.tensor(1.5)),
        *(torch.arange(6).reshape(2, 3).t(), torch.zeros(0, 3), torch.tensor([True, False])),
        torch.ones(2, dtype=torch.complex64),
    ):
        back = trip(tensor, pickle="off")
        assert type(back) is torch.Tensor and back.dtype == tensor.dtype
        assert back.shape == tensor.shape and torch.equal(back, tensor)
        back.zero_()
    grad = torch.ones(2, requires_grad=True)
    assert trip(grad).requires_grad
    assert type(trip(torch.nn.Parameter(torch.ones(2)))) is torch.nn.Parameter


# --- dataclasses ----------------------------------------------------------------------------

T = TypeVar("T")


@dataclasses.dataclass
class Config:
    name: str
    sizes: tuple[int, ...] = (1, 2)
    extra: Any = None
    made: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append("post_init")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: int
    y: object


@dataclasses.dataclass(frozen=True)
class FrozenSlots:
    __slots__ = ("x",)
    x: int


@dataclasses.dataclass
class Boxed(Generic[T]):
    x: T


class Child(Config):
    pass


class Holder:
    @dataclasses.dataclass
    class Inner:
        x: int


@dataclasses.dataclass
class Reduced:
    x: int

    def __reduce__(self) -> Any:
        return Reduced, (self.x + 1,)


@dataclasses.dataclass
class Stated:
    x: int

    def __getstate__(self) -> dict[str, int]:
        return {"x": 42}


@dataclasses.dataclass
class Mapped(dict):  # type: ignore[type-arg]
    x: int


def test_plain_dataclasses_need_neither_pickle_nor_init() -> None:
    config = Config("a", (1, 2), {"k": (3,)})
    assert config.made == ["post_init"]
    values = [config, Frozen(1), Slotted(1, (2,)), Boxed(1), Holder.Inner(3), Child("b")]
    for value in values:
        back = trip(value, pickle="off")
        assert type(back) is type(value) and back == value  # post_init has not run again
    nested = Config("outer", (), [Frozen(2), {"k": Config("in")}])
    assert trip(nested, pickle="off") == nested


def test_other_dataclasses_are_pickled() -> None:
    assert trip(Reduced(1)) == Reduced(2)
    assert trip(Stated(1)) == Stated(42)
    mapped = Mapped(1)
    mapped["k"] = 2
    assert trip(mapped) == {"k": 2} and trip(mapped).x == 1
    config = Config("a")
    config.more = 1  # type: ignore[attr-defined]
    assert trip(config).more == 1
    half = Config("a")
    del half.extra
    assert "extra" not in vars(trip(half))
    assert vars(trip(Boxed[int](1))).keys() == vars(Boxed[int](1)).keys()
    assert type(trip(Frozen)) is type

    @dataclasses.dataclass
    class Local:
        x: int

    assert trip(Local(3)).x == 3
    for value in (Reduced(1), mapped, config, half, Local(1)):
        with pytest.raises(EncodingError):
            trip(value, pickle="off")


def test_a_dataclass_that_is_not_here() -> None:
    def record(*parts: object) -> bytes:
        return bytes(msgpack.packb(msgpack.ExtType(4, msgpack.packb(parts))))

    with pytest.raises(EncodingError, match=r"no_such_module\.X"):
        decode(record("no_such_module", "X", {}))
    with pytest.raises(EncodingError, match=r"Nope.*both sides"):
        decode(record(__name__, "Nope", {}))
    with pytest.raises(EncodingError, match="none here"):
        decode(record("os", "system", {}))
    with pytest.raises(EncodingError, match="fields"):
        decode(record(__name__, "Frozen", {"z": 1}))
    with pytest.raises(EncodingError, match="fields"):
        decode(record(__name__, "Reduced", {"x": 1}))
    with pytest.raises(ProtocolError):
        decode(record(1, 2, 3))


def test_the_script_has_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Frozen", Frozen, raising=False)
    monkeypatch.delitem(sys.modules, "__muster_main__", raising=False)
    data = msgpack.packb(["__muster_main__", "Frozen", {"x": 1}])
    assert decode(msgpack.packb(msgpack.ExtType(4, data))) == Frozen(1)


SCRIPT = """
    import dataclasses, sys
    from muster import _values
    _values.set_main_importable({importable})
    @dataclasses.dataclass
    class P:
        x: int
    class Q:
        x = 1
    bufs = []
    body = _values.encode([P(1), Q(), lambda: Q.x], bufs)
    assert not bufs
    sys.stdout.write(body.hex())
"""


@pytest.mark.parametrize("importable", [True, False])
def test_classes_of_main_travel_by_name_or_by_value(
    importable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = textwrap.dedent(SCRIPT).format(importable=importable)
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert out.returncode == 0, out.stderr
    body = bytes.fromhex(out.stdout)
    if importable:
        with pytest.raises(EncodingError, match="P"):
            decode(body)

        @dataclasses.dataclass
        class P:
            x: int

        class Q:
            x = 5

        P.__qualname__ = "P"
        main = sys.modules["__main__"]
        monkeypatch.setattr(main, "P", P, raising=False)
        monkeypatch.setattr(main, "Q", Q, raising=False)
        p, q, f = decode(body)
        assert type(p) is P and type(q) is Q and f() == 5  # the class of here
    else:
        p, q, f = decode(body)
        assert p.x == 1 and q.x == 1 and f() == 1


# --- what cannot be sent ----------------------------------------------------------------------


def test_errors_name_the_place_and_the_type() -> None:
    lock = threading.Lock()
    cases: list[tuple[Any, str]] = [
        (lock, r"argument 0, a _thread\.lock"),
        ({"x": [1, 2, 3, lock]}, r"argument 0 -> key 'x' -> \[3\], a _thread\.lock"),
        ((1, (lock,)), r"argument 0 -> \[1\] -> \[0\]"),
        (Config("a", extra={"k": lock}), r"argument 0 -> \.extra -> key 'k'"),
        ([Thing(lock)], r"argument 0 -> \[0\] -> \.x, a _thread\.lock"),
        (PerRank([1, [lock]]), r"argument 0 -> rank 1 -> \[0\]"),
        (Broadcast({"k": lock}), r"argument 0 -> Broadcast -> key 'k'"),
        ((i for i in [1]), "a generator"),
    ]
    for value, text in cases:
        bufs = [b"mine"]
        with pytest.raises(EncodingError, match=text) as caught:
            encode_payload((value, np.zeros(3)), {}, bufs)
        assert isinstance(caught.value, TypeError) and bufs == [b"mine"]
    with pytest.raises(EncodingError, match=r"argument 'model' -> \[0\]"):
        encode_payload((1,), {"model": [lock]}, [])
    with (
        socket.socket() as sock,
        pytest.raises(EncodingError, match=r"the value, a socket\.socket"),
    ):
        encode(sock, [])
    with pytest.raises(EncodingError, match=r"the value -> \[1\] -> key 'a', a .*Color.*off"):
        encode([1, {"a": Color.RED}], [], "off")


def test_marks_belong_at_the_top() -> None:
    with pytest.raises(EncodingError, match=r"argument 0 -> \[1\].*argument of the call itself"):
        encode_payload(([1, PerRank([1])],), {}, [])
    with pytest.raises(EncodingError):
        encode(Broadcast(1), [])
    for bad in ("ab", b"ab", {"a": 1}, {1}):
        with pytest.raises(TypeError, match="sequence"):
            PerRank(bad)


def nest(levels: int, wrap: Any = lambda x: [x]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def unnest(value: Any) -> int:
    levels = 0
    while value != 1:
        (value,) = value.values() if isinstance(value, dict) else value
        levels += 1
    return levels


@pytest.mark.parametrize("levels", [50, 99, 101, 200, 470, 481, 520, 700])
def test_deep_values(levels: int) -> None:
    for wrap in (lambda x: [x], lambda x: (x,), lambda x: {"k": x}, lambda x: ([x],)):
        try:
            assert unnest(trip(nest(levels, wrap))) in (levels, 2 * levels)
        except EncodingError as error:
            assert levels > 250 and "deep" in str(error) and len(str(error)) < 200
    assert unnest(trip(nest(min(levels, 470)))) == min(levels, 470)


def test_a_list_of_deep_rows_can_still_be_cut() -> None:
    rows = [nest(150, lambda x: (x,)), nest(150)]
    for wrap, head in ((list, 0x92), (tuple, 0x92)):
        body = encode(wrap(rows), [])
        ext = msgpack.unpackb(body, strict_map_key=False)
        assert (ext.data if isinstance(ext, msgpack.ExtType) else body)[0] == head
        assert unnest(trip(wrap(rows))[0]) == 150


def test_deeper_than_any_stack_and_without_end() -> None:
    for value in (nest(100_000), nest(100_000, lambda x: (x,))):
        with pytest.raises(EncodingError, match="deep"):
            encode(value, [])
    cycle: list[Any] = [1]
    cycle.append(cycle)
    back = trip(cycle)
    assert back[0] == 1 and back[1][1] is back[1]
    both: list[Any] = []
    both += [both, both]
    assert trip(both)[0][0][1] is not None
    loop: dict[str, Any] = {}
    loop["self"] = (loop,)
    assert trip(loop)["self"][0]["self"] is not None
    for value in (cycle, both, loop, nest(600)):
        with pytest.raises(EncodingError, match=r"itself|deep"):
            encode(value, [], "off")


def test_a_broken_reduce_is_an_encoding_error() -> None:
    class Rude:
        def __reduce__(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(EncodingError, match=r"Rude.*no"):
        encode([Rude()], [])


def test_a_pickle_whose_module_is_missing() -> None:
    data = struct_pickle(b"cno_such_module\nX\n.")
    with pytest.raises(EncodingError, match="no_such_module"):
        decode(data)


def struct_pickle(pickled: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(33, bytes(8) + pickled)))
