"""AReaL's scheduler on Muster: roles, engines, colocation, forks, errors, logs, ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import muster
from areal_engines import Config
from muster.compat.areal import (
    EngineCallError,
    EngineCreationError,
    EngineImportError,
    Job,
    MusterScheduler,
    SchedulerError,
    SchedulingSpec,
    SchedulingStrategy,
    WorkerCreationError,
    WorkerFailedError,
    WorkerNotFoundError,
    WorkerTimeoutError,
)
from muster.compat.areal.scheduler import WorkerInfo
from running import eventually, output_of, run_script, session

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["1x4", "1x4+net"])
def _head(request: pytest.FixtureRequest) -> Iterator[None]:
    with session(request.param):
        yield


@pytest.fixture
def scheduler(_head: None, tmp_path: Path) -> Iterator[MusterScheduler]:
    made = MusterScheduler(log_dir=str(tmp_path), experiment_name="e", trial_name="t")
    try:
        yield made
    finally:
        made.delete_workers()


def role(scheduler: MusterScheduler, name: str = "actor", count: int = 2, **spec: Any) -> list[str]:
    strategy = spec.pop("strategy", None) or SchedulingStrategy()
    tasks = [SchedulingSpec(cpu=1, **spec)]
    ids = scheduler.create_workers(Job(name, count, tasks, strategy))
    scheduler.get_workers(name)
    return ids


def beside(target: str, fork: bool) -> SchedulingStrategy:
    return SchedulingStrategy("colocation", target, fork)


def engine(scheduler: MusterScheduler, worker: str, name: str | None = None, **given: Any) -> None:
    path = given.pop("path", "areal_engines.Plain")
    asyncio.run(scheduler.create_engine(worker, path, name, **given))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_role(scheduler: MusterScheduler) -> None:
    assert role(scheduler, port_count=3) == ["actor/0", "actor/1"]
    workers = scheduler.get_workers("actor")
    assert [worker.id for worker in workers] == ["actor/0", "actor/1"]
    ports = [port for worker in workers for port in worker.worker_ports]
    assert len(set(ports)) == 6, "each has its own"
    for worker in workers:
        url = f"http://{worker.ip}:{worker.worker_ports[0]}/health"
        assert b"healthy" in urllib.request.urlopen(url, timeout=10).read()
        for port in worker.worker_ports[1:]:  # kept for who knows of them
            with socket.socket() as stranger, pytest.raises(OSError):
                stranger.bind(("", int(port)))
            with socket.socket() as owner:
                owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                owner.bind(("", int(port)))
                owner.listen()
    with pytest.raises(WorkerCreationError, match="already exists") as caught:
        scheduler.create_workers(Job("actor", 1))
    assert caught.value.worker_key == "actor"
    with pytest.raises(WorkerNotFoundError):
        scheduler.get_workers("critic")
    scheduler.delete_workers("nobody")
    scheduler.delete_workers("actor")
    with pytest.raises(WorkerNotFoundError):
        scheduler.get_workers("actor")
    assert role(scheduler, count=1) == ["actor/0"], "its name is free again"


def test_roles_whose_names_differ_in_signs_alone(scheduler: MusterScheduler) -> None:
    names = ("a/b", "a_b", "a.b", "-a")
    for name in names:
        assert role(scheduler, name, 1) == [f"{name}/0"]
    pids = {scheduler._workers[name][0].pid for name in names}
    assert len(pids) == len(names)


def test_jobs_that_cannot_be(scheduler: MusterScheduler) -> None:
    with pytest.raises(WorkerCreationError, match="greater than 0"):
        scheduler.create_workers(Job("a", 0))
    with pytest.raises(WorkerCreationError, match=r"\(2\) must be 1 or equal to replicas \(3\)"):
        scheduler.create_workers(Job("a", 3, [SchedulingSpec(), SchedulingSpec()]))
    with pytest.raises(WorkerCreationError, match="requires target"):
        scheduler.create_workers(Job("a", 1, [], SchedulingStrategy("colocation")))
    with pytest.raises(WorkerNotFoundError, match="nobody"):
        scheduler.create_workers(Job("a", 1, [], beside("nobody", True)))
    with pytest.raises(WorkerNotFoundError, match="nobody"):
        scheduler.fork_workers("a", "nobody")
    with pytest.raises(WorkerCreationError, match="--port"):
        scheduler.create_workers(Job("a", 1, [SchedulingSpec(cmd="python x.py --port 1")]))
    role(scheduler)
    with pytest.raises(WorkerCreationError, match="mismatch"):
        scheduler.create_workers(Job("b", 1, [], beside("actor", True)))
    parts = Job("x", 2, [SchedulingSpec(gpu=1), SchedulingSpec(gpu=0.5)])  # type: ignore[arg-type]
    with pytest.raises(WorkerCreationError, match=r"0\.5; it must be a whole number"):
        scheduler.create_workers(parts)
    assert muster.nodes()[0]["free"] == 4, "the first one's is given back"


def test_environment(scheduler: MusterScheduler) -> None:
    role(scheduler, count=1, env_vars={"MINE": "1", "MKL_NUM_THREADS": "7", "LOCAL_RANK": "5"})
    asyncio.run(scheduler.set_worker_env("actor/0", {"RANK": "3", "LATE": "yes"}))
    engine(scheduler, "actor/0")
    names = ("MINE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOCAL_RANK", "RANK", "LATE")
    found = scheduler.call_engine("actor/0", "env", None, *names)
    assert list(found.values()) == ["1", "1", "7", "5", "3", "yes"]


def test_environment_while_an_engine_runs(scheduler: MusterScheduler) -> None:
    role(scheduler, count=1)
    engine(scheduler, "actor/0")

    async def change() -> Any:
        waiting = asyncio.create_task(scheduler.async_call_engine("actor/0", "until", None, "GO"))
        await asyncio.sleep(0)  # it begins
        scheduler.fork_workers("ref", "actor")
        await scheduler.set_worker_env("actor/0", {"GO": "on"})
        return await waiting

    assert asyncio.run(change()) == "on"
    engine(scheduler, "ref/0")
    assert scheduler.call_engine("ref/0", "env", None, "GO") == {"GO": None}


def test_engines(scheduler: MusterScheduler) -> None:
    role(scheduler)
    engine(scheduler, "actor/0", config=Config(scale=2))
    engine(scheduler, "actor/0", "ref/0", path="areal_engines:Other")
    assert scheduler.call_engine("actor/0", "add", None, 1, b=2) == 6
    assert scheduler.call_engine("actor/0", "add", "ref/0", 1) == 2
    assert scheduler.call_engine("actor/0", "waits", timeout=3.5) == 3.5, "a method's own timeout"
    echoed = scheduler.call_engine("actor/0", "echo", None, (1, 2), [3], b"x", key=(4,))
    assert echoed == {
        "args": [[1, 2], [3], b"x"],
        "kwargs": {"key": [4]},
        "types": ["list", "list", "bytes"],
    }, "as JSON would have it"
    assert scheduler.call_engine("actor/0", "server").process is None


def test_a_timeout_is_the_methods(scheduler: MusterScheduler) -> None:
    """And ``http_timeout`` the call's: whether it is called by Muster or by HTTP."""
    role(scheduler, count=1)
    engine(scheduler, "actor/0", timeout=5)
    call = "actor/0", "patience"
    assert scheduler.call_engine(*call) == [60, 5]
    assert scheduler.call_engine(*call, timeout=0.001) == [0.001, 5]
    assert scheduler.call_engine(*call, None, 7, http_timeout=30) == [7, 5]
    awaited = scheduler.async_call_engine(*call, timeout=0.001, http_timeout=30)
    assert asyncio.run(awaited) == [0.001, 5]
    [info] = scheduler._workers["actor"]
    scheduler._workers["far"] = [WorkerInfo(replace(info.worker, id="far/0"), None, "far")]
    far = "far/0", "patience", "actor/0"
    assert scheduler.call_engine(*far, timeout=0.001) == [0.001, 5]
    assert asyncio.run(scheduler.async_call_engine(*far, timeout=0.001)) == [0.001, 5]


