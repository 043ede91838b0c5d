"""Types of a user's own, for values that travel."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Sample:
    prompt: str
    tokens: list[int] = field(default_factory=list)
    next: Sample | None = None
    made: int = 0

    def __post_init__(self) -> None:
        self.made += 1  # would run again if rebuilding ran it


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


class Plain:
    """An ordinary object."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __eq__(self, other: object) -> bool:
        return type(other) is Plain and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    """A subclass of a plain type, with an attribute."""

    note = ""


class Rows(list[Any]):
    """A subclass of list."""


class Unpicklable:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay where I am")


class Unwelcome:
    """Can be sent, cannot be made again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not here")


PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**400,
    0.0,
    -0.0,
    1.5,
    float("inf"),
    5e-324,
    1 + 2j,
    "",
    "text ä 🎉 \x00",
    "\ud800",
    b"",
    b"\x00\xff",
    bytearray(b"abc"),
    [],
    [1, [2, [3, []]]],
    (),
    (1,),
    (1, (2, [3, (4,)])),
    {},
    {"a": 1, "b": {"c": [1, (2,)]}},
    {1: "a", (1, 2): "b", None: "c", 1.5: "d", b"k": "e", False: "f"},
    {"k": ()},
    set(),
    {1, "a", (2,)},
    frozenset(),
    frozenset({1, 2}),
    range(0),
    range(1, 10, 3),
    slice(1, 2, 3),
    Ellipsis,
    NotImplemented,
    int,
    dict,
    len,
    Color.RED,
    Color.BLUE,
    Level.LOW,
    Point(1, 2.5),
    Sample("a", [1], Sample("b")),
    Frozen(1, (2, 3)),
    Plain(a=1, b=[1, 2]),
    Rows([1, 2]),
    deque([1, 2], maxlen=3),
    OrderedDict([("b", 1), ("a", 2)]),
    defaultdict(list, {"a": [1]}),
    [None, (None,), {None}],
    [{"role": "user", "content": [("a", 1, 2.5, None, b"x")]}] * 3,
]


class Mine(Exception):
    """A plain exception of a user's."""


class Coded(Exception):
    """Its __init__ takes other arguments than its text."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code, self.hint = code, hint


class Stubborn(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Final(Exception):
    """Will not be subclassed."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses of Final")


class Slotted(ValueError):
    __slots__ = ("extra",)

    def __init__(self, text: str, extra: int = 0) -> None:
        super().__init__(text)
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.args[0]} with {self.extra}"


def numbered(values: list[Any]) -> list[str]:
    """Names of test cases that are the same in every process, as no repr of a set is."""
    return [f"{i}-{type(value).__name__}" for i, value in enumerate(values)]
