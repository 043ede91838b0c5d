"""Worker classes of the black-box tests, as a user would write them.

They live in a module of their own because workers import classes by path, and a
test module is not one that a worker should import.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
import threading
import time
from typing import Any

import muster
from muster import Dispatch, Execute, RankInfo, Worker, register

# Read when the module is imported: a worker's environment is complete by then.
ENVIRONMENT_AT_IMPORT = dict(os.environ)


def seen(worker: Worker, args: Any, kwargs: Any) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    return worker.rank, args, kwargs


def _times_rank(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    """A user's dispatch function: rank r gets each argument times r."""
    ranks = range(cluster.world_size)
    return (
        tuple([value * rank for rank in ranks] for value in args),
        {name: [value * rank for rank in ranks] for name, value in kwargs.items()},
    )


def _largest(cluster: Any, results: list[Any]) -> Any:
    assert len(results) == cluster.world_size
    return {"largest": max(results)}


class Echo(Worker):
    """Says who got what, in every mode; a tuple a rank, or a list where lists chain."""

    calls = 0

    @register()
    def default(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.ONE_TO_ALL)
    def one_to_all(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.ONE_TO_ALL_ONE)
    def one_to_all_one(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.ALL_TO_ALL)
    def all_to_all(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.DP_MP_COMPUTE)
    def dp_mp_compute(self, *args: Any, **kwargs: Any) -> Any:
        return [seen(self, args, kwargs)]

    @register(Dispatch.DP_MP_DISPATCH_FIRST)
    def dp_mp_dispatch_first(self, *args: Any, **kwargs: Any) -> Any:
        return [seen(self, args, kwargs)]

    @register(Dispatch.DP_MP_COMPUTE_COLLECT_ALL)
    def dp_mp_compute_collect_all(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.DP_MP_DISPATCH_FIRST_COLLECT_ALL)
    def dp_mp_dispatch_first_collect_all(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.DP_MP_COMPUTE)
    def same(self, rows: Any) -> Any:
        return rows

    @register(Dispatch.DP_MP_COMPUTE)
    def answers(self, rows: Any, by_rank: Any) -> Any:
        """What the caller wants to see collected from this rank."""
        return by_rank[self.rank]

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def zero_of_all(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def zero_of_each(self, *args: Any, **kwargs: Any) -> Any:
        return seen(self, args, kwargs)

    @register(Dispatch.DP_MP_COMPUTE, Execute.RANK_ZERO)
    def zero_of_dp(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return seen(self, args, kwargs)

    @register({"dispatch_fn": _times_rank, "collect_fn": _largest})
    def custom(self, x: int, y: int = 0) -> int:
        return x + y

    @register(Dispatch.ONE_TO_ALL)
    def lay_out(self, infos: list[RankInfo]) -> None:
        self.rank_info = infos[self.rank]

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Not registered: execute_* only."""
        return seen(self, args, kwargs)

    def count(self, a: Any, b: Any = None, *, c: Any = None) -> int:
        self.calls += 1
        return self.calls

    def counted(self) -> int:
        return self.calls

    def _private(self) -> None: ...


def _one_too_few(cluster: Any, x: Any) -> Any:
    return ([x] * (cluster.world_size - 1),), {}


def _no_lists(cluster: Any, x: Any) -> Any:
    return x


def _refuses(cluster: Any, *args: Any) -> Any:
    raise PermissionError("not today")


def _same_for_all(cluster: Any, *args: Any, **kwargs: Any) -> Any:
    world = cluster.world_size
    return tuple([arg] * world for arg in args), {k: [v] * world for k, v in kwargs.items()}


class Custom(Worker):
    """Dispatch and collect functions of a user's, good and bad."""

    @register({"dispatch_fn": _one_too_few, "collect_fn": _largest})
    def short(self, x: Any) -> Any:
        return x

    @register({"dispatch_fn": _no_lists, "collect_fn": _largest})
    def shapeless(self, x: Any) -> Any:
        return x

    @register({"dispatch_fn": _refuses, "collect_fn": _largest})
    def refused(self, x: Any) -> Any:
        return x

    @register({"dispatch_fn": _same_for_all, "collect_fn": _refuses})
    def uncollected(self, x: Any) -> Any:
        return x

    @register({"dispatch_fn": _same_for_all, "collect_fn": lambda cluster, results: results[-1]})
    def last(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register({"dispatch_fn": _times_rank, "collect_fn": _largest}, execute_mode=Execute.RANK_ZERO)
    def zero(self, x: int) -> int:
        return x + 100


class LaidOut(Worker):
    """Lays its ranks out by itself, in the constructor: dp fastest, then tp."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        dp = worker_config.strategy_args["dp"]
        self.rank_info = RankInfo(
            world_size=self.world_size,
            tp_size=self.world_size // dp,
            dp_size=dp,
            rank=self.rank,
            dp_rank=self.rank % dp,
            tp_rank=self.rank // dp,
        )

    @register(Dispatch.DP_MP_COMPUTE)
    def rows(self, rows: list[Any]) -> Any:
        return [(self.rank, row) for row in rows]


class Probe(Worker):
    """Looks at where it is."""

    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def at_import(self, *names: str) -> dict[str, str | None]:
        return {name: ENVIRONMENT_AT_IMPORT.get(name) for name in names}

    def pid(self) -> int:
        return os.getpid()

    def parents_command(self) -> str:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode().strip()

    def identity(self) -> tuple[Any, ...]:
        return (
            self.rank,
            self.world_size,
            self.cluster_name,
            self.worker_name,
            self.master_addr,
            self.master_port,
        )

    def config(self) -> Any:
        return self.worker_config

    def value(self, module: str) -> Any:
        return importlib.import_module(module).value

    def folder(self) -> str:
        return os.getcwd()

    def loaded(self, module: str) -> bool:
        return module in sys.modules

    def bind(self, port: int, reuse: bool) -> str:
        """As torch's rendezvous does (reuse), or as a stranger would."""
        with socket.socket() as server:
            if reuse:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("", port))
                server.listen()
            except OSError as error:
                return type(error).__name__
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return "connected"

    def hold(self, count: int) -> list[int]:
        return muster.hold_ports(count)

    def print(self, text: str) -> None:
        print(text, flush=True)


class Keeper(Worker):
    """Values in and out; keeps nothing unless told to."""

    @register(Dispatch.ONE_TO_ALL)
    def echo(self, value: Any) -> Any:
        return value

    def describe(self, value: Any) -> str:
        return f"{type(value).__module__}.{type(value).__qualname__} {value!r}"

    def spoil(self, value: Any) -> Any:
        """Changes what it was given, in place."""
        if isinstance(value, dict):
            value["spoilt"] = True
        elif isinstance(value, list):
            value.append("spoilt")
        else:
            value[...] = 7
        return value

    def make(self, size: int) -> bytes:
        return bytes(size)

    def make_array(self, shape: tuple[int, ...]) -> Any:
        import numpy

        return numpy.zeros(shape)

    def total(self, value: Any) -> int:
        return int(sum(value[:10])) + len(value)


class Order(Worker):
    """Writes down the order in which calls came; sync methods only."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.order: list[Any] = []
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.gate = threading.Event()

    @register(Dispatch.ONE_TO_ALL)
    def note(self, value: Any) -> Any:
        self.order.append(value)
        return value

    def noted(self) -> list[Any]:
        return self.order

    def meet(self, parties: int) -> int:
        """Returns when so many calls are inside at once; the most that ever were."""
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running >= parties:
                self.gate.set()
        self.gate.wait(20)
        with self.lock:
            self.running -= 1
        return self.most

    def linger(self, seconds: float) -> None:
        time.sleep(seconds)

    def thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()


class Loop(Worker):
    """A class with async methods: its calls interleave."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.opened = asyncio.Event()

    @register(Dispatch.ONE_TO_ALL)
    async def wait_for_it(self) -> str:
        await self.opened.wait()
        return f"opened {self.rank}"

    @register(Dispatch.ONE_TO_ALL)
    async def open(self) -> None:
        self.opened.set()

    def sync_one(self) -> int:
        return self.rank


class Caller(Worker):
    """Calls other clusters, by whatever it is given."""

    def through(self, target: Any, method: str, *args: Any) -> Any:
        if hasattr(target, "execute_all_sync"):
            return target.execute_all_sync(method, *args)
        return target.call(method, *args)

    def bound(self, target: Any, rows: list[int]) -> Any:
        return target.same(rows)

    def by_name(self, name: str, method: str, *args: Any) -> Any:
        return muster.get_cluster(name).execute_all_sync(method, *args)

    def look(self, target: Any) -> tuple[Any, ...]:
        return target.cluster_name, target.world_size, target.dp_size, target.rank2devices


class Gate(Worker):
    """Calls that wait until they are let through (give it some max_concurrency)."""

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config)
        self.gate = threading.Event()
        self.gate.set()

    @register(Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        self.gate.clear()

    @register(Dispatch.ONE_TO_ALL)
    def open(self) -> None:
        self.gate.set()

    @register(Dispatch.ONE_TO_ALL)
    def through(self, value: Any) -> Any:
        self.gate.wait(30)
        return value

    @register(Dispatch.ONE_TO_ALL)
    def fast(self, value: Any) -> Any:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, text: str) -> None:
        raise LookupError(text)

    def rank_waits(self, rank: int) -> int:
        if rank == self.rank:
            self.gate.wait(30)
        return self.rank

    def rank_fails(self, rank: int) -> int:
        if rank == self.rank:
            raise ValueError(f"rank {self.rank}")
        return self.rank


class Waits(Worker):
    """Calls that wait for what is outside; one at a time."""

    @register(Dispatch.ONE_TO_ALL)
    def read(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:  # of a pipe: somebody has to write
            return file.read()

    @register(Dispatch.ONE_TO_ALL)
    def same(self, value: Any) -> Any:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def batch(self, rows: int) -> Any:
        import numpy as np

        return muster.Batch({"x": np.arange(rows)})
