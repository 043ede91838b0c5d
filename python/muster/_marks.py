"""Marks on arguments: how an argument of a call is to be spread over ranks.

They stand at the top level of a call's arguments only, and never reach a
worker: the head resolves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Generic, TypeVar

T = TypeVar("T")


class Mark:
    """What all marks are."""

    __slots__ = ()


class PerRank(Mark, Generic[T]):
    """An argument of which each rank gets its own element: ``PerRank([x0, x1, ...])``."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[T]) -> None:
        if isinstance(values, (str, bytes, bytearray, Mapping, Set)):
            raise TypeError(
                f"PerRank takes a sequence with one element per rank, not a {type(values).__name__}"
            )
        self.values = list(values)

    def __repr__(self) -> str:
        return f"PerRank({self.values!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRank) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.values)


class Broadcast(Mark, Generic[T]):
    """An argument that each rank gets whole, also where the mode would cut it."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Broadcast({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Broadcast) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class FutureMark(Mark):
    """The result of another call of the same connection, of one rank or (-1) as collected."""

    __slots__ = ("id", "rank")

    def __init__(self, id: int, rank: int = -1) -> None:
        self.id = id
        self.rank = rank

    def __repr__(self) -> str:
        return f"FutureMark({self.id}, {self.rank})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FutureMark) and (self.id, self.rank) == (other.id, other.rank)

    def __hash__(self) -> int:
        return hash((self.id, self.rank))
