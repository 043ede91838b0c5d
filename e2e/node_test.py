"""`muster node` on three hosts with real Ray: orderly runs, in every order."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import pytest

from hosts import Hosts, python_with_ray
from replicas import TOKEN, job

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

# The command of rank 0: waits for a number of nodes, and tells what it was given.
LOOK = """
import json, os, sys, time
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + 60
def nodes(): return sorted(n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"])
while len(nodes()) < int(sys.argv[1]) and time.monotonic() < deadline: time.sleep(0.1)
names = ("RAY_ADDRESS", "MUSTER_BACKEND", "MUSTER_HOST", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE")
print(json.dumps({"nodes": nodes(), "env": {n: os.environ.get(n) for n in names}}))
sys.exit(int(sys.argv[2]))
"""
ALL = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    python_with_ray()
    with Hosts(3) as made:
        yield made


def look(nodes: int, code: int = 0) -> list[str]:
    return [str(python_with_ray()), "-c", LOOK, str(nodes), str(code)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_every_order_of_starting(hosts: Hosts, order: tuple[int, ...]) -> None:
    with job(hosts) as start:
        replicas = {}
        for host in order:
            replicas[host] = start(host, *look(3))
            replicas[host].until("waiting" if host == 0 or 0 not in replicas else "joined")
        assert [replicas[i].ended() for i in range(3)] == [(0, "")] * 3
        told = json.loads(replicas[0].out)
    assert told["nodes"] == ALL
    assert told["env"] == {
        "RAY_ADDRESS": "10.77.0.1:6379",
        "MUSTER_BACKEND": "ray",
        "MUSTER_HOST": "10.77.0.1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_DISABLE": None,
    }
    left = [hosts.run(i, ["ls", "-A", str(hosts.scratch), "/dev/shm"]).stdout for i in range(3)]
    assert not any("muster-node-" in listing or "plasma" in listing for listing in left), left


def test_a_failing_command_ends_all_with_its_code(hosts: Hosts) -> None:
    with job(hosts) as start:
        replicas = [start(i, *look(3, 3)) for i in range(3)]
        ends = [replica.ended() for replica in replicas]
    assert ends[0] == (3, "the command ended with exit code 3")
    assert ends[1] == ends[2] == (3, "the leader ended: the command ended with exit code 3")


def test_fewer_nodes_are_enough_where_asked(hosts: Hosts) -> None:
    with job(hosts) as start:
        flags = ("--min-nodes", "2", "--profile", "tcp", "--set", "GLOO_SOCKET_IFNAME=lo")
        replicas = [start(i, *look(2), flags=flags) for i in range(2)]
        replicas[0].until("waiting", "(2 are enough); not heard of: rank 2")
        assert [replica.ended() for replica in replicas] == [(0, "")] * 2
        told = json.loads(replicas[0].out)
    assert told["nodes"] == ALL[:2]
    assert told["env"]["NCCL_IB_DISABLE"] == "1"
    assert told["env"]["GLOO_SOCKET_IFNAME"] == "lo"


def test_one_replica_alone_needs_no_token(hosts: Hosts) -> None:
    with job(hosts) as start:
        alone = start(1, *look(1), rank=0, world=1, leader="host1", env={"RAY_AUTH_TOKEN": ""})
        assert alone.ended() == (0, "")
        assert json.loads(alone.out)["nodes"] == ["10.77.0.2"]
        assert "made for this run" in alone.until("found")["text"]


@pytest.mark.parametrize("scheduler", ["beaker", "slurm", "kubernetes", "torchrun"])
def test_places_come_from_the_scheduler(hosts: Hosts, scheduler: str) -> None:
    def told(rank: int) -> dict[str, str]:
        known = {
            "beaker": {
                "BEAKER_REPLICA_RANK": str(rank),
                "BEAKER_REPLICA_COUNT": "2",
                "BEAKER_LEADER_REPLICA_HOSTNAME": "host0",
            },
            "slurm": {
                "SLURM_NODEID": str(rank),
                "SLURM_NNODES": "2",
                "SLURM_JOB_NODELIST": "host[0-1]",
                "SLURM_LOCALID": "0",
            },
            # A host's name ends with its number, as a pod's; /etc/hosts has the domain.
            "kubernetes": {
                "JOB_COMPLETION_INDEX": str(rank),
                "NNODES": "2",
                "MASTER_ADDR": "host0",
            },
            "torchrun": {
                "NODE_RANK": str(rank),
                "NNODES": "2",
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": "29500",
            },
        }
        return known[scheduler]

    with job(hosts) as start:
        replicas = [start(i, "true", world=None, env=told(i)) for i in range(2)]
        assert [replica.ended() for replica in replicas] == [(0, "")] * 2
        for rank, replica in enumerate(replicas):
            assert f"rank {rank} (" in replica.until("found")["text"]


def test_two_jobs_on_one_host_leave_each_other_alone(hosts: Hosts) -> None:
    with job(hosts) as start:
        first = start(0, "sleep", "1000", world=1)
        first.until("command")
        second = start(0, *look(1), world=1, flags=("--port", "7379"))
        assert second.ended() == (0, "")
        told = json.loads(second.out)
        assert told["env"]["RAY_ADDRESS"] == "10.77.0.1:7379"
        lines = hosts.processes(0).values()
        assert any("--gcs_server_port=6379" in line for line in lines)
        # The port as such: the same digits are in numbers of sessions and others' ports.
        assert not [line for line in lines if re.search(r"\b7379\b", line)]
        first.signal(15)
        assert first.ended() == (143, "the command ended with killed by SIGTERM")


def test_secrets_stay_out_of_command_lines(hosts: Hosts) -> None:
    with job(hosts) as start:
        replicas = [start(i, "sleep", "1000") for i in range(3)]
        replicas[0].until("command")
        lines = [line for i in range(3) for line in hosts.processes(i).values()]
        assert any("gcs_server" in line for line in lines)
        assert not [line for line in lines if TOKEN in line]
        replicas[0].signal(15)
        assert [replica.code() for replica in replicas] == [143] * 3
