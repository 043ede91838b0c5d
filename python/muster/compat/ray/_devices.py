"""Which devices an actor gets: of a placement group's pool, or of a pool of its own.

A pool of its own goes with the actor, however that ends: the head sees to it. Shares of
other pools are counted in the process that hands them out, and those of actors that have
ended are taken back when somebody wants them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, ClassVar

from ... import ResourceManager, _errors, _service
from ..._resources import nodes as muster_nodes
from .util.placement_group import Bundle, PlacementGroup

_ENOUGH = 1e-9  # sums of fractions are not exact
_AT_ONCE = 0.01  # seconds
_LOOK_EVERY = 0.02


class Pool:
    """Devices that are shared out: how much of each is taken."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.taken = [0.0] * bundle.count
        self.users: list[tuple[Any, Share]] = []  # services that this process made there

    def take(self, amount: float) -> list[int] | None:
        """Devices for so many GPUs; None where they are not free."""
        if amount < 1:
            for index, taken in enumerate(self.taken):
                if taken + amount <= 1 + _ENOUGH:
                    self.taken[index] += amount
                    return [index]
            return None
        free = [index for index, taken in enumerate(self.taken) if taken <= _ENOUGH]
        if len(free) < amount:
            return None
        chosen = free[: int(amount)]
        for index in chosen:
            self.taken[index] = 1.0
        return chosen

    def give_back(self, devices: list[int], amount: float) -> None:
        """Take them as free again."""
        for index in devices:
            self.taken[index] = max(0.0, self.taken[index] - min(amount, 1.0))


class Share:
    """Devices of a bundle that somebody has."""

    def __init__(
        self, bundle: Bundle, devices: list[int], amount: float = 0, pool: Pool | None = None
    ) -> None:
        self._bundle = bundle
        self._devices = devices
        self._amount = amount
        self._pool = pool  # None: the bundle was reserved for it

    def fields(self) -> dict[str, Any]:
        """What a `WorkerConfig` needs of it."""
        bundle = self._bundle
        found: dict[str, Any] = {"resource_manager": bundle.manager}
        if self._devices:
            found["device_mapping"] = [bundle.device(index) for index in self._devices]
            found["num_gpus_per_worker"] = len(self._devices)
        else:
            found["node"] = bundle.node_name
        return found

    def use(self, service: Any) -> None:
        """Say who runs there, and has them until it ends."""
        with _book.lock:
            if self._pool is None:
                _book.alone.append(service)
            else:
                self._pool.users.append((service, self))

    def lend(self) -> None:
        """Have others use the devices as well."""
        with _book.lock:
            self.take_back()

    def take_back(self) -> None:
        """Count them as free, for who has the book's lock. It may be done again."""
        if self._pool is not None:
            self._pool.give_back(self._devices, self._amount)
            self._amount = 0

    def release(self) -> None:
        """Give the devices back: nobody came to use them."""
        self.lend()
        if self._pool is None:
            self._bundle.manager.destroy_placement_group()


class _Book:
    """The pools of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bundles: dict[tuple[int, int, int], Pool] = {}  # of placement groups
        self.shared: list[Pool] = []  # of one device each, for fractions
        self.alone: list[Any] = []  # services with pools of their own


_book = _Book()


def forget() -> None:
    """The session is over."""
    global _book
    _book = _Book()


def sweep() -> None:
    """Take back what actors had that have ended."""
    living = set(_service.list_services())
    with _book.lock:
        for pool in (*_book.bundles.values(), *_book.shared):
            for service, share in pool.users:
                if service.name not in living:
                    share.take_back()
            pool.users = [user for user in pool.users if user[0].name in living]
        _book.shared = [pool for pool in _book.shared if any(pool.taken)]
        ended = [service for service in _book.alone if service.name not in living]
        _book.alone = [service for service in _book.alone if service.name in living]
    for service in ended:
        service.shutdown()


def of_group(group: PlacementGroup, index: int, amount: float) -> Share:
    """Devices of a bundle, or of the first that has so many free."""
    bundles = group.reserved()
    chosen = bundles if index < 0 else bundles[index : index + 1]
    if not chosen:
        raise ValueError(f"the placement group has {len(bundles)} bundles, and no bundle {index}")
    with _book.lock:
        pools = [_book.bundles.setdefault(bundle.key, Pool(bundle)) for bundle in chosen]
    share = _part_of(lambda: pools, amount)
    if share is None:
        raise ValueError(
            f"num_gpus={amount:g}: no bundle of the placement group has so many left; it has "
            f"{', '.join(str(bundle.count) for bundle in chosen)} in all"
        )
    return share


def anywhere(amount: float, node: str | None, patience: float) -> Share:
    """Devices of any node, reserved for this, within so many seconds."""
    if amount >= 1:
        bundle = Bundle(reserve(int(amount), 1, patience, node=node), 0, 0, int(amount))
        return Share(bundle, list(range(bundle.count)))
    share = _part_of(lambda: _book.shared, amount)
    if share is None:
        pool = Pool(Bundle(reserve(1, 1, patience, node=node), 0, 0, 1))
        with _book.lock:
            share = Share(pool.bundle, pool.take(amount) or [], amount, pool)
            _book.shared.append(pool)
    return share


def _part_of(pools: Callable[[], list[Pool]], amount: float) -> Share | None:
    """A share of the first of the pools that has so much left."""
    for again in (False, True):
        if again:
            sweep()
        with _book.lock:
            for pool in pools():
                devices = pool.take(amount) if amount else []
                if devices is not None:
                    return Share(pool.bundle, devices, amount, pool)
    return None


def end_group(group: PlacementGroup) -> None:
    """End what this process made in a group."""
    with _book.lock:
        pools = [_book.bundles.pop(bundle.key, None) for bundle in group.bundles_now()]
    for pool in pools:
        for service, _ in [] if pool is None else pool.users:
            service.shutdown()


def reserve(
    gpus: int, nodes: int, timeout: float, *, cpus: float = 0.0, node: str | None = None
) -> ResourceManager:
    """A pool, as soon as those who have what it needs let go, for up to so many seconds."""
    deadline = monotonic() + timeout
    while True:
        left = max(deadline - monotonic(), _AT_ONCE)
        try:
            return ResourceManager(gpus, nodes, timeout=left, cpus_per_node=cpus, node=node)
        except _errors.ResourceError:
            large = [found for found in muster_nodes() if len(found["devices"]) >= gpus]
            if len(large) < nodes or monotonic() >= deadline:
                raise
        sweep()
        for give_up in _Idle.workers:
            give_up()
        sleep(_LOOK_EVERY)


class _Idle:
    """Who may hold devices without a use for them: called when they are wanted."""

    workers: ClassVar[list[Callable[[], None]]] = []


def when_wanted(give_up: Callable[[], None]) -> None:
    """Have ``give_up`` called before somebody waits for devices."""
    _Idle.workers.append(give_up)
