"""Instances that come and go beside others, and pools of other shapes than whole nodes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from muster import Batch, Cluster, Instances, ResourceManager, WorkerConfig, _context
from roles import Echo, Probe, Waits
from running import IMPORTS, environment, eventually, session
from setups import Trainer, Weighty, nothing_left
from stages import MIB, objects

FOUR = {"num_gpus_per_node": 4}


@pytest.fixture(params=["2x8", "2x8+net"])
def nodes(request: pytest.FixtureRequest) -> Iterator[str]:
    with session(request.param):
        yield request.param


class Loop(threading.Thread):
    """Calls a cluster over and over, as training does, until it is told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.over, self.steps = cluster, threading.Event(), 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                assert self.cluster.same(list(range(8))) == list(range(8))
                self.steps += 1
        except BaseException as error:
            self.problem = error

    def end(self) -> int:
        self.over.set()
        self.join(60)
        assert self.problem is None, self.problem
        return self.steps


def pids(clusters: Any) -> list[int]:
    return [pid for c in clusters for pid in c.execute_all_sync("pid")]


def test_instances_come_and_go_while_training_goes_on(nodes: str) -> None:
    train = Cluster("train", Echo, ResourceManager(4, 1), WorkerConfig(device_mapping="0-3"))
    loop = Loop(train)
    loop.start()
    with Instances(
        "infer", Probe, WorkerConfig(device_mapping="0-3"), pool=FOUR, count=1
    ) as infers:
        first = pids(infers)
        infers.scale(3)
        assert infers.names == ["infer-0", "infer-1", "infer-2"]
        assert len(infers) == 3 and infers[-1].name == "infer-2"
        assert pids(infers)[:4] == first, "those that were there stay"
        assert muster.get_cluster("infer-2").execute_rank_zero_sync("pid") == pids([infers[2]])[0]
        with pytest.raises(muster.ResourceError, match=r"pool \d+ \(infer-1\) holds"):
            infers.scale(5)  # there is no room for two more
        assert infers.names == ["infer-0", "infer-1", "infer-2"], "all or nothing"
        infers.scale(1)
        assert infers.names == ["infer-0"] and pids(infers) == first
        infers.scale(3)
        before = loop.steps
        assert eventually(lambda: loop.steps > before)
    assert loop.end() > 0
    with pytest.raises(muster.NotFoundError):
        muster.get_cluster("infer-0")
    with ResourceManager(4, 3, strategy="PACK"):
        pass  # all that they had is free again


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What a call waits for until somebody writes to it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_an_instance_that_goes_answers_its_calls_first(nodes: str, gate: Path) -> None:
    with Instances("wait", Waits, count=2) as waits:
        going = waits[1]
        under_way = going.read(str(gate), blocking=False)
        queued = going.same("behind it", blocking=False)
        ends = threading.Thread(target=waits.scale, args=(1,))
        ends.start()

        def refused() -> bool:
            try:
                muster.get(going.same(1, blocking=False), timeout=0.1)
            except muster.NotFoundError as error:
                assert "takes no more calls" in str(error)
                return True
            except TimeoutError:
                pass  # it came before the end did, and waits behind the first
            return False

        assert eventually(refused)
        assert waits.names == ["wait-0"] and waits[0].same(2) == [2]
        assert ends.is_alive(), "it waits for its calls"
        gate.write_text("go")
        assert muster.get([under_way, queued]) == [["go"], ["behind it"]]
        ends.join(60)
        assert not ends.is_alive()
        with pytest.raises(muster.NotFoundError, match="is no more"):
            going.same(3)


def test_an_instance_need_not_be_waited_for(nodes: str, gate: Path) -> None:
    with Instances("wait", Waits, count=2) as waits:
        stuck = [c.read(str(gate), blocking=False) for c in waits]
        waits.scale(1, drain=0)
        waits.remove("wait-0", drain=0.05)  # or not for long
        assert len(waits) == 0 and repr(waits) == "<muster.Instances of wait, none>"
        for ref in stuck:
            with pytest.raises(muster.WorkerDiedError, match="is no more: it was shut down"):
                muster.get(ref)


def test_what_an_instance_made_outlives_it(nodes: str) -> None:
    with Instances("makes", Waits, {"world_size": 1}, count=2) as made:
        (kept,) = made[1].batch(1000)
        made.scale(0)
        assert isinstance(kept, Batch) and int(kept["x"].sum()) == 499500


@pytest.mark.chaos
def test_the_head_is_killed_while_an_instance_answers_its_last_calls(
    nodes: str, gate: Path
) -> None:
    with Instances("wait", Waits, count=2) as waits:
        under_way = waits[1].read(str(gate), blocking=False)
        ends = threading.Thread(target=waits.scale, args=(1,))
        ends.start()
        assert eventually(lambda: len(waits) == 1)
        current = _context.session()
        assert current is not None and current.head is not None
        old = current.head.pid
        os.kill(old, signal.SIGKILL)
        assert waits[0].same(1) == [1], "the next head has come"
        assert ends.is_alive()
        gate.write_text("go")
        assert muster.get(under_way) == ["go"]
        ends.join(60)
        assert not ends.is_alive() and waits.names == ["wait-0"]


