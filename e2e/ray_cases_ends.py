"""Cases for `ray_cases.py`: how actors end and what they leave, and what ROLL asks of them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ray_roles import (
    REAL,
    AsyncNoting,
    Counter,
    Maker,
    NodeAffinitySchedulingStrategy,
    Noting,
    Plain,
    Queue,
    Sealed,
    Special,
    case,
    has_async_methods,
    profiling,
    raises,
    ray,
    remote,
    variable,
)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def all_devices_are_free() -> None:
    until(lambda: ray.available_resources().get("GPU", 0) == 4)


def answer_of(actor: Any) -> int:
    """What `pid` says as soon as the actor is there: meanwhile Ray refuses."""
    found: list[int] = []

    def asked() -> bool:
        try:
            found.append(ray.get(actor.pid.remote(), timeout=60))
        except ray.exceptions.RayActorError:
            return False
        return True

    until(asked)
    return found[0]


def is_another(actor: Any, pid: int) -> bool:
    return answer_of(actor) != pid


def is_dead(actor: Any) -> bool:
    try:
        ray.get(actor.pid.remote(), timeout=60)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayActorError:
        pass
    return False


# --- kill --------------------------------------------------------------------------------


@case
def an_actor_that_is_killed_and_comes_back() -> None:
    counter = Counter.options(max_restarts=1, max_task_retries=0).remote(3)
    assert ray.get(counter.add.remote()) == 4
    pid, pending = ray.get(counter.pid.remote()), counter.sleep.remote(60)
    ray.wait([pending], timeout=0.3)
    ray.kill(counter, no_restart=False)
    raises(ray.exceptions.RayActorError, lambda: ray.get(pending, timeout=60))
    assert answer_of(counter) != pid
    assert ray.get(counter.add.remote()) == 4  # it was made anew
    ray.kill(counter, no_restart=False)
    until(lambda: is_dead(counter))


def counts(counter: Any, to: int) -> bool:
    return int(ray.get(counter.add.remote(0))) == to


@case
def an_actor_that_comes_back_is_constructed_unasked() -> None:
    counter = Counter.remote()
    for cls, made in ((Noting, 2), (AsyncNoting, 4)):
        actor = ray.remote(cls).options(max_restarts=1).remote(counter)
        assert ray.get(actor.alive.remote(), timeout=60)
        ray.kill(actor, no_restart=False)
        until(partial(counts, counter, made))
        ray.kill(actor)
    ray.kill(counter)


@case
def an_actor_that_is_killed_and_does_not_come_back() -> None:
    plain = Counter.remote()
    ray.get(plain.add.remote())
    ray.kill(plain, no_restart=False)
    until(lambda: is_dead(plain))
    ray.kill(plain)
    often = Counter.options(max_restarts=-1).remote()
    for _ in range(2):
        pid = answer_of(often)
        ray.kill(often, no_restart=False)
        until(partial(is_another, often, pid))
    ray.kill(often)
    until(lambda: is_dead(often))


@case
def a_kill_with_calls_in_line() -> None:
    counter = Counter.remote()
    ray.get(counter.add.remote())
    refs = [counter.sleep.remote(60), *(counter.add.remote() for _ in range(3))]
    ray.kill(counter)
    for ref in refs:
        raises(ray.exceptions.ActorDiedError, partial(ray.get, ref, timeout=60))
    ready, rest = ray.wait(refs, num_returns=4, timeout=60)
    assert ready == refs and not rest


@case
def an_actor_that_leaves() -> None:
    for how in ("exit_actor", "sys_exit"):
        counter = Counter.remote()
        leaving = getattr(counter, how).remote()
        raises(ray.exceptions.RayActorError, partial(ray.get, leaving, timeout=60))
        until(partial(is_dead, counter))
    raises(TypeError, ray.actor.exit_actor)


# --- handles that go ---------------------------------------------------------------------


@case
def an_actor_that_nobody_holds() -> None:
    # What it was asked before is done.
    ref = Counter.options(num_gpus=4).remote().sleep.remote(0.5)
    assert ray.get(ref, timeout=60) == "slept"
    Counter.options(num_gpus=4).remote()
    held = Counter.options(num_gpus=4).remote()
    assert ray.get(held.add.remote(), timeout=60) == 1
    ray.kill(held)
    all_devices_are_free()


@case
def an_actor_that_is_called_back() -> None:
    """By a handle that does not count, while a call of a handle that is gone runs."""
    other = ray.remote(Queue).remote()
    ref = ray.remote(Queue).remote().call_back.remote(other)
    gc.collect()
    ray.nodes()
    assert ray.get(ref, timeout=60) == 0
    ray.kill(other)


@case
def a_handle_that_others_hold() -> None:
    holder = Counter.remote()
    held = Counter.remote()
    ray.get(holder.take.remote([held]))
    del held
    gc.collect()
    assert ray.get([holder.ask.remote() for _ in range(2)], timeout=60) == [1, 2]
    ray.nodes()
    assert ray.get(holder.ask.remote(), timeout=60) == 3
    method = Counter.remote().add  # it has its actor's handle
    gc.collect()
    ray.nodes()
    assert ray.get([method.remote(), method.remote()], timeout=60) == [1, 2]
    ray.kill(holder)


# --- devices of the dead --------------------------------------------------------------------


@case
def devices_come_back() -> None:
    died = Counter.options(num_gpus=4).remote()
    raises(ray.exceptions.RayActorError, lambda: ray.get(died.leave.remote(), timeout=60))
    all_devices_are_free()
    named = Counter.options(num_gpus=3, name="with-devices").remote()
    assert ray.get(named.where.remote())["gpus"] == 3
    ray.kill(ray.get_actor("with-devices"))
    all_devices_are_free()
    halves = [Counter.options(num_gpus=0.5).remote() for _ in range(8)]
    assert ray.get([half.add.remote() for half in halves], timeout=60) == [1] * 8
    for half in halves:
        ray.kill(half)
    whole = Counter.options(num_gpus=4).remote()
    assert ray.get(whole.where.remote(), timeout=60)["gpus"] == 4
    ray.kill(whole)
    all_devices_are_free()


@case
def tasks_that_wait_for_devices() -> None:
    seen = [variable.options(num_gpus=2).remote("CUDA_VISIBLE_DEVICES") for _ in range(6)]
    assert all(len(text.split(",")) == 2 for text in ray.get(seen, timeout=120))
    actor = Counter.options(num_gpus=4).remote()
    assert ray.get(actor.where.remote(), timeout=60)["gpus"] == 4
    ray.kill(actor)
    all_devices_are_free()


# --- errors ----------------------------------------------------------------------------------


@case
def errors_that_are_odd() -> None:
    counter = Counter.remote()
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(counter.odd.remote()))
    assert "odd one" in str(error)
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(counter.sealed.remote()))
    assert isinstance(error.cause, Sealed)
    error = raises(ray.exceptions.RayTaskError, lambda: ray.get(counter.give.remote()))
    assert isinstance(error, TypeError)
    assert ray.get(counter.add.remote()) == 1
    ray.kill(counter)


@case
def errors_of_an_event_loop() -> None:
    queue = ray.remote(Queue).remote()
    raises(ray.exceptions.TaskCancelledError, lambda: ray.get(queue.give_up.remote(), timeout=60))
    counter = Counter.remote()

    async def main() -> None:
        ref = counter.sleep.remote(1)
        try:
            await asyncio.wait_for(ref, 0.1)
        except asyncio.TimeoutError:
            pass
        else:
            raise AssertionError("it was there")
        assert await ref == "slept"  # who gives up waiting stops nothing
        tasks = [asyncio.ensure_future(queue.forever.remote()), asyncio.ensure_future(ref)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert done == {tasks[1]} and pending == {tasks[0]}
        tasks[0].cancel()

    asyncio.run(main())
    for actor in (queue, counter):
        ray.kill(actor)


@case
def a_call_that_is_cancelled_in_line() -> None:
    counter = Counter.remote()
    ray.get(counter.add.remote())
    running, waiting, later = counter.sleep.remote(2), counter.add.remote(), counter.add.remote()
    ray.wait([running], timeout=0.2)
    ray.cancel(waiting)
    raises(ray.exceptions.TaskCancelledError, lambda: ray.get(waiting, timeout=60))
    slept, value = ray.get([running, later], timeout=60)
    assert slept == "slept" and (REAL or value == 2)  # Ray may run it all the same
    ray.kill(counter)


@case
def threads_of_a_script() -> None:
    """As ROLL's pipelines validate: in a thread beside the one that trains."""
    counter, queue = Counter.remote(), ray.remote(Queue).remote()

    def turn(number: int) -> tuple[int, int]:
        found = ray.get([counter.add.remote(), queue.put.remote(number)], timeout=60)
        return found[0], raises(Special, lambda: ray.get(counter.fail.remote(number))).code

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(turn, range(24)))
    assert sorted(value for value, _ in found) == list(range(1, 25))
    assert [code for _, code in found] == list(range(24))
    assert sorted(ray.get(queue.get.remote(24), timeout=60)) == list(range(24))
    for actor in (counter, queue):
        ray.kill(actor)