def test_errors_of_engines(scheduler: MusterScheduler) -> None:
    role(scheduler, count=1)
    engine(scheduler, "actor/0")
    with pytest.raises(EngineCallError, match="no such row") as failed:
        scheduler.call_engine("actor/0", "fail")
    assert (failed.value.attempt, failed.value.method) == (1, "fail")
    assert "areal_engines.py" in str(failed.value.__cause__), "with the remote traceback"
    assert scheduler.call_engine("actor/0", "count") == 2, "it was not tried again"
    with pytest.raises(EngineCallError, match="does not have method 'walk'") as unknown:
        scheduler.call_engine("actor/0", "walk")
    assert unknown.value.attempt == 1
    with pytest.raises(EngineCreationError, match="already exists") as exists:
        engine(scheduler, "actor/0")
    assert exists.value.status_code == 400
    with pytest.raises(EngineImportError, match="Absent") as absent:
        engine(scheduler, "actor/0", "x", path="areal_engines.Absent")
    assert not isinstance(absent.value, EngineCreationError)
    with pytest.raises(EngineImportError, match="nowhere"):
        engine(scheduler, "actor/0", "x", path="nowhere.at.All")
    with pytest.raises(EngineCreationError, match="no weights at /w") as refused:
        engine(scheduler, "actor/0", "x", config=Config(path="/w", extra={"refuse": True}))
    assert refused.value.status_code == 500
    with pytest.raises(EngineCreationError, match="import path"):
        asyncio.run(scheduler.create_engine("actor/0", Config))  # type: ignore[arg-type]
    for call in (
        lambda: scheduler.call_engine("actor/9", "count"),
        lambda: engine(scheduler, "actor/9"),
        lambda: asyncio.run(scheduler.set_worker_env("actor/9", {"A": "1"})),
    ):
        with pytest.raises(WorkerNotFoundError) as lost:
            call()
        assert lost.value.worker_id == "actor/9"


