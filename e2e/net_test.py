"""Nodes on other machines, on one: agents that join over TCP, and a network that fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import muster
from link import PORT, Link, network
from muster import Cluster
from running import BINARY, cluster, eventually, pool, session
from witness import Witness, runs

pytestmark = pytest.mark.chaos

RANKS = 4


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    monkeypatch.setenv("MUSTER_HOST", f"127.0.0.1:{PORT}")
    with network() as made:
        yield made


@pytest.fixture(params=["2x2+net", "2x2+net+plain"])
def workers(request: pytest.FixtureRequest, link: Link, tmp_path: Path) -> Iterator[Cluster]:
    with team(request.param, tmp_path) as made:
        yield made


@contextmanager
def team(virtual: str, folder: Path) -> Iterator[Cluster]:
    """Four witnesses on two nodes."""
    with (
        session(virtual),
        pool(2, 2) as rm,
        cluster(Witness, rm, name="w", device_mapping="0-3", grace=0.5) as made,
    ):
        made.begin(str(folder))
        yield made


def nodes() -> list[dict[str, Any]]:
    done = subprocess.run([BINARY, "status", "--json"], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)[0]["nodes"]
    return found


def states() -> set[str]:
    return {node["state"] for node in nodes()}


def test_status_tells_of_far_nodes(workers: Cluster) -> None:
    """Devices, memory and load of each, and how far away it is."""
    assert eventually(lambda: all("load" in node for node in nodes()))
    for node in nodes():
        assert node["state"] == "up" and node["address"] == "127.0.0.1"
        assert len(node["devices"]) == 2 and node["memory_available_bytes"] > 0
        assert node["round_trip_seconds"] < 1 and node["silent_seconds"] < 60
    text = subprocess.run([BINARY, "status"], capture_output=True, text=True, check=True).stdout
    assert "at 127.0.0.1" in text and "LOAD" in text


@pytest.mark.parametrize("fault", ["cut", "silence_agents", "silence_head"])
def test_a_cut_heals(workers: Cluster, link: Link, tmp_path: Path, fault: str) -> None:
    """Calls wait while a node is not heard of, and return; nothing runs twice."""
    held = workers.until("gate", "x", blocking=False)
    assert eventually(lambda: all(runs(tmp_path, "w", RANKS)))
    getattr(link, fault)()
    queued = workers.step("queued", blocking=False)
    assert eventually(lambda: states() == {"suspect"}, 20)
    (tmp_path / "gate").touch()
    link.heal()
    assert muster.get(held, timeout=60) == [("x", rank) for rank in range(RANKS)]
    assert muster.get(queued, timeout=60) == [("queued", rank) for rank in range(RANKS)]
    assert eventually(lambda: states() == {"up"}, 20)
    assert workers.step("after") == [("after", rank) for rank in range(RANKS)]
    assert runs(tmp_path, "w", RANKS) == [["gate", "queued", "after"]] * RANKS


def test_packets_are_lost(workers: Cluster, link: Link, tmp_path: Path) -> None:
    link.lose(0.05)
    for i in range(300):
        assert workers.step(i) == [(i, rank) for rank in range(RANKS)]
    link.heal()
    assert runs(tmp_path, "w", RANKS) == [[str(i) for i in range(300)]] * RANKS


def test_a_cut_that_lasts(link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is lost when its grace is over, and the error says what is known of it."""
    monkeypatch.setenv("MUSTER_NODE_GRACE", "4")
    with team("2x2+net", tmp_path) as workers:
        ref = workers.until("never", blocking=False)
        link.cut()
        with pytest.raises(muster.NodeLostError) as caught:
            muster.get(ref, timeout=60)
        said = str(caught.value)
        assert "node-" in said and "not proved to be dead" in said, said
        assert "its machine is down, or the network between is cut" in said, said
        assert states() == {"lost"} or eventually(lambda: states() == {"lost"})
        link.heal()


def test_a_stopped_agent(link: Link, tmp_path: Path) -> None:
    """Its machine answers, it does not: that is told apart, and goes on when it does."""
    with team("2x2+net", tmp_path) as workers:
        stat = Path(f"/proc/{workers.workers[0].pid}/stat").read_text()
        pid = int(stat.rsplit(")", 1)[1].split()[1])
        os.kill(pid, signal.SIGSTOP)
        try:
            ref = workers.step("x", blocking=False)
            assert eventually(lambda: "suspect" in states(), 20)
            why = next(node["why"] for node in nodes() if node["state"] == "suspect")
            assert "node-0 has not answered" in why and "though its machine does" in why, why
        finally:
            os.kill(pid, signal.SIGCONT)
        assert muster.get(ref, timeout=60) == [("x", rank) for rank in range(RANKS)]
        assert eventually(lambda: states() == {"up"}, 20)


def test_a_short_head_grace_is_not_that_of_nodes(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is cut is not a head that is gone: workers wait for as long as their node."""
    monkeypatch.setenv("MUSTER_HEAD_GRACE", "3")
    with team("2x2+net", tmp_path) as workers:
        before = [w.pid for w in workers.workers]
        link.cut()
        assert eventually(lambda: states() == {"suspect"}, 20)
        time.sleep(4)  # the fault itself: longer than the grace
        link.heal()
        assert workers.step("x") == [("x", rank) for rank in range(RANKS)]
        assert [w.pid for w in workers.workers] == before


def test_strangers(workers: Cluster, link: Link) -> None:
    """What is not an agent of this session gets nothing, and disturbs nobody."""
    idle = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(300)]
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 5000):
        with socket.create_connection(("127.0.0.1", PORT), timeout=30) as stranger:
            said = b""
            with suppress(OSError):  # reset, or gone already
                stranger.sendall(text)
                stranger.shutdown(socket.SHUT_WR)
                while more := stranger.recv(4096):
                    said += more
            assert len(said) < 4096
    assert workers.step("x") == [("x", rank) for rank in range(RANKS)]
    for conn in idle:
        conn.close()


def test_the_head_is_killed_and_the_port_stays(workers: Cluster, link: Link) -> None:
    """The head that comes after is the same for its agents."""
    head = next(s["head_pid"] for s in _sessions())
    os.kill(head, signal.SIGKILL)
    assert workers.step("x") == [("x", rank) for rank in range(RANKS)]
    assert next(s["head_pid"] for s in _sessions()) != head
    with socket.create_connection(("127.0.0.1", PORT)):
        pass
    assert eventually(lambda: states() == {"up"})


def _sessions() -> list[dict[str, Any]]:
    done = subprocess.run([BINARY, "status", "--json"], capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
