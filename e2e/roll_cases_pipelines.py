"""Cases for `roll_cases.py`: what the author of a pipeline meets beyond single calls."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import torch

from roll_case_pipelines import Actor, Fragile, Peer, Turns, Unsendable, rank_of
from roll_case_roles import (
    DataProto,
    Probe,
    case,
    end,
    laid,
    pool,
    ray,
    role,
    some,
    three,
    told,
)

# --- ends of single workers ----------------------------------------------------------------------


@case
def one_of_several_is_killed() -> Any:
    with some("killed-one", world_size=3) as c:
        refs = c.sleep(60, blocking=False)
        ray.kill(c.workers[1])
        ray.kill(c.workers[1])
        return [
            told(lambda: ray.get(refs[1])),
            told(lambda: ray.get(c.workers[1].plain.remote(1))),
            told(lambda: ray.get_actor("killed-one-1", namespace="roll")),
            sorted(name for name in ray.util.list_named_actors() if name.startswith("killed-one")),
        ]


@case
def calls_without_the_dead() -> Any:
    with some("without", world_size=3) as c:
        c.initialize(None)
        assert c.dp_size == 3  # which ROLL asks all ranks for, once
        ray.kill(c.workers[1])
        found = []
        for refs in (
            c.one_to_all(1, blocking=False),
            c.all_to_all([1, 2, 3], blocking=False),
            [ref.obj_ref for ref in c.dp_mp([1, 2, 3], blocking=False)],
            c.execute_all_async("plain", [4, 5, 6]),
            c.custom_as_given(7, blocking=False),
        ):
            found.append([told(partial(ray.get, ref)) for ref in refs])
        return found


@case
def blocking_calls_without_the_dead() -> Any:
    with some("blocked", world_size=2) as c:
        ray.kill(c.workers[1])
        return [
            told(lambda: c.one_to_all(1)),
            told(lambda: c.execute_all_sync("plain", 1)),
            told(lambda: c.execute_rank_zero_sync("plain", 1)),
            told(lambda: ray.get(c.one_to_all(1, blocking=False))),
        ]


@case
def what_is_said_of_the_dead() -> Any:
    with some("said", world_size=2) as c:
        ray.kill(c.workers[1])
        try:
            ray.get(c.workers[1].plain.remote())
        except ray.exceptions.ActorDiedError as error:
            same = error.actor_id == c.workers[1]._actor_id.hex()
            return "ray.kill" in str(error), same, error.actor_init_failed
        return None


@case
def a_name_is_free_again() -> Any:
    first = role("again", world_size=2)
    end(first)
    with some("again", world_size=1) as c:
        return c.one_to_all(1), told(lambda: ray.get(first.workers[1].plain.remote()))


@case
def a_name_of_which_some_is_left() -> Any:
    with some("partly", world_size=2) as c:
        ray.kill(c.workers[1])
        return told(lambda: role("partly", world_size=2))


@case
def a_worker_that_exits() -> Any:
    with some("exits", Fragile, world_size=2) as c:
        refs = c.leave(1, blocking=False)
        return [told(partial(ray.get, ref)) for ref in refs], told(
            lambda: ray.get(c.workers[0].plain.remote(1))
        )


# --- handles and clusters in other hands ----------------------------------------------------------


@case
def what_a_handle_is() -> Any:
    worker = three().workers[1]
    return [
        isinstance(worker, ray.actor.ActorHandle),
        worker == three().workers[1],
        worker == three().workers[0],
        len({worker, three().workers[1]}),
        len(worker._actor_id.hex()),
        told(lambda: worker.nothing.remote()),
        told(lambda: worker.plain(1)),
        told(lambda: ray.get(worker.plain.options(num_returns=3).remote(5))),
        told(lambda: ray.get(worker.takes_two.remote())),
        told(lambda: ray.get(worker.takes_two.remote(1, 2, 3))),
    ]


@case
def handles_are_sent_on() -> Any:
    """To other workers, to actors, inside values, and by them to others again."""
    with some("peers", Peer, world_size=2) as c:
        c.execute_all_sync("meet", three().workers)
        actor = ray.remote(Actor).remote({"peers": c, "one": three().workers[2]})
        return [
            c.execute_all_sync("ask_all", 1),
            ray.get(actor.ask.remote("x")),
            ray.get(actor.through.remote("y")),
            c.execute_all_sync("ask_by_name", "three-1"),
        ]


@case
def a_worker_kills_another() -> Any:
    with some("victims", world_size=2) as v, some("killers", Peer, world_size=1) as c:
        c.execute_rank_zero_sync("end", v.workers[0])
        refs = v.one_to_all(1, blocking=False)
        return [told(partial(ray.get, ref)) for ref in refs]


@case
def who_a_worker_is() -> Any:
    with some("self", Peer, world_size=2) as c, some("gpus", Peer, device_mapping=[1, 5]) as g:
        return c.execute_all_sync("self_told"), g.execute_all_sync("self_told")


@case
def refs_inside_values() -> Any:
    c = three()
    ref = ray.put(torch.arange(3))
    data = DataProto.from_dict({"x": torch.arange(4)}, meta_info={"k": 1})
    called = c.one_to_all(1, blocking=False)
    with some("nested", Peer, world_size=1) as p:
        return [
            p.execute_all_sync("open", {"deep": [ref]}),
            p.execute_all_sync("open", {"deep": called}),
            p.execute_all_sync("open", {"deep": [ray.put(data)]}),
            p.execute_all_sync("open", {"deep": [p.workers[0].plain.remote(data)]}),
            told(lambda: p.execute_all_sync("open", {"deep": [c.workers[0].fails.remote()]})),
        ]


@case
def a_ref_that_a_worker_made() -> Any:
    with some("maker", Peer, world_size=1) as p:
        (made,) = p.execute_all_sync("make_ref", 7)
        (called,) = p.execute_all_sync("call_ref", three().workers[1])
        return ray.get(made["ref"]), ray.get(called["ref"])


@case
def data_that_failed_upstream() -> Any:
    """An error of one role, as the argument of another's call."""
    bad = three().workers[0].fails.remote()
    return [
        told(lambda: three().one_to_all(bad)),
        told(lambda: ray.get(three().workers[1].plain.remote(bad))),
        told(lambda: ray.get(three().one_to_all(bad, blocking=False)[0])),
    ]


