"""AReaL's scheduler on the nodes of a real Ray, one per network namespace: `make test-ray`."""

from __future__ import annotations

import pytest

from ray_cluster import Cluster
from ray_test import cluster, rays

__all__ = ["cluster", "rays"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

ENGINES = """
import os, socket

class Engine:
    def where(self):
        return [socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"]]

    def listen(self):
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        self.server.listen()

    def join(self):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.create_connection(address, timeout=10):
            return True

    def die(self):
        print("leaving", flush=True)
        os._exit(5)

    def destroy(self):
        print("destroyed", os.environ.get("RANK"), flush=True)
"""

SCRIPT = """
import asyncio, json, urllib.request
from muster.compat.areal import (Job, MusterScheduler, SchedulingSpec, SchedulingStrategy,
                                 WorkerCreationError, WorkerFailedError)

async def set_up(s, role, workers):
    for rank, w in enumerate(workers):
        await s.set_worker_env(w.id, {"RANK": str(rank), "MASTER_ADDR": workers[0].ip,
                                      "MASTER_PORT": workers[0].worker_ports[1]})
        await s.create_engine(w.id, "engines.Engine", f"{role}/{rank}")

def role(s, name, count, strategy=None, **spec):
    s.create_workers(Job(name, count, [SchedulingSpec(cpu=1, **spec)],
                         strategy or SchedulingStrategy()))
    workers = s.get_workers(name)
    asyncio.run(set_up(s, name, workers))
    for w in workers:
        url = f"http://{w.ip}:{w.worker_ports[0]}/health"
        assert b"healthy" in urllib.request.urlopen(url, timeout=10).read()
    return workers, [s.call_engine(w.id, "where") for w in workers]

if __name__ == "__main__":
    s = MusterScheduler(log_dir="logs")
    train, places = role(s, "train", 12, gpu=1)
    s.call_engine("train/0", "listen")
    assert all(s.call_engine(w.id, "join") for w in train), "master address and port of rank 0"
    ref, beside = role(s, "ref", 12, SchedulingStrategy("colocation", "train", True))
    rollout, apart = role(s, "rollout", 2, gpu=4, ray_placement_strategy="separate")
    try:
        s.create_workers(Job("more", 1, [SchedulingSpec(gpu=8)]))
        refused = ""
    except WorkerCreationError as error:
        refused = error.reason
    s.delete_workers("rollout")
    late, hidden = role(s, "late", 1, gpu=8, ray_placement_strategy="deferred")
    far = next(n for n, place in enumerate(places) if place[0] != places[0][0])
    try:
        s.call_engine(f"train/{far}", "die")
        died = []
    except WorkerFailedError as error:
        died = [error.exit_code, error.stderr.splitlines()[-1]]
    for _ in range(600):  # its fork ends too
        try:
            s.get_workers("ref")
            time.sleep(0.05)
        except WorkerFailedError as error:
            fork = error.worker_id == f"ref/{far}"
            break
    s.delete_workers()
    log = open("logs/train.log").read()
    print(json.dumps({"train": places, "ref": beside, "rollout": apart, "refused": refused,
                      "late": hidden, "destroyed": log.count("destroyed"),
                      "per_node": s.n_gpus_per_node, "died": died, "fork": fork}))
"""


def test_pools_of_training_and_rollout(cluster: Cluster) -> None:
    found = cluster.run(SCRIPT, engines=ENGINES)
    assert found["per_node"] == 8
    train = [tuple(place) for place in found["train"]]
    assert len(set(train)) == 12 and len({host for host, _ in train}) == 2
    assert found["ref"] == found["train"], "forks are where their targets are"
    first, second = (set(devices.split(",")) for _, devices in found["rollout"])
    hosts = [host for host, _ in found["rollout"]]
    assert len(first) == len(second) == 4
    assert hosts[0] != hosts[1] or not first & second
    assert found["refused"].startswith("Resource allocation failed")
    assert found["late"][0][1] == "", "the pool has the GPUs, the worker none"
    assert found["destroyed"] == 11
    assert found["died"] == [5, "leaving"] and found["fork"]
