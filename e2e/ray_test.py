"""Nodes from a real Ray, one per network namespace: `make test-ray`.

The third host does not have the tree, so that the program and the package have to
be shipped there; the script's own folder is on the first host alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, Running
from ray_cluster import Cluster as Cluster  # other tests take them from here
from ray_cluster import until as until
from ray_cluster import with_torch

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rays() -> Iterator[Cluster]:
    with Hosts(3, bare=[2]) as hosts:
        ray = hosts.ray_up(labels={1: "zone=b"})
        yield Cluster(hosts, ray)


@pytest.fixture
def cluster(rays: Cluster) -> Iterator[Cluster]:
    yield rays
    # Where Ray ends an actor it kills the warden too; its folder is the next one's to remove.
    rays.nothing_is_left(files=False)


WORKER = """
import socket
class Probe(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def where(self):
        env = {k: v for k, v in os.environ.items() if k.startswith(("RAY", "MASTER", "CUDA_VIS", "OMP", "LOCAL_"))}
        return {"host": socket.gethostname(), "rank": self.rank, "env": env}
    @register(Dispatch.DP_MP_COMPUTE)
    def double(self, rows): return [r * 2 for r in rows]
    @register(Dispatch.ONE_TO_ALL)
    def sleep(self, seconds): time.sleep(seconds); return self.rank
    @register(Dispatch.ONE_TO_ALL)
    def pid(self): return os.getpid()
"""


def test_a_script_for_one_machine_runs_unchanged(cluster: Cluster) -> None:
    source = (
        WORKER
        + """
if __name__ == "__main__":
    import json
    rm = ResourceManager(num_gpus_per_node=8, num_nodes=1)
    c = Cluster("one", Probe, rm, WorkerConfig(device_mapping="0-7", tp=2))
    print(json.dumps([c.dp_size, c.tp_size, c.double(list(range(9)))]))
"""
    )
    alone = cluster.env()
    del alone["MUSTER_BACKEND"]
    assert cluster.run(source) == cluster.run(source, {**alone, "MUSTER_VIRTUAL": "1x8"})


THREE = """
if __name__ == "__main__":
    import json
    import neighbour
    rm = ResourceManager(num_gpus_per_node=4, num_nodes=3)
    c = Cluster("three", Probe, rm, WorkerConfig(device_mapping="0-11"))
    print(json.dumps({
        "where": c.where(), "double": c.double(list(range(24))),
        "nodes": [(n["name"], n["address"]) for n in rm.nodes],
    }))
"""


def test_workers_run_on_three_hosts(cluster: Cluster) -> None:
    got = cluster.run("import neighbour\n" + WORKER + THREE, neighbour="x = 1\n")
    where = got["where"]
    assert [w["host"] for w in where] == [f"host{i // 4}" for i in range(12)]
    assert [w["rank"] for w in where] == list(range(12))
    assert got["double"] == [2 * i for i in range(24)]
    assert len({w["env"]["MASTER_ADDR"] for w in where}) == 1
    assert where[0]["env"]["MASTER_ADDR"] == cluster.hosts[0].address
    for worker in where:
        assert "RAY_AUTH_TOKEN" not in worker["env"]
        assert worker["env"]["CUDA_VISIBLE_DEVICES"] in set("01234567")
    cluster.nothing_is_left()


def test_instances_come_and_go(cluster: Cluster) -> None:
    got = cluster.run(
        WORKER
        + """
if __name__ == "__main__":
    import json
    train = ResourceManager(4, 2)
    trainers = Cluster("train", Probe, train, WorkerConfig(device_mapping="0-7"))
    hosts = []
    for i in range(3):
        with ResourceManager(4, 1) as pool:
            rollout = Cluster(f"rollout-{i}", Probe, pool, WorkerConfig(device_mapping="0-3"))
            hosts.append(sorted({w["host"] for w in rollout.where()}))
        trainers.double([1] * 8)
    packed = ResourceManager(2, 4, strategy="PACK")
    print(json.dumps([hosts, len(packed.nodes), len(trainers.where())]))
"""
    )
    hosts, packed, trainers = got
    assert all(len(h) == 1 for h in hosts)
    assert (packed, trainers) == (4, 8)


def test_labels_choose_the_node(cluster: Cluster) -> None:
    got = cluster.run(
        WORKER
        + """
if __name__ == "__main__":
    import json
    rm = ResourceManager(1, 1, labels={"zone": "b"})
    c = Cluster("there", Probe, rm, WorkerConfig(device_mapping="0"))
    print(json.dumps([w["host"] for w in c.where()]))
"""
    )
    assert got == ["host1"]


def test_what_cannot_be_had_is_explained(cluster: Cluster) -> None:
    got = cluster.run(
        """
if __name__ == "__main__":
    import json
    said = []
    rm = ResourceManager(6, 2)
    for perhaps in (dict(num_gpus_per_node=4, num_nodes=3), dict(num_gpus_per_node=16),
                    dict(num_gpus_per_node=1, labels={"zone": "nowhere"}),
                    dict(num_gpus_per_node=1, accelerator_type="H100")):
        began = time.monotonic()
        try:
            ResourceManager(**perhaps)
        except muster.MusterError as error:
            said.append([str(error), time.monotonic() - began])
    print(json.dumps(said))
"""
    )
    held, large, labels, accelerator = (text for text, _ in got)
    assert "2 free" in held and "holds 6 GPUs" in held, held
    assert "8 GPUs" in large and "add nodes" in large, large
    assert "zone=nowhere" in labels, labels
    assert "H100" in accelerator, accelerator
    for address in ("10.77.0.1", "10.77.0.2", "10.77.0.3"):
        assert address in held


def test_batches_go_from_node_to_node(cluster: Cluster) -> None:
    source = """
import numpy as np
from muster import Batch
class Rows(Worker):
    @register(Dispatch.DP_MP_COMPUTE)
    def make(self, b): return Batch({"x": np.asarray(b["x"]) * 2})
    @register(Dispatch.DP_MP_COMPUTE)
    def total(self, b): return [float(np.asarray(b["x"]).sum())]
if __name__ == "__main__":
    import json
    rm = ResourceManager(1, 3)
    a = Cluster("a", Rows, rm, WorkerConfig(device_mapping="0-2"))
    b = Cluster("b", Rows, rm, WorkerConfig(device_mapping="2,1,0"))
    out = a.make(Batch({"x": np.ones((300, 1000))}))
    print(json.dumps([b.total(out), float(np.asarray(out["x"]).sum())]))
"""
    assert cluster.run(source) == [[200000.0] * 3, 600000.0]


def test_workers_can_use_ray_in_their_pools_group(cluster: Cluster) -> None:
    source = """
class Server(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def whole_bundles(self):
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
        ray.init(namespace=os.environ["MUSTER_RAY_NAMESPACE"], logging_level="ERROR")
        group = ray.util.get_placement_group(os.environ["MUSTER_RAY_GROUP"])
        def where(): return ray.get_runtime_context().get_node_id()
        task = ray.remote(where)
        asked = [task.options(num_cpus=0, num_gpus=2, scheduling_strategy=In(group, i)).remote()
                 for i in range(group.bundle_count)]
        return len(set(ray.get(asked, timeout=60)))
if __name__ == "__main__":
    import json
    rm = ResourceManager(2, 2)
    c = Cluster("server", Server, rm, WorkerConfig(device_mapping="2", ray="inherit"))
    print(json.dumps(c.whole_bundles()))
"""
    assert cluster.run(source) == [2]


def test_what_a_node_lacks_is_shipped_or_named(cluster: Cluster) -> None:
    source = """
class Uses(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def answer(self):
        import only_here
        return [only_here.x, os.path.exists("beside.txt")]
if __name__ == "__main__":
    import json, pathlib
    here = pathlib.Path.cwd()
    for name, file in (("more", "only_here.py"), ("place", "beside.txt")):
        (here / name).mkdir()
        (here / name / file).write_text("x = 42\\n")
    (here / "python").symlink_to(sys.executable)
    rm = ResourceManager(1, 3)
    how = dict(device_mapping="0-2", py_modules=[str(here / "more")], working_dir=str(here / "place"))
    said = Cluster("uses", Uses, rm, WorkerConfig(**how)).answer()
    try:
        Cluster("lacks", Uses, rm, WorkerConfig(device_mapping="1", python=str(here / "python")))
    except muster.MusterError as error:
        said.append(str(error))
    print(json.dumps(said))
"""
    *answers, error = cluster.run(source)
    assert answers == [[42, True]] * 3
    assert "10.77.0.2" in error and "/python is not there" in error, error


RENDEZVOUS = """
import socket
class Meets(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def meet(self):
        at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        world = int(os.environ["WORLD_SIZE"])
        if self.rank == 0:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("", at[1]))
                listener.listen(world)
                peers = [listener.accept()[0] for _ in range(world - 1)]
                total = sum(int(p.makefile().readline()) for p in peers)
                for p in peers:
                    p.sendall(f"{total}\\n".encode()); p.close()
            return total
        deadline = time.monotonic() + 20
        while True:
            try:
                peer = socket.create_connection(at, 5); break
            except OSError:
                if time.monotonic() > deadline: raise
        peer.sendall(f"{self.rank}\\n".encode())
        return int(peer.makefile().readline())
if __name__ == "__main__":
    import json
    rm = ResourceManager(2, 3)
    c = Cluster("meets", Meets, rm, WorkerConfig(device_mapping="0-5"))
    print(json.dumps([c.meet(), c.meet()]))
"""


def test_workers_of_all_hosts_meet_at_the_master_twice(cluster: Cluster) -> None:
    assert cluster.run(RENDEZVOUS) == [[15] * 6] * 2


TORCH = """
class Reduces(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def reduce(self):
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        t = torch.tensor([float(self.rank + 1)])
        dist.all_reduce(t)
        dist.destroy_process_group()
        return t.item()
if __name__ == "__main__":
    import json
    rm = ResourceManager(2, 3)
    c = Cluster("reduces", Reduces, rm, WorkerConfig(device_mapping="0-5"))
    print(json.dumps([c.reduce(), c.reduce()]))
"""


def test_torch_distributed_over_three_hosts_twice(cluster: Cluster) -> None:
    env = cluster.env(GLOO_SOCKET_IFNAME="eth0", **with_torch())
    assert cluster.run(TORCH, env) == [[21.0] * 6] * 2


WAITS = (
    WORKER
    + """
if __name__ == "__main__":
    import json
    rm = ResourceManager(2, 3)
    c = Cluster("waits", Probe, rm, WorkerConfig(device_mapping="0-5"))
    print("ready", flush=True)
    try:
        print(json.dumps(c.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 60)), flush=True)
    except muster.MusterError as error:
        said = [type(error).__name__, str(error), error.node, error.rank]
        print(json.dumps(said), flush=True)
"""
)


def waiting(cluster: Cluster) -> Running:
    running = cluster.start(WAITS)
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    if line != "ready":
        raise AssertionError(f"{line}\n{cluster.finish(running).stderr}")
    return running


def killed(cluster: Cluster, host: int, what: str) -> str:
    """Kill what a script that waits for a call depends on; what the call then says."""
    running = waiting(cluster)
    pids = cluster.pids(host, what)
    assert pids, cluster.hosts.processes(host)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    done = cluster.finish(running)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    kind, text, node, rank = json.loads(done.stdout.splitlines()[-1])
    assert kind == "NodeLostError", text
    assert f"the agent of {node} is gone" in text, text
    # Two ranks a host, and the first of those that are lost is told.
    assert (node, rank) == ("10.77.0.2", 2) or (host == 0 and node == "10.77.0.3"), text
    return str(text)


def test_the_bridge_is_killed(cluster: Cluster) -> None:
    """Ray ends its actors, they their agents: what was far is lost, all of it."""
    assert "the bridge to Ray is gone" in killed(cluster, 0, "muster._ray")


def test_an_agent_is_killed(cluster: Cluster) -> None:
    assert "killed by SIGKILL" in killed(cluster, 1, "muster agent")


def test_an_agents_actor_is_killed(cluster: Cluster) -> None:
    """Its agent ends in order then, and says so before its workers' ends are told."""
    assert "its actor in Ray ended" in killed(cluster, 1, "ray::Agent")


def test_a_script_that_is_killed_leaves_nothing(cluster: Cluster) -> None:
    running = waiting(cluster)
    running.kill()
    running.wait()


def test_a_head_that_is_killed_is_followed_and_the_call_goes_on(cluster: Cluster) -> None:
    running = cluster.start(WAITS.replace("else 60", "else 5"))
    assert running.stdout is not None
    assert running.stdout.readline().strip() == "ready"
    (head,) = cluster.pids(0, "muster head")
    os.kill(head, signal.SIGKILL)
    done = cluster.finish(running)
    assert json.loads(done.stdout.splitlines()[-1]) == list(range(6)), done.stderr
    cluster.nothing_is_left()  # nor what the tests before, which killed, may have left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 32}, "token"),
        ({"RAY_AUTH_TOKEN": ""}, "token"),
        ({"RAY_ADDRESS": "10.77.0.1:1"}, "no Ray at 10.77.0.1:1"),
        ({"RAY_ADDRESS": "10.77.0.99:6379"}, "no Ray at 10.77.0.99:6379"),
        ({"RAY_ADDRESS": "ray://10.77.0.1:10001"}, "ray://"),
    ],
)
def test_what_does_not_let_us_in_is_told(
    cluster: Cluster, change: dict[str, str], said: str
) -> None:
    source = """
if __name__ == "__main__":
    import json
    began = time.monotonic()
    try:
        ResourceManager(1, 1)
        print(json.dumps(["", 0]))
    except muster.MusterError as error:
        print(json.dumps([str(error), time.monotonic() - began]))
"""
    text, took = cluster.run(source, {**cluster.env(), **change})
    assert said in text, text
    assert took < 30, took


def test_the_suite_of_every_backend(cluster: Cluster, tmp_path: Path) -> None:
    """backendtest, from the first host: agents of the others reach the head by a shared folder."""
    if shutil.which("go") is None:
        pytest.skip("needs go: the suite is built from source")
    root = Path(__file__).resolve().parent.parent
    suite = tmp_path / "suite"
    subprocess.run(
        ["go", "test", "-c", "-o", str(suite), "./backend/ray"], cwd=root, check=True, timeout=200
    )
    short = Path(tempfile.mkdtemp(prefix="mr", dir="/var/tmp"))
    try:
        env = cluster.env(
            TMPDIR=str(short),
            MUSTER_TEST_RAY=cluster.ray.address,
            MUSTER_TEST_RAY_PYTHON=str(cluster.ray.python),
        )
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(root / "backend" / "ray")]
        done = cluster.hosts.run(0, [*inside, suite, "-test.v"], env=env, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "--- SKIP" not in done.stdout, done.stdout
    finally:
        shutil.rmtree(short, ignore_errors=True)


def test_a_pool_waits_for_nodes_that_are_added_and_a_raylet_is_killed() -> None:
    with Hosts(3) as hosts:
        cluster = Cluster(hosts, hosts.ray_up(on=[0, 1]))
        patient = WAITS.replace("ResourceManager(2, 3)", "ResourceManager(2, 3, timeout=90)")
        running = cluster.start(patient, cluster.env(MUSTER_RAY_AUTOSCALER="1"))
        assert running.stderr is not None and running.stdout is not None
        said = iter(running.stderr.readline, "")
        assert any("10.77.0.2" in line or "wanted 3 bundles" in line for line in said)
        cluster.ray.start(2)
        assert running.stdout.readline().strip() == "ready"
        for pid in cluster.ray.pids(2, "raylet"):
            os.kill(pid, signal.SIGKILL)
        done = cluster.finish(running)
        kind, text, node, rank = json.loads(done.stdout.splitlines()[-1])
        assert (kind, node, rank) == ("NodeLostError", "10.77.0.3", 4), text
        assert "the agent of 10.77.0.3 is gone" in text, text
        cluster.nothing_is_left(files=False)


# Another pool, once the call has returned.
MORE = """
    try:
        ResourceManager(2, 1)
    except muster.MusterError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


def test_rays_head_is_killed_and_the_call_goes_on() -> None:
    """Calls need nothing of Ray; what its nodes do without their head is theirs."""
    with Hosts(3) as hosts:
        cluster = Cluster(hosts, hosts.ray_up())
        running = cluster.start(WAITS.replace("else 60", "else 10") + MORE)
        assert running.stdout is not None
        assert running.stdout.readline().strip() == "ready"
        for pid in cluster.ray.pids(0, "gcs_server"):
            os.kill(pid, signal.SIGKILL)
        done = cluster.finish(running)
        assert done.returncode == 0, done.stderr
        call, pool = map(json.loads, done.stdout.splitlines()[-2:])
        assert call == list(range(6)), done.stderr
        kind, text = pool
        assert kind == "ResourceError" and "no Ray at 10.77.0.1:6379" in text, text
        until(lambda: not cluster.musters(), lambda: f"left: {cluster.musters()}")
