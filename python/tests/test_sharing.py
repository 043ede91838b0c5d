"""Refs inside values, and values that are put, as far as one process goes."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fakehead import FakeHead

import muster
from muster import _rows, _sharing, _values, _wire
from muster._kept import Closed, keep, shape_of
from muster._refs import Ref
from muster._sharing import Keeper, Put

ROUTE = b"\x97" + b"".join(map(_wire.pack, (7, "m", 1, None, 0, 0, 1)))


@pytest.fixture
def head() -> Iterator[FakeHead]:
    with FakeHead() as fake:
        yield fake


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    monkeypatch.setattr(Closed, "here", False)
    monkeypatch.setattr(_sharing, "_LOOKS", 0.001)
    return Keeper()


def test_one_that_cannot_be_told_is_not_sent(
    head: FakeHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Any:
        raise muster.ResourceError("no room for a keeper")

    monkeypatch.setattr(_sharing, "_keeper", none)
    pending: Ref = head.connect().call(ROUTE, _values.encode_payload((), {}, []), [])
    for ref in (pending, _sharing.settled(1)):
        for _ in range(2):
            with pytest.raises(muster.MusterError, match="no room for a keeper"):
                _values.encode([ref], [])
        assert ref not in _sharing._Shared.sent


def test_a_small_value_goes_with_its_ref(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise muster.ResourceError("no room for a keeper")

    monkeypatch.setattr(_sharing, "_keeper", none)
    given = {"a": [1], "b": np.arange(4)}
    ref = Put(keep(given))
    buffers: list[Any] = []
    body = _values.encode([ref], buffers)
    assert _values.decode(body, buffers) == [ref]
    monkeypatch.setattr(_sharing._Shared, "alive", weakref.WeakValueDictionary())  # elsewhere
    (found,) = _values.decode(body, buffers)
    assert found is not ref and _sharing.ident_of(found) == _sharing.ident_of(ref)
    assert found.done() and muster.get(found)["a"] == [1] and muster.get(found)["b"].sum() == 6
    assert _values.decode(_values.encode([found], []), []) == [found]  # and on from there
    with pytest.raises(muster.MusterError, match="no room for a keeper"):
        _values.encode([Put(keep("x" * 100_000))], [])


def test_what_a_keeper_was_never_told_is_lost(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sharing, "_UNTOLD", 0.0)

    async def takes() -> None:
        with pytest.raises(muster.WorkerDiedError, match="was lost"):
            await keeper.take("a")
        await keeper.expect("b", None)  # by the script, whose end is the keeper's
        asked = asyncio.ensure_future(keeper.take("b"))
        done, _ = await asyncio.wait([asked], timeout=0.05)
        assert not done
        await keeper.keep("b", 5)
        assert await asked == 5

    asyncio.run(takes())


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 32, (1 << 32) + 1, 5 << 30, 1 << 43])
def test_large_values_have_fewer_rows_than_bytes(size: int) -> None:
    rows, width = shape_of(size)
    assert rows <= 1 << 32 and 0 <= rows * width - size < width


@pytest.mark.parametrize("room", [1 << 32, 1 << 10])
def test_each_who_opens_a_value_has_it_alone(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "MAX_ROWS", room)
    values = [np.arange(100_000.0), np.arange(1 << 18, dtype=np.uint8), np.arange(70_001.0)]
    for value in (values, values[:1]):
        kept = keep(value)
        first = kept.open()
        for array in first:
            array[:] = 0
        for array, again in zip(value, kept.open(), strict=True):
            assert np.array_equal(array, again)
