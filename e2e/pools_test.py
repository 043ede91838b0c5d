"""Pools and sessions: reserved, refused, given back, started anew."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

import muster
import parts
from muster import Cluster, Reservation, ResourceManager, WorkerConfig
from roles import Echo, Probe
from running import below, cluster, eventually, output_of, run_script, session


def test_pools_are_reserved_and_given_back() -> None:
    with session("2x4"):
        with ResourceManager(4, 1) as first, ResourceManager(4, 1) as second:
            assert first.num_gpus == second.num_gpus == 4
            with pytest.raises(muster.MusterError, match="4"):
                ResourceManager(4, 1, timeout=0.2)
        third = ResourceManager(4, 2)
        del third
        gc.collect()
        fourth = ResourceManager(4, 2)
        c = Cluster("holds", Probe, fourth, WorkerConfig(device_mapping="0-7"))
        with pytest.raises(muster.MusterError, match=r"holds|held"):
            ResourceManager(4, 2, timeout=0.2)
        fourth.destroy_placement_group()
        with pytest.raises(muster.MusterError):
            c.execute_all_sync("pid")
        with ResourceManager(4, 2):
            pass


def test_a_pool_for_workers() -> None:
    with session("3x4"):
        with ResourceManager.for_workers(6, 1, 4) as rm:
            assert (rm.num_nodes, rm.gpu_per_node) == (2, 3), "of each what its workers take"
            with cluster(Probe, rm, name="wide", device_mapping="0-5") as c:
                assert len(set(c.execute_all_sync("pid"))) == 6
        with ResourceManager.for_workers(1, 12, 4) as rm:
            assert (rm.num_nodes, rm.gpu_per_node) == (3, 4), "whole nodes"
        with ResourceManager.for_workers(2, 0, 4) as rm:
            assert (rm.num_nodes, rm.num_gpus) == (1, 0)
        with pytest.raises(ValueError, match="workers of 3 GPUs do not fill nodes of 4"):
            ResourceManager.for_workers(2, 3, 4)
        with pytest.raises(ValueError, match="world_size is 0"):
            ResourceManager.for_workers(0, 1, 4)
        with pytest.raises(TypeError, match="num_gpus_per_worker is '1'"):
            ResourceManager.for_workers(2, "1", 4)  # type: ignore[arg-type]


def test_a_pool_of_named_devices() -> None:
    with session("1x4"), ResourceManager(1, 1), ResourceManager(devices=[3, 1]) as rm:
        assert (rm.num_nodes, rm.gpu_per_node) == (1, 2)
        with cluster(Probe, rm, name="named", device_mapping="0-1") as c:
            assert [worker.name for worker in c.workers] == ["named-0-G1", "named-1-G3"]
        with pytest.raises(muster.ResourceError, match=r"devices=\[2, 3\].*") as caught:
            ResourceManager(devices=[2, 3])
        assert "holds 1,3" in str(caught.value)
        with ResourceManager(devices=[2]) as other:
            assert other.nodes[0]["devices"][0]["index"] == 2
        for numbers, gpus in (([], 0), ([2], 1)):
            with pytest.raises(ValueError, match="names the GPUs of one node"):
                ResourceManager(gpus, devices=numbers)
        with pytest.raises(ValueError, match="each once"):
            ResourceManager(devices=[2, 2])


def test_a_pool_of_bundles() -> None:
    with session("2x4"):
        with ResourceManager.for_bundles([{"gpus": 3}, {"cpus": 2}, {"gpus": 1}]) as rm:
            assert (rm.num_nodes, rm.gpu_per_node, rm.num_gpus) == (3, 0, 4)
            assert {node["name"] for node in rm.nodes} == {"node-0"}, "packed"
            assert [list(rm.gpu_ids(i)) for i in range(3)] == [[0, 1, 2], [], [3]]
            assert repr(rm) == "<muster.ResourceManager 3 nodes of 3, 0, 1 GPUs>"
            with cluster(Probe, rm, name="wide", device_mapping="0-3") as c:
                assert [worker.name for worker in c.workers][3] == "wide-3-G3"
            with pytest.raises(muster.ResourceError, match="2 bundles of 2 and 1 GPUs, each on"):
                ResourceManager.for_bundles([{"gpus": 2}, {"gpus": 1}], strategy="STRICT_SPREAD")
        with ResourceManager.for_bundles(
            [{"gpus": 2}, {"gpus": 3}], strategy="STRICT_SPREAD"
        ) as apart:
            assert {node["name"] for node in apart.nodes} == {"node-0", "node-1"}
        for bundles, kind, words in (
            ([], ValueError, "one at least"),
            ([4], TypeError, "a bundle is 4"),
            ([{"GPU": 1}], ValueError, "'GPU'"),
            ([{"gpus": 0.5}], TypeError, "whole number"),
            ([{"cpus": "1"}], TypeError, "cpus of a bundle"),
            ([{"gpus": -1}], ValueError, "bundle 0 has -1 GPUs"),
        ):
            with pytest.raises(kind, match=words):
                ResourceManager.for_bundles(bundles)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="strategy='TIGHT'"):
            ResourceManager.for_bundles([{"gpus": 1}], strategy="TIGHT")


def test_a_reservation() -> None:
    with session("1x4"):
        held = ResourceManager(3)
        later, dropped = Reservation([{"gpus": 2}], name="later"), Reservation([{"gpus": 2}])
        assert later.state == "pending" and not later.wait(0.1) and later.reserved() is None
        with pytest.raises(muster.ResourceError, match=r"(?s)later.*holds 0-2"):
            later.pool(0.1)
        with pytest.raises(muster.ResourceError, match=r"(?s)later.*holds 0-2"):
            muster.get(later.ready(0.1))
        service = muster.service(parts.Holder, "has-it")
        found = [later.ready(60), service.pools.remote(later.ready(60), [later])]
        assert muster.wait(found, timeout=0.3) == ([], found)
        del dropped  # which is asked for, and not wanted any more
        gc.collect()
        held.destroy_placement_group()
        pool, seen = muster.get(found, timeout=60)
        assert later.state == "reserved" and seen == [pool.id] * 2
        assert later.pool() is later.reserved() and muster.get(later.ready()).id == pool.id
        later.release()
        later.release()
        assert later.state == "released"
        with pytest.raises(muster.ReleasedError, match="later"):
            later.wait(1)
        assert eventually(lambda: muster.nodes()[0]["free"] == 4)
        gone = Reservation([{"gpus": 1}])
        with pytest.raises(muster.ResourceError, match="wanted 1 bundle of 9"):
            Reservation([{"gpus": 9}]).pool(60)
    with session("1x4"), pytest.raises(muster.ReleasedError, match="session is over"):
        gone.wait(1)


def test_gpus_that_are_not_there_name_the_option() -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("needs nogpu: this machine has GPUs")
    with session(None), pytest.raises(muster.MusterError, match="virtual"):
        ResourceManager(8, 1, timeout=1)


def test_shutdown_then_init_again() -> None:
    for virtual in ("1x2", "2x1"):
        with session(virtual), ResourceManager(1, 2 if virtual == "2x1" else 1) as rm:
            with cluster(Echo, rm, name="again", device_mapping="0") as c:
                assert c.same([1]) == [1]
    muster.shutdown()
    muster.shutdown()


def test_shutdown_stops_every_cluster_and_names_why() -> None:
    muster.init(virtual="1x2")
    rm = ResourceManager(2, 1)
    clusters = [Cluster(f"c{i}", Probe, rm, WorkerConfig(device_mapping="0-1")) for i in range(3)]
    pids = [pid for c in clusters for pid in c.execute_all_sync("pid")]
    refs = clusters[0].execute_all_async("pid")
    muster.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert not [line for _, line in below(os.getpid()).values() if line.startswith("muster")]
    with pytest.raises(muster.MusterError, match=r"shut ?down|no more|gone|ended"):
        clusters[0].execute_all_sync("pid")
    for c in clusters:
        c.shutdown()
    del refs


def test_init_is_idempotent_but_not_forgetful() -> None:
    with session("1x2"):
        muster.init()
        muster.init(virtual="1x2")
        with pytest.raises(muster.MusterError, match="2x2"):
            muster.init(virtual="2x2")


@pytest.mark.parametrize("virtual", ["4", "x8", "4x", "0x8", "4x-1", "4x8+warp", "4x8x2", "four"])
def test_virtual_that_cannot_be(virtual: str) -> None:
    try:
        with pytest.raises((ValueError, muster.MusterError), match="4x8"):
            muster.init(virtual=virtual)
    finally:
        muster.shutdown()


def test_an_address_where_nobody_listens() -> None:
    with pytest.raises((OSError, muster.MusterError), match="nobody"):
        muster.init(address="/tmp/nobody/head.sock")
    muster.shutdown()


def test_a_cluster_that_nobody_holds_lives_on() -> None:
    """A cluster lives until shutdown: get_cluster and workers may still call it."""
    with session("1x2"), ResourceManager(2, 1) as rm:
        c = Cluster("kept", Echo, rm, WorkerConfig(device_mapping="0"))
        gone = weakref.ref(c)
        del c
        gc.collect()
        assert gone() is None
        assert muster.get_cluster("kept").same([1]) == [1]


FIRST = """
if __name__ == "__main__":
    print([(node["name"], node["state"], len(node["devices"]), node["here"]) for node in muster.nodes()])
"""


def test_nodes_are_told_once_they_have_joined(tmp_path: Path) -> None:
    """Also where that is the first thing that a script asks for."""
    package = str(Path(muster.__file__).parents[1])
    done = run_script(tmp_path, FIRST, virtual="3x2", PYTHONPATH=package)
    assert output_of(done) == f"{[(f'node-{i}', 'up', 2, i == 0) for i in range(3)]}\n"
