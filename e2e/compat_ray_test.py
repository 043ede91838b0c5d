"""`muster.compat.ray` does what Ray does: each case of `ray_cases.py`, on ours; on Ray itself
too where that is there (marker ray). And what is ours alone."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
import ray_cases  # noqa: F401  (for its cases)
import ray_roles
import roles
from muster.compat import ray as compat
from running import HERE, PACKAGE, cluster, eventually, output_of, run

ray: Any = compat


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray_roles.start()
    yield
    ray.shutdown()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("case", ray_roles.CASES, ids=lambda case: case.__name__)
def test_on_muster(case: Callable[[], None]) -> None:
    case()


@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.parametrize("part", range(4))
def test_on_ray(tmp_path: Path, part: int) -> None:
    names = [case.__name__ for case in ray_roles.CASES][part::4]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:  # for sockets' sake
        done = run(
            sys.executable,
            HERE / "ray_cases.py",
            *names,
            cwd=tmp_path,
            virtual=None,
            timeout=250,
            RAY_CASES="ray",
            RAY_TMPDIR=short,
            RAY_AUTH_MODE="disabled",  # or it writes a token into the user's home
        )
    ran = [line for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert len(ran) == len(names)


@pytest.mark.usefixtures("session")
def test_an_actor_goes_on_after_a_method_that_was_cancelled() -> None:
    counter = ray_roles.Counter.remote()
    assert ray.get(counter.add.remote()) == 1
    pending = counter.sleep.remote(60)
    ray.wait([pending], timeout=0.3)
    ray.cancel(pending)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(pending, timeout=60)
    assert ray.get(counter.add.remote()) == 2
    ray.kill(counter)


@pytest.mark.usefixtures("session")
def test_actors_that_nobody_holds_leave_nothing() -> None:
    before = set(muster.list_services())
    assert ray.get([ray_roles.Counter.remote(i).add.remote() for i in range(4)]) == [1, 2, 3, 4]
    assert eventually(lambda: set(muster.list_services()) <= before)


@pytest.mark.usefixtures("session")
def test_what_is_put_lies_in_the_store_once() -> None:
    ref = ray.put({"rows": np.ones(1 << 20), "name": "x"})
    large = ref._ref._kept.passed().__muster_batch__()
    first: list[Any] = []
    second: list[Any] = []
    large._encode(first)
    assert ray.get(ray_roles.total.remote(1, extra=len(ray.get(ref)))) == 3
    large._encode(second)
    assert first[0].right.object == second[0].right.object
    assert ray.get(ref)["rows"].sum() == 1 << 20


@pytest.mark.usefixtures("session")
def test_errors_stay_errors_of_muster() -> None:
    counter = ray_roles.Counter.options(name="of/both").remote()
    with pytest.raises(
        muster.RemoteError, match=r"in actor 'of/both' on node-0, meth.* fail,"
    ) as caught:
        ray.get(counter.fail.remote(1))
    assert caught.value.node == "node-0" and "both" in caught.value.worker
    with pytest.raises(muster.RemoteError, match="in actor 'of/both'") as caught:
        ray.get(counter.add.remote(counter.fail.remote(1)))  # and not add, which never ran
    assert "add" not in str(caught.value)
    with pytest.raises(muster.WorkerDiedError, match=r"^actor 'of/both'\.leave: ") as died:
        ray.get(counter.leave.remote())
    assert died.value.exit_code == 3 and isinstance(died.value, ray.exceptions.ActorDiedError)
    ray.kill(counter)


@pytest.mark.usefixtures("session")
def test_calls_that_wait_for_each_other_are_told() -> None:
    one, two = (ray.remote(ray_roles.Gate).remote() for _ in range(2))
    with pytest.raises(muster.DeadlockError) as caught:
        ray.get(one.ping.remote(two, one, 2), timeout=60)
    assert isinstance(caught.value, ray.exceptions.RayError)
    for actor in (one, two):
        ray.kill(actor)


@pytest.mark.usefixtures("session")
def test_workers_of_clusters_are_found_by_name() -> None:
    with (
        muster.ResourceManager(2, 1) as pool,
        cluster(roles.Order, pool, name="actor-1", device_mapping="0-1"),
    ):
        worker = ray.get_actor("actor-1-1-G1", namespace="roll")
        assert worker.rank == 1 and worker.name == "actor-1-1-G1"
        for name in ("actor-1-1", "actor-1-2-G2", "actor"):
            with pytest.raises(ValueError, match="no living actor"):
                ray.get_actor(name, namespace="roll")
        with pytest.raises(ValueError, match="no living actor"):
            ray.get_actor("actor-1-1-G1", namespace="else")
        assert isinstance(worker, ray.actor.ActorHandle)
        other = {"name": "actor-1-0-G0", "namespace": "roll"}
        assert other in ray.util.list_named_actors(all_namespaces=True)
        ray.kill(worker)
        with pytest.raises(ValueError, match="no living actor"):
            ray.get_actor("actor-1-1-G1", namespace="roll")
        listed = [found["name"] for found in ray.util.list_named_actors(all_namespaces=True)]
        assert [name for name in listed if name.startswith("actor-1")] == ["actor-1-0-G0"]
        with pytest.raises(ray.exceptions.ActorDiedError, match=r"ray\.kill\(\), by the script"):
            ray.get(worker.note.remote(1))
        ray.kill(worker)  # it is dead already


UNEDITED = """
import asyncio
import os