# --- errors ---------------------------------------------------------------------------------------


@case
def errors_that_hold_what_cannot_be_sent() -> Any:
    c = three()
    return told(lambda: ray.get(c.workers[0].plain.remote(threading.Lock()))), told(
        lambda: c.one_to_all(threading.Lock())
    )


@case
def errors_of_every_kind() -> Any:
    with some("fragile", Fragile, world_size=1) as c:
        kinds = ("unsendable", "chained", "keyboard", "stop", "timeout", "os", "assert")
        return {kind: told(partial(c.fail_as, kind)) for kind in kinds}


@case
def what_errors_keep() -> Any:
    with some("kept", Fragile, world_size=1) as c:
        try:
            c.fail_as("attributes")
        except Unsendable:
            return "caught"
        except Exception as error:
            cause = getattr(error, "cause", None)
            return getattr(cause, "code", None), str(cause), type(cause).__name__
        return None


@case
def results_that_cannot_be_sent() -> Any:
    with some("results", Fragile, world_size=1) as c:
        return told(lambda: c.give_lock()), told(lambda: c.give_local()), c.one_to_all(1)


@case
def constructors_that_fail_on_one_rank() -> Any:
    return told(lambda: role("half", Fragile, world_size=2, system_envs={"FAILS": "1"}))


# --- time -----------------------------------------------------------------------------------------


@case
def refs_that_are_not_there_in_time() -> Any:
    with some("late-refs", world_size=2) as c:
        refs = c.sleep(2, blocking=False)
        early = told(lambda: ray.get(refs, timeout=0.1))
        at_once = told(lambda: ray.get(refs[0], timeout=0))
        done, others = ray.wait(refs, num_returns=2, timeout=0.1)
        return early, at_once, len(done), len(others), ray.get(refs, timeout=60)


@case
def waiting_over_clusters() -> Any:
    with some("quick", world_size=2) as q, some("slowly", world_size=2) as s:
        late = s.sleep(3, blocking=False)
        soon = q.sleep(0, blocking=False)
        done, others = ray.wait([*late, *soon], num_returns=2)
        rest, none = ray.wait(others, num_returns=2)
        return [refs == soon for refs in (done, others)], rest == late, none