@case
def wait_has_an_order() -> None:
    refs = [ray.put(number) for number in range(4)]
    for count in (1, 3, 4):  # so many and no more, Ray any of them
        ready, rest = ray.wait(refs, num_returns=count)
        assert len(ready) == count and sorted(ready + rest, key=refs.index) == refs
        assert ready == sorted(ready, key=refs.index) and rest == sorted(rest, key=refs.index)
        assert REAL or ready == refs[:count]
    assert ray.get(refs[1], timeout=0) == 1 and ray.get(refs[1], timeout=-1) == 1
    counter = Counter.remote()
    late = counter.sleep.remote(1)
    ray.wait([late], timeout=0.1)
    assert late in ray.wait([late, *refs], num_returns=2)[1]
    assert ray.wait([late, *refs], num_returns=5, timeout=60) == ([late, *refs], [])
    failed = counter.fail.remote(1)
    assert ray.wait([failed], timeout=60) == ([failed], [])  # an error is an answer
    ray.kill(counter)


@case
def options_that_are_refused() -> None:
    raises(TypeError, lambda: Counter.options(runtime_env={"env_vars": {"A": 1}}).remote())
    raises(ValueError, lambda: Counter.options(name="").remote())
    raises(TypeError, lambda: Counter.options(runtime_env=5).remote())
    raises(TypeError, lambda: Counter.options(max_restarts="often"))
    raises(ValueError, lambda: Counter.options(max_restarts=-2))
    raises(ValueError, lambda: Counter.options(scheduling_strategy="NEAR").remote())
    raises(TypeError, lambda: Counter.options(name=5))
    raises(ValueError, lambda: Counter.options(lifetime="long"))
    raises(ValueError, lambda: Counter.options(num_gpus=1.5).remote())
    raises(ValueError, lambda: Counter.options(get_if_exists=True).remote())
    raises(ValueError, lambda: Counter.options(resources={"CPU": 1}).remote())
    many = {"name": None, "max_concurrency": None, "max_pending_calls": 9}
    actor = Counter.options(lifetime="detached", num_cpus=0, **many).remote()
    assert ray.get(actor.add.remote()) == 1
    ray.kill(actor)
    ray.kill(actor)


