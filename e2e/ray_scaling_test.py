"""Pools that an autoscaler of Ray's makes room for: nodes are added, or the wait says why not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hosts import Hosts
from ray_cluster import Cluster, until
from ray_test import WORKER

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

# Ray's own nodes for tests: further raylets of one machine.
PROVIDER = {
    "type": "fake_multinode",
    "gcs_address": "10.77.0.1:6379",
    "use_node_id_as_ip": True,
    "disable_node_updaters": True,
    "disable_launch_config_check": True,
    "launch_multiple": True,
}
CONFIG = {
    "cluster_name": "grows",
    "max_workers": 2,
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "gpu_worker": {
            "resources": {"CPU": 2, "GPU": 4, "object_store_memory": 100_000_000},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 2,
        },
    },
    "head_node_type": "ray.head.default",
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5,
    "auth": {},
    "docker": {},
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
}


WAITS = """
if __name__ == "__main__":
    import json
    before = ResourceManager.outlook(4, 2)
    rm = ResourceManager(4, 2, timeout=120)
    c = Cluster("late", Probe, rm, WorkerConfig(device_mapping="0-7"))
    try:
        ResourceManager(64, 1, timeout=PATIENCE)
        refused = ""
    except muster.ResourceError as error:
        refused = str(error)
    print(json.dumps([before.now, before.waits, before.text, len(c.where()), refused]))
"""
HEAD = "f" * 51 + "00000"
# The autoscaler of now wants to be told which node and kind the head is, and does not
# know Ray's own nodes for tests by their short name.
SECOND = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    "RAY_NODE_TYPE_NAME": "ray.head.default",
}
EXTERNAL = {
    **PROVIDER,
    "type": "external",
    "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
    "head_node_id": HEAD,
}


@pytest.fixture(params=["first", "second"])
def grows(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A node without GPUs, to which Ray adds others of four; by either of its autoscalers."""
    second = request.param == "second"
    config = {**CONFIG, "provider": EXTERNAL if second else PROVIDER}
    with Hosts(1) as hosts:
        path = hosts.scratch / "autoscaler.json"
        hosts[0].path(path).write_text(json.dumps(config))
        ray = hosts.ray_up(
            cpus=2,
            gpus=0,
            flags=[f"--autoscaling-config={path}"],
            env={
                "RAY_FAKE_CLUSTER": "1",
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
                **(SECOND if second else {}),
            },
        )
        yield Cluster(hosts, ray)


def test_a_pool_waits_for_the_nodes_that_it_makes_an_autoscaler_add(
    grows: Cluster, request: pytest.FixtureRequest
) -> None:
    second = request.node.callspec.params["grows"] == "second"
    # The first never says that it cannot help.
    source = WORKER + WAITS.replace("PATIENCE", "1000" if second else "5")
    running = grows.start(source, grows.env(MUSTER_VIRTUAL="1x4"))
    done = grows.finish(running, 200)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    now, waits, text, workers, refused = json.loads(done.stdout.splitlines()[-1])
    assert not now and waits, text
    assert "wanted 2 bundles of 4 GPUs" in text and "an autoscaler may add nodes" in text
    assert "waiting for nodes" in done.stderr, done.stderr
    assert workers == 8
    assert "wanted 1 bundle of 64 GPUs" in refused and "pool 1 (late) holds 4 GPUs" in refused
    assert ("autoscaler says that it can make no room" in refused) is second, refused
    until(lambda: not grows.musters(), lambda: f"left: {grows.musters()}")
