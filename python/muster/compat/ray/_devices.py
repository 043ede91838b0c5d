"""Which devices an actor gets: of a placement group's pool, or of a pool of its own.

A share is a part of one pool. Shares are counted in the process that hands them out; a
fraction of a device is filled up before the next one is begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

from ... import ResourceManager, _errors
from .util.placement_group import Bundle, PlacementGroup

_ENOUGH = 1e-9  # sums of fractions are not exact
_AT_ONCE = 0.01  # seconds


class Pool:
    """Devices that are shared out: how much of each is taken."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.taken = [0.0] * bundle.count
        self.users: list[Any] = []  # services that this process made there

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
    """Devices of a pool that somebody has, until `release`."""

    def __init__(self, pool: Pool, devices: list[int], amount: float, own: bool) -> None:
        self._pool = pool
        self.devices = devices
        self._amount = amount
        self._own = own  # the pool was made for it
        self._held = True

    def fields(self) -> dict[str, Any]:
        """What a `WorkerConfig` needs of it."""
        bundle = self._pool.bundle
        found: dict[str, Any] = {"resource_manager": bundle.manager}
        if self.devices:
            found["device_mapping"] = [bundle.device(index) for index in self.devices]
            found["num_gpus_per_worker"] = len(self.devices)
        else:
            found["node"] = bundle.node_name
        return found

    def use(self, service: Any) -> None:
        """Say who runs there."""
        self._pool.users.append(service)

    @property
    def shared(self) -> bool:
        """Whether its pool is others' as well."""
        return not self._own

    def release(self) -> None:
        """Give the devices back. It may be called again."""
        with _book.lock:
            if not self._held:
                return
            self._held = False
            self._pool.give_back(self.devices, self._amount)
        if self._own:
            self._pool.bundle.manager.destroy_placement_group()


class _Book:
    """The pools of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bundles: dict[tuple[int, int, int], Pool] = {}  # of placement groups
        self.shared: list[Pool] = []  # of one device each, for fractions

    def of(self, bundle: Bundle) -> Pool:
        return self.bundles.setdefault(bundle.key, Pool(bundle))


_book = _Book()


def forget() -> None:
    """The session is over."""
    global _book
    _book = _Book()


def of_group(group: PlacementGroup, index: int, amount: float) -> Share:
    """Devices of a bundle, or of the first that has so many free."""
    bundles = group.reserved()
    chosen = bundles if index < 0 else bundles[index : index + 1]
    if not chosen:
        raise ValueError(f"the placement group has {len(bundles)} bundles, and no bundle {index}")
    with _book.lock:
        for bundle in chosen:
            pool = _book.of(bundle)
            devices = pool.take(amount) if amount else []
            if devices is not None:
                return Share(pool, devices, amount, own=False)
    raise ValueError(
        f"num_gpus={amount:g}: no bundle of the placement group has so many left; it has "
        f"{', '.join(str(bundle.count) for bundle in chosen)} in all"
    )


def end_group(group: PlacementGroup) -> None:
    """End what this process made in a group."""
    with _book.lock:
        pools = [_book.bundles.pop(bundle.key, None) for bundle in group.bundles_now()]
    for pool in pools:
        for service in [] if pool is None else pool.users:
            service.shutdown()


def anywhere(amount: float, node: str | None) -> Share:
    """Devices of any node, reserved for this."""
    if amount >= 1:
        pool = _reserved(int(amount), node)
        return Share(pool, pool.take(amount) or [], amount, own=True)
    with _book.lock:
        for pool in _book.shared:
            devices = pool.take(amount)
            if devices is not None:
                return Share(pool, devices, amount, own=False)
        pool = _reserved(1, node)
        _book.shared.append(pool)
        return Share(pool, pool.take(amount) or [], amount, own=False)


def _reserved(count: int, node: str | None) -> Pool:
    try:
        manager = ResourceManager(count, 1, node=node, timeout=_AT_ONCE)
    except _errors.ResourceError:
        for give_up in _Idle.workers:
            give_up()
        manager = ResourceManager(count, 1, node=node)
    return Pool(Bundle(manager, 0, 0, count))


class _Idle:
    """Who may hold devices without a use for them: called when they are wanted."""

    workers: ClassVar[list[Callable[[], None]]] = []


def when_wanted(give_up: Callable[[], None]) -> None:
    """Have ``give_up`` called before somebody waits for devices."""
    _Idle.workers.append(give_up)
