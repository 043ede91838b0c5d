"""Scripts that were written for one machine, on the nodes of a real Ray: `make test-ray`.

Nothing about them is changed but MUSTER_BACKEND=ray. Four hosts, as the demo wants four
nodes; the third does not have the tree, the scripts' own folders are on the first alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import docs_test
from docs_test import Block
from hosts import Hosts
from ray_cluster import ROOT, Cluster, until, with_torch
from running import BINARY

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "examples"
#: Words of blocks that are left out: they kill a process by its number, which may be another
#: host's.
LOCAL = ("os.kill(engine.workers[3].pid",)
BLOCKS = [
    block
    for block in docs_test.BLOCKS
    if block.language == "python" and block.runs() and not any(w in block.text for w in LOCAL)
]
#: Blocks whose output is of this machine's nodes: with Ray's it is worded otherwise.
WORDED = ("ResourceManager.outlook(", 'muster.nodes()[0]["free"]')


@pytest.fixture(scope="module")
def rays() -> Iterator[Cluster]:
    with Hosts(4, bare=[2]) as hosts:
        yield Cluster(hosts, hosts.ray_up())


@pytest.fixture
def cluster(rays: Cluster) -> Iterator[Cluster]:
    yield rays
    rays.nothing_is_left()


def ended(
    cluster: Cluster,
    *command: str | Path,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """What a program on the first host said, once it has ended well."""
    done = cluster.finish(cluster.program(command, cluster.env(**(env or {})), cwd))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_of_the_documents(cluster: Cluster, block: Block) -> None:
    path = cluster.script(block.text, imports="")
    done = cluster.finish(cluster.program([cluster.ray.python, path], cwd=path.parent))
    said = done.stderr + done.stdout
    assert (done.returncode != 0) == ("fails" in block.words), said
    for output in block.output:
        if not any(words in block.text for words in WORDED):
            line = docs_test.missing(output.text, said)
            assert line is None, f"{output}: {line!r} was not printed; this was:\n{said}"


def test_the_pipeline_of_the_readme(cluster: Cluster) -> None:
    said = ended(cluster, cluster.ray.python, EXAMPLES / "pipeline.py")
    assert said.splitlines()[-1] == "4 2 [2, 4, 6, 8, 10]"


def test_the_demo(cluster: Cluster) -> None:
    said = ended(cluster, cluster.ray.python, EXAMPLES / "demo" / "main.py", env={"NO_COLOR": "1"})
    assert "48 processes ready" in said and "processes is left" in said, said


def test_a_pipeline_of_rolls(cluster: Cluster) -> None:
    script = EXAMPLES / "roll" / "pipeline.py"
    said = ended(cluster, cluster.ray.python, script, env=with_torch())
    assert said.splitlines()[-1].startswith("2 {'actor/loss'"), said


@pytest.fixture(scope="module")
def verifiers(rays: Cluster) -> Path:
    """The program of the Go example, which the first host alone has."""
    if shutil.which("go") is None:
        pytest.skip("needs go: the example is built from source")
    folder = rays.hosts.scratch / "go"
    outside = rays.hosts[0].path(folder)
    outside.mkdir()
    command = ["go", "build", "-o", str(outside / "verifiers"), "./examples/go-verifiers"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)
    return folder / "verifiers"


def test_verifiers_in_go_driven_from_python(cluster: Cluster, verifiers: Path) -> None:
    script = EXAMPLES / "go-verifiers" / "verified.py"
    said = ended(cluster, cluster.ray.python, script, verifiers, cwd=verifiers.parent)
    assert "4 Python actors, 8 Go verifiers" in said and "step 3: mean reward 1.00" in said, said


def test_verifiers_in_go_driven_from_go(cluster: Cluster, verifiers: Path) -> None:
    command = (verifiers, "-python", cluster.ray.python)
    said = ended(cluster, *command, cwd=verifiers.parent, env={"MUSTER_BINARY": str(BINARY)})
    assert "4 Python actors, 8 Go verifiers" in said and "step 3: mean reward 1.00" in said, said


def test_one_that_is_stuck_is_looked_at_from_another_terminal(cluster: Cluster) -> None:
    running = cluster.program([cluster.ray.python, EXAMPLES / "stuck.py"])
    looks: list[str] = []

    def look(*words: str) -> str:
        done = cluster.hosts.run(0, [BINARY, *words], env=cluster.env())
        looks.append(done.stdout + done.stderr)
        return looks[-1]

    try:
        until(lambda: "1 of 8 ranks: 2" in look("status"), lambda: looks[-1], 60)
        # The pool's two nodes, and the script's own, which may be one of them: Ray's choice.
        assert looks[-1].count("8 virtual") in (2, 3), looks[-1]
        stacks = look("stacks", "actor_train")
        assert "in wait_for_disk" in stacks and "ranks 0-1,3-7" in stacks, stacks
    finally:
        running.terminate()
        cluster.finish(running)


FIRST = """
import numpy as np
from muster import Batch