# --- as ROLL does it --------------------------------------------------------------------------


@case
def a_scheduler_that_makes_others() -> None:
    """In a constructor, on an event loop: actors are made and waited for."""
    strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    maker = (
        ray.remote(Maker)
        .options(name="maker", scheduling_strategy=strategy, max_concurrency=9)
        .remote("queue-of-maker", strategy)
    )
    assert ray.get(maker.made.remote(), timeout=60) == [1, 2]
    pending = [maker.get_batch.remote(number) for number in (3, 2)]
    assert ray.wait(pending, timeout=0.2) == ([], pending)
    ray.get([maker.put.remote(number) for number in range(3)])
    assert ray.get(pending, timeout=60) == [[0, 1, 2], [0, 1]]
    assert ray.get(ray.get_actor("queue-of-maker").get.remote(1)) == [0]
    found = ray.remote(Plain).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy("ab" * 28, soft=True)
    )
    assert ray.get(found.remote(1).get.remote(), timeout=60) == 1
    ray.kill(ray.get_actor("queue-of-maker"))
    ray.kill(maker)


@case
def what_a_cluster_asks_of_a_class() -> None:
    assert not hasattr(Plain, "__ray_actor_class__") and hasattr(Counter, "__ray_actor_class__")
    made: Any = ray.remote(Queue)
    assert made.__ray_metadata__.modified_class.__name__ == "Queue"
    assert has_async_methods(Queue) and not has_async_methods(Plain)
    assert {"put", "get", "ask"} <= set(dir(made)) and callable(made.ask)
    with profiling.profile("load_states"):
        pass

    @remote
    class Marked:
        def step(self) -> int:
            return 1

        step.mode = "all"  # type: ignore[attr-defined]

    marked: Any = Marked
    assert marked.step.mode == "all"
