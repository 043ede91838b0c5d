"""Event loops that await answers, while connections end and others take their place."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakehead import DEADLINE
from fakeheads import Heads, start

from muster import _client


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    made = Heads(tmp_path)
    yield made
    made.close()


def test_a_loop_that_sees_the_end_late_looks_at_the_next_connection(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a loop's finding that a connection has ended and its leaving that, others may have
    found the way back: it leaves the one that ended, not the new one."""
    connection, line = heads.connect()
    moved = threading.Event()
    home: list[int] = []
    hang_up, move = _client._hang_up, connection.comeback.moved

    def late(sock: socket.socket) -> None:
        hang_up(sock)
        if threading.get_ident() in home:
            assert moved.wait(DEADLINE)

    def moves() -> None:
        move()
        moved.set()

    monkeypatch.setattr(_client, "_hang_up", late)
    monkeypatch.setattr(connection.comeback, "moved", moves)
    monkeypatch.setattr(connection, "poll", lambda: None)  # of the thread that finds the way back

    async def awaiting() -> Any:
        home.append(threading.get_ident())
        return await asyncio.wait_for(start(connection, 1), DEADLINE)

    with ThreadPoolExecutor(1) as thread:
        value = thread.submit(asyncio.run, awaiting())
        line.calls(1)
        line.cut()
        line = heads.returned()
        _, again = line.back()
        line.answer(again[0].id, "there")
        assert value.result(2 * DEADLINE) == "there"