class Keeper:
    def __init__(self, batch): self.batch = batch
    def total(self, more): return float(self.batch["x"].sum() + more["x"].sum())

if __name__ == "__main__":
    batch = Batch({"x": np.ones((1000, 1000))})
    keeper = muster.service(Keeper, "keeper", batch)
    print(keeper.total(batch[:10]))
"""


def test_what_is_large_before_there_is_a_node(cluster: Cluster) -> None:
    said = ended(cluster, cluster.ray.python, cluster.script(FIRST))
    assert said.splitlines()[-1] == "1010000.0"


SERVICES = """
import json, socket
import numpy as np
from muster import Batch, Instances

class Store:
    def __init__(self, first):
        self.kept = {"first": first}
    def put(self, key, value): self.kept[key] = value
    def get(self, key): return self.kept[key]
    def where(self): return socket.gethostname()
    def destroy(self): print("destroyed on", socket.gethostname(), flush=True)

class Model:
    def __init__(self, scale): self.scale = scale
    def forward(self, batch): return Batch({"y": np.asarray(batch["x"]) * self.scale})
    def where(self): return socket.gethostname()

class Rank(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def report(self, store):
        here = [node["name"] for node in muster.nodes() if node["here"]]
        muster.get_service("store-0").put(f"rank {self.rank}", here)
        mine = muster.service(Store, f"own-{self.rank}", self.rank)
        return [socket.gethostname(), here, store.get("first"), mine.get("first")]
    @register(Dispatch.DP_MP_COMPUTE)
    def total(self, batch): return [float(np.asarray(batch["y"]).sum())]

if __name__ == "__main__":
    before = muster.nodes()
    stores = []
    for number, node in enumerate(before):
        config = WorkerConfig(node=node["name"])
        stores.append(muster.service(Store, f"store-{number}", f"at {number}", config=config))
    found = {
        "before": [[n["name"], n["state"], len(n["devices"]), n["here"]] for n in before],
        "after": [n["state"] for n in muster.nodes()],
        "stores": [[s.where(), s.get("first"), s.node] for s in stores],
    }
    rm = ResourceManager(1, len(before))
    ranks = Cluster("ranks", Rank, rm, WorkerConfig(device_mapping=list(range(len(before)))))
    found["reports"] = ranks.report(stores[-1])
    found["heard"] = [stores[0].get(f"rank {r}") for r in range(len(before))]
    found["services"] = muster.list_services()
    engines = [w.create_engine("__main__:Model", "model", 2 + r) for r, w in enumerate(ranks.workers)]
    found["engines"] = [engine.where() for engine in engines]
    rows = Batch({"x": np.ones((100, 10_000))})     # 8 MB, so that it lies in the stores
    made = [engine.forward.remote(rows) for engine in engines]
    joined = Batch.concat(muster.get(made)[::-1])   # from the last host to the first
    found["totals"] = ranks.total(joined)
    stores[1].put("rows", joined)                   # and by way of a service on another
    found["kept"] = float(np.asarray(stores[1].get("rows")["y"]).sum())
    infer = Instances("infer", Rank, WorkerConfig(device_mapping="0-3"),
                      pool=dict(num_gpus_per_node=4, strategy="PACK"), count=2)
    infer.scale(3)
    found["instances"] = [engine.total(joined) for engine in infer]
    infer.scale(1)
    print(json.dumps(found))
"""


def test_services_engines_and_instances_on_all_hosts(cluster: Cluster) -> None:
    got = cluster.run(SERVICES)
    names = [host.address for host in cluster.hosts.hosts]
    hosts = [host.name for host in cluster.hosts.hosts]
    states = ["up", "unused", "unused", "unused"]
    assert got["before"] == [
        [name, state, 8, state == "up"] for name, state in zip(names, states, strict=True)
    ]
    assert got["after"] == ["up"] * 4
    expected = [[host, f"at {i}", names[i]] for i, host in enumerate(hosts)]
    assert got["stores"] == expected
    assert got["reports"] == [[host, [names[i]], "at 3", i] for i, host in enumerate(hosts)]
    assert got["heard"] == [[name] for name in names]
    assert got["services"] == [f"{kind}-{i}" for kind in ("own", "store") for i in range(4)]
    assert got["engines"] == hosts
    assert got["totals"] == [1e6 * (5 - i) for i in range(4)]
    assert got["kept"] == 14e6
    assert [sum(totals) for totals in got["instances"]] == [14e6] * 3


PLACES = """
import muster.compat.ray as ray
from muster.compat.ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy)