import ray
from ray._private import profiling
from ray._private.async_compat import has_async_methods
from ray._private.worker import RemoteFunctionNoArgs
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

@ray.remote
class Store:
    def __init__(self):
        self.kept = {}

    async def put(self, key, value):
        self.kept[key] = value

    async def get(self, key):
        return self.kept[key]

class Scheduler:
    def __init__(self, cluster):
        self.store = Store.options(name="store", get_if_exists=True, namespace="roll").remote()
        assert has_async_methods(Store.__ray_metadata__.modified_class)
        self.cluster = cluster

    async def step(self, number):
        await self.store.put.remote("step", number)
        found = await asyncio.gather(*[worker.double.remote(number) for worker in self.cluster])
        return sum(found) + await self.store.get.remote("step"), ray.__file__

@ray.remote
class Worker:
    def double(self, x):
        with profiling.profile("execute"):
            return 2 * x

Workers = list[RemoteFunctionNoArgs[Worker]]
"""

INSTALLING = """
import muster.compat.ray
muster.compat.ray.install()
import ray
import pipeline

if __name__ == "__main__":
    ray.init(namespace="roll")
    node = ray.get_runtime_context().get_node_id()
    workers = [pipeline.Worker.remote() for _ in range(2)]
    scheduler = ray.remote(pipeline.Scheduler).options(
        name="scheduler",
        scheduling_strategy=pipeline.NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(workers)
    total, home = ray.get(scheduler.step.remote(5))
    print(total, "compat" in home, sorted(ray.util.list_named_actors()))
"""


def test_code_that_imports_ray_runs_unedited(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(UNEDITED)
    (tmp_path / "script.py").write_text(INSTALLING)
    done = run(sys.executable, tmp_path / "script.py", virtual="1x2", PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines()[-1] == "25 True ['scheduler', 'store']"


NODES = """
import muster.compat.ray as ray
from muster.compat.ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy)

@ray.remote
class Where:
    def node(self):
        return ray.get_runtime_context().get_node_id()

