"""Cases for `ray_cases.py`: waiting, refs and values, event loops, tasks and places."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from ray_cases_ends import all_devices_are_free, until
from ray_roles import (
    REAL,
    Counter,
    Gate,
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
    Plain,
    Queue,
    Special,
    _Timer,
    boom,
    bundles,
    case,
    crash,
    double,
    mean,
    placement_group,
    raises,
    ray,
    remote,
    remove_placement_group,
    total,
    tree,
    variable,
)

# --- get, wait, cancel ------------------------------------------------------------------


@case
def a_get_that_takes_too_long() -> None:
    counter = Counter.remote()
    ref = counter.sleep.remote(1.5)
    error = raises(ray.exceptions.GetTimeoutError, lambda: ray.get(ref, timeout=0.2))
    assert isinstance(error, TimeoutError)
    raises(ray.exceptions.GetTimeoutError, lambda: ray.get([ref], timeout=0))
    assert ray.get(ref, timeout=60) == "slept"
    assert ray.get([]) == []
    ray.kill(counter)


@case
def wait_for_some() -> None:
    fast, slow = Counter.remote(), Counter.remote()
    ray.get([fast.add.remote(), slow.add.remote()])
    late, first, second = slow.sleep.remote(30), fast.add.remote(), fast.add.remote()
    ready, rest = ray.wait([late, second, first], num_returns=2, timeout=60)
    assert set(ready) == {first, second} and rest == [late]
    assert ray.wait([late], timeout=0) == ([], [late])
    assert ray.wait([]) == ([], [])
    raises(ValueError, lambda: ray.wait([first, first]))
    raises(ValueError, lambda: ray.wait([first], num_returns=2))
    raises(ValueError, lambda: ray.wait([first], num_returns=0))
    ready, rest = ray.wait([ray.put(1), late], fetch_local=False)
    assert len(ready) == 1 and rest == [late]
    for actor in (fast, slow):
        ray.kill(actor)


@case
def a_task_that_is_cancelled() -> None:
    @remote
    def spin(seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.01)
        return "spun"

    ref = spin.remote(60)
    ray.wait([ref], timeout=0.5)
    ray.cancel(ref)
    raises(ray.exceptions.TaskCancelledError, lambda: ray.get(ref, timeout=60))
    actor = ray.remote(Queue).remote()
    assert ray.get(actor.loops.remote())
    forever = actor.forever.remote()
    ray.wait([forever], timeout=0.5)
    ray.cancel(forever)
    raises(ray.exceptions.TaskCancelledError, lambda: ray.get(forever, timeout=60))
    raises(ValueError, lambda: ray.cancel(actor.forever.remote(), force=True))
    ray.kill(actor)


# --- refs and values ----------------------------------------------------------------------


@case
def refs_as_arguments() -> None:
    counter = Counter.remote()
    ref, value = counter.add.remote(5), ray.put(7)
    assert ray.get(total.remote(ref, value, extra=counter.add.remote(1))) == 18
    assert ray.get(counter.kinds.remote(ref, [ref], key=value)) == ["int", "list", "int"]
    # Inside an argument they stay refs, done or not.
    assert ray.get(counter.total.remote([ref, value])) == 12
    slow = Counter.remote()
    ray.get(slow.add.remote())

    @remote
    def length(refs: list[Any]) -> tuple[str, str]:
        return type(refs[0]).__name__, ray.get(refs[0])

    kind, text = ray.get(length.remote([slow.sleep.remote(1)]))
    assert kind == "ObjectRef" and text == "slept"
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(length.remote([boom.remote(3)])))
    assert isinstance(error, Special)
    made = Counter.remote(ray.put(30), step=counter.add.remote(-4))
    assert ray.get(made.add.remote()) == 32
    for actor in (counter, slow, made):
        ray.kill(actor)


@case
def refs_come_back_inside_values() -> None:
    counter = Counter.remote()
    (ref,) = ray.get(counter.hold.remote({"a": 1}))
    assert isinstance(ref, ray.ObjectRef) and ray.get(ref) == {"a": 1}
    assert ray.get(total.remote(ray.get(counter.hold.remote(4))[0])) == 4
    mine = ray.put(3)
    assert mine in {mine: 1} and mine == mine and len(mine.hex()) == 56
    ray.kill(counter)


@case
def handles_that_come_back() -> None:
    counter = Counter.options(name="found").remote()
    found = ray.get_actor("found")
    assert found == counter and ray.get(found.add.remote()) == 1
    assert ray.get(found.__ray_ready__.remote())
    assert ray.get(found.__ray_call__.remote(lambda obj, x: obj.value + x, 5)) == 6
    raises(AttributeError, lambda: found.nothing)
    assert ray.get(found._private.remote()) == "private"
    assert ray.get(found.two.remote()) == [1, 2] and found.none.remote() is None
    assert ray.get(counter.me.remote()) == 2
    found.__ray_terminate__.remote()
    raises(
        ray.exceptions.RayActorError,
        lambda: [ray.get(counter.sleep.remote(0.05)) for _ in range(600)],
    )


@case
def large_values() -> None:
    array = np.arange(1 << 20, dtype=np.float64)
    ref = ray.put(array)
    expected = float(array.mean())
    if not REAL:
        array[:] = 0  # what was put is what it was
    assert ray.get([mean.remote(ref) for _ in range(3)]) == [expected] * 3
    assert ray.get(mean.remote(ray.get(ref))) == expected
    assert float(ray.get(ref).mean()) == expected
    nested = ray.put({"a": [ray.get(ref)], "b": "text"})
    assert ray.get(nested)["a"][0].shape == (1 << 20,)


# --- event loops ---------------------------------------------------------------------------


@case
def an_async_actor() -> None:
    queue = ray.remote(Queue).options(max_concurrency=8).remote()
    waiting = queue.get.remote(2)
    assert ray.wait([waiting], timeout=0.2) == ([], [waiting])
    ray.get([queue.put.remote(1), queue.put.remote(2)])
    assert ray.get(waiting, timeout=60) == [1, 2]
    counter = Counter.remote()
    assert ray.get(queue.ask.remote(counter)) == 4
    assert ray.get(queue.fail.remote(counter)) == "caught 4"
    for actor in (queue, counter):
        ray.kill(actor)


@case
def threads_of_an_actor() -> None:
    gate = ray.remote(Gate).options(max_concurrency=3).remote()
    assert sorted(ray.get([gate.meet.remote() for _ in range(3)], timeout=60)) == [0, 1, 2]
    ray.kill(gate)


@case
def actors_that_call_each_other() -> None:
    one, two = ray.remote(Queue).remote(), ray.remote(Queue).remote()
    assert ray.get(one.ping.remote(two, one, 4), timeout=60) == 4
    for actor in (one, two):
        ray.kill(actor)
    one, two = (ray.remote(Gate).options(max_concurrency=4).remote() for _ in range(2))
    assert ray.get(one.ping.remote(two, one, 4), timeout=60) == 4
    for actor in (one, two):
        ray.kill(actor)


@case
def refs_are_awaited() -> None:
    counter = Counter.remote()

    async def main() -> None:
        assert await counter.add.remote() == 1
        assert await asyncio.gather(*[counter.add.remote() for _ in range(3)]) == [2, 3, 4]
        assert await asyncio.wait_for(counter.add.remote(), 60) == 5
        assert await asyncio.wrap_future(counter.add.remote().future()) == 6
        tasks = [asyncio.ensure_future(counter.add.remote()) for _ in range(2)]
        done, pending = await asyncio.wait(tasks, timeout=60)
        assert {task.result() for task in done} == {7, 8} and not pending
        assert await ray.put("x") == "x"
        try:
            await counter.fail.remote(2)
        except Special as error:
            assert isinstance(error, ray.exceptions.RayTaskError)
        else:
            raise AssertionError("no error")

    asyncio.run(main())
    assert counter.add.remote().future().result(timeout=60) == 9
    raises(Special, lambda: counter.fail.remote(2).future().result(timeout=60))
    ray.kill(counter)


# --- tasks and places ------------------------------------------------------------------------


@case
def tasks() -> None:
    assert ray.get([double.remote(i) for i in range(10)]) == list(range(0, 20, 2))
    assert ray.get(double.remote(double.remote(double.remote(1)))) == 8
    assert ray.get(tree.remote(3), timeout=120) == 8
    assert ray.get(total.options(num_cpus=0.1).remote(1, 2, extra=3)) == 6
    assert double.options(num_returns=0).remote(1) is None
    ended = crash.options(max_retries=0).remote()
    raises(ray.exceptions.WorkerCrashedError, lambda: ray.get(ended, timeout=60))
    assert ray.get([double.remote(i) for i in range(4)], timeout=60) == [0, 2, 4, 6]


@case
def on_this_node() -> None:
    here = ray.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(node_id=here, soft=False)
    actor = ray.remote(Plain).options(scheduling_strategy=strategy, num_cpus=0).remote(1)
    assert ray.get(actor.get.remote()) == 1
    raises(ValueError, lambda: NodeAffinitySchedulingStrategy(node_id="nowhere", soft=False))
    ray.kill(actor)


@case
def devices_of_actors() -> None:
    actor = Counter.options(num_gpus=2).remote()
    assert ray.get(actor.where.remote())["gpus"] == 2
    visible = ray.get(actor.env.remote("CUDA_VISIBLE_DEVICES"))
    assert len(visible.split(",")) == 2
    assert ray.available_resources().get("GPU", 0) == 2
    ray.kill(actor)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("GPU", 0) != 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@case
def placement_groups() -> None:
    group = ray.util.placement_group([{"GPU": 2, "CPU": 1}, {"GPU": 1}], strategy="PACK")
    ray.get(group.ready())
    assert group.wait(30) and group.bundle_count == 2
    assert group.bundle_specs[0]["GPU"] == 2
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    taker = variable.options(placement_group=group, num_gpus=2, num_cpus=0)
    visible = taker.remote("CUDA_VISIBLE_DEVICES")
    assert len(ray.get(visible).split(",")) == 2
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
    actor = Counter.options(scheduling_strategy=strategy, num_gpus=1, num_cpus=0).remote()
    assert ray.get(actor.where.remote())["gpus"] == 1
    several = [
        Counter.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            num_gpus=0.01,
            num_cpus=0.01,
        ).remote(i)
        for i in range(3)
    ]
    assert ray.get([one.add.remote() for one in several]) == [1, 2, 3]
    assert ray.get(several[0].kinds.remote(group)) == ["PlacementGroup"]
    (copy,) = ray.get(ray.get(several[0].hold.remote(group)))
    assert copy == group
    remove_placement_group(copy)
    raises(  # Ray ends it a little later
        ray.exceptions.RayError,
        lambda: [ray.get(actor.sleep.remote(0.05), timeout=60) for _ in range(600)],
    )
    assert ray.util.placement_group_table(group)["state"] == "REMOVED"
    raises(ValueError, lambda: placement_group([]))
    raises(ValueError, lambda: placement_group([{"GPU": 1}], strategy="TIGHT"))


@case
def a_group_that_is_too_large() -> None:
    group = placement_group([{"GPU": 100}])
    assert not group.wait(1)
    remove_placement_group(group)


@case
def a_group_that_is_not_ready_yet() -> None:
    held = placement_group([{"GPU": 3}])
    ray.get(held.ready(), timeout=60)
    group, other = placement_group([{"GPU": 2}]), placement_group([{"GPU": 2}])
    ref, dropped = group.ready(), other.ready()
    raises(ray.exceptions.GetTimeoutError, lambda: ray.get(ref, timeout=0.1))
    assert ray.wait([ref, dropped], timeout=0.1) == ([], [ref, dropped])
    assert ray.util.placement_group_table(group)["state"] == "PENDING"
    queue = ray.remote(Queue).remote()
    waiting = queue.place.remote(2)
    ray.wait([waiting], timeout=0.5)
    assert ray.get(queue.size.remote(), timeout=60) == 0  # it answers meanwhile
    remove_placement_group(other)
    raises(ray.exceptions.RayError, lambda: ray.get(dropped, timeout=60))
    remove_placement_group(held)
    assert ray.get(ref, timeout=60) == group
    assert ray.get(group.ready(), timeout=60) == group and group.wait(1)
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    assert ray.get(waiting, timeout=60) == 1
    remove_placement_group(group)
    ray.kill(queue)
    all_devices_are_free()


@case
def a_ref_of_a_group_as_an_argument() -> None:
    held = placement_group([{"GPU": 3}])
    ray.get(held.ready(), timeout=60)
    group = placement_group([{"GPU": 2}, {"GPU": 1}])
    counter = Counter.remote()
    found = [bundles.remote(group.ready()), counter.kinds.remote(group.ready(), [group])]
    assert ray.wait(found, timeout=0.5) == ([], found)  # and nobody was held up
    remove_placement_group(held)
    assert ray.get(found, timeout=60) == [2, ["PlacementGroup", "list"]]
    remove_placement_group(group)
    # Of what a call returns together, each by itself.
    one, two = counter.two.remote()
    slow = Counter.remote()
    late, later = slow.pair.options(num_returns=2).remote(0.5)
    assert ray.get([double.remote(later), double.remote(late)], timeout=60) == [4, 2]
    assert ray.get(total.remote(one, two), timeout=60) == 3
    for actor in (counter, slow):
        ray.kill(actor)
    all_devices_are_free()


@case
def a_part_of_a_device_in_a_bundle() -> None:
    group = placement_group([{"GPU": 0.5}])
    assert ray.get(group.ready(), timeout=60).bundle_specs == [{"GPU": 0.5}]
    until(lambda: ray.available_resources().get("GPU", 0) < 4)
    strategy = PlacementGroupSchedulingStrategy(group)
    one = Counter.options(num_gpus=0.5, num_cpus=0, scheduling_strategy=strategy).remote()
    assert len(ray.get(one.env.remote("CUDA_VISIBLE_DEVICES"), timeout=60).split(",")) == 1
    remove_placement_group(group)
    all_devices_are_free()


@case
def a_timer() -> None:
    timer = _Timer(window_size=2)
    for _ in range(3):
        with timer:
            pass
        timer.push_units_processed(4)
    assert timer.mean >= 0 and timer.mean_throughput > 0 and timer.mean_units_processed == 4