def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    source = """
class Slow(Worker):
    def __init__(self, config):
        super().__init__(config)
        open(f"{sys.argv[1]}/{os.environ['CLUSTER_NAME']}", "w").close()
        time.sleep(1000)
if __name__ == "__main__":
    try:
        muster.Instances("slow", Slow, count=3)
    except KeyboardInterrupt:
        again = muster.Instances("slow", Worker, count=3)  # their names are free
        print(again.names)
"""
    (tmp_path / "there").mkdir()
    script = tmp_path / "script.py"
    script.write_text(IMPORTS + source)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "there"],
        env=environment("1x8"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: len(list((tmp_path / "there").iterdir())) == 3, 60)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0].strip() == "['slow-0', 'slow-1', 'slow-2']"
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_one_that_is_lost_is_replaced_under_its_name() -> None:
    with session("1x8"), Instances("infer", Probe, count=3) as infers:
        os.kill(pids([infers[1]])[0], signal.SIGKILL)
        with pytest.raises(muster.WorkerDiedError):
            infers[1].execute_all_sync("pid")
        infers.remove(infers[1])
        assert infers.names == ["infer-0", "infer-2"]
        infers.scale(3)
        assert infers.names == ["infer-0", "infer-1", "infer-2"]
        assert len(set(pids(infers))) == 3
        with pytest.raises(muster.NotFoundError, match="infer-0, infer-1, infer-2"):
            infers.remove("infer-7")


def test_a_name_that_is_taken_leaves_nothing_behind() -> None:
    with session("1x8"):
        taken = Cluster("infer-1", Probe, worker_config=WorkerConfig(world_size=1))
        with pytest.raises(ValueError, match="infer-1"):
            Instances("infer", Probe, WorkerConfig(device_mapping="0-1"), pool=FOUR, count=2)
        with ResourceManager(8, 1):
            pass
        assert taken.execute_all_sync("pid")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"pool": {"gpus": 4}}, "gpus; a ResourceManager takes num_gpus_per_node"),
        ({"pool": 4}, "an instance has a pool of its own"),
        ({"count": -1}, "0 or more"),
        ({"count": "two"}, "whole number"),
        ({"worker_config": {"worlds": 3}}, "no field worlds"),
    ],
)
def test_what_instances_cannot_be(how: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Instances(**{"name": "x", "worker_cls": Probe, **how})


def test_pools_by_strategy() -> None:
    """As on Ray: parts that share a node count as nodes of the pool, with devices of their own."""
    with session("2x8"):
        engines = ResourceManager(2, 3, strategy="PACK")
        assert [node["name"] for node in engines.nodes] == ["node-0"] * 3
        c = Cluster("engines", Probe, engines, {"device_mapping": "0-5", "num_gpus_per_worker": 2})
        seen = c.execute_all_sync("environment", "CUDA_VISIBLE_DEVICES")
        assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["0,1", "2,3", "4,5"]
        learners = ResourceManager(1, 2, strategy="STRICT_SPREAD")
        assert [node["name"] for node in learners.nodes] == ["node-0", "node-1"]
        verifiers = ResourceManager(0, 2, cpus_per_node=4)
        with pytest.raises(muster.ResourceError, match=r"4 times on one node.*room for 3"):
            ResourceManager(2, 4, strategy="STRICT_PACK")
        assert verifiers.num_gpus == 0


def test_an_outlook_says_who_holds_what() -> None:
    with session("2x8"):
        there = ResourceManager.outlook(4, 2)
        assert there.now and not there.waits and "node-0 GPU 0-3, node-1 GPU 0-3" in str(there)
        with ResourceManager(6, 2) as rm:
            c = Cluster("trainer", Probe, rm, {"device_mapping": "0-3"})
            now = ResourceManager.outlook(num_gpus_per_node=4)
            assert not now.now and not now.waits
            assert "node-1: 8 GPUs, 2 free; pool 1 (trainer) holds 0-5" in now.text
            with pytest.raises(muster.ResourceError) as refused:
                ResourceManager(4, 1)  # nobody adds nodes here: it does not wait
            assert str(refused.value) == now.text
            c.shutdown(drain=math.inf)  # it has no calls
        assert ResourceManager.outlook(8, 2).now
        with pytest.raises(ValueError, match="NEAR"):
            ResourceManager.outlook(1, 1, strategy="NEAR")
        with pytest.raises(ValueError, match="MUSTER_BACKEND=ray"):
            ResourceManager.outlook(1, 1, labels={"zone": "a"})


def test_what_all_are_made_with_lies_in_the_store_once() -> None:
    weights = np.ones(4 * MIB, np.uint8)
    config = Weighty(world_size=2, weights=weights)
    with session("2x8"):
        with Instances("many", Trainer, config, pool={"num_gpus_per_node": 0}, count=3) as many:
            weights[:] = 3  # what those have that come later is what the first ones have
            many.scale(5)
            for one in many:
                assert [seen[0] for seen in one.seen()] == [4 * MIB] * 2
            assert len(objects()) == 1, objects()
        nothing_left()
