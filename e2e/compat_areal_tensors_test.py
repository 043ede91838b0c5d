"""Tensors that engines return on `MusterScheduler`: by Muster for who is part of it, by HTTP for
all others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.compat.areal import Job, MusterScheduler, RTensor, SchedulingSpec, WorkerFailedError
from muster.compat.areal.stand_in import rtensor
from muster.compat.areal.stand_in.serialization import deserialize_value, serialize_value
from running import eventually, session
from stages import objects

torch: Any = pytest.importorskip("torch")


@pytest.fixture(params=["1x2", "2x1+net"])
def scheduler(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MusterScheduler]:
    monkeypatch.setattr(rtensor, "_backend", None)
    with session(request.param):
        made = MusterScheduler(log_dir=str(tmp_path))
        made.create_workers(Job("actor", 2, [SchedulingSpec(cpu=1, gpu=1)]))
        for index in (0, 1):
            asyncio.run(made.create_engine(f"actor/{index}", "areal_engines.Plain"))
        try:
            yield made
        finally:
            made.delete_workers()


def echoed(scheduler: MusterScheduler, index: int, *args: Any) -> list[Any]:
    found: list[Any] = scheduler.call_engine(f"actor/{index}", "echo", None, *args)["args"]
    return found


def stored(home: str) -> int:
    """How many tensors a worker keeps."""
    return int(asked(home, "DELETE", "/data/clear", [])["num_tensors"])


def asked(home: str, verb: str, path: str, shards: list[str]) -> Any:
    body = json.dumps({"shard_ids": shards}).encode()
    request = urllib.request.Request(f"http://{home}{path}", body, method=verb)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return deserialize_value(json.loads(reply.read()))


def test_tensors_go_by_muster(scheduler: MusterScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("by HTTP")

    monkeypatch.setattr(rtensor, "_fetch_far", refuse)
    large = torch.arange(1 << 20, dtype=torch.float32)
    given = [large, large[5:8], torch.ones(2, 3, dtype=torch.bfloat16).t(), torch.zeros(0)]
    kept = echoed(scheduler, 0, *given)
    assert all(isinstance(one, RTensor) and one.data.is_meta for one in kept)
    # On to another engine, of which the results are others' again.
    again = echoed(scheduler, 1, *kept)
    for results in (kept, again):
        for before, after in zip(given, RTensor.localize(results), strict=True):
            assert after.dtype is before.dtype and torch.equal(after, before)
    fetched = kept[0].data
    fetched += 1  # privately
    assert torch.equal(echoed(scheduler, 1, fetched)[0].to_local(), large + 1)
    assert torch.equal(again[0].to_local(), large)
    shards = RTensor.collect_shards(kept)
    for address, ids in shards.items():
        asyncio.run(RTensor.clear_node(address, ids))
    homes = [f"{w.ip}:{w.worker_ports[0]}" for w in scheduler.get_workers("actor")]
    assert [stored(home) for home in homes] == [0, 5]
    scheduler.delete_workers("actor")
    last = RTensor(again[0].shard, large.to("meta"))
    assert torch.equal(last.to_local(), large), "who has it has it, though its role is gone"
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="Failed to fetch shard"):
        RTensor(kept[0].shard, large.to("meta")).to_local()
    muster.shutdown()
    own = RTensor.remotize(large, "here:1")
    assert rtensor.remove(own.shard.shard_id) == 1, "without a session as AReaL has it"


def test_tensors_for_those_who_speak_http(scheduler: MusterScheduler) -> None:
    large = torch.arange(1 << 17, dtype=torch.float32)
    kept = echoed(scheduler, 0, large, large[:2])
    [(home, ids)] = RTensor.collect_shards(kept).items()
    by_http = rtensor.HttpRTensorBackend()
    for before, after in zip(
        (large, large[:2]), by_http.fetch([k.shard for k in kept]), strict=True
    ):
        assert torch.equal(after, before)

    assert torch.equal(asked(home, "POST", "/data/batch", ids)[0], large)
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(home, "POST", "/data/batch", [ids[0], "none"])
    assert json.loads(refused.value.read())["missing_shard_ids"] == ["none"]
    asyncio.run(by_http.delete(home, ids[:1]))
    cleared = asked(home, "DELETE", "/data/clear", ids)
    assert (cleared["cleared_count"], cleared["num_tensors"]) == (1, 0)
    with pytest.raises(RuntimeError, match="404"):
        by_http.fetch([kept[0].shard])


def test_who_made_them_may_die(scheduler: MusterScheduler) -> None:
    rows = torch.arange(1 << 17)
    kept, more = echoed(scheduler, 0, rows, rows[:3])
    os.kill(scheduler.call_engine("actor/0", "pid"), signal.SIGKILL)
    with pytest.raises(WorkerFailedError):
        scheduler.call_engine("actor/0", "slow", None, 60)
    assert torch.equal(kept.to_local(), rows), "it is who has it that counts"
    assert torch.equal(echoed(scheduler, 1, more)[0].to_local(), rows[:3])
    assert muster.list_services() == []


def test_they_go_with_the_last_who_has_them(scheduler: MusterScheduler) -> None:
    """One object for a tensor, however often a reference to it is passed on."""
    kept = echoed(scheduler, 0, torch.zeros(1 << 20))
    [(home, ids)] = RTensor.collect_shards(kept).items()
    [made] = [one["object"] for one in objects() if one["state"] != "copy"]
    for index in (1, 0, 1):
        scheduler.call_engine(f"actor/{index}", "many", None, kept)
    assert {one["object"] for one in objects() if one["state"] != "copy"} == {made}
    assert stored(home) == 1
    asyncio.run(RTensor.clear_node(home, ids))
    assert stored(home) == 0
    del kept, ids
    assert eventually(
        lambda: scheduler.call_engine("actor/0", "many", None, []) == 0 and not objects()
    )


def test_a_shard_that_a_client_names(scheduler: MusterScheduler) -> None:
    worker = scheduler.get_workers("actor")[0]
    home, name = f"{worker.ip}:{worker.worker_ports[0]}", "of-a-client"
    body = json.dumps(serialize_value(torch.ones(3))).encode()
    request = urllib.request.Request(f"http://{home}/data/{name}", body, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()
    by_http = rtensor.HttpRTensorBackend()
    [found] = by_http.fetch([rtensor.TensorShardInfo(name, home)])
    assert torch.equal(found, torch.ones(3)) and muster.list_services() == []
