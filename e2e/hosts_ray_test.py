"""Ray on hosts: what the tests of Ray's backend and of `muster node` stand on."""

from __future__ import annotations

import json
import os
import signal

import pytest

from hosts import Hosts
from running import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

NODES = """
import json, ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(json.dumps(sorted(n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"])))
"""


def test_one_node_a_host_and_nothing_shared() -> None:
    with Hosts(3, bare=[2]) as hosts:
        ray = hosts.ray_up(gpus=4)
        found = hosts.run(2, [ray.python, "-c", NODES], env=ray.env, check=True).stdout
        assert json.loads(found.splitlines()[-1]) == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        assert [len(ray.pids(host, "raylet")) for host in range(3)] == [1, 1, 1]
        assert ray.pids(0, "gcs_server") and not ray.pids(1, "gcs_server")
        # What is killed on one host, others do not notice.
        os.kill(ray.pids(1, "raylet")[0], signal.SIGKILL)
        assert eventually(lambda: not ray.pids(1, "raylet"))
        assert ray.pids(2, "raylet")
        no_token = {k: v for k, v in ray.env.items() if k != "RAY_AUTH_TOKEN"}
        wrong = {**no_token, "RAY_AUTH_TOKEN": "0" * 32}
        done = hosts.run(0, [ray.python, "-c", NODES], env=wrong, timeout=100)
        assert done.returncode != 0