@ray.remote
class Where:
    def node(self):
        return ray.get_runtime_context().get_node_id()
    def neighbour(self, ident):
        strategy = NodeAffinitySchedulingStrategy(ident, soft=False)
        return ray.get(Where.options(scheduling_strategy=strategy).remote().node.remote())

@ray.remote
def task(x):
    return 2 * x, ray.get_runtime_context().get_node_id()

if __name__ == "__main__":
    ray.init(namespace="places")
    ids = [node["NodeID"] for node in ray.nodes()]
    assert len(ids) == 4 and ray.cluster_resources()["GPU"] == 32, ray.nodes()
    assert ray.available_resources()["GPU"] == 32
    assert ray.get_runtime_context().get_node_id() == ids[0]
    for ident in ids:
        strategy = NodeAffinitySchedulingStrategy(ident, soft=False)
        one = Where.options(scheduling_strategy=strategy).remote()
        assert ray.get(one.node.remote()) == ident
        assert ray.get(task.options(scheduling_strategy=strategy).remote(4)) == (8, ident)
    assert ray.get(one.neighbour.remote(ids[1])) == ids[1]
    spread = [Where.options(scheduling_strategy="SPREAD").remote() for _ in ids]
    assert sorted(ray.get([one.node.remote() for one in spread])) == sorted(ids)
    group = ray.util.placement_group([{"GPU": 4}] * 4, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    assert ray.available_resources().get("GPU", 0) == 16
    table = ray.util.placement_group_table(group)["bundles_to_node_id"]
    assert sorted(table.values()) == sorted(ids)
    for gpus in (0, 4):
        for index, ident in table.items():
            strategy = PlacementGroupSchedulingStrategy(group, index)
            one = Where.options(scheduling_strategy=strategy, num_gpus=gpus).remote()
            assert ray.get(one.node.remote()) == ident
    mixed = ray.util.placement_group(
        [{"GPU": 1}, {"GPU": 3, "CPU": 0.5}, {"CPU": 0.5}], strategy="STRICT_SPREAD")
    ray.get(mixed.ready())
    table = ray.util.placement_group_table(mixed)["bundles_to_node_id"]
    assert len(set(table.values())) == 3 and ray.available_resources()["GPU"] == 12
    for index, gpus in enumerate((1, 3, 0)):
        strategy = PlacementGroupSchedulingStrategy(mixed, index)
        one = Where.options(scheduling_strategy=strategy, num_gpus=gpus).remote()
        assert ray.get(one.node.remote()) == table[index]
    try:
        Where.options(scheduling_strategy=NodeAffinitySchedulingStrategy("0" * 56, soft=False)).remote()
    except ValueError as error:
        print('"placed"' if "that is alive" in str(error) else error)
    ray.shutdown()
"""


def test_rays_calls_on_all_hosts(cluster: Cluster) -> None:
    assert cluster.run(PLACES) == "placed"


def test_every_case_of_rays_calls() -> None:
    """On one node, as the cases know of one."""
    with Hosts(1) as hosts:
        cluster = Cluster(hosts, hosts.ray_up(gpus=4))
        cases = ROOT / "e2e" / "ray_cases.py"
        running = cluster.program([cluster.ray.python, cases], cluster.env(MUSTER_VIRTUAL="1x4"))
        done = cluster.finish(running, 250)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "ok an_actor_counts_in_order" in done.stdout
        cluster.nothing_is_left()
