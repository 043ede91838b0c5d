"""`Instances`: clusters of one kind, each with a pool of its own, that come and go.

Owns which of them there are. Each is a `ResourceManager` and a `Cluster` like any
other; that calls are answered before one goes is the head's to see to.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from . import _context, _errors, _objects
from ._cluster import Cluster, Setup, encode_config
from ._config import WorkerConfig, as_seconds, as_worker_config
from ._resources import ResourceManager

#: Instances that start, or end, side by side.
_AT_ONCE = 32


class Instances:
    """As many clusters as are asked for, ``name-0``, ``name-1``, … , each on a pool of its own.

    ``pool`` is what each one's `ResourceManager` takes, as
    ``dict(num_gpus_per_node=4)``; the rest is as for a `Cluster`. ``scale`` has more or
    fewer of them while all else goes on: rollout instances beside a trainer.

    ``instances[0]``, ``len(instances)`` and ``for cluster in instances`` are of those
    that are there, in the order of their numbers; `muster.get_cluster` finds one by its
    name. They go with `shutdown`, the end of the ``with`` block, or the script.
    """

    def __init__(
        self,
        name: str,
        worker_cls: type | str,
        worker_config: WorkerConfig | Mapping[str, Any] | None = None,
        *,
        pool: Mapping[str, Any] | None = None,
        count: int = 1,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of instances is text, not {name!r}")
        self.name = name
        self._class = worker_cls
        self._config = as_worker_config(worker_config)
        self._pool = _pool_arguments(pool)
        self._changing = threading.Lock()  # one change at a time
        self._made: dict[int, tuple[ResourceManager, Cluster]] = {}
        self._encoding = threading.Lock()
        self._kept: tuple[_objects.Ledger | None, Setup] | None = None
        self.scale(count)

    def scale(self, count: int, *, drain: float = math.inf) -> None:
        """Have ``count`` instances; returns when they are there, or gone.

        New ones take the lowest numbers that are free and start side by side, all of
        them or none: where one cannot be had, the error says why, and those that there
        were before stay. Of too many, those with the highest numbers go. What they were
        asked before has up to ``drain`` seconds to be answered; 0 ends them at once.
        """
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"count is {count!r}; it must be a whole number")
        if count < 0:
            raise ValueError(f"count is {count}; it is 0 or more")
        patience = as_seconds("drain", drain)
        with self._changing:
            missing = count - len(self._made)
            if missing > 0:
                free = (i for i in range(count) if i not in self._made)
                self._add([next(free) for _ in range(missing)])
            elif missing < 0:
                self._end(sorted(self._made)[missing:], patience)

    def remove(self, instance: Cluster | str, *, drain: float = math.inf) -> None:
        """Let one instance go, by its name or as it is: one whose node is lost, say."""
        name = instance.name if isinstance(instance, Cluster) else instance
        patience = as_seconds("drain", drain)
        with self._changing:
            for number, (_, cluster) in self._made.items():
                if cluster.name == name:
                    self._end([number], patience)
                    return
        raise _errors.NotFoundError(
            f"{self.name} has no instance {name!r}; it has {', '.join(self.names) or 'none'}"
        )

    def _add(self, numbers: Sequence[int]) -> None:
        connection = _context.connection("Instances()")  # by this thread, which signals go to
        made: dict[int, tuple[ResourceManager, Cluster]] = {}
        starting: set[str] = set()

        def make(number: int) -> None:
            pool = ResourceManager(**self._pool)
            name = f"{self.name}-{number}"
            try:
                setup = self._setup()  # a pool is there, and with it a store
                starting.add(name)
                cluster = Cluster._made_of(setup, name, self._class, pool, self._config)
            except BaseException:
                starting.discard(name)
                pool.destroy_placement_group()
                raise
            starting.discard(name)
            made[number] = (pool, cluster)

        def give_up() -> None:
            for name in list(starting):
                connection.ask("cluster.stop", {"number": 0, "name": name})

        try:
            _side_by_side(make, numbers, give_up)
        except BaseException:
            _side_by_side(lambda pair: _stop(pair, 0.0), list(made.values()))
            raise
        self._made = dict(sorted({**self._made, **made}.items()))

    def _setup(self) -> Setup:
        """The configuration as all of them get it, now and later: large parts lie in the store
        once, for as long as there may be another instance."""
        with self._encoding:
            ledger = _objects.ledger()
            if self._kept is None or self._kept[0] is not ledger:  # else of a session before
                body, buffers = encode_config(self._config, self.name)
                own = [buf if type(buf) is _objects.Stored else bytes(buf) for buf in buffers]
                self._kept = ledger, (body, own)
            return self._kept[1]

    def _end(self, numbers: Sequence[int], drain: float) -> None:
        going = [self._made[number] for number in numbers]
        # Whoever asks from now on is told of the others.
        self._made = {n: pair for n, pair in self._made.items() if n not in numbers}
        _side_by_side(lambda pair: _stop(pair, drain), going)

    @property
    def names(self) -> list[str]:
        """The names of those that are there."""
        return [cluster.name for cluster in self]

    def shutdown(self, *, drain: float = 0.0) -> None:
        """End all of them; returns when they are gone. It may be called again."""
        self.scale(0, drain=drain)
        self._kept = None

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Cluster]:
        return iter([cluster for _, cluster in self._made.values()])

    def __getitem__(self, index: int) -> Cluster:
        return list(self)[index]

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<muster.Instances {', '.join(self.names) or f'of {self.name}, none'}>"


def _pool_arguments(pool: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each instance's pool takes, checked before anything starts."""
    if pool is not None and not isinstance(pool, Mapping):
        raise TypeError(
            f"pool is {pool!r}; it is a dict of what each instance's ResourceManager takes, "
            "as dict(num_gpus_per_node=4): an instance has a pool of its own"
        )
    given = {str(key): value for key, value in (pool or {}).items()}
    known = [name for name in inspect.signature(ResourceManager).parameters if name != "self"]
    if strange := sorted(given.keys() - set(known)):
        raise TypeError(
            f"pool has {', '.join(strange)}; a ResourceManager takes {', '.join(known)}"
        )
    return given


def _stop(pair: tuple[ResourceManager, Cluster], drain: float) -> None:
    pool, cluster = pair
    try:
        cluster.shutdown(drain=drain)
    finally:
        pool.destroy_placement_group()


def _side_by_side(
    do: Callable[[Any], None], things: Sequence[Any], give_up: Callable[[], None] | None = None
) -> None:
    """Do it with each at once; raises what went wrong first, after all have ended.

    ``give_up`` has those that still run end soon, when the caller is interrupted.
    """
    if len(things) == 1:
        do(things[0])
        return
    if not things:
        return
    with ThreadPoolExecutor(min(len(things), _AT_ONCE), thread_name_prefix="muster") as pool:
        running = [pool.submit(do, thing) for thing in things]
        try:
            wait(running)
        except BaseException:
            for one in running:
                one.cancel()
            if give_up is not None:
                give_up()
            raise
    for one in running:
        one.result()