if __name__ == "__main__":
    ray.init()
    ids = [node["NodeID"] for node in ray.nodes()]
    assert len(ids) == 3 and ray.cluster_resources()["GPU"] == 12
    for ident in ids:
        strategy = NodeAffinitySchedulingStrategy(ident, soft=False)
        assert ray.get(Where.options(scheduling_strategy=strategy).remote().node.remote()) == ident
    group = ray.util.placement_group([{"GPU": 4}] * 3, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    assert ray.available_resources().get("GPU", 0) == 0
    table = ray.util.placement_group_table(group)["bundles_to_node_id"]
    assert sorted(table.values()) == sorted(ids)
    for gpus in (0, 4):
        for index, ident in table.items():
            strategy = PlacementGroupSchedulingStrategy(group, index)
            one = Where.options(scheduling_strategy=strategy, num_gpus=gpus).remote()
            assert ray.get(one.node.remote()) == ident
    ray.util.remove_placement_group(group)
    group = ray.util.placement_group([{"GPU": 1}, {"GPU": 4}, {"CPU": 1}], strategy="STRICT_SPREAD")
    ray.get(group.ready())
    table = ray.util.placement_group_table(group)["bundles_to_node_id"]
    assert sorted(table.values()) == sorted(ids) and ray.available_resources()["GPU"] == 7
    for index, gpus in enumerate((1, 4, 0)):
        strategy = PlacementGroupSchedulingStrategy(group, index)
        one = Where.options(scheduling_strategy=strategy, num_gpus=gpus).remote()
        assert ray.get(one.node.remote()) == table[index]
    ray.util.remove_placement_group(group)
    group = ray.util.placement_group([{"GPU": 1}, {"GPU": 3}], strategy="STRICT_PACK")
    ray.get(group.ready())
    assert len(set(ray.util.placement_group_table(group)["bundles_to_node_id"].values())) == 1
    assert not ray.util.placement_group([{"GPU": 3}, {"GPU": 2}], strategy="STRICT_PACK").wait(0.1)
    print("placed")
"""


def test_places_on_several_nodes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NODES)
    done = run(sys.executable, tmp_path / "script.py", virtual="3x4", PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines()[-1] == "placed"


GUARDED = """
import dataclasses
import muster
from muster.compat import ray

BASE = 10

def helper(x):
    return x + BASE

if __name__ == "__main__":
    STEP = 5

    @dataclasses.dataclass
    class Point:
        x: int

    class Refused(Exception):
        pass

    def under(x):
        return helper(x) + STEP

    @ray.remote
    def add(point):
        if point.x < 0:
            raise Refused(point.x)
        return Point(under(point.x))

    def plain(point):
        return [Point(point.x + 1)]

    @ray.remote
    def fib(n):
        return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))

    @ray.remote
    class Counter:
        def __init__(self, start):
            self.value = start

        def add(self, n=1):
            self.value += n
            return self.value

        def twin(self):
            return Counter.remote(self.value * 2)

        async def later(self):
            return Point(self.value)

    class Greeter:
        def hello(self, point):
            return Point(point.x)

    class Role(muster.Worker):
        @muster.register(muster.Dispatch.ONE_TO_ALL)
        def go(self, point):
            return Point(point.x + self.rank)

    def main(offset):
        @ray.remote
        def shifted(x):
            return x + offset

        @ray.remote
        class Local:
            def get(self):
                return Point(offset)

        assert ray.get(shifted.remote(1)) == 4
        assert ray.get(Local.remote().get.remote()) == Point(3)
        assert ray.get(ray.remote(lambda x: x * offset).remote(2)) == 6

    ray.init()
    main(3)
    got = ray.get(add.remote(Point(1)))
    assert type(got) is Point and got == Point(16)
    assert ray.get(ray.remote(plain).remote(Point(1))) == [Point(2)]
    assert ray.get(ray.put(Point(3))) == Point(3)
    try:
        ray.get(add.remote(Point(-1)))
    except Refused as error:
        assert error.args == (-1,)
    else:
        raise AssertionError("it was not refused")
    assert ray.get(fib.remote(3)) == 2
    counter = Counter.remote(5)
    assert ray.get([counter.add.remote() for _ in range(2)]) == [6, 7]
    twin = ray.get(counter.twin.remote())
    assert ray.get(twin.add.remote()) == 15
    assert type(ray.get(twin.later.remote())) is Point
    assert muster.get(muster.Crew().run(plain, Point(2))) == [Point(3)]
    assert muster.service(Greeter, "greeter").hello(Point(4)) == Point(4)
    with muster.ResourceManager(0, 1) as rm:
        roles = muster.Cluster("roles", Role, rm, muster.WorkerConfig(world_size=2))
        assert roles.go(Point(1)) == [Point(1), Point(2)]
    print("by value")
"""


UNGUARDED = """
import dataclasses
from muster.compat import ray

ray.init()
OFFSET = 2

@dataclasses.dataclass
class Point:
    x: int

class Refused(Exception):
    pass

@ray.remote
def add(point):
    if point.x < 0:
        raise Refused(point.x)
    return Point(point.x + OFFSET)

@ray.remote
def both(points):
    return ray.get([add.remote(point) for point in points])

@ray.remote
class Counter:
    def __init__(self):
        self.at = 0
    def add(self):
        self.at += 1
        return Point(self.at)
    def twin(self):
        return Counter.remote()

assert ray.get(add.remote(Point(1))) == Point(3)
assert ray.get(both.remote([Point(1), Point(2)])) == [Point(3), Point(4)]
try:
    ray.get(add.remote(Point(-1)))
except Refused:
    print("refused")
