"""Ray over several hosts: actors that are bound to nodes, and references to what they return."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import nodes
import probe
from nodes import HOSTS, Rows, Seen


class Echo:
    """Answers."""

    def echo(self, value: object) -> object:
        return value

    def host(self) -> str:
        return socket.gethostname()


class Carrier:
    """Makes rows, and looks at them."""

    def __init__(self) -> None:
        self._rows = Rows()

    def make(self, rows: int, step: int) -> Any:
        return self._rows.marked(rows, step)

    def look(self, rows: Any) -> Seen:
        return nodes.look(rows)


@dataclass
class Carriers:
    """An actor of the second host, one of the third, and one of each."""

    maker: Any
    taker: Any
    each: list[Any]


class Ray:
    """A driver of the Ray that runs on the hosts."""

    def up(self) -> None:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        mine = ray.get_runtime_context().get_node_id()
        found = sorted(
            (n["NodeID"] != mine, n["NodeManagerAddress"], n["NodeID"])
            for n in ray.nodes()
            if n["Alive"]
        )
        self._nodes = [node for _, _, node in found]

    def _actor(self, of: type, node: int) -> Any:
        # With num_cpus=0 and a node of its own, nothing is left to decide or to reserve.
        where = NodeAffinitySchedulingStrategy(self._nodes[node], soft=False)
        return ray.remote(num_cpus=0)(of).options(scheduling_strategy=where).remote()

    def start(self, workers: int) -> list[Any]:
        each = workers // HOSTS
        return [self._actor(Echo, node) for node in range(HOSTS) for _ in range(each)]

    def hosts(self, group: list[Any]) -> list[str]:
        found: list[str] = ray.get([actor.host.remote() for actor in group])
        return found

    def broadcast(self, group: list[Any]) -> list[object]:
        answers: list[object] = ray.get([actor.echo.remote(probe.TOKEN) for actor in group])
        return answers

    def one(self) -> list[Any]:
        return [self._actor(Echo, 1)]

    def caller(self, group: list[Any]) -> Callable[[], object]:
        echo, get = group[0].echo, ray.get
        return lambda: get(echo.remote(probe.TOKEN))

    def pipeline(self, group: list[Any], calls: int) -> list[object]:
        echo = group[0].echo
        answers: list[object] = ray.get([echo.remote(probe.TOKEN) for _ in range(calls)])
        return answers

    def carry(self) -> Carriers:
        each = [self._actor(Carrier, node) for node in range(HOSTS)]
        return Carriers(self._actor(Carrier, 1), self._actor(Carrier, 2), each)

    def make(self, carriers: Carriers, rows: int, step: int) -> Any:
        made = carriers.maker.make.remote(rows, step)
        ray.wait([made], fetch_local=False)  # it stays where it was made
        return made

    def take(self, carriers: Carriers, made: Any) -> Seen:
        seen: Seen = ray.get(carriers.taker.look.remote(made))
        return seen

    def take_all(self, carriers: Carriers, made: Any) -> list[Seen]:
        seen: list[Seen] = ray.get([actor.look.remote(made) for actor in carriers.each])
        return seen

    def stop(self, group: list[Any]) -> None:
        for actor in group:
            ray.kill(actor)

    def down(self) -> None:
        ray.shutdown()


if __name__ == "__main__":
    nodes.main(Ray())
