"""Named services and engines on the nodes of a real Ray: `make test-ray`."""

from __future__ import annotations

import pytest

from ray_cluster import Cluster
from ray_test import cluster, rays

__all__ = ["cluster", "rays"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SCRIPT = """
import json, socket

class Counter:
    def __init__(self, start):
        self.n = start

    def add(self, k=1):
        self.n += k
        return [self.n, socket.gethostname()]

    def until(self, name):
        while name not in os.environ:
            time.sleep(0.01)
        return os.environ[name]

class Probe(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def ask(self):
        return [socket.gethostname(), *muster.get_service("far").add()]

if __name__ == "__main__":
    pool = ResourceManager(num_gpus_per_node=8, num_nodes=2)
    probe = Cluster("probe", Probe, pool, WorkerConfig(world_size=2, device_mapping=[0, 8]))
    first = muster.service(Counter, "far", 5)
    hosts = [host for host, *_ in probe.ask()]
    assert muster.service(Counter, "far", 9) == first, "there is one of a name"
    first.shutdown()
    at = next(n for n, host in enumerate(hosts) if host != socket.gethostname())
    away = probe.workers[at]
    beside = WorkerConfig(resource_manager=pool, device_mapping=[8 * at])
    far = muster.service(Counter, "far", 5, config=beside)
    asked = probe.ask()
    # What an agent of another machine is asked does not wait for what the worker runs.
    waiting = far.until.remote("GO", timeout=60)
    far.set_env({"GO": "on"})
    engine = away.create_engine("__main__.Counter", "c", 1)
    print(json.dumps({"hosts": hosts, "asked": asked, "go": muster.get(waiting),
                      "seen": far.env()["GO"], "engine": engine.add(),
                      "names": muster.list_services()}))
"""


def test_services_on_other_nodes(cluster: Cluster) -> None:
    found = cluster.run(SCRIPT)
    assert len(set(found["hosts"])) == 2
    (one, first, there), (other, second, same) = found["asked"]
    assert {one, other} == set(found["hosts"]) and there == same in (one, other)
    assert sorted((first, second)) == [6, 7], "both asked the one service"
    assert found["go"] == found["seen"] == "on"
    assert found["engine"] == [2, there]
    assert found["names"] == ["far"]
