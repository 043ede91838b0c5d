"""Services and engines when the head is killed: the next one knows them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import muster
import parts
from muster import Cluster, WorkerConfig
from muster.compat import ray
from restart_test import head, kill_head, replace_head
from roles import Probe
from running import BINARY, eventually, run, session

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("virtual", ["1x2", "1x2+relay"])
def test_another_head_knows_services(virtual: str) -> None:
    with session(virtual):
        svc = muster.service(parts.Counter, "kept", 1)
        assert svc.add() == 2
        replace_head()
        assert svc.add() == 3
        assert muster.list_services() == ["kept"]
        assert muster.service(parts.Counter, "kept", 50).add() == 4
        with pytest.raises(ValueError, match="living service"):
            muster.service(parts.Counter, "kept", get_or_create=False)
        svc.shutdown()
        assert muster.service(parts.Counter, "kept", 50).add() == 51


@pytest.mark.parametrize("virtual", ["1x2", "1x2+relay"])
def test_another_head_knows_engines(virtual: str) -> None:
    def shown() -> list[object]:
        views = json.loads(run(BINARY, "status", "--json", virtual=None).stdout)
        [view] = [s for s in views if s["owner_pid"] == os.getpid()]
        return [w.get("engines") for c in view["clusters"] for w in c["workers"]]

    config = WorkerConfig(world_size=2)
    with session(virtual), Cluster("host", muster.Worker, worker_config=config) as host:
        engine = host.workers[1].create_engine("parts.Model", "seen", 3)
        there = [None, [{"name": "seen", "class": "parts.Model"}]]
        assert shown() == there
        replace_head()
        assert engine.forward(3) == 9
        assert shown() == there


@pytest.mark.parametrize("virtual", ["1x2", "1x2+relay"])
def test_killed_while_one_is_made(virtual: str, tmp_path: Path) -> None:
    """All who asked get one and the same from the next head, which makes it anew."""
    begun = tmp_path / "begun"
    with session(virtual), ThreadPoolExecutor(4) as threads:
        ask = [
            threads.submit(muster.service, parts.Patient, "slow", str(tmp_path)) for _ in range(4)
        ]
        assert eventually(begun.exists, 30)
        replace_head()
        assert eventually(lambda: len(begun.read_text().split()) == 2, 30)
        (tmp_path / "go").touch()
        found = [one.result(60) for one in ask]
        assert len(set(found)) == 1
        assert muster.list_services() == ["slow"]
        assert str(found[0].call("pid")) == begun.read_text().split()[1]


@pytest.mark.parametrize("virtual", ["1x2", "1x2+relay"])
def test_what_was_killed_for_good_stays_dead(virtual: str) -> None:
    """The head is killed as soon as it has said that a rank is gone, and what comes next knows
    that nobody is to take its place."""
    config = WorkerConfig(world_size=2, on_failure="restart_worker")
    with session(virtual), Cluster("two", Probe, worker_config=config) as two:
        for _ in range(2):
            old = head()
            ray.kill(two.workers[1])
            kill_head()
            assert two.workers[0].call("pid") > 0
            assert head() != old
            with pytest.raises(muster.WorkerDiedError, match="two-1"):
                two.workers[1].call("pid")
        assert [worker["state"] for worker in two._describe()["workers"]] == ["ready", "dead"]
        assert two._describe()["restarts"] == 0
