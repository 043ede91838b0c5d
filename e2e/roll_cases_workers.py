"""Cases for `roll_cases.py`: what workers share and are handed: values, ports, clusters, and
refs of which each rank gets its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from roll_case_roles import case, named, ray, some, three, times_rank, told

if TYPE_CHECKING:
    from muster.compat.roll import Execute, Worker, register
else:
    from roll_case_roles import Execute, Worker, register

SharedStorage = named("SharedStorage")


def sums(cluster: Any, output: Any) -> Any:
    """A collect function of one result, or of a ref of it."""
    return ("a ref", ray.get(output)) if isinstance(output, ray.ObjectRef) else ("sum", sum(output))


class Sharing(Worker):
    """Ports, values and clusters."""

    def ports(self, count: int) -> list[int]:
        return [self.get_free_port() for _ in range(count)]

    def has_a_storage_of_its_own(self) -> Any:
        self.shared_storage = {"mine": True}
        return self.shared_storage

    def looks_at(self, cluster: Any) -> Any:
        manager = cluster.resource_manager
        return (
            type(manager).__name__,
            (manager.num_nodes, manager.gpu_per_node, len(manager.placement_groups)),
            [
                [(at["node_rank"], at["gpu_rank"]) for at in rank]
                for rank in cluster.placement_groups
            ],
            sorted(cluster.placement_groups[0][0]),
            cluster.rank2devices,
        )

    @register(
        dispatch_mode={"dispatch_fn": times_rank, "collect_fn": sums},
        execute_mode=Execute.RANK_ZERO,
    )
    def custom_on_rank_zero(self, numbers: Any) -> Any:
        return numbers


@case
def ports_are_given_out_once() -> Any:
    with some("ports", Sharing, world_size=2) as c:
        found = [port for ports in c.execute_all_sync("ports", 100) for port in ports]
        return len(found), len(set(found))


@case
def storage_is_an_actor_class() -> Any:
    options = {"name": "OF_THE_CASES", "get_if_exists": True, "namespace": "roll"}
    storage, same = (SharedStorage.options(**options).remote() for _ in range(2))
    ray.get(storage.put.remote("k", [1]))
    found = ray.get([same.put_if_absent.remote("k", 2), same.get.remote("k"), same.get.remote("l")])
    ray.kill(storage)
    return found


@case
def storage_can_be_set() -> Any:
    with some("own", Sharing, world_size=1) as c:
        return c.execute_rank_zero_sync("has_a_storage_of_its_own")


@case
def a_cluster_that_was_sent() -> Any:
    with some("sent", Sharing, device_mapping=[1, 4], num_gpus_per_worker=1) as c:
        return c.execute_rank_zero_sync("looks_at", c)


@case
def functions_of_ones_own_on_rank_zero() -> Any:
    with some("zero", Sharing, world_size=3) as c:
        return c.custom_on_rank_zero(2), c.custom_on_rank_zero(2, blocking=False)


# --- refs of which each rank gets its own --------------------------------------------------------


class Gate(Worker):
    """Keeps its callers until somebody opens it."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.opened: dict[int, asyncio.Event] = {}

    async def passed(self, number: int) -> str:
        event = self.opened.setdefault(number, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), 30)
        except asyncio.TimeoutError:
            return "nobody opened it"
        return f"passed {number}"

    async def open(self, number: int) -> None:
        self.opened.setdefault(number, asyncio.Event()).set()

    async def fails(self) -> None:
        raise ZeroDivisionError


@case
def lists_of_refs_do_not_wait() -> Any:
    found = []
    with some("gate", Gate, world_size=1) as gates:
        (gate,), c = gates.workers, three()
        calls: list[Callable[[list[Any]], list[Any]]] = [
            lambda refs: c.all_to_all(refs, blocking=False),
            lambda refs: c.execute_all_async("plain", refs),
            lambda refs: c.execute_all_async("plain", refs, x=["a", "b", "c"]),
        ]
        for at, call in enumerate(calls):
            numbers = [3 * at + rank for rank in range(3)]
            refs = call([gate.passed.remote(number) for number in numbers])
            for rank in range(3):  # each begins when its own is there, not that of all
                ray.get(gate.open.remote(numbers[rank]))
                found.append(ray.get(refs[rank]))
    return found


@case
def lists_of_refs_that_fail() -> Any:
    with some("gate", Gate, world_size=1) as gates:
        (gate,), c = gates.workers, three()
        bad = gate.fails.remote()
        told(lambda: ray.get(bad))
        refs = c.all_to_all([ray.put(1), bad, 3], blocking=False)
        return [told(partial(ray.get, ref)) for ref in refs]


@case
def lists_of_refs_that_are_waited_for() -> Any:
    c = three()
    return c.all_to_all([ray.put(1), c.workers[0].plain.remote(2), 3]), c.execute_all_sync(
        "plain", [ray.put(1), ray.put(2), 3]
    )