def test_retries(scheduler: MusterScheduler, caplog: pytest.LogCaptureFixture) -> None:
    """What did not get through is tried again, after twice as long each time."""
    role(scheduler, count=1)
    engine(scheduler, "actor/0")
    with caplog.at_level(logging.WARNING), pytest.raises(EngineCallError) as unknown:
        scheduler.call_engine("actor/0", "count", "ref/0", retry_delay=0.02)
    assert unknown.value.attempt == 3
    assert "'ref/0' not found" in unknown.value.reason
    pauses = [r.getMessage().rpartition("again in ")[2] for r in caplog.records]
    assert len(pauses) == 2
    with pytest.raises(EngineCallError, match="Timeout") as late:
        scheduler.call_engine(
            "actor/0", "slow", None, 0.5, http_timeout=0.1, max_retries=2, retry_delay=0.01
        )
    assert late.value.attempt == 2
    assert scheduler.call_engine("actor/0", "count") == 3, "both attempts ran"


def test_loops(scheduler: MusterScheduler) -> None:
    """Nothing is bound to a loop: each call may have one of its own."""
    role(scheduler)
    for worker in ("actor/0", "actor/1"):
        engine(scheduler, worker)

    async def both() -> list[int]:
        calls = (scheduler.async_call_engine(f"actor/{n}", "add", None, n) for n in (0, 1, 0, 1))
        return list(await asyncio.gather(*calls))

    async def inside() -> int:
        return int(scheduler.call_engine("actor/0", "add", None, 5))

    for _ in range(3):
        assert asyncio.run(both()) == [1, 2, 1, 2]
    assert asyncio.run(inside()) == 6

    async def failing() -> None:
        await scheduler.async_call_engine("actor/0", "fail")

    with pytest.raises(EngineCallError, match="no such row"):
        asyncio.run(failing())


def test_colocation_in_the_same_process(scheduler: MusterScheduler) -> None:
    ids = role(scheduler)
    assert role(scheduler, "ref", strategy=beside("actor", False)) == ids
    assert [w.id for w in scheduler.get_workers("ref")] == ids
    engine(scheduler, "actor/0")
    engine(scheduler, "actor/0", "ref/0")
    first, second = (scheduler.call_engine("actor/0", "pid", n) for n in ("actor/0", "ref/0"))
    assert first == second
    scheduler.delete_workers("ref")
    assert scheduler.call_engine("actor/0", "pid") == first, "they are the other's"


def test_forks(scheduler: MusterScheduler) -> None:
    role(scheduler, gpu=1, env_vars={"MINE": "1"})
    for n in (0, 1):
        env = {"RANK": str(n + 4), "LATE": "yes"}
        asyncio.run(scheduler.set_worker_env(f"actor/{n}", env))
    assert role(scheduler, "ref", strategy=beside("actor", True)) == ["ref/0", "ref/1"]
    names = ("CUDA_VISIBLE_DEVICES", "RANK", "LATE", "MINE")
    for n in (0, 1):
        engine(scheduler, f"actor/{n}")
        engine(scheduler, f"ref/{n}")
        env, mine = (
            scheduler.call_engine(f"{who}/{n}", "env", None, *names) for who in ("actor", "ref")
        )
        assert mine == env == dict(zip(names, (str(n), str(n + 4), "yes", "1"), strict=True))
    first, fork = (scheduler.call_engine(f"{who}/0", "pid") for who in ("actor", "ref"))
    assert first != fork
    scheduler.delete_workers("ref")
    assert not alive(fork), "deleting a forked role ends its processes"
    assert alive(first)
    assert scheduler.fork_workers("ref", "actor") == ["ref/0", "ref/1"]
    engine(scheduler, "ref/0")
    fork = scheduler.call_engine("ref/0", "pid")
    scheduler.delete_workers("actor")
    assert not alive(fork) and not alive(first), "forks go with their role"
    with pytest.raises(WorkerNotFoundError):
        scheduler.get_workers("ref")


