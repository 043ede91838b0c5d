"""What pipelines do with Ray, as functions that run on Ray and on `muster.compat.ray` alike.

`compat_ray_test.py` runs each on ours; with RAY_CASES=ray, `python ray_cases.py` runs them all
on Ray itself, which is what they have to agree with. A case takes nothing and asserts. Here:
sessions, actors and errors; waiting, refs, event loops and places are in `ray_cases_refs.py`,
ends of actors in `ray_cases_ends.py`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ray_cases_refs  # noqa: F401  (for its cases)
from ray_cases_ends import all_devices_are_free
from ray_roles import (
    CASES,
    NAMESPACE,
    REAL,
    Broken,
    Counter,
    Plain,
    RuntimeEnv,
    Special,
    boom,
    case,
    double,
    raises,
    ray,
    remote,
    start,
    total,
    variable,
)

# --- sessions -----------------------------------------------------------------------


@case
def a_second_init() -> None:
    assert ray.is_initialized()
    raises(RuntimeError, lambda: ray.init(num_cpus=1))
    ray.init(ignore_reinit_error=True)
    assert ray.get_runtime_context().namespace == NAMESPACE


@case
def nodes_and_resources() -> None:
    (node,) = ray.nodes()
    assert node["Alive"] and node["NodeManagerAddress"] == ray.util.get_node_ip_address()
    assert node["NodeID"] == ray.get_runtime_context().get_node_id() and len(node["NodeID"]) == 56
    assert node["Resources"]["GPU"] == 4 and node["Resources"]["CPU"] >= 1
    assert ray.cluster_resources()["GPU"] == 4
    all_devices_are_free()
    assert len(ray.get_runtime_context().get_job_id()) == 8
    assert ray.get_runtime_context().get_actor_id() is None
    assert ray.get_gpu_ids() == []
    assert ray.get_runtime_context().gcs_address


# --- actors --------------------------------------------------------------------------


@case
def an_actor_counts_in_order() -> None:
    counter = Counter.remote(10, step=2)
    refs = [counter.add.remote() for _ in range(20)]
    assert ray.get(refs) == list(range(12, 52, 2))
    assert ray.get(counter.add.remote(times=5)) == 60
    assert ray.get(counter.__len__.remote()) == 7 and counter
    raises(AttributeError, lambda: counter.__getitem__)
    ray.kill(counter)


@case
def misuse_is_told_at_once() -> None:
    counter = Counter.remote()
    assert "remote" in str(raises(TypeError, lambda: Counter()))
    assert "remote" in str(raises(TypeError, lambda: counter.add()))
    assert "remote" in str(raises(TypeError, lambda: double(1)))
    raises(AttributeError, lambda: counter.nothing)
    raises(TypeError, lambda: counter.add.remote(1, 2, 3))
    raises(TypeError, lambda: Counter.remote(1, 2, 3))
    refused = raises(TypeError, lambda: double.remote(1, 2, 3))
    assert not isinstance(refused, ray.exceptions.RayError)
    raises(TypeError, lambda: double.remote(strange=1))
    raises(ValueError, lambda: Counter.options(colour="red"))
    raises(ValueError, lambda: Counter.options(num_gpus=-1))
    raises(ValueError, lambda: double.options(namespace="x"))
    raises((TypeError, AssertionError), lambda: ray.remote(5))
    raises(ValueError, lambda: ray.get(5))
    raises(TypeError, lambda: ray.get([5]))
    raises(TypeError, lambda: ray.wait(counter.add.remote()))
    raises(TypeError, lambda: ray.put(counter.add.remote()))
    raises(ValueError, lambda: ray.kill(5))
    raises(TypeError, lambda: ray.cancel(5))
    raises(ValueError, lambda: ray.get_actor(""))
    ray.kill(counter)


@case
def names_and_namespaces() -> None:
    first = Counter.options(name="here").remote(1)
    other = Counter.options(name="here", namespace="else where/1").remote(2)
    assert ray.get(ray.get_actor("here").add.remote()) == 2
    assert ray.get(ray.get_actor("here", namespace="else where/1").add.remote()) == 3
    raises(ValueError, lambda: ray.get_actor("there"))
    raises(ValueError, lambda: Counter.options(name="here").remote())
    names = ray.util.list_named_actors()
    assert "here" in names
    everything = ray.util.list_named_actors(all_namespaces=True)
    assert {"name": "here", "namespace": "else where/1"} in everything
    assert {"name": "here", "namespace": NAMESPACE} in everything
    for actor in (first, other):
        ray.kill(actor)


@case
def one_actor_for_all_who_ask() -> None:
    def ask(number: int) -> Any:
        return Counter.options(name="one", get_if_exists=True, namespace="pool").remote(number)

    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(ask, range(4)))
    assert len({ray.get(handle.pid.remote()) for handle in handles}) == 1
    ray.kill(handles[0])


@case
def a_class_that_is_not_decorated() -> None:
    actor = ray.remote(Plain).options(name="plain", get_if_exists=True).remote(3)
    assert ray.get(actor.get.remote()) == 3
    assert isinstance(actor, ray.actor.ActorHandle)
    again = ray.remote(Plain).options(name="plain", get_if_exists=True).remote(4)
    assert ray.get(again.get.remote()) == 3
    ray.kill(actor)


@case
def a_local_class_and_function() -> None:
    offset = 5

    class Local:
        def get(self, x: int) -> int:
            return x + offset

    @remote
    def local(x: int) -> int:
        return x - offset

    actor = ray.remote(Local).remote()
    assert ray.get([actor.get.remote(1), local.remote(1)]) == [6, -4]
    ray.kill(actor)


@case
def handles_go_everywhere() -> None:
    one, two = Counter.remote(), Counter.remote()
    assert ray.get(two.call.remote(one, 3)) == 3
    assert ray.get(one.kinds.remote(two, [two])) == ["ActorHandle", "list"]
    child = ray.get(one.make.remote("child"))
    assert ray.get(child.get.remote()) == 7
    assert ray.get(ray.get_actor("child").get.remote()) == 7
    assert child == child and len({child, one, two}) == 3
    ray.kill(one)
    assert ray.get(child.get.remote()) == 7 or REAL
    for actor in (two, child):
        ray.kill(actor)


@case
def what_an_actor_knows_of_itself() -> None:
    actor = Counter.options(name="self", namespace="inner").remote()
    known = ray.get(actor.where.remote())
    assert known["node"] == ray.get_runtime_context().get_node_id()
    assert known["actor"] == actor._actor_id.hex() and known["name"] == "self"
    assert known["initialized"] and known["worker"] and known["gpus"] == 0
    assert known["namespace"] == NAMESPACE
    assert ray.get_runtime_context().worker.mode != ray.WORKER_MODE
    ray.kill(actor)


@case
def environment_of_an_actor() -> None:
    variables = {"COLOUR": "red", "RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "1234"}
    actor = Counter.options(runtime_env=RuntimeEnv(env_vars=variables)).remote()
    for name, value in variables.items():
        assert ray.get(actor.env.remote(name)) == value
    assert "COLOUR" not in os.environ
    seen = variable.options(runtime_env={"env_vars": {"COLOUR": "blue"}}).remote("COLOUR")
    assert ray.get(seen) == "blue"
    assert ray.get(variable.remote("COLOUR")) == ""
    ray.kill(actor)


@case
def names_of_arguments_are_free() -> None:
    counter = Counter.remote()
    assert ray.get(counter.timeout.remote(1, name="x", blocking=True)) == (1, "x", True)
    assert ray.get(counter.timeout.remote(timeout=2, name="y", blocking=False)) == (2, "y", False)
    ray.kill(counter)


@case
def several_values() -> None:
    counter = Counter.remote()
    one, two = counter.two.remote()
    assert ray.get([two, one]) == [2, 1]
    for other in (
        total.options(num_returns=2).remote(1),
        counter.two.options(num_returns=3).remote(),
    ):
        raises(ray.exceptions.RayTaskError, partial(ray.get, other[0]))
    raises(ValueError, lambda: ray.get(other[0]))
    assert ray.get(double.remote(two)) == 4
    ray.kill(counter)


# --- errors ---------------------------------------------------------------------------


@case
def an_error_is_of_both_classes() -> None:
    counter = Counter.remote()
    error = raises(Special, lambda: ray.get(counter.fail.remote(5)))
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert isinstance(error, ray.exceptions.RayError)
    assert type(error.cause) is Special and error.cause.code == 5 and error.code == 5
    assert "special 5" in str(error) and "fail" in str(error)
    assert ray.get(counter.add.remote()) == 1
    error = raises(Special, lambda: ray.get(boom.remote(6)))
    assert isinstance(error, ray.exceptions.RayTaskError) and error.cause.code == 6
    ray.kill(counter)


@case
def an_error_that_is_passed_on() -> None:
    one, two = Counter.remote(), Counter.remote()
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(one.pass_on.remote(two, 7)))
    assert isinstance(error, Special) and "special 7" in str(error)
    # One that an argument brings.
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(double.remote(boom.remote(8))))
    assert isinstance(error, Special)
    done = boom.remote(8)
    ray.wait([done])
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(double.remote(done)))
    assert isinstance(error, Special)
    for actor in (one, two):
        ray.kill(actor)


@case
def the_first_error_of_a_list() -> None:
    counter, slow = Counter.remote(), Counter.remote()
    refs = [slow.sleep.remote(300), counter.fail.remote(1)]
    raises(Special, lambda: ray.get(refs, timeout=200))
    assert ray.wait(refs[:1], timeout=0) == ([], refs[:1])
    for actor in (counter, slow):
        ray.kill(actor)


@case
def a_constructor_that_raises() -> None:
    actor = ray.remote(Broken).remote()
    error = raises(ray.exceptions.RayActorError, lambda: ray.get(actor.hello.remote()))
    assert isinstance(error, ray.exceptions.ActorDiedError) and "special 9" in str(error)
    raises(ray.exceptions.ActorDiedError, lambda: ray.get(actor.hello.remote()))


@case
def a_process_that_ends() -> None:
    counter = Counter.options(name="mortal").remote()
    pending = [counter.leave.remote(), counter.add.remote()]
    for ref in pending:
        raises(ray.exceptions.RayActorError, partial(ray.get, ref, timeout=60))
    raises(ray.exceptions.ActorDiedError, lambda: ray.get(counter.add.remote(), timeout=60))
    if REAL:
        return  # the name may still lead to the dead one
    again = Counter.options(name="mortal", get_if_exists=True).remote(5)
    assert ray.get(again.add.remote()) == 6
    ray.kill(again)


@case
def an_actor_that_is_killed() -> None:
    counter = Counter.options(name="killed").remote()
    ray.get(counter.add.remote())
    pending = counter.sleep.remote(60)
    ray.kill(counter)
    raises(ray.exceptions.RayActorError, lambda: ray.get(pending, timeout=60))
    raises(ray.exceptions.ActorDiedError, lambda: ray.get(counter.add.remote(), timeout=60))
    raises(ValueError, lambda: until_gone("killed"))
    fresh = Counter.options(name="killed").remote(1)
    assert ray.get(fresh.add.remote()) == 2
    ray.kill(fresh)


def until_gone(name: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ray.get_actor(name)
        time.sleep(0.05)


@case
def an_actor_that_is_restarted() -> None:
    counter = Counter.options(max_restarts=1, max_task_retries=0).remote(3)
    pid = ray.get(counter.pid.remote())
    raises(ray.exceptions.RayActorError, lambda: ray.get(counter.leave.remote(), timeout=60))
    deadline = time.monotonic() + 60
    while True:
        try:
            assert ray.get(counter.add.remote(), timeout=60) == 4
            break
        except ray.exceptions.RayActorError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert ray.get(counter.pid.remote()) != pid
    ray.kill(counter)


def main() -> int:
    start()
    failed = 0
    wanted = set(sys.argv[1:])
    for function in CASES:
        if wanted and function.__name__ not in wanted:
            continue
        try:
            function()
        except BaseException:
            failed += 1
            print(f"FAILED {function.__name__}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok {function.__name__}", flush=True)
    ray.shutdown()
    return failed


if __name__ == "__main__":
    sys.exit(main())
