"""Services and engines against a fake head: what is sent, what is refused before anything is."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from fakehead import Call, FakeHead, Session, cluster_info, echo, method, param

import muster
from muster import ResourceManager, Service, WorkerConfig, _values
from muster._methods import method_of
from muster._service import create

NODE = {
    "index": 0,
    "name": "node-0",
    "address": "127.0.0.1",
    "cores": 8,
    "memory": 1 << 30,
    "devices": [],
}
OTHER = {**NODE, "index": -1, "name": "node-1"}
UNUSED = {"state": "unused", "free": 0}
UP = {"state": "up", "free": 1}
POOL = {"id": 3, "per_node": 0, "nodes": [NODE]}
METHODS = (method("add", "", param("n")), method("name", ""))


class Plain:
    """Any class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def head() -> Iterator[FakeHead]:
    fake = FakeHead()
    info = cluster_info("svc", 1, *METHODS)
    info["description"]["engines"] = True
    living: list[str] = []

    def describe(message: dict[str, Any]) -> dict[str, Any]:
        if message["number"] == 0 and message["name"] not in living:
            missing = f"there is no service {message['name']!r}"
            return {"code": "not_found", "message": missing, "rank": -1, "exit_code": 0}
        return info

    def made(message: dict[str, Any]) -> dict[str, Any]:
        living.append(message["spec"]["name"])
        return info

    fake.verbs = {
        "pool.create": lambda _: POOL,
        "pool.release": lambda _: {},
        "pool.end": lambda _: {},
        "cluster.create": made,
        "cluster.describe": describe,
        "cluster.stop": lambda _: {"mark": 0},
        "service.list": lambda _: {"names": list(living)},
        "nodes": lambda _: {"nodes": [{"node": NODE, **UP}, {"node": OTHER, **UNUSED}]},
    }
    fake.on_call = echo
    with Session(fake):
        yield fake


def sent(head: FakeHead, verb: str) -> list[dict[str, Any]]:
    return [message for said, message in head.requests if said == verb]


def test_what_is_asked_for(head: FakeHead) -> None:
    svc = muster.service(Plain, "svc", 1, b=[2], config=WorkerConfig(env={"A": "1"}, node="node-0"))
    assert isinstance(svc, Service)
    [asked] = sent(head, "cluster.create")
    spec = asked["spec"]
    assert (asked["pool"], asked["reuse"]) == (0, True)  # the head makes it one
    assert not sent(head, "pool.create")
    assert (spec["name"], spec["kind"], spec["world"]) == ("svc", "service", 0)
    assert spec["class"] == {"module": __name__, "name": "Plain", "pickle": b""}
    assert _values.decode(spec["config"]) == ((1,), {"b": [2]})
    assert (spec["env"], spec["node"]) == ({"A": "1"}, "node-0")
    assert "gpus" not in spec and "patience" not in asked


def test_a_living_one_is_found_without_a_pool(head: FakeHead) -> None:
    first = muster.service(Plain, "svc")
    again = muster.service(Plain, "svc", "other", "arguments")
    assert first == again
    assert len(sent(head, "cluster.create")) == 1
    assert sent(head, "cluster.describe")[-1] == {"number": 0, "name": "svc", "kind": "service"}
    assert muster.list_services() == ["svc"]
    muster.service(Plain, "svc", get_or_create=False)  # for the head to refuse
    assert sent(head, "cluster.create")[-1]["reuse"] is False


def test_arguments_apart_from_its_own(head: FakeHead) -> None:
    create("pkg.Thing", "svc", (1,), {"config": 2, "get_or_create": 3})
    spec = sent(head, "cluster.create")[0]["spec"]
    assert _values.decode(spec["config"]) == ((1,), {"config": 2, "get_or_create": 3})
    assert spec["class"]["name"] == "pkg.Thing"


def test_where_it_runs(head: FakeHead) -> None:
    rm = ResourceManager(2, 1)
    config = WorkerConfig(device_mapping=[0, 1], resource_manager=rm)
    muster.service(Plain, "svc", config=config)
    assert sent(head, "cluster.create")[0]["pool"] == rm.id
    assert len(sent(head, "pool.create")) == 1
    with pytest.raises(ValueError, match="WorkerConfig\\(resource_manager="):
        muster.service(Plain, "other", config={"device_mapping": "0"})


def test_gpus_that_the_head_chooses(head: FakeHead) -> None:
    muster.service(Plain, "half", config=WorkerConfig(gpus=0.5))
    rm = ResourceManager(2, 1)
    config = WorkerConfig(gpus=1, gpus_timeout=0, device_mapping="0-1", resource_manager=rm)
    muster.service(Plain, "one", config=config)
    half, one = sent(head, "cluster.create")
    assert (half["pool"], half["spec"]["gpus"], half["patience"]) == (0, 0.5, 30.0)
    assert (one["pool"], one["spec"]["gpus"], one["patience"]) == (rm.id, 1.0, 0.0)
    assert one["spec"]["mapping_text"] == "0-1"
    with pytest.raises(TypeError, match="gpus is '1'"):
        muster.service(Plain, "odd", config={"gpus": "1"})


