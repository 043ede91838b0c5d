"""Ray's memory monitor, which kills the actor that keeps an agent when its node runs low."""

from __future__ import annotations

import pytest

from hosts import Hosts
from ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

MIB = 1 << 20
#: What the second host has, and what share of it may be in use.
SIZE, SHARE = 1400 * MIB, 0.75

# The second worker holds more and more; the pool that comes after has another agent there.
GROWS = """
class Grows(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def grow(self, most):
        self.held = []
        while self.rank == 1 and len(self.held) < most:
            self.held.append(bytearray(os.urandom(1 << 10)) * (1 << 10))
            time.sleep(0.01)
        time.sleep(100 if self.rank == 1 else 0)
        return self.rank
    @register(Dispatch.ONE_TO_ALL)
    def rank_of(self): return self.rank
if __name__ == "__main__":
    import json
    def made(name): return Cluster(name, Grows, ResourceManager(4, 2), WorkerConfig(device_mapping="0,4"))
    first = made("first")
    try:
        said = [first.grow(int(sys.argv[1]) if len(sys.argv) > 1 else 800)]
    except muster.MusterError as error:
        said = [type(error).__name__, str(error), error.node, error.rank]
    first.shutdown()
    print(json.dumps([*said, made("second").rank_of()]))
"""


def test_rays_memory_monitor_kills_the_actor_of_an_agent() -> None:
    """The error names Ray's memory monitor and the node, and says what to do; the node serves on."""
    with Hosts(2) as hosts:
        hosts.limit_memory(1, SIZE)
        ray = hosts.ray_up(on=[0])
        ray.env |= {
            "RAY_memory_usage_threshold": str(SHARE),
            "RAY_memory_monitor_refresh_ms": "50",
        }
        ray.start(1)
        ray.wait_for_nodes(2)
        cluster = Cluster(hosts, ray)
        kind, text, node, rank, after = cluster.run(GROWS)
        assert (kind, node, rank) == ("NodeLostError", "10.77.0.2", 1), text
        assert "the agent of 10.77.0.2 is gone" in text, text
        assert "Ray's memory monitor killed its actor" in text, text
        assert "RAY_memory_usage_threshold" in text, text
        assert after == [0, 1]
        cluster.nothing_is_left()