@pytest.mark.chaos
def test_deaths(scheduler: MusterScheduler) -> None:
    role(scheduler)
    scheduler.fork_workers("ref", "actor")
    engine(scheduler, "actor/0")
    engine(scheduler, "actor/1")
    engine(scheduler, "ref/0")
    fork = scheduler.call_engine("ref/0", "pid")
    with pytest.raises(WorkerFailedError) as left:
        scheduler.call_engine("actor/1", "die", None, 17)
    assert (left.value.worker_id, left.value.exit_code) == ("actor/1", 17)
    assert "leaving with 17" in left.value.stderr
    assert scheduler.call_engine("actor/0", "count") == 1, "the others go on"
    pid = scheduler.call_engine("actor/0", "pid")
    scheduler.call_engine("actor/0", "say", None, "so far so good")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerFailedError) as killed:
        scheduler.call_engine("actor/0", "slow", None, 60)
    assert killed.value.exit_code == -signal.SIGKILL
    assert "so far so good" in killed.value.stderr
    assert eventually(lambda: not alive(fork)), "a fork ends with its target"
    for call in (
        lambda: scheduler.get_workers("actor"),
        lambda: engine(scheduler, "actor/0", "x"),
        lambda: asyncio.run(scheduler.set_worker_env("actor/0", {"A": "1"})),
        lambda: scheduler.fork_workers("late", "actor"),
    ):
        with pytest.raises(WorkerFailedError) as later:
            call()
        assert later.value.exit_code == -signal.SIGKILL
    scheduler.delete_workers("actor")
    assert role(scheduler) == ["actor/0", "actor/1"]


@pytest.mark.chaos
def test_death_of_a_fork(scheduler: MusterScheduler) -> None:
    role(scheduler)
    scheduler.fork_workers("ref", "actor")
    engine(scheduler, "ref/0")
    os.kill(scheduler.call_engine("ref/0", "pid"), signal.SIGKILL)
    with pytest.raises(WorkerFailedError) as killed:
        scheduler.call_engine("ref/0", "slow", None, 60)
    assert killed.value.exit_code == -signal.SIGKILL
    engine(scheduler, "actor/0")
    assert scheduler.call_engine("actor/0", "count") == 1


@pytest.mark.parametrize("how", ["delete", "SIGTERM"])
def test_engines_are_destroyed(scheduler: MusterScheduler, tmp_path: Path, how: str) -> None:
    role(scheduler, count=1)
    note = tmp_path / "destroyed"
    for name in ("actor/0", "ref/0"):
        engine(scheduler, "actor/0", name, config=Config(path=str(note)), label=name)
    pid = scheduler.call_engine("actor/0", "pid")
    if how == "delete":
        scheduler.delete_workers("actor", reverse_order=True)
        assert not alive(pid)
    else:
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: not alive(pid))
    assert sorted(note.read_text().splitlines()) == [f"{pid} actor/0", f"{pid} ref/0"]


def test_logs(scheduler: MusterScheduler, tmp_path: Path) -> None:
    role(scheduler)
    role(scheduler, "ref", strategy=beside("actor", True))
    for worker in ("actor/0", "actor/1", "ref/0"):
        engine(scheduler, worker)
        scheduler.call_engine(worker, "say", None, f"hello from {worker}")
    scheduler.delete_workers()
    actor, ref, merged = (
        (tmp_path / f"{name}.log").read_text().splitlines() for name in ("actor", "ref", "merged")
    )
    assert {"hello from actor/0", "hello from actor/1"} <= set(actor)
    assert "hello from ref/0" in ref and "hello from ref/0" not in actor
    assert "[actor] hello from actor/1" in merged and "[ref] hello from ref/0" in merged
    assert "destroyed" in ref, "to the last line"


