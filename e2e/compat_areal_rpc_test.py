"""AReaL's worker protocol over HTTP: by a server of its own, and by a scheduler's workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_engines import Config
from muster.compat.areal import (
    EngineCallError,
    EngineCreationError,
    EngineImportError,
    Job,
    MusterScheduler,
    RPCConnectionError,
    SchedulingStrategy,
    Worker,
    WorkerFailedError,
)
from muster.compat.areal.scheduler import WorkerInfo
from running import eventually, session

HERE = Path(__file__).parent


class Peer:
    """Who speaks HTTP to a worker."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid = address, pid

    def ask(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            data.encode() if isinstance(data, str) else data,
            {"Content-Type": "application/json"},
            method=verb,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return self.ask("POST", path, body)

    def call(self, method: str, *args: Any, engine: str = "e/0", **kwargs: Any) -> Any:
        status, reply = self.post(
            "/call", method=method, engine_name=engine, args=args, kwargs=kwargs
        )
        assert status == 200, reply
        return reply["result"]


def free_port() -> int:
    """One for a server to come: none that the kernel gives to others meanwhile."""
    most = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(20000, most)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def server(tmp_path: Path, port: int) -> list[str]:
    words = ["--host", "127.0.0.1", "--port", str(port), "--experiment-name", "e"]
    words += ["--trial-name", "t", "--role", "actor", "--worker-index", "3"]
    words += ["--name-resolve-type", "nfs", "--fileroot", str(tmp_path)]
    words += ["--werkzeug-log-level", "INFO"]  # which AReaL's takes, and ours lets be
    return [sys.executable, "-m", "muster.compat.areal.rpc_server", *words]


def start(tmp_path: Path, port: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "BORN": "1"}
    return subprocess.Popen(server(tmp_path, port), env=env)


def healthy(peer: Peer) -> bool:
    try:
        return peer.ask("GET", "/health")[0] == 200
    except OSError:
        return False


@pytest.fixture(params=["server", "worker"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    """A server that was started by hand, and the worker of a role."""
    if request.param == "server":
        port = free_port()
        process = start(tmp_path, port)
        made = Peer(f"127.0.0.1:{port}", process.pid)
        try:
            assert eventually(lambda: healthy(made), seconds=30)
            yield made
        finally:
            process.terminate()
            assert process.wait(20) == 0
        return
    with session("1x2"):
        scheduler = MusterScheduler(log_dir=str(tmp_path), fileroot=str(tmp_path))
        try:
            scheduler.create_workers(Job("actor", 1))
            [worker] = scheduler.get_workers("actor")
            yield Peer(f"{worker.ip}:{worker.worker_ports[0]}", 0)
        finally:
            scheduler.delete_workers()


def test_engines(peer: Peer) -> None:
    status, reply = peer.ask("GET", "/health")
    assert status == 200 and reply["status"] == "healthy" and reply["engines"] == []
    assert peer.post("/set_env", env={"LATE": 5}) == (200, {"status": "success"})
    config = {"type": "dataclass", "class_path": "areal_engines.Config", "data": {"scale": 3}}
    made = peer.post(
        "/create_engine",
        engine="areal_engines.Plain",
        engine_name="e/0",
        init_args=[],
        init_kwargs={"config": config},
    )
    assert made[0] == 200 and made[1]["engine_name"] == "e/0" and made[1]["result"] is None
    assert peer.ask("GET", "/health")[1]["engines"] == ["e/0"]
    assert peer.call("add", 1, b=1) == 6
    assert peer.call("env", "LATE") == {"LATE": "5"}
    assert peer.call("echo", b=[1])["kwargs"] == {"b": [1]}


def test_refusals(peer: Peer) -> None:
    def refused(status: int, path: str, match: str, **body: Any) -> None:
        got, reply = peer.post(path, **body)
        assert got == status and match in reply["error"], (path, got, reply)

    plain = {"engine": "areal_engines.Plain", "engine_name": "e/0"}
    status, made = peer.post("/create_engine", **plain)
    assert status == 200 and made["message"].endswith("created and initialized")
    assert made["engine_name"] in made["message"] and made["result"] is None
    refused(400, "/create_engine", "already exists", **plain)
    refused(400, "/create_engine", "'engine'", engine_name="x")
    refused(400, "/create_engine", "'engine'", engine="", engine_name="x")
    refused(400, "/create_engine", "'engine_name'", engine="areal_engines.Plain")
    refused(400, "/create_engine", "Failed to import", engine="no.such.Engine", engine_name="x")
    bad = {"init_kwargs": {"nonsense": 1}, "init_args": [1, 2, 3]}
    refused(500, "/create_engine", "instantiate", **{**plain, "engine_name": "x"}, **bad)
    refused(400, "/call", "'method'", engine_name="e/0")
    refused(400, "/call", "'engine_name'", method="add")
    refused(404, "/call", "'x' not found", method="add", engine_name="x")
    refused(400, "/call", "does not have method 'walk'", method="walk", engine_name="e/0")
    refused(500, "/call", "no such row", method="fail", engine_name="e/0")
    refused(400, "/set_env", "dictionary", env="A=1")
    refused(400, "/set_env", "'env'")
    refused(400, "/configure", "'config'", rank=0)
    refused(400, "/configure", "'rank'", config={"seed": 1})
    refused(400, "/alloc_ports", "'count'")
    refused(400, "/alloc_ports", "positive", count=0)
    refused(400, "/fork", "'role'", worker_index=0)
    refused(400, "/fork", "'worker_index'", role="ref")
    refused(400, "/fork", "'raw_cmd'", role="ref", worker_index=0)
    refused(404, "/kill_forked_worker", "not found", role="ref", worker_index=0)
    assert peer.ask("POST", "/call", b"not json")[0] == 400
    assert peer.ask("POST", "/nowhere", {})[0] == 404
    status, reply = peer.post("/configure", config={"seed": 1}, rank=0, role="actor")
    assert (status, reply["status"]) == (200, "success")


def test_calls_wait_for_each_other(peer: Peer) -> None:
    """One thread runs engines; health and data do not wait for it."""
    peer.post("/create_engine", engine="areal_engines.Plain", engine_name="e/0")
    found: list[Any] = []
    calls = [
        threading.Thread(target=lambda: found.append(peer.call("slow", 0.3))) for _ in range(3)
    ]
    for call in calls:
        call.start()
    assert healthy(peer)
    for call in calls:
        call.join()
    assert sorted(found) == [1, 2, 3]


def test_ports(peer: Peer) -> None:
    status, reply = peer.post("/alloc_ports", count=3)
    assert status == 200 and len(set(reply["ports"])) == 3 and reply["host"] == "127.0.0.1"
    for port in reply["ports"]:
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("", port))


def test_forks(peer: Peer, tmp_path: Path) -> None:
    peer.post("/set_env", env={"LATE": "yes"})
    [port] = peer.post("/alloc_ports", count=1)[1]["ports"]
    status, fork = peer.post("/fork", role="ref", worker_index=0, raw_cmd=server(tmp_path, port))
    assert status == 200, fork
    other = Peer(f"{fork['host']}:{port}", fork["pid"])
    assert eventually(lambda: healthy(other), seconds=30)
    assert peer.ask("GET", "/health")[1]["forked_children"] == 1
    assert other.post("/create_engine", engine="areal_engines.Plain", engine_name="e/0")[0] == 200
    assert other.call("env", "LATE") == {"LATE": "yes"}
    assert other.call("pid") == fork["pid"]
    status, reply = peer.post("/kill_forked_worker", role="ref", worker_index=0)
    assert (status, reply["status"]) == (200, "success")
    assert not os.path.exists(f"/proc/{fork['pid']}")
    [log] = tmp_path.rglob("ref.log")
    assert "destroyed" in log.read_text(), "SIGTERM ended it in order"
    assert "[ref] destroyed" in (log.parent / "merged.log").read_text()
    raw = [sys.executable, "-c", "import os, time; print(os.environ['A']); time.sleep(600)"]
    status, fork = peer.post("/fork", role="raw", worker_index=1, raw_cmd=raw, env={"A": "b"})
    assert status == 200 and fork["status"] == "success"
    assert eventually(lambda: any("b" in p.read_text() for p in tmp_path.rglob("raw.log")))


def test_data(peer: Peer) -> None:
    torch = pytest.importorskip("torch")
    from muster.compat.areal import RTensor
    from muster.compat.areal.stand_in.serialization import deserialize_value, serialize_value

    wide = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    assert peer.ask("PUT", "/data/a", serialize_value(wide))[0] == 200
    assert peer.ask("PUT", "/data/b", serialize_value(wide[:1]))[0] == 200
    status, reply = peer.ask("GET", "/data/a")
    assert status == 200 and torch.equal(deserialize_value(reply), wide)
    status, reply = peer.post("/data/batch", shard_ids=["a", "b"])
    assert [tuple(t.shape) for t in deserialize_value(reply)] == [(3, 4), (1, 4)]
    status, reply = peer.post("/data/batch", shard_ids=["a", "z"])
    assert (status, reply["status"], reply["missing_shard_ids"]) == (400, "error", ["z"])
    assert peer.post("/data/batch", shard_ids="a")[0] == 400
    status, reply = peer.ask("DELETE", "/data/clear", {"shard_ids": ["a", "z"]})
    assert (reply["status"], reply["cleared_count"], reply["num_tensors"]) == ("ok", 1, 1)
    assert peer.ask("GET", "/data/a")[0] == 404
    peer.post("/create_engine", engine="areal_engines.Plain", engine_name="e/0")
    result = deserialize_value(peer.call("echo", serialize_value(wide)))
    [kept] = result["args"]
    assert isinstance(kept, RTensor) and kept.shape == wide.shape and kept.data.is_meta
    assert torch.equal(kept.to_local(), wide)
    again = deserialize_value(peer.call("echo", serialize_value(kept)))
    assert torch.equal(RTensor.localize(again)["args"][0], wide)
    for address, shards in RTensor.collect_shards([kept, again]).items():
        asyncio.run(RTensor.clear_node(address, shards))
    with pytest.raises(RuntimeError, match="Failed to fetch shard"):
        RTensor(kept.shard, wide.to("meta")).to_local()


@pytest.mark.chaos
def test_forks_of_a_worker_that_is_killed(tmp_path: Path) -> None:
    with session("1x2"):
        scheduler = MusterScheduler(log_dir=str(tmp_path))
        scheduler.create_workers(Job("actor", 1))
        [worker] = scheduler.get_workers("actor")
        pid = scheduler._workers["actor"][0].pid
        peer = Peer(f"{worker.ip}:{worker.worker_ports[0]}", pid)
        raw = [sys.executable, "-c", "import time; time.sleep(600)"]
        fork = peer.post("/fork", role="raw", worker_index=0, raw_cmd=raw)[1]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not os.path.exists(f"/proc/{fork}"))
        with pytest.raises(WorkerFailedError) as dead:
            scheduler.get_workers("actor")
        assert dead.value.exit_code == -signal.SIGKILL
        scheduler.delete_workers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_of_a_server(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    process = start(tmp_path, port)
    peer = Peer(f"127.0.0.1:{port}", process.pid)
    try:
        assert eventually(lambda: healthy(peer), seconds=30)
        note = tmp_path / "destroyed"
        config = {"type": "dataclass", "class_path": "areal_engines.Config"}
        config |= {"data": {"path": str(note)}}  # type: ignore[dict-item]
        peer.post(
            "/create_engine",
            engine="areal_engines.Plain",
            engine_name="e/0",
            init_kwargs={"config": config},
        )
        raw = [sys.executable, "-c", "import time; time.sleep(600)"]
        fork = peer.post("/fork", role="raw", worker_index=0, raw_cmd=raw)[1]["pid"]
        process.send_signal(number)
        assert process.wait(20) == 0
        assert note.read_text().split() == [str(process.pid)]
        assert not os.path.exists(f"/proc/{fork}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_server_that_an_engine_ends(tmp_path: Path) -> None:
    """Its exit code is the engine's; another one cannot have its port meanwhile, and says so."""
    port = free_port()
    process = start(tmp_path, port)
    peer = Peer(f"127.0.0.1:{port}", process.pid)
    try:
        assert eventually(lambda: healthy(peer), seconds=30)
        second = subprocess.run(server(tmp_path, port), capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1, port {port}: " in second.stderr
        assert "Traceback" not in second.stderr
        peer.post("/create_engine", engine="areal_engines.Plain", engine_name="e/0")
        with pytest.raises(OSError):
            peer.call("leave", 7)
        assert process.wait(20) == 7
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def adopted(tmp_path: Path) -> Iterator[tuple[MusterScheduler, subprocess.Popen[bytes]]]:
    """A scheduler among whose workers is a server that was started by hand."""
    port = free_port()
    process = start(tmp_path, port)
    scheduler = MusterScheduler(
        log_dir=str(tmp_path), experiment_name="e", trial_name="t", health_check_interval=0.1
    )
    worker = Worker("actor/0", "127.0.0.1", [str(port)])
    log = tmp_path / "actor.log"
    log.write_text("its last line\n")
    scheduler._workers["actor"] = [WorkerInfo(worker, process, "actor", [3], 0.0, str(log))]
    try:
        yield scheduler, process
    finally:
        scheduler.delete_workers()
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_server_among_a_schedulers_workers(
    adopted: tuple[MusterScheduler, subprocess.Popen[bytes]],
) -> None:
    scheduler, process = adopted
    assert [worker.id for worker in scheduler.get_workers("actor", timeout=60)] == ["actor/0"]

    def make(path: str, **given: Any) -> Any:
        return asyncio.run(scheduler.create_engine("actor/0", path, **given))

    asyncio.run(scheduler.set_worker_env("actor/0", {"LATE": "1"}))
    assert make("areal_engines.Plain") is None
    with pytest.raises(EngineImportError):
        make("nowhere.at.All", engine_name="x")
    with pytest.raises(EngineCreationError) as refused:
        make("areal_engines.Plain", engine_name="x", config=Config(extra={"refuse": True}))
    assert refused.value.status_code == 500
    assert scheduler.call_engine("actor/0", "pid") == process.pid
    awaited = scheduler.async_call_engine("actor/0", "env", None, "LATE")
    assert asyncio.run(awaited) == {"LATE": "1"}
    with pytest.raises(EngineCallError, match="no such row") as failed:
        scheduler.call_engine("actor/0", "fail")
    assert failed.value.attempt == 1
    with pytest.raises(EngineCallError, match="Timeout") as late:
        scheduler.call_engine("actor/0", "slow", None, 0.5, http_timeout=0.1, max_retries=1)
    assert late.value.attempt == 1
    beside = SchedulingStrategy("colocation", "actor", fork=True)
    assert scheduler.create_workers(Job("ref", 1, [], beside)) == ["ref/0"]
    [fork] = scheduler._workers["ref"]
    assert (fork.process, fork.gpu_devices, fork.worker.ip) == (None, [3], "127.0.0.1")
    asyncio.run(scheduler.create_engine("ref/0", "areal_engines.Plain"))
    assert scheduler.call_engine("ref/0", "env", None, "LATE") == {"LATE": "1"}
    pid = scheduler.call_engine("ref/0", "pid")
    assert pid != process.pid
    scheduler.delete_workers("ref")
    assert not os.path.exists(f"/proc/{pid}")
    assert scheduler.call_engine("actor/0", "pid") == process.pid
    scheduler.delete_workers("actor")
    assert process.returncode == 0, "SIGTERM ended it in order"


@pytest.mark.chaos
def test_a_server_that_dies(adopted: tuple[MusterScheduler, subprocess.Popen[bytes]]) -> None:
    scheduler, process = adopted
    scheduler.get_workers("actor", timeout=60)
    process.kill()
    process.wait()
    for call in (
        lambda: scheduler.get_workers("actor"),
        lambda: scheduler.call_engine("actor/0", "count"),
        lambda: asyncio.run(scheduler.async_call_engine("actor/0", "count")),
        lambda: asyncio.run(scheduler.create_engine("actor/0", "areal_engines.Plain")),
        lambda: asyncio.run(scheduler.set_worker_env("actor/0", {"A": "1"})),
        lambda: scheduler.fork_workers("late", "actor"),
    ):
        with pytest.raises(WorkerFailedError) as dead:
            call()
        assert dead.value.exit_code == -signal.SIGKILL
        assert dead.value.stderr == "its last line\n"
    [info] = scheduler._workers["actor"]
    info.process = None  # nobody knows that it has ended
    with pytest.raises(RPCConnectionError):
        asyncio.run(scheduler.create_engine("actor/0", "areal_engines.Plain"))
    with pytest.raises(EngineCallError, match="Connection error") as lost:
        scheduler.call_engine("actor/0", "count", retry_delay=0.01)
    assert lost.value.attempt == 3
