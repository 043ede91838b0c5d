"""The course that AReaL's controllers take, on `MusterScheduler`: training with a process group
of dp 2 and tp 2, rollout with tasks and callbacks, both in one script."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from areal_engines import Config
from muster.compat.areal import (
    EngineCallError,
    Job,
    MusterScheduler,
    RTensor,
    SchedulingSpec,
    SchedulingStrategy,
    WorkerFailedError,
)
from running import below, session


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[MusterScheduler]:
    with session("1x8"):
        made = MusterScheduler(log_dir=str(tmp_path / "logs"))
        try:
            yield made
        finally:
            made.delete_workers()


class Train:
    """As AReaL's TrainController: set up, then work on the data-parallel heads."""

    def __init__(self, scheduler: MusterScheduler, config: Config, dp: int, tp: int) -> None:
        self.scheduler, self.config, self.dp, self.tp = scheduler, config, dp, tp

    def initialize(self, role: str, **strategy: Any) -> None:
        spec = SchedulingSpec(cpu=1, gpu=1, env_vars={"AREAL_PLATFORM": "cpu", "AREAL_LATE": "0"})
        how = SchedulingStrategy(**strategy)
        self.role = role
        self.scheduler.create_workers(Job(role, self.dp * self.tp, [spec], how))
        self.workers = self.scheduler.get_workers(role)
        asyncio.run(self._engines())
        asyncio.run(self._each("create_process_group", parallel_strategy={"tp": self.tp}))
        asyncio.run(self._each("initialize", ft_spec=None))
        self.heads = asyncio.run(self._each("is_data_parallel_head"))

    async def _engines(self) -> None:
        first = self.workers[0]

        async def one(rank: int, worker: Any) -> None:
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.workers)),
                "MASTER_ADDR": first.ip,
                "MASTER_PORT": first.worker_ports[1],
                "LOCAL_RANK": "0",
            }
            await self.scheduler.set_worker_env(worker.id, env)
            await self.scheduler.create_engine(
                worker.id, "areal_engines.Trainer", f"{self.role}/{rank}", config=self.config
            )

        await asyncio.gather(*(one(rank, worker) for rank, worker in enumerate(self.workers)))

    async def _each(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        calls = (
            self.scheduler.async_call_engine(
                worker.id, method, f"{self.role}/{rank}", *args, **kwargs
            )
            for rank, worker in enumerate(self.workers)
        )
        return list(await asyncio.gather(*calls))

    def work(self, method: str, rows: list[Any], **kwargs: Any) -> list[Any]:
        """Rows go to the heads, nothing to the others; the heads' results come back in order."""

        async def go() -> list[Any]:
            calls, part = [], 0
            for rank, worker in enumerate(self.workers):
                args: tuple[Any, ...] = ()
                if self.heads[rank]:
                    args, part = (rows[part :: self.dp],), part + 1
                calls.append(
                    self.scheduler.async_call_engine(
                        worker.id, method, f"{self.role}/{rank}", *args, rpc_meta=None, **kwargs
                    )
                )
            return list(await asyncio.gather(*calls))

        results = [r for r, head in zip(asyncio.run(go()), self.heads, strict=True) if head]
        made: list[Any] = [None] * len(rows)
        for part, result in enumerate(results):
            made[part :: self.dp] = result
        return made

    def destroy(self) -> None:
        asyncio.run(self._each("destroy"))
        self.scheduler.delete_workers(self.role, reverse_order=True)


def stored(worker: Any) -> int:
    """How many tensors a worker keeps."""
    url = f"http://{worker.ip}:{worker.worker_ports[0]}/data/clear"
    body = json.dumps({"shard_ids": []}).encode()
    request = urllib.request.Request(url, body, method="DELETE")
    with urllib.request.urlopen(request, timeout=30) as reply:
        return int(json.loads(reply.read())["num_tensors"])


def test_training(scheduler: MusterScheduler, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    train = Train(scheduler, Config(path=str(tmp_path), scale=3), dp=2, tp=2)
    train.initialize("actor")
    assert train.heads == [True, False, True, False]
    rows = [{"ids": torch.arange(n, n + 3, dtype=torch.float32)} for n in range(6)]
    for _ in range(2):
        results = train.work("train_batch", rows)
        expected = sum(float(row["ids"].sum()) for row in rows)
        assert all(isinstance(result["logp"], RTensor) for result in results), "by reference"
        # They go back as references too: the worker that gets them fetches them.
        rows = [
            {"ids": result["logp"] if n % 2 else rows[n]["ids"]} for n, result in enumerate(results)
        ]
        for n, result in enumerate(RTensor.localize(results)):
            assert float(result["total"]) == expected
            if not n % 2:
                assert torch.equal(result["logp"], rows[n]["ids"] * 3)
        rows = RTensor.localize(rows)
    for address, shards in RTensor.collect_shards(results).items():
        asyncio.run(RTensor.clear_node(address, shards))
    kept = [stored(worker) for worker in train.workers]
    each = asyncio.run(train._each("rows", 5))
    assert [each[0]["rank"], each[1], each[2]["rank"], each[3]] == [0, None, 2, None]
    more = [now - before for now, before in zip(map(stored, train.workers), kept, strict=True)]
    assert more == [1, 0, 1, 0], "nobody would let go of what is no head's"
    # A reference model beside it, with a process group of its own.
    ref = Train(scheduler, Config(path=str(tmp_path / "ref"), scale=1), dp=2, tp=2)
    (tmp_path / "ref").mkdir()
    ref.initialize("ref", type="colocation", target="actor", fork=True)
    [first] = ref.work("train_batch", [{"ids": torch.ones(3)}, {"ids": torch.ones(3)}])[:1]
    assert float(first["total"].to_local()) == 6
    train.destroy()
    assert sorted(p.name for p in tmp_path.glob("destroyed-*")) == [
        f"destroyed-{n}" for n in range(4)
    ]
    assert not scheduler._workers, "the fork went with its role"


@pytest.mark.chaos
def test_a_rank_that_dies_in_a_collective(scheduler: MusterScheduler, tmp_path: Path) -> None:
    import signal

    torch = pytest.importorskip("torch")
    train = Train(scheduler, Config(), dp=2, tp=2)
    train.initialize("actor")
    pid = scheduler._workers["actor"][1].pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises((WorkerFailedError, EngineCallError)):  # who is first: it, or its peer
        train.work("train_batch", [{"ids": torch.ones(1)} for _ in range(2)])
    with pytest.raises(WorkerFailedError) as dead:
        scheduler.get_workers("actor")
    assert (dead.value.worker_id, dead.value.exit_code) == ("actor/1", -9)


# --- rollout ------------------------------------------------------------------


@pytest.fixture
def callbacks() -> Iterator[tuple[str, Callable[[float], int]]]:
    """The controller's own server, which workers tell of tasks that are done."""
    done: queue.Queue[int] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            done.put(body["task_id"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lambda timeout: done.get(timeout=timeout)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_rollout(scheduler: MusterScheduler, callbacks: tuple[str, Callable[[float], int]]) -> None:
    address, finished = callbacks
    spec = SchedulingSpec(cpu=1, gpu=2, ray_placement_strategy="separate")

    async def start() -> list[Any]:
        scheduler.create_workers(Job("rollout", 3, [spec] * 3))
        workers = scheduler.get_workers("rollout")
        for rank, worker in enumerate(workers):
            path = "areal_engines.Inference"
            await scheduler.create_engine(worker.id, path, f"rollout/{rank}", config=Config())
        infos = await asyncio.gather(
            *(
                scheduler.async_call_engine(
                    worker.id,
                    "launch_server",
                    f"rollout/{rank}",
                    server_args={"port": worker.worker_ports[1]},
                )
                for rank, worker in enumerate(workers)
            )
        )
        ports = [int(worker.worker_ports[1]) for worker in workers]
        assert [info.port for info in infos] == ports
        for rank, worker in enumerate(workers):
            await scheduler.async_call_engine(
                worker.id, "initialize", f"rollout/{rank}", engine_id=str(rank)
            )
        return workers

    workers = asyncio.run(start())
    for task in range(9):
        worker = workers[task % 3].id
        scheduler.call_engine(
            worker, "submit", worker, {"prompt": task}, task_id=task, callback_addr=address
        )
    results = {}
    for _ in range(9):
        task = finished(30)
        worker = workers[task % 3].id
        wait = scheduler.async_call_engine(worker, "wait_for_task", worker, task, timeout=0.1)
        results[task] = asyncio.run(wait)
    assert results == {n: {"prompt": n, "engine": str(n % 3)} for n in range(9)}
    scheduler.delete_workers("rollout")
    left = [command for _, command in below(os.getpid()).values() if "time.sleep(600)" in command]
    assert not left, "engines ended their servers"