@case
def awaited_with_a_limit() -> Any:
    async def run() -> Any:
        refs = three().sleep(1, blocking=False)
        try:
            await asyncio.wait_for(asyncio.gather(*refs), 0.05)
        except asyncio.TimeoutError:
            late = "late"
        first = await asyncio.gather(*three().one_to_all(1, blocking=False))
        done = {asyncio.ensure_future(_of(ref)) for ref in three().one_to_all(2, blocking=False)}
        finished, _ = await asyncio.wait(done)
        return late, first, sorted(task.result() for task in finished)

    return asyncio.run(run())


async def _of(ref: Any) -> Any:
    return await ref


@case
def a_call_is_cancelled() -> Any:
    with some("cancels", Turns, world_size=1) as c:
        ref = c.workers[0].forever.remote()
        ray.get(c.workers[0].begun.remote())
        ray.cancel(ref)
        return told(lambda: ray.get(ref)), ray.get(c.workers[0].count.remote())


# --- concurrency ----------------------------------------------------------------------------------


@case
def async_methods_and_a_limit() -> Any:
    with some("limited", Turns, world_size=1, max_concurrency=3) as c:
        refs = [c.workers[0].crowd.remote() for _ in range(9)]
        return max(ray.get(refs)), c.max_concurrency_seen()


@case
def sync_methods_of_async_workers() -> Any:
    with some("mixed", Turns, world_size=1) as c:
        where = ray.get(c.workers[0].threads.remote())
        return where, ray.get([c.workers[0].order.remote(at) for at in range(20)])[-1]


@case
def sync_methods_one_by_one() -> Any:
    with some("serial", Probe, world_size=2) as c:
        for at in range(5):
            c.execute_all_async("note", at)
        return c.execute_all_sync("note", 5), c.workers[0] is c.workers[0]


@case
def calls_from_threads() -> Any:
    c, found = three(), []
    threads = [
        threading.Thread(target=lambda at=at: found.append(c.one_to_all(at)[1][1]))
        for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


@case
def a_cluster_is_called_back() -> Any:
    """A worker calls the cluster that it is in."""
    with some("back", Turns, world_size=2) as c:
        return c.execute_all_sync("call_back", c.workers[1])


@case
def data_of_one_role_to_another() -> Any:
    data = DataProto.from_dict({"x": torch.arange(6).reshape(3, 2)}, meta_info={"step": 1})
    refs = laid().double(data.repeat(2), blocking=False)
    whole = DataProto.materialize_concat(refs)
    return whole, three().meta_alone(whole)


# --- what else is there ---------------------------------------------------------------------------


@case
def methods_that_are_no_ones() -> Any:
    worker = three().workers[1]
    return [
        told(lambda: three().plain(1)),
        told(lambda: three()._hidden()),
        told(lambda: ray.get(worker.__ray_ready__.remote())),
        told(lambda: ray.get(worker.__ray_call__.remote(rank_of, 5))),
    ]


@case
def wrapped_refs_that_are_got() -> Any:
    refs = laid().dp_mp([1, 2], blocking=False)
    return told(lambda: ray.get(refs)), told(lambda: ray.wait(refs))


@case
def a_cluster_that_was_put() -> Any:
    with some("puts", Peer, world_size=1) as p:
        ref = ray.put({"cluster": three()})
        return p.execute_all_sync("call_put", ref), p.execute_all_sync("call_put", {"ref": ref})


@case
def actors_on_the_nodes_of_workers() -> Any:
    with some("places", Peer, device_mapping=[0, 4]) as p:
        nodes = p.execute_all_sync("node_id")
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        actors = [
            ray.remote(Actor)
            .options(scheduling_strategy=affinity(node_id=node, soft=False))
            .remote({"peers": p})
            for node in nodes
        ]
        found = ray.get([actor.node_id.remote() for actor in actors])
        return len(set(nodes)), found == nodes


@case
def clusters_made_in_an_actor() -> Any:
    """As ROLL's schedulers make reward clusters, and hand on what they made."""
    actor = ray.remote(Actor).options(name="makes").remote({})
    made = ray.get(actor.make.remote("made", pool()))
    found = made.one_to_all(1), ray.get(made.workers[1].plain.remote(2))
    end(made)
    ray.kill(actor)
    return found
