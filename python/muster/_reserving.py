"""`Reservation`: a pool that is asked for, and is there as soon as others have given back what
they hold.

Owns what is known here of the one request that the head has of it. Who gets what is the
head's to decide.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from . import _errors, _futures, _sharing
from ._refs import Ref, get, wait
from ._resources import ResourceManager, bundles_asked

_AS_LONG_AS_IT_TAKES = 1e9  # seconds
_AT_ONCE = 0.01


class Reservation:
    """Bundles of GPUs and CPUs, as `ResourceManager.for_bundles` takes them, that are reserved
    together as soon as that can be; nobody has to wait for it.

    It can be sent to others, who have the same pool; who made it gives it back.
    """

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        *,
        strategy: str = "PACK",
        name: str = "",
        pool: ResourceManager | None = None,
    ) -> None:
        self.name = name
        self._bundles, self._strategy = bundles, strategy
        self._asked = None if pool is None else _sharing.settled(pool)  # a ref of the pool
        self._released = False
        self._lock = threading.RLock()
        self.wait(0)

    @property
    def state(self) -> str:
        """ "pending", "reserved" or "released"."""
        if self._is_over():
            return "released"
        return "pending" if self.reserved() is None else "reserved"

    def _is_over(self) -> bool:
        pool = self.reserved()
        return self._released or (pool is not None and not pool._connection.alive())

    def reserved(self) -> ResourceManager | None:
        """The pool, if it is there."""
        asked = self._asked
        return None if asked is None or not asked.done() or asked.failed() else asked._result()

    def pool(self, timeout: float = 30.0) -> ResourceManager:
        """The pool, as soon as it is there; `ResourceError` says who has what it needs."""
        asked = self._request()
        if not wait([asked], timeout=max(timeout, _AT_ONCE))[0]:
            raise self._late(timeout)
        if self._released:
            raise self._gone()
        found: ResourceManager = get(asked)
        return found

    def wait(self, timeout: float = 30.0) -> bool:
        """Whether the pool is there within so many seconds."""
        try:
            self.pool(timeout)
        except _errors.ResourceError:
            return False
        return True

    def ready(self, timeout: float = 30.0, value: Any = None) -> Ref:
        """A ref of the pool, or of a ``value``, that is done as soon as the pool is there, and
        fails after so many seconds."""
        asked, pool = self._request(), self.reserved()
        if pool is not None:
            return _sharing.settled(pool if value is None else value)
        return _Ready(self, asked, timeout, value)

    def release(self) -> None:
        """End what runs there and give it back, or up. It may be called again."""
        with self._lock:
            pool, asked, self._released = self.reserved(), self._asked, True
        if pool is not None:
            pool.destroy_placement_group()
        elif asked is not None:
            asked.cancel()

    def _request(self) -> Ref:
        """A ref of the pool; what was refused before is asked for anew."""
        with self._lock:
            if self._is_over():
                raise self._gone()
            if self._asked is None or (self._asked.done() and self._asked.failed()):
                wanted = bundles_asked(
                    self._bundles, strategy=self._strategy, timeout=_AS_LONG_AS_IT_TAKES, wait=True
                )
                self._asked = ResourceManager._begin(wanted)
            return self._asked

    def _gone(self) -> _errors.MusterError:
        return _errors.ReleasedError(f"{self!r} was removed, or its session is over")

    def _late(self, seconds: float) -> _errors.MusterError:
        found = ResourceManager.outlook(bundles=self._bundles, strategy=self._strategy)
        return _errors.ResourceError(f"{self!r} was not there within {seconds:g} s: {found.text}")

    def __repr__(self) -> str:
        return f"<muster.Reservation {self.name}>" if self.name else "<muster.Reservation>"

    def __reduce__(self) -> Any:
        asked = self.reserved() or self._asked  # one that is there is not waited for again
        return _arrived, (self._bundles, self._strategy, self.name, self._released, asked)


def _arrived(bundles: Any, strategy: str, name: str, released: bool, asked: Any) -> Reservation:
    self = Reservation.__new__(Reservation)
    self.name, self._bundles, self._strategy = name, bundles, strategy
    self._released, self._lock = released, threading.RLock()
    self._asked = _sharing.settled(asked) if isinstance(asked, ResourceManager) else asked
    return self


class _Ready(Ref):
    """A ref of what is asked for, which does not wait for ever."""

    __slots__ = ("_reservation",)

    def __init__(self, reservation: Reservation, asked: Ref, seconds: float, value: Any) -> None:
        finish = asked._finish if value is None else lambda _: value
        super().__init__(asked._connection, asked._id, finish=finish)
        self._reservation = reservation
        self.follow(asked)
        _futures.later(seconds, lambda: self.fail(lambda: reservation._late(seconds)))

    def _result(self) -> Any:
        if self._reservation._released and self.failed():
            raise self._reservation._gone()
        return super()._result()