def test_refused_before_anything_is_sent(head: FakeHead) -> None:
    for name in (None, 5, b"svc"):
        with pytest.raises(TypeError, match="name is text"):
            muster.service(Plain, name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a service's class is a class, or a path"):
        muster.service(3, "svc")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="worker_config takes a WorkerConfig"):
        muster.service(Plain, "svc", config=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is a program"):
        muster.service("exec:/bin/true", "svc")
    with pytest.raises(muster.EncodingError):
        muster.service(Plain, "svc", (x for x in "generators stay"))
    assert not sent(head, "cluster.create")


def test_a_handle(head: FakeHead) -> None:
    svc = muster.service(Plain, "svc")
    copy = pickle.loads(pickle.dumps(svc))
    assert (copy, hash(copy), copy.name) == (svc, hash(svc), "svc")
    assert svc.add(4) == svc.call("add", 4) == muster.get(svc.add.remote(4))
    assert svc.call("name") is None
    with pytest.raises(AttributeError, match="no public method 'ad'"):
        svc.ad(1)
    svc.shutdown()
    assert sent(head, "cluster.stop") == [{"number": 7, "name": "svc"}]


def test_engine_calls_are_calls_of_a_method_with_a_slash(head: FakeHead) -> None:
    calls: list[Call] = []

    def note(call: Call) -> None:
        calls.append(call)
        echo(call)

    svc = muster.service(Plain, "svc")
    head.on_call = note
    engine = svc.create_engine("pkg.Model", "role/0", 1, timeout=2, name="n")
    engine.step(5, x=1)
    muster.get(svc.engine("role/0").step.remote(5))
    svc.call_engine("role/0", "step", timeout=3.0)
    svc.destroy_engine("role/0")
    assert [call.method for call in calls] == [
        "muster/create_engine",
        "role/0/step",
        "role/0/step",
        "role/0/step",
        "muster/destroy_engine",
    ]
    assert pickle.loads(pickle.dumps(engine)) == engine
    for bad in ("", None, 3):
        with pytest.raises(TypeError, match="called by its name"):
            svc.call_engine(bad, "step")  # type: ignore[arg-type]
    for hidden in ("_step", "a/b"):
        with pytest.raises(AttributeError, match="not the name of a public method"):
            svc.call_engine("role/0", hidden)


def test_the_environment_is_no_call_where_it_need_not_be(head: FakeHead) -> None:
    svc = muster.service(Plain, "svc")
    head.verbs["worker.env"] = lambda _: {"env": {"A": "1"}}
    assert svc.env() == {"A": "1"}
    svc.set_env({"A": "1", "B": None})
    asked = {"cluster": 7, "rank": 0}
    assert sent(head, "worker.env") == [
        {**asked, "set": {}, "unset": []},
        {**asked, "set": {"A": "1"}, "unset": ["B"]},
    ]
    with pytest.raises(TypeError, match="both sides must be text"):
        svc.set_env({"A": ["1"]})  # type: ignore[dict-item]
    calls: list[str] = []

    def note(call: Call) -> None:
        calls.append(call.method)
        echo(call)

    head.on_call = note
    head.verbs["worker.env"] = lambda _: {"code": "timeout", "message": "it is still in C"}
    svc.set_env({"A": "1"})
    assert calls == ["muster/set_env"], "what cannot be asked at once is asked in its turn"


def test_workers_that_host_no_engines(head: FakeHead) -> None:
    info = cluster_info("go", 1, *METHODS)
    head.verbs["cluster.describe"] = lambda _: info
    go = muster.get_cluster("go")
    with pytest.raises(AttributeError, match="no public method"):
        go.workers[0].create_engine("pkg.Model", "m")


def test_a_pool_can_be_passed_on(head: FakeHead) -> None:
    rm = ResourceManager(0, 1)
    copy: ResourceManager = pickle.loads(pickle.dumps(rm))
    assert (copy.id, copy.num_nodes) == (rm.id, 1)
    copy.destroy_placement_group()
    del copy
    muster.list_services()  # what was left to be sent goes with it
    assert not sent(head, "pool.release") and not sent(head, "pool.end")
    rm.destroy_placement_group()
    assert len(sent(head, "pool.end")) == 1


def test_nodes(head: FakeHead) -> None:
    node, other = muster.nodes()
    assert (node["name"], node["cores"], node["state"]) == ("node-0", 8, "up")
    assert (other["name"], other["state"]) == ("node-1", "unused")
    assert (node["free"], other["free"]) == (1, 0)
    assert (node["here"], other["here"]) == (True, False)
    assert sent(head, "nodes") == [{"wait_s": 30.0}]


def test_what_a_method_of_a_class_takes() -> None:
    class Here:
        def step(self, x: int, *, scale: int = 1) -> None: ...

        @staticmethod
        def plain(x: int) -> None: ...

    method_of(Here, "step").check((1,), {"scale": 2})
    method_of(Here, "plain").check((1,), {})
    method_of(Here, "__init__").check((1,), {"x": 2})  # which says nothing
    with pytest.raises(TypeError, match=r"Here.step\(\) cannot be called so: missing .* 'x'"):
        method_of(Here, "step").check((), {})


def test_a_timeout_that_may_be_the_methods() -> None:
    class Here:
        def wait(self, x: int, timeout: float = 1.0) -> None: ...

        def only(self, *, timeout: float) -> None: ...

        def step(self, **more: int) -> None: ...

    method_of(Here, "wait").check_timeout((1, 2.0))  # its own is given
    method_of(Here, "step").check_timeout(())
    for name in ("wait", "only"):
        with pytest.raises(TypeError, match=rf"Here.{name}\(\) has a parameter timeout of its own"):
            method_of(Here, name).check_timeout((1,))
