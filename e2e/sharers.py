"""What `shared_refs_test.py` calls: workers and services that are given refs inside values."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import muster
from muster import Dispatch, Worker, register
from muster._sharing import _LOOKS as LOOKS


class Taker(Worker):
    """Workers that get refs, and give some."""

    def kinds(self, *given: Any) -> list[str]:
        return [type(one).__name__ for one in given]

    def total(self, refs: list[Any]) -> Any:
        return sum(muster.get(refs))

    def nested(self, refs: list[Any]) -> Any:
        return muster.put(muster.get(refs[0]))

    def first(self, refs: list[Any], count: int) -> tuple[int, int]:
        done, pending = muster.wait(refs, count)
        return len(done), len(pending)

    def mean(self, value: Any) -> float:
        return float(value.mean())

    def fail(self) -> None:
        raise ZeroDivisionError("by design")

    def died_of(self, refs: list[Any]) -> str:
        try:
            muster.get(refs[0])
        except Exception as error:
            return f"{type(error).__name__} {isinstance(error, ZeroDivisionError)}"
        return ""

    def calls(self, other: Any, x: int) -> dict[str, Any]:
        return {"mine": [other.add.remote(x)], "put": muster.put({"x": x})}

    def own(self, worker: Any) -> list[Any]:
        """A call that cannot begin before this one has ended."""
        return [worker.kinds.remote(1)]

    def same(self, refs: list[Any]) -> bool:
        return refs[0] is refs[1]

    def writes(self, array: Any) -> float:
        array[:] = 1
        return float(array.sum())

    @register(Dispatch.DP_MP_COMPUTE)
    def rows(self, rows: list[int]) -> list[tuple[int, int]]:
        return [(self.rank, row) for row in rows]


class Slow:
    """A service whose answers come when it is told."""

    def __init__(self, base: Any = 0) -> None:
        self.base = base
        self.open = asyncio.Event()

    async def add(self, x: int) -> int:
        await self.open.wait()
        return int(self.base["x"] if isinstance(self.base, dict) else self.base) + x

    async def several(self, count: int) -> list[int]:
        await self.open.wait()
        return [1] * count

    async def let(self) -> None:
        self.open.set()

    async def fail(self) -> None:
        await self.open.wait()
        raise ZeroDivisionError("later")

    async def leave(self) -> None:
        os._exit(3)

    async def awaited(self, refs: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*refs))


class Starting:
    """A service that hands out what is under way before it is there itself."""

    def __init__(self, other: Any, taker: Any) -> None:
        self.taken = taker.total.remote([other.add.remote(1)])
        muster.wait([self.taken], timeout=2 * LOOKS)
        other.let()
        self.total = muster.get(self.taken)

    def found(self) -> int:
        return int(self.total)


class Scripts:
    """What only the script can make."""

    def __reduce__(self) -> Any:
        return _scripts, ()


def _scripts() -> Scripts:
    if muster._worker._identity is not None:
        raise LookupError("only in the script")
    return Scripts()


class Maker:
    """A service that hands out what is under way."""

    def calls(self, other: Any, x: int) -> list[Any]:
        return [other.add.remote(x)]

    def cut(self, others: Any, refs: list[Any]) -> list[float]:
        return [float(row[0]) for _, row in others.rows(refs[0])]


def square(x: int, *, plus: int = 0) -> int:
    return x * x + plus


async def slowly(x: int) -> int:
    await asyncio.sleep(0)
    return x


def where(gate: Any = None) -> tuple[int, str]:
    if gate is not None:
        gate.add(0)
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", "")


def leaves(service: Any) -> None:
    service.leave()


def seeks(name: str) -> None:
    muster.get_service(name)


class Squared:
    """An object that is called as a function is."""

    def __call__(self, x: int) -> int:
        return x * x


def crash() -> None:
    os._exit(4)


def broken() -> None:
    raise ZeroDivisionError("by design")


def spin() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.01)
