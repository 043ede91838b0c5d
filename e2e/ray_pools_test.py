"""Scheduling over the nodes of a real Ray: shapes side by side, instances, outlooks, environments.

The third host does not have the tree; the second has a label, the third an accelerator's
type, as far as Ray knows.
"""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts import Hosts
from hosts.rays import python_with_ray
from ray_cluster import Cluster, until
from ray_test import WORKER
from running import BINARY, PACKAGE

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rays() -> Iterator[Cluster]:
    with Hosts(3, bare=[2]) as hosts:
        ray = hosts.ray_up(labels={1: "zone=b"}, resources={2: '{"accelerator_type:H100": 1}'})
        yield Cluster(hosts, ray)


@pytest.fixture
def cluster(rays: Cluster) -> Iterator[Cluster]:
    yield rays
    rays.nothing_is_left()


def test_shapes_side_by_side(cluster: Cluster) -> None:
    """Learners on a node each, engines of four GPUs packed, verifiers with CPUs alone."""
    got = cluster.run(
        WORKER
        + """
if __name__ == "__main__":
    import json
    learners = ResourceManager(1, 3, strategy="STRICT_SPREAD", cpus_per_node=1)
    engines = ResourceManager(4, 3, strategy="PACK")
    verifiers = ResourceManager(0, 2, cpus_per_node=2, strategy="SPREAD")
    learn = Cluster("learn", Probe, learners, WorkerConfig(device_mapping="0-2"))
    engine = Cluster("engine", Probe, engines,
                     WorkerConfig(device_mapping="0-11", num_gpus_per_worker=4))
    verify = Cluster("verify", Probe, verifiers, WorkerConfig(world_size=4))
    mixed = ResourceManager.for_bundles([{"gpus": 1, "cpus": 1}, {"gpus": 3}, {"cpus": 1}])
    mix = Cluster("mix", Probe, mixed, WorkerConfig(device_mapping="0-3"))
    parts = [len(mixed.gpu_ids(bundle)) for bundle in range(3)]
    print(json.dumps([*(c.where() for c in (learn, engine, verify, mix)), parts]))
"""
    )
    learn, engine, verify, mix, parts = got
    assert [w["host"] for w in learn] == ["host0", "host1", "host2"]
    devices: dict[str, list[str]] = {}
    for w in [*learn, *engine, *mix]:
        devices.setdefault(w["host"], []).extend(w["env"]["CUDA_VISIBLE_DEVICES"].split(","))
    assert [len(w["env"]["CUDA_VISIBLE_DEVICES"].split(",")) for w in engine] == [4, 4, 4]
    for host, ids in devices.items():
        assert len(ids) == len(set(ids)), f"{host} gave a GPU twice: {ids}"
    assert len({w["host"] for w in verify}) == 2
    assert parts == [1, 3, 0] and len({w["host"] for w in mix[1:]}) == 1
    assert all(len(w["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == 1 for w in mix)
    assert {w["env"]["CUDA_VISIBLE_DEVICES"] for w in verify} == {""}


INSTANCES = (
    WORKER
    + """
import threading
if __name__ == "__main__":
    import json
    train = Cluster("train", Probe, ResourceManager(2, 3), WorkerConfig(device_mapping="0-5"))
    over, steps, problems = threading.Event(), [], []
    def loop():
        try:
            while not over.is_set():
                assert train.double(list(range(12))) == [2 * i for i in range(12)]
                steps.append(1)
        except BaseException as error:
            problems.append(repr(error))
    training = threading.Thread(target=loop)
    training.start()
    infers = muster.Instances("infer", Probe, WorkerConfig(device_mapping="0-3"),
                              pool=dict(num_gpus_per_node=4, strategy="PACK"), count=1)
    pids = infers[0].pid()
    infers.scale(3)
    hosts = [sorted({w["host"] for w in c.where()}) for c in infers]
    under_way = [c.sleep(1.5, blocking=False) for c in infers]
    infers.scale(1)
    answered = muster.get(under_way)
    try:
        infers.scale(9)
        refused = ""
    except muster.ResourceError as error:
        refused = str(error)
    same = infers[0].pid() == pids
    names = infers.names
    infers.scale(2)
    more = len(infers[1].where())
    infers.shutdown()
    over.set()
    training.join()
    print(json.dumps([hosts, answered, refused, same, names, more, len(steps), problems]))
"""
)


def test_instances_come_and_go_while_training_goes_on(cluster: Cluster) -> None:
    hosts, answered, refused, same, names, more, steps, problems = cluster.run(INSTANCES)
    assert all(len(on) == 1 for on in hosts), hosts
    assert answered == [[0, 1, 2, 3]] * 3, "those that went were waited for"
    assert "pool 1 (train) holds 2 GPUs" in refused, refused
    assert same and names == ["infer-0"] and more == 4
    assert steps > 0 and problems == []


def test_what_an_instance_made_keeps_its_node(cluster: Cluster) -> None:
    source = """
import numpy as np
from muster import Batch, Instances
class Makes(Worker):
    @register(Dispatch.ONE_TO_ALL_ONE)
    def make(self): return Batch({"x": np.ones((100, 1000))})
if __name__ == "__main__":
    pool = dict(num_gpus_per_node=1, labels={"zone": "b"})
    makes = Instances("makes", Makes, WorkerConfig(device_mapping="0"), pool=pool)
    rows = makes[0].make()
    makes.scale(0)
    print("gone", flush=True)
    sys.stdin.readline()
    print(float(np.asarray(rows["x"]).sum()), flush=True)
    del rows
    print("dropped", flush=True)
    sys.stdin.readline()
"""
    running = cluster.start(source)
    assert running.stdout is not None and running.stdin is not None
    said = iter(running.stdout.readline, "")
    try:
        assert next(said).strip() == "gone"
        assert cluster.pids(1, "muster agent"), "its rows lie there"
        running.stdin.write("\n")
        running.stdin.flush()
        assert next(said).strip() == "100000.0"
        assert next(said).strip() == "dropped"
        until(lambda: not cluster.pids(1, "muster agent"), lambda: str(cluster.musters()))
    finally:
        done = cluster.finish(running)
    assert done.returncode == 0, done.stderr


def test_an_accelerators_type_and_labels_choose_nodes(cluster: Cluster) -> None:
    got = cluster.run(
        WORKER
        + """
if __name__ == "__main__":
    import json, time
    said = []
    def outlook(**how):
        deadline = time.monotonic() + 30
        while "tasks of Ray's hold" in (text := str(ResourceManager.outlook(1, **how))):
            assert time.monotonic() < deadline, text  # Ray tells late of what came free
        return text
    for how in (dict(accelerator_type="H100"), dict(labels={"zone": "b"}), dict(labels={"zone": "!b"}, num_nodes=2)):
        rm = ResourceManager(1, how.pop("num_nodes", 1), **how)
        c = Cluster("there", Probe, rm, WorkerConfig(device_mapping=list(range(rm.num_gpus))))
        said.append([w["host"] for w in c.where()])
        rm.destroy_placement_group()
    for how in (dict(accelerator_type="H100", num_nodes=2), dict(labels={"zone": "in(b,c)"}, num_nodes=2)):
        said.append(outlook(**how))
    print(json.dumps(said))
"""
    )
    typed, labelled, others, few, elsewhere = got
    assert (typed, labelled, others) == (["host2"], ["host1"], ["host0", "host2"])
    assert "10.77.0.1: 8 GPUs, 8 free, no H100" in few and "8 free, has H100" in few, few
    assert "zone=in(b,c)" in elsewhere and "other labels" in elsewhere, elsewhere


SQUATTER = """
import sys, time
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False, namespace="other")
class Engine:
    def here(self): return ray.get_runtime_context().get_node_id()
engine = ray.remote(Engine).options(num_gpus=5, num_cpus=0, name="squatter").remote()
ray.get(engine.here.remote())
print("there", flush=True)
sys.stdin.readline()
"""

HOLDS = """
class Probe(Worker): pass
if __name__ == "__main__":
    rm = ResourceManager(4, 2)
    c = Cluster("trainer", Probe, rm, WorkerConfig(device_mapping="0-7"))
    print("there", flush=True)
    sys.stdin.readline()
    print(ResourceManager.outlook(6, 2).text.replace("\\n", "|"), flush=True)
"""

PLAN = """
nodes: 2
gpus_per_node: 6
clusters:
  late: {device_mapping: "0-11"}
"""


def test_an_outlook_says_who_holds_what(cluster: Cluster) -> None:
    """By the names of pools, and by Ray's own: in the script, and by muster plan."""
    python = str(cluster.ray.python)
    other = cluster.hosts.popen(
        0, [python, "-c", SQUATTER, cluster.ray.address], env=cluster.ray.env, stdin=subprocess.PIPE
    )
    running = None
    try:
        assert other.stdout is not None and other.stdout.readline().strip() == "there"
        running = cluster.start(HOLDS)
        assert running.stdout is not None and running.stdin is not None
        assert running.stdout.readline().strip() == "there", cluster.finish(running).stderr
        running.stdin.write("\n")
        running.stdin.flush()
        said = running.stdout.readline()
        assert "pool 1 (trainer) holds 4 GPUs" in said, said
        assert "actor squatter (job " in said and "holds 5 GPUs" in said, said
        running.stdin.write("\n")
    finally:
        for one in (other, running):
            if one is not None and one.stdin is not None:
                one.stdin.close()
        other.wait()
        if running is not None:
            assert running.wait() == 0


def plan(cluster: Cluster, text: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [
        BINARY,
        "plan",
        "--backend",
        "ray",
        "--python",
        str(cluster.ray.python),
        "-",
    ]
    return cluster.hosts.run(0, command, env=cluster.env(), stdin=text, timeout=120)


def test_plan_looks_into_ray(cluster: Cluster) -> None:
    done = plan(cluster, PLAN)
    assert done.returncode == 0, done.stderr
    assert "there is room for 2 bundles of 6 GPUs, each on a node of its own in Ray" in done.stdout
    running = cluster.start(HOLDS)
    assert running.stdout is not None and running.stdin is not None
    try:
        assert running.stdout.readline().strip() == "there"
        done = plan(cluster, PLAN)
        assert done.returncode == 1, done.stdout
        assert "pool 1 of session " in done.stderr and "holds 4 GPUs" in done.stderr, done.stderr
    finally:
        running.stdin.write("\n")
        running.stdin.close()
        running.wait()


ENVIRONMENT = """
class Looks(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def look(self, *modules):
        import importlib, socket
        found = [importlib.import_module(name).value for name in modules]
        return [socket.gethostname(), found, os.environ.get("ADDED"), os.path.exists("data.txt"), sys.executable]
if __name__ == "__main__":
    import json, pathlib
    here = pathlib.Path.cwd()
    for name, text in {"code/beside.py": "value = 1", "code/data.txt": "", "lib/pkg/__init__.py": "value = 2"}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    (here / "lib" / "huge.bin").write_bytes(b"x")
"""


def test_a_runtime_env_reaches_workers_on_all_nodes(cluster: Cluster) -> None:
    got = cluster.run(
        ENVIRONMENT
        + """
    env = {"env_vars": {"ADDED": "${HOME}/x"}, "working_dir": "code", "py_modules": ["lib/pkg"]}
    c = Cluster("looks", Looks, ResourceManager(1, 3), WorkerConfig(device_mapping="0-2", runtime_env=env))
    said = [c.look("beside", "pkg")]
    for wrong in ({"env_vars": {"RANK": "1"}}, {"image_uri": "x"}, {"pips": []}):
        try:
            Cluster("wrong", Looks, ResourceManager(1, 1), WorkerConfig(device_mapping="0", runtime_env=wrong))
        except ValueError as error:
            said.append(str(error))
    print(json.dumps([os.environ["HOME"], *said]))
"""
    )
    home, seen, rank, image, unknown = got
    for rank_, worker in enumerate(seen):
        assert worker[:4] == [f"host{rank_}", [1, 2], f"{home}/x", True], worker
    assert "RANK" in rank and "image_uri" in image and 'did you mean "pip"' in unknown


def wheel(folder: Path) -> Path:
    """A wheel with one module, made by hand: there is no index to get one from."""
    path = folder / "tiny_of_test-1.0-py3-none-any.whl"
    about = "tiny_of_test-1.0.dist-info"
    files = {
        "tiny_of_test.py": "value = 42\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny-of-test\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def light_venv(folder: Path) -> Path:
    """An interpreter that finds Ray elsewhere: Ray copies all of its own to install something."""
    heavy = python_with_ray()
    subprocess.run([heavy, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    places = [
        subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout
        for python in (heavy, folder / "bin" / "python")
    ]
    # A path that stands in such a file has none of its own read: this tree's is named, too.
    Path(places[1].strip(), "elsewhere.pth").write_text(f"{places[0].strip()}\n{PACKAGE}\n")
    return folder / "bin" / "python"


def test_what_ray_installs_is_what_workers_import(tmp_path: Path) -> None:
    """An interpreter of Ray's making, here and on another node; set up once."""
    env: dict[str, Any] = {
        "pip": {"packages": [str(wheel(tmp_path))], "pip_install_options": ["--no-index"]},
        "env_vars": {"ADDED": "yes"},
    }
    with Hosts(2) as hosts:
        cluster = Cluster(hosts, hosts.ray_up(python=light_venv(tmp_path / "venv")))
        got = cluster.run(
            ENVIRONMENT
            + f"""
    env = {env!r}
    rm = ResourceManager(1, 2)
    def start(name, **more):
        return Cluster(name, Looks, rm, WorkerConfig(device_mapping="0-1", runtime_env={{**env, **more}}))
    said = [*start("installed").look("tiny_of_test"), *start("again").look("tiny_of_test")]
    try:
        start("wrong", pip=["/no/such-1.0-py3-none-any.whl"])
    except muster.StartupError as error:
        said.append(str(error))
    print(json.dumps([sys.executable, *said]))
"""
        )
        mine, *workers, error = got
        assert [w[:3] for w in workers] == [["host0", [42], "yes"], ["host1", [42], "yes"]] * 2
        for worker in workers:
            assert worker[4] != mine and "virtualenv" in worker[4], worker
        assert "Ray could not set up the runtime_env on 10.77.0." in error, error
        assert "such-1.0" in error, error
        cluster.nothing_is_left()