def test_platforms_are_found_in_the_worker(scheduler: MusterScheduler) -> None:
    import pickle

    from areal_platform import current_platform

    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(current_platform)
    role(scheduler, count=1, env_vars={"AREAL_PLATFORM": "npu"})
    asyncio.run(scheduler.set_worker_env("actor/0", {"AREAL_LATE": "3"}))
    engine(scheduler, "actor/0", config=Config())
    assert scheduler.call_engine("actor/0", "device") == "npu:3"
    assert "AREAL_PLATFORM" not in os.environ


# --- commands -----------------------------------------------------------------


def command(*more: str) -> str:
    return " ".join(["python", str(HERE / "areal_server.py"), *more])


def test_a_command(scheduler: MusterScheduler) -> None:
    role(scheduler, "server", cmd=command("--delay", "0.2"))
    asyncio.run(scheduler.set_worker_env("server/1", {"AREAL_LATE": "1"}))
    engine(scheduler, "server/1", "e")
    who, pid, late, sent = scheduler.call_engine("server/1", "who", "e", 5)
    assert (who, late, sent) == ("server/1", "1", 5)
    assert scheduler.call_engine("server/0", "busy", retry_delay=0.01)[0] == "server/0"
    with pytest.raises(EngineCallError, match="it failed") as failed:
        scheduler.call_engine("server/0", "fail")
    assert failed.value.attempt == 1
    with pytest.raises(WorkerFailedError) as died:
        scheduler.call_engine("server/1", "die", None, 9, retry_delay=0.05)
    assert died.value.exit_code == 9
    assert not alive(pid)
    _, other, *_ = scheduler.call_engine("server/0", "who")
    scheduler.delete_workers("server")
    assert not alive(other)


def test_a_command_that_does_not_serve(scheduler: MusterScheduler) -> None:
    spec = SchedulingSpec(cpu=1, cmd=command("--leave", "3"))
    with pytest.raises((WorkerFailedError, WorkerCreationError)) as caught:
        scheduler.create_workers(Job("server", 1, [spec]))
        scheduler.get_workers("server")
    if isinstance(caught.value, WorkerFailedError):
        assert caught.value.exit_code == 3
        assert "cannot go on" in caught.value.stderr
    assert "exit code 3" in str(caught.value) and "cannot go on" in str(caught.value)
    scheduler.delete_workers("server")
    slow = SchedulingSpec(cpu=1, cmd=command("--delay", "60"))
    scheduler.create_workers(Job("slow", 1, [slow]))
    with pytest.raises(WorkerTimeoutError) as late:
        scheduler.get_workers("slow", timeout=0.3)
    assert (late.value.worker_key, late.value.timeout) == ("slow", 0.3)


def test_forks_of_a_command(scheduler: MusterScheduler) -> None:
    role(scheduler, "rollout", env_vars={"MINE": "1"})
    asyncio.run(scheduler.set_worker_env("rollout/0", {"AREAL_LATE": "here"}))
    assert scheduler.fork_workers("proxy", "rollout", command="areal_server") == [
        "proxy/0",
        "proxy/1",
    ]
    scheduler.get_workers("proxy")
    who, pid, late = scheduler.call_engine("proxy/0", "who")
    assert (who, late) == ("proxy/0", "here")
    scheduler.delete_workers("rollout")
    assert not alive(pid)


def test_a_worker_that_cannot_start(tmp_path: Path) -> None:
    """All of a role's workers, or none: here the second gets no ports."""
    source = """
import resource
import muster
from muster.compat.areal import *
from muster.compat.areal import MusterScheduler

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    muster.init(virtual="1x2")
    scheduler = MusterScheduler(log_dir=".")
    specs = [SchedulingSpec(cpu=1), SchedulingSpec(cpu=1, port_count=400)]
    try:
        scheduler.create_workers(Job("actor", 2, specs))
    except WorkerCreationError as error:
        assert "Resource allocation failed for worker 1" in str(error), error
        assert "cannot hold 399 ports" in str(error), error
        assert isinstance(error.__cause__, PortAllocationError)
    else:
        raise AssertionError("nothing was raised")
    assert not scheduler._workers and not scheduler._allocated_ports
    print(scheduler.create_workers(Job("actor", 2)), len(scheduler._allocated_ports))
"""
    path = os.environ.get("PYTHONPATH", "")
    finished = run_script(tmp_path, source, PYTHONPATH=path)
    assert output_of(finished).splitlines()[-1] == "['actor/0', 'actor/1'] 4"


