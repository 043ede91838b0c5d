"""AReaL's guard: what is asked of it, its ports, and the processes that it starts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.compat.areal import _http, guard
from muster.compat.areal._blueprints import data_bp, engine_bp


@pytest.fixture
def state(tmp_path: Path) -> Iterator[guard.GuardState]:
    made = guard.GuardState("actor", 0, "e", "t", fileroot=str(tmp_path), server_host="h")
    yield made
    guard.cleanup_forked_children(made)
    assert not made.forked_children and not made.forked_children_map


@pytest.fixture
def client(state: guard.GuardState) -> guard.Client:
    return guard.create_app(state).test_client()


def python(source: str) -> list[str]:
    return [sys.executable, "-uc", source]


def start(client: guard.Client, index: int, source: str) -> int:
    body = {"role": "fork", "worker_index": index, "raw_cmd": python(source)}
    reply = client.post("/fork", json={**body, "env": {"ADDED": "1"}})
    assert reply.status_code == 200, reply.data
    return int(reply.get_json()["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def says(log: Path, text: str) -> Callable[[], bool]:
    return lambda: log.exists() and text in log.read_text()


def test_ports_are_held_and_given_once(client: guard.Client, state: guard.GuardState) -> None:
    found: set[int] = set()
    for count in (3, 2):
        reply = client.post("/alloc_ports", json={"count": count}).get_json()
        assert reply["host"] == "h" and len(reply["ports"]) == count
        assert not found & set(reply["ports"])
        found |= set(reply["ports"])
    assert state.allocated_ports == found
    for port in found:
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("", port))
    assert not set(guard.find_free_ports(5, exclude_ports=found)) & found


def test_processes_end_with_what_they_started(
    client: guard.Client, state: guard.GuardState, tmp_path: Path
) -> None:
    below = "import os, time; print('on', os.getpid(), flush=True); time.sleep(99)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(99)"
    first = start(client, 0, f"import os; print(os.environ['ADDED'], flush=True); {parent}")
    start(client, 1, deaf)
    folder = Path(str(state.logs()))
    assert tmp_path in folder.parents
    wait_for(says(folder / "merged.log", "[fork] on"))
    wait_for(says(folder / "fork.log", "deaf"))
    assert client.get("/health").get_json()["forked_children"] == 2
    stubborn = state.forked_children_map["fork", 1]
    gone = {"role": "fork", "worker_index": 0}
    reply = client.post("/kill_forked_worker", json=gone)
    assert reply.status_code == 200 and str(first) in reply.get_json()["message"]
    [said] = [line for line in (folder / "fork.log").read_text().split("\n") if "on " in line]
    assert not alive(first)
    wait_for(lambda: not alive(int(said.split()[1])))  # it was killed with the group
    assert client.post("/kill_forked_worker", json=gone).status_code == 404
    again = start(client, 1, "import time; time.sleep(99)")
    assert stubborn.returncode == -signal.SIGKILL, "who had its place is ended first"
    guard.cleanup_forked_children(state)
    assert not alive(again)


def test_one_that_has_ended(client: guard.Client, state: guard.GuardState) -> None:
    start(client, 0, "print('done')")
    state.forked_children_map["fork", 0].wait()
    body = {"role": "fork", "worker_index": 0}
    assert client.post("/kill_forked_worker", json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "match"),
    [
        ("/alloc_ports", {}, "Missing 'count'"),
        ("/alloc_ports", {"count": 0}, "positive"),
        ("/alloc_ports", {"count": True}, "positive"),
        ("/alloc_ports", {"count": "3"}, "whole number"),
        ("/fork", {"worker_index": 0, "raw_cmd": ["x"]}, "Missing 'role'"),
        ("/fork", {"role": "a", "raw_cmd": ["x"]}, "Missing 'worker_index'"),
        ("/fork", {"role": "a", "worker_index": 0}, "Missing 'raw_cmd'"),
        ("/fork", {"role": "a", "worker_index": 0, "raw_cmd": "x"}, "a list"),
        ("/kill_forked_worker", {"role": "a", "worker_index": "0"}, "whole number"),
        ("/set_env", {"env": "A=1"}, "dictionary"),
        ("/create_engine", {"engine": "", "engine_name": "e"}, "Missing 'engine'"),
        ("/call", {"engine_name": "e"}, "Missing 'method'"),
        ("/call", {"engine_name": 3, "method": "m"}, "a text"),
        ("/configure", {"rank": 0}, "Missing 'config'"),
        ("/call", [1], "Invalid JSON"),
    ],
)
def test_what_is_refused(state: guard.GuardState, path: str, body: object, match: str) -> None:
    app = guard.create_app(state)
    app.register_blueprint(engine_bp)
    reply = app.test_client().post(path, json=body)
    assert reply.status_code == 400 and match in reply.get_json()["error"]


def asked(port: int, request: bytes) -> bytes:
    """What a server says until it hangs up, or there is nothing more to answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


@pytest.mark.parametrize("length", ["-5", "many", str(1 << 60), str(1 << 70)])
def test_lengths_that_cannot_be(client: guard.Client, length: str) -> None:
    port = _http.listen(client.app, "127.0.0.1", 0)
    reply = asked(port, f"POST /set_env HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
    assert reply.startswith(b"HTTP/1.1 400 ") and reply.count(b"HTTP/1.1") == 1
    assert b"Invalid JSON" in reply


def test_bodies_in_chunks(client: guard.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come from who does not know the length before; the next request is read as well."""
    monkeypatch.setenv("CHUNKED", "no")
    port = _http.listen(client.app, "127.0.0.1", 0)
    head = b"POST /set_env HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'9;a=b\r\n{"env": {\r\n11\r\n"CHUNKED": "yes"}\r\n1\r\n}\r\n0\r\nLate: 1\r\n\r\n'
    reply = asked(port, head + body + b"GET /health HTTP/1.1\r\n\r\n")
    assert reply.count(b"HTTP/1.1 200 ") == 2 and b"healthy" in reply
    assert os.environ["CHUNKED"] == "yes"
    reply = asked(port, head + b"what\r\n" + b"GET /health HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 400 ") and reply.count(b"HTTP/1.1") == 1


def test_routes(client: guard.Client) -> None:
    assert client.post("/alloc_ports", data="{").status_code == 400
    assert client.post("/set_env", data="[" * 100_000).status_code == 400
    assert client.get("/fork").status_code == 404
    assert client.post("/configure", json={}).get_json() == {"status": "ok"}
    assert client.post("/call", json={}).status_code == 404, "a guard has no engines"
    client.app.register_blueprint(data_bp)
    assert client.open("PUT", "/data/x", data="{").status_code == 400
    assert client.open("DELETE", "/data/x", json={}).status_code == 404
    client.app.register_blueprint({("GET", "/health"): lambda _, data: data["missing"]})
    reply = client.get("/health")
    assert reply.status_code == 500 and "missing" in reply.get_json()["error"]
