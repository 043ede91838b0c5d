"""Monarch: a mesh of processes on this host with one actor in each."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.config import configure

import probe

#: Its own limits of 30 s are for machines with a core per process.
PATIENCE = dict.fromkeys(
    (
        "host_spawn_ready_timeout",
        "mesh_proc_spawn_max_idle",
        "actor_spawn_max_idle",
        "get_actor_state_max_idle",
        "get_proc_state_max_idle",
        "supervision_watchdog_timeout",
        "message_delivery_timeout",
    ),
    "300s",
)


class Echo(Actor):  # type: ignore[misc]
    """The actor; it imports what is heavy before it is ready."""

    def __init__(self, heavy: str) -> None:
        for module in heavy.split():
            import_module(module)

    @endpoint  # type: ignore[untyped-decorator]
    def echo(self, value: object) -> object:
        return value

    @endpoint  # type: ignore[untyped-decorator]
    def pid(self) -> int:
        return os.getpid()


class Mesh(NamedTuple):
    """Processes, and the actors in them."""

    processes: Any
    actors: Any


class Monarch:
    """The host that the script itself is on."""

    def up(self) -> None:
        configure(**PATIENCE)
        self._host = this_host()
        self._meshes = 0

    def start(self, workers: int, heavy: str, callers: int) -> Mesh:
        self._meshes += 1
        processes = self._host.spawn_procs(per_host={"workers": workers})
        return Mesh(processes, processes.spawn(f"echo_{self._meshes}", Echo, heavy))

    def caller(self, group: Mesh) -> Callable[[], object]:
        echo = group.actors.slice(workers=0).echo
        return lambda: echo.call_one(probe.TOKEN).get()

    def pipeline(self, group: Mesh, calls: int) -> list[object]:
        echo = group.actors.slice(workers=0).echo
        sent = [echo.call_one(probe.TOKEN) for _ in range(calls)]
        return [answer.get() for answer in sent]

    def broadcast(self, group: Mesh) -> list[object]:
        return list(group.actors.echo.call(probe.TOKEN).get().values())

    def pids(self, group: Mesh) -> list[int]:
        return list(group.actors.pid.call().get().values())

    def stop(self, group: Mesh) -> None:
        group.processes.stop().get()

    def down(self) -> None:
        shutdown_context().get()


if __name__ == "__main__":
    probe.main(Monarch())
