"""Ray: actors that take no CPU, calls as lists of references and one ray.get."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import ray

import probe


class Echo:
    """The actor; it imports what is heavy before it is ready."""

    def __init__(self, heavy: str) -> None:
        for module in heavy.split():
            import_module(module)

    def echo(self, value: object) -> object:
        return value

    def pid(self) -> int:
        return os.getpid()


class Ray:
    """A local Ray without dashboard and without forwarding of logs."""

    def up(self) -> None:
        ray.init(
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=os.environ["BENCH_TMP"],
        )

    def start(self, workers: int, heavy: str, callers: int) -> list[Any]:
        # With num_cpus=0 any number of actors fits on any machine. An actor that
        # several threads call may run as many calls at once.
        actor = ray.remote(num_cpus=0, max_concurrency=callers)(Echo)
        return [actor.remote(heavy) for _ in range(workers)]

    def caller(self, group: list[Any]) -> Callable[[], object]:
        echo, get = group[0].echo, ray.get
        return lambda: get(echo.remote(probe.TOKEN))

    def pipeline(self, group: list[Any], calls: int) -> list[object]:
        echo = group[0].echo
        answers: list[object] = ray.get([echo.remote(probe.TOKEN) for _ in range(calls)])
        return answers

    def broadcast(self, group: list[Any]) -> list[object]:
        answers: list[object] = ray.get([actor.echo.remote(probe.TOKEN) for actor in group])
        return answers

    def pids(self, group: list[Any]) -> list[int]:
        found: list[int] = ray.get([actor.pid.remote() for actor in group])
        return found

    def stop(self, group: list[Any]) -> None:
        for actor in group:
            ray.kill(actor)

    def down(self) -> None:
        ray.shutdown()


if __name__ == "__main__":
    probe.main(Ray())