counter = Counter.remote()
assert type(ray.get(counter.add.remote())) is Point
assert ray.get(ray.get(counter.twin.remote()).add.remote()) == Point(1)
print("bare")
"""


@pytest.mark.parametrize("how", ["file", "-m", "without init"])
def test_a_script_without_a_guard(tmp_path: Path, how: str) -> None:
    text = UNGUARDED.replace("ray.init()", "") if how == "without init" else UNGUARDED
    (tmp_path / "bare.py").write_text(text)
    script = ["-m", "bare"] if how == "-m" else [tmp_path / "bare.py"]
    done = run(sys.executable, *script, cwd=tmp_path, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines() == ["refused", "bare"]


@pytest.mark.parametrize("how", ["file", "-m"])
def test_what_only_the_script_itself_defines(tmp_path: Path, how: str) -> None:
    (tmp_path / "guarded.py").write_text(GUARDED)
    script = ["-m", "guarded"] if how == "-m" else [tmp_path / "guarded.py"]
    done = run(sys.executable, *script, cwd=tmp_path, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines()[-1] == "by value"


FOLDERS = """
import os, sys
import muster.compat.ray as ray

@ray.remote
class Where:
    def look(self):
        return os.path.basename(os.getcwd()), os.environ.get("JOB"), os.environ.get("OWN")
    def child(self):
        return ray.get(Where.remote().look.remote())

if __name__ == "__main__":
    one, two = sys.argv[1:]
    ray.init(runtime_env={"working_dir": one, "env_vars": {"JOB": "j"}})
    other = {"working_dir": two, "env_vars": {"OWN": "o"}}
    first, second = Where.remote(), Where.options(runtime_env=other).remote()
    print(ray.get([first.look.remote(), first.child.remote(), second.look.remote()]))
    try:
        Where.options(runtime_env={"pip": ["x"]}).remote()
    except ValueError as error:
        print("pip" in str(error))
    ray.shutdown()
    assert "JOB" not in os.environ
"""


def test_a_runtime_env_of_all_and_of_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "script.py").write_text(FOLDERS)
    folders = (tmp_path / "one", tmp_path / "two")
    done = run(sys.executable, tmp_path / "script.py", *folders, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines() == [
        "[('one', 'j', None), ('one', 'j', None), ('two', 'j', 'o')]",
        "True",
    ]


TWICE = """
import muster.compat.ray as ray

@ray.remote
def inside(refs):
    return ray.get(refs[0])

@ray.remote
class Counter:
    def add(self, x):
        return x + 1

if __name__ == "__main__":
    for turn in range(3):
        ray.init(namespace=f"n{turn}", num_gpus=2, log_to_driver=True)
        counter = Counter.options(name="c", num_gpus=1).remote()
        kept = ray.put(turn)
        print(ray.get(inside.remote([kept])), ray.get(counter.add.remote(kept)))
        ray.shutdown()
        assert not ray.is_initialized()
    try:
        ray.get(counter.add.remote(1))
    except ray.exceptions.RayError as error:
        print("gone")
"""


CHILD = """
import subprocess, sys
import muster.compat.ray as ray

@ray.remote
class Counter:
    def add(self, x):
        return x + 1
    def child(self):
        code = ("import sys, muster.compat.ray as ray; assert not ray.is_initialized(); "
                "ray.init(address=sys.argv[1]); counter = ray.get_actor('other'); "
                "print(ray.get(counter.add.remote(4))); ray.shutdown()")
        address = ray.get_runtime_context().gcs_address
        return subprocess.check_output([sys.executable, "-c", code, address], text=True)

if __name__ == "__main__":
    ray.init(namespace="roll")
    other = Counter.options(name="other").remote()
    print(ray.get(Counter.remote().child.remote()), ray.get(other.add.remote(1)))
"""


def test_a_process_that_an_actor_starts_joins(tmp_path: Path) -> None:
    """As vLLM's engine does, which is a process of its own."""
    (tmp_path / "script.py").write_text(CHILD)
    done = run(sys.executable, tmp_path / "script.py", PYTHONPATH=PACKAGE)
    assert output_of(done).split() == ["5", "2"]


def test_sessions_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TWICE)
    done = run(sys.executable, tmp_path / "script.py", virtual=None, PYTHONPATH=PACKAGE)
    assert output_of(done).splitlines() == ["0 1", "1 2", "2 3", "gone"]


def test_it_needs_no_ray() -> None:
    code = "import sys, muster.compat.ray; print(sorted(m for m in sys.modules if m == 'ray'))"
    done = run(sys.executable, "-c", code, PYTHONPATH=PACKAGE)
    assert output_of(done) == "[]\n"