# --- pools --------------------------------------------------------------------


def devices(scheduler: MusterScheduler, worker: str) -> str | None:
    engine(scheduler, worker)
    found = scheduler.call_engine(worker, "env", None, "CUDA_VISIBLE_DEVICES")
    return str(found["CUDA_VISIBLE_DEVICES"])


def test_pools(scheduler: MusterScheduler) -> None:
    assert scheduler.n_gpus_per_node == 4
    role(scheduler, "train", gpu=1)
    role(scheduler, "rollout", gpu=1, ray_placement_strategy="separate")
    taken = [devices(scheduler, f"{who}/{n}") for who in ("train", "rollout") for n in (0, 1)]
    assert sorted(map(str, taken)) == ["0", "1", "2", "3"], "nobody shares who did not ask to"
    with pytest.raises(WorkerCreationError, match="Resource allocation failed for worker 0"):
        scheduler.create_workers(Job("more", 1, [SchedulingSpec(gpu=1)]))
    scheduler.delete_workers("rollout")
    role(scheduler, "late", count=1, gpu=2, ray_placement_strategy="deferred")
    assert devices(scheduler, "late/0") == "", "the pool has the GPUs, the worker none"
    with pytest.raises(WorkerCreationError):
        scheduler.create_workers(Job("more", 1, [SchedulingSpec(gpu=1)]))


def test_chosen_devices(_head: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = MusterScheduler([1, 3], str(tmp_path))
    try:
        assert scheduler.gpu_devices == [1, 3]
        role(scheduler, gpu=1)
        assert [devices(scheduler, f"actor/{n}") for n in (0, 1)] == ["1", "3"]
        assert not caplog.records
        role(scheduler, "ref", gpu=1, count=3)
        shared = [devices(scheduler, f"ref/{n}") for n in range(3)]
        assert shared == ["1", "3", "1"], "in turn, and again when all have been given"
        [first, second] = [record.getMessage() for record in caplog.records]
        assert "'ref' gets GPUs [1, 3], which role 'actor' has already" in first
        assert "'ref' gets GPUs [1], which role 'ref' has already" in second
        role(scheduler, "wide", gpu=2, count=1)
        assert devices(scheduler, "wide/0") == "1,3"
        with pytest.raises(WorkerCreationError, match="failed for worker 0") as caught:
            scheduler.create_workers(Job("more", 1, [SchedulingSpec(gpu=3)]))
        assert "Requested 3 GPUs but only 2 available" in str(caught.value)
    finally:
        scheduler.delete_workers()
    one = MusterScheduler([3], str(tmp_path))
    other = MusterScheduler([1, 2], str(tmp_path))  # beside each other
    try:
        role(one, "a", gpu=1, count=1)
        role(other, "b", gpu=1)
        found = devices(one, "a/0"), devices(other, "b/0"), devices(other, "b/1")
        assert found == ("3", "1", "2"), "the ones that were named"
    finally:
        one.delete_workers()
        other.delete_workers()
    again = MusterScheduler([1, 3], str(tmp_path))  # its devices were given back
    try:
        role(again, gpu=1, count=1)
    finally:
        again.delete_workers()


def test_two_schedulers_of_one_script(scheduler: MusterScheduler, tmp_path: Path) -> None:
    other = MusterScheduler(log_dir=str(tmp_path / "other"))
    try:
        role(scheduler)
        role(other)
        engine(scheduler, "actor/0")
        with pytest.raises(EngineCallError):
            other.call_engine("actor/0", "count", retry_delay=0.01)
    finally:
        other.delete_workers()


def test_configuration(_head: None, tmp_path: Path) -> None:
    class Resolve:
        type, nfs_record_root, etcd3_addr = "nfs", str(tmp_path), "localhost:2379"

    class ClusterPart:
        fileroot, name_resolve, n_gpus_per_node = str(tmp_path), Resolve, 4

    class Experiment:
        experiment_name, trial_name, cluster, seed = "exp", "trial", ClusterPart, 7

    scheduler = MusterScheduler(exp_config=Experiment)
    try:
        assert scheduler.log_dir.parts[-2:] == ("exp", "trial")
        assert tmp_path in scheduler.log_dir.parents
        role(scheduler)
    finally:
        scheduler.delete_workers()
    with pytest.raises(ValueError, match="log_dir"):
        MusterScheduler(experiment_name="e")
    assert issubclass(WorkerCreationError, SchedulerError)
