"""Clusters against a fake head: what is sent, what is refused before anything is."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from fakehead import DEADLINE, Call, FakeHead, Session, cluster_info, echo, method, param

import muster
from muster import Broadcast, Cluster, PerRank, Worker, WorkerConfig, _values, register
from muster._environment import describe_runtime, interpreter_flags, main_module

POOL = {
    "id": 1,
    "per_node": 8,
    "nodes": [{"index": 0, "name": "node-0", "devices": [{"index": i} for i in range(8)]}],
}


def cut_in_two(cluster: Cluster, rows: list[int]) -> tuple[tuple[Any], dict[str, Any]]:
    assert cluster.world_size == 2
    return (([rows[::2], rows[1::2]]),), {}


def add_up(cluster: Cluster, results: list[int]) -> int:
    return sum(results)


METHODS = (
    method("step", "DP_MP_COMPUTE", param("rows"), param("scale", default=True)),
    method("each", "ALL_TO_ALL", param("x"), param("y", default=True)),
    method("tell", "ONE_TO_ALL", param("x"), param("deep", 3, True)),
    method("first", "ALL_TO_ALL", param("x"), execute="RANK_ZERO"),
    method("initialize", "ONE_TO_ALL", param("config")),
    method("plain", "", param("a"), param("b", default=True)),
    method("loose", "", param("args", 2), param("kwargs", 4)),
    method(
        "own",
        "CUSTOM",
        param("rows"),
        custom=_values.encode((cut_in_two, add_up), []),
    ),
)


@pytest.fixture
def head() -> Iterator[FakeHead]:
    fake = FakeHead()
    info = cluster_info("actor", 2, *METHODS, tp=2)
    fake.verbs = {
        "pool.create": lambda _: POOL,
        "pool.release": lambda _: {},
        "pool.end": lambda _: {},
        "cluster.create": lambda _: info,
        "cluster.describe": lambda _: info,
        "cluster.stop": lambda _: {"mark": 0},
        "plan": lambda _: {"pool": POOL, "clusters": [info], "text": "a drawing"},
    }
    with Session(fake):
        yield fake


@pytest.fixture
def actor(head: FakeHead) -> Cluster:
    rm = muster.ResourceManager(num_gpus_per_node=8, num_nodes=1)
    return Cluster("actor", "pkg.Actor", rm, WorkerConfig(device_mapping="0-1", tp=2))


class Actor(Worker):
    @register()
    def step(self, x: int) -> int:
        return x


def test_creating_sends_the_whole_description(head: FakeHead, actor: Cluster) -> None:
    verb, message = head.requests[-1]
    spec = message["spec"]
    assert (verb, message["pool"], spec["name"]) == ("cluster.create", 1, "actor")
    assert spec["class"] == {"module": "", "name": "pkg.Actor", "pickle": b""}
    assert (spec["mapping_text"], spec["shape"]["tp"]) == ("0-1", 2)
    assert spec["runtime"]["python"]
    assert _values.decode(spec["config"]) == actor.worker_config


def test_classes_go_by_path_or_by_value(head: FakeHead) -> None:
    class Local(Worker):
        pass

    by_path = {"module": __name__, "name": "Actor", "pickle": b""}
    by_colon = {"module": "pkg.mod", "name": "Outer.Inner", "pickle": b""}
    for cls, expected in ((Actor, by_path), ("pkg.mod:Outer.Inner", by_colon)):
        Cluster("c", cls)
        assert head.requests[-1][1]["spec"]["class"] == expected
    Cluster("c", Local)
    assert pickle.loads(head.requests[-1][1]["spec"]["class"]["pickle"]).__name__ == "Local"
    with pytest.raises(TypeError, match="worker_cls is a class"):
        Cluster("c", 5)  # type: ignore[arg-type]


def test_a_class_that_takes_the_sdks_names_is_refused_before_anything_starts() -> None:
    class Named(Worker):
        @register()
        def world_size(self) -> int:  # type: ignore[override]
            return 0

    class Timed(Worker):
        @register()
        def step(self, rows: list[int], timeout: float = 1.0) -> None: ...

    with pytest.raises(ValueError, match="'world_size' is an attribute of every Cluster"):
        Cluster("c", Named)
    with pytest.raises(
        ValueError, match=r"Timed\.step is registered and has a parameter 'timeout'"
    ):
        Cluster("c", Timed)


def test_a_mapping_needs_a_pool(head: FakeHead) -> None:
    with pytest.raises(ValueError, match="pass resource_manager=ResourceManager"):
        Cluster("c", Actor, worker_config=WorkerConfig(device_mapping="0"))


def test_attributes(head: FakeHead, actor: Cluster) -> None:
    assert (actor.name, actor.cluster_name, actor.world_size) == ("actor", "actor", 2)
    assert (actor.dp_size, actor.tp_size, actor.pp_size, actor.cp_size) == (1, 2, 1, 1)
    assert [info.tp_rank for info in actor.worker_rank_info] == [0, 1]
    assert (actor.master_addr, actor.master_port) == ("127.0.0.1", 4711)
    assert actor.rank2worker[1] is not actor.workers[0]
    assert actor.worker2rank[actor.workers[1]] == 1
    assert actor.rank2devices[1] == [{"rank": 0, "node_rank": 0, "gpu_rank": 1}]
    assert actor.worker2nodes[actor.workers[0]] == "127.0.0.1"
    group = {"node_rank": 0, "gpu_rank": 0, "placement_group": 1, "ray_address": ""}
    assert actor.placement_groups[0] == [group]
    assert (actor.workers[1].name, actor.workers[1].pid) == ("actor-1-G1", 1001)
    assert "step" in dir(actor)
    assert "plain" not in dir(actor)


def call_of(head: FakeHead) -> list[Call]:
    seen: list[Call] = []

    def note(call: Call) -> None:
        seen.append(call)
        call.answer(["answer"])

    head.on_call = note
    return seen


def test_bound_methods_go_in_their_registered_mode(head: FakeHead, actor: Cluster) -> None:
    seen = call_of(head)
    assert actor.step([1, 2, 3], timeout=2.5) == ["answer"]
    call = seen[0]
    assert (call.cluster, call.method, call.how, call.ranks) == (7, "step", 0, None)
    assert (call.timeout_ms, call.parent, call.flags) == (2500, 0, 2)
    assert (call.args, call.kwargs) == ([[1, 2, 3]], {})
    ref = actor.tell("x", deep=True, blocking=False)
    assert muster.get(ref, DEADLINE) == ["answer"]
    assert (seen[1].method, seen[1].kwargs, seen[1].flags) == ("tell", {"deep": True}, 8)


def test_execute_picks_ranks(head: FakeHead, actor: Cluster) -> None:
    seen = call_of(head)
    actor.execute_all_sync("plain", 1)
    actor.execute_rank_zero_sync("plain", 1, b=2)
    muster.get(actor.execute_rank_zero("plain", 1), DEADLINE)
    actor.workers[1].call("plain", 1)
    actor.workers[1].plain(1)
    muster.get(actor.workers[1].plain.remote(1), DEADLINE)
    routes = [(call.how, call.ranks) for call in seen]
    assert routes == [(1, None), (2, [0]), (2, [0]), (2, [1]), (2, [1]), (2, [1])]


def test_execute_all_async_gives_a_ref_per_rank(head: FakeHead, actor: Cluster) -> None:
    refs = actor.execute_all_async("plain", 1)
    call = head.next_call()
    assert call.flags & 1
    call.answer("b", rank=1)
    call.answer("a", rank=0)
    assert muster.get(refs, DEADLINE) == ["a", "b"]


def test_marks_are_announced(head: FakeHead, actor: Cluster) -> None:
    seen = call_of(head)
    actor.execute_all_sync("loose", PerRank([1, 2]), k=Broadcast([3]))
    assert (seen[0].args, seen[0].kwargs) == ([PerRank([1, 2])], {"k": Broadcast([3])})
    assert seen[0].flags == 2 | 4


def test_refs_as_arguments_are_left_to_the_head(head: FakeHead, actor: Cluster) -> None:
    first = actor.execute_rank_zero_async("plain", 1)
    earlier = head.next_call()
    second = actor.execute_rank_zero_async("plain", first)
    later = head.next_call()
    assert later.args == [_values.FutureMark(first._id, -1)]
    assert later.flags & 4
    earlier.answer("value")
    later.answer("done")
    assert muster.get([first, second], DEADLINE) == ["value", "done"]
    actor.execute_rank_zero_async("plain", first)
    assert head.next_call().args == ["value"]


def test_a_mode_of_ones_own_runs_here(head: FakeHead, actor: Cluster) -> None:
    def answer(call: Call) -> None:
        call.answer([sum(part) for part in call.args[0]])

    head.on_call = answer
    assert actor.own([1, 2, 3, 4]) == 10
    assert muster.get(actor.own([1, 2], blocking=False), DEADLINE) == 3


def test_initialized_follows_the_call(head: FakeHead, actor: Cluster) -> None:
    head.on_call = echo
    assert not actor.initialized
    actor.initialize({"a": 1})
    assert actor.initialized


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.stap([1]), AttributeError, "no public method 'stap'; did you mean 'step'"),
        (lambda c: c.plain(1), AttributeError, "not registered, so .* execute_all_sync"),
        (lambda c: c.execute_all_sync("plian"), AttributeError, "did you mean 'plain'"),
        (lambda c: c.execute_all_sync("_secret"), AttributeError, "no public method '_secret'"),
        (lambda c: c.workers[0].plian, AttributeError, "did you mean 'plain'"),
        (lambda c: c.execute_all_sync(5), TypeError, "called by its name"),
        (lambda c: c.step(), TypeError, r"missing a required argument: 'rows'.*step\(rows, scale"),
        (lambda c: c.step([1], [2], 3), TypeError, "too many positional arguments"),
        (lambda c: c.step([1], rows=[2]), TypeError, "multiple values for argument 'rows'"),
        (lambda c: c.step([1], sacle=2), TypeError, "unexpected keyword argument 'sacle'"),
        (lambda c: c.step(5), TypeError, "argument 0 is of type int, which DP_MP_COMPUTE cannot"),
        (lambda c: c.step([1], scale=[1, 2]), ValueError, "length 1 and argument 'scale' .* 2"),
        (lambda c: c.each([1, 2, 3]), ValueError, "length 3, but ALL_TO_ALL .* 2 ranks"),
        (lambda c: c.each("ab"), TypeError, "argument 0 is of type str, which ALL_TO_ALL"),
        (
            lambda c: c.tell(PerRank([1])),
            ValueError,
            "PerRank of length 1, but the world size is 2",
        ),
        (lambda c: c.tell(1, timeout="soon"), TypeError, "timeout is 'soon'"),
        (lambda c: c.tell(lambda: iter(())), None, ""),
        (lambda c: c.tell(iter([1])), None, ""),
        (lambda c: c.tell(n for n in [1]), TypeError, "argument 0, a generator, cannot be sent"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    head: FakeHead, actor: Cluster, call: Any, error: type[Exception] | None, words: str
) -> None:
    seen = call_of(head)
    if error is None:
        call(actor)
        return
    with pytest.raises(error, match=words) as caught:
        call(actor)
    assert isinstance(caught.value, muster.MusterError) or "called by" in words or "soon" in words
    assert not seen


def test_marks_and_rank_zero_escape_the_cutting(head: FakeHead, actor: Cluster) -> None:
    seen = call_of(head)
    actor.step([1, 2], Broadcast(5))
    actor.each(PerRank(["a", "b"]), ("c", "d"))
    actor.first("whole")
    assert len(seen) == 3


def test_the_quick_check_agrees_with_pythons_own() -> None:
    from muster._methods import Method

    def f(a: Any, b: Any, /, c: Any, d: Any = 1, *, e: Any, g: Any = 2) -> None: ...
    def h(a: Any, *rest: Any, k: Any = 1, **more: Any) -> None: ...
    def p() -> None: ...

    for function in (f, h, p):
        signature = inspect.signature(function)
        params = [
            param(q.name, int(q.kind), q.default is not q.empty)
            for q in signature.parameters.values()
        ]
        checked = Method(method("m", "", *params), "C")
        for count in range(6):
            for names in ((), ("e",), ("a",), ("c", "e"), ("d", "e"), ("e", "g"), ("z",), ("k",)):
                kwargs = dict.fromkeys(names, 0)
                try:
                    signature.bind(*range(count), **kwargs)
                    fits = True
                except TypeError:
                    fits = False
                try:
                    checked.check(range(count), kwargs)
                    assert fits, (function.__name__, count, names)
                except TypeError:
                    assert not fits, (function.__name__, count, names)


def test_clusters_and_handles_are_pickled_by_name(head: FakeHead, actor: Cluster) -> None:
    head.on_call = echo
    copy = pickle.loads(pickle.dumps(actor))
    handle = pickle.loads(pickle.dumps(actor.workers[1]))
    asked = len(head.requests)
    assert (copy.name, handle.rank) == ("actor", 1)
    assert len(head.requests) == asked, "nobody is asked before it is used"
    assert copy.execute_rank_zero_sync("plain", "x") == "x"
    assert handle == actor.workers[1]
    assert head.requests[-1] == ("cluster.describe", {"number": 7, "name": "actor"})


def test_get_cluster(head: FakeHead) -> None:
    assert muster.get_cluster("actor").world_size == 2
    head.verbs["cluster.describe"] = lambda _: {"code": "not_found", "message": "no such"}
    with pytest.raises(LookupError, match="no such"):
        muster.get_cluster("other")


def test_shutdown_stops_it(head: FakeHead, actor: Cluster) -> None:
    with actor:
        pass
    assert head.requests[-1] == ("cluster.stop", {"number": 7, "name": "actor"})


def test_pools(head: FakeHead) -> None:
    rm = muster.ResourceManager(8, 1, timeout=5, strategy="PACK", labels={"zone": "a"})
    asked = {"gpus_per_node": 8, "nodes": 1, "timeout": 5.0, "strategy": "PACK"}
    assert asked.items() <= head.requests[-1][1].items()
    assert head.requests[-1][1]["labels"] == {"zone": "a"}
    assert (rm.num_nodes, rm.gpu_per_node, rm.num_gpus) == (1, 8, 8)
    plan = rm.plan({"a": WorkerConfig(world_size=1)}, b=WorkerConfig(device_mapping="0-1"))
    assert [spec["name"] for spec in head.requests[-1][1]["clusters"]] == ["a", "b"]
    assert str(plan) == "a drawing"
    assert plan.clusters["actor"][1]["devices"] == [1]
    assert rm.allocate_placement_group(2, [0, 1])[1][0]["gpu_rank"] == 1
    with pytest.raises(TypeError, match="num_nodes is '2'"):
        muster.ResourceManager(8, "2")  # type: ignore[arg-type]


def test_pools_of_bundles(head: FakeHead) -> None:
    rm = muster.ResourceManager.for_bundles([{"gpus": 8}, {"cpus": 2}], wait=True, node="node-0")
    asked = {"gpus_per_node": 0, "strategy": "PACK", "wait": True, "node": "node-0"}
    assert asked.items() <= head.requests[-1][1].items()
    bundles = [{"gpus": 8, "cpus": 0.0}, {"gpus": 0, "cpus": 2.0}]
    assert head.requests[-1][1]["bundles"] == bundles
    assert rm.gpu_ids(0) == range(8)


def test_a_pool_is_released_once(head: FakeHead) -> None:
    rm = muster.ResourceManager(8, 1)
    rm.destroy_placement_group()
    rm.destroy_placement_group()
    releases = [verb for verb, _ in head.requests].count("pool.end")
    assert releases == 1
    dropped = muster.ResourceManager(8, 1)
    del dropped
    muster.ResourceManager(8, 1)  # requests left for later go first
    assert [verb for verb, _ in head.requests][-2:] == ["pool.release", "pool.create"]


def test_the_runtime_describes_this_process() -> None:
    runtime = describe_runtime(py_modules=["lib"], preload=["json"])
    assert runtime["sys_path"][0].endswith("/lib")
    assert all(path.startswith("/") for path in runtime["sys_path"])
    assert runtime["preload"] == ["json"]
    assert set(main_module()) == {"path", "module", "args"}
    assert isinstance(interpreter_flags(), list)
    with pytest.raises(TypeError, match="preload is 'json'"):
        describe_runtime(preload="json")
