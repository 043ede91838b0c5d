"""`Reservation`: a pool that is asked for, and is there as soon as others have given back what
they hold.

Owns what is known here of the one request that the head has of it. Who gets what is the
head's to decide.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from . import _errors, _futures, _sharing
from ._refs import FAILED, Ref, get, wait
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
        self._released = False
        self._lock = threading.RLock()
        # A ref of the pool. What is there now is reserved at once.
        self._asked = self._begin(_AT_ONCE) if pool is None else _sharing.settled(pool)
        wait([self._asked])
        self._request()

    @property
    def state(self) -> str:
        """One of "pending", "reserved" and "released"."""
        if self._is_over():
            return "released"
        return "pending" if self.reserved() is None else "reserved"

    def _is_over(self) -> bool:
        pool = self.reserved()
        return self._released or (pool is not None and not pool._connection.alive())

    def reserved(self) -> ResourceManager | None:
        """The pool, if it is there."""
        asked = self._asked
        return asked._result() if asked.done() and not asked.failed() else None

    def pool(self, timeout: float = 30.0) -> ResourceManager:
        """The pool, as soon as it is there; `ResourceError` says who has what it needs."""
        heard = self._heard(timeout)
        if heard is None:
            raise self._late(timeout)
        found: ResourceManager = get(heard)
        return found

    def wait(self, timeout: float = 30.0) -> bool:
        """Whether the pool is there within so many seconds."""
        heard = self._heard(timeout)
        try:
            return heard is not None and get(heard) is not None
        except _errors.ResourceError:
            return False

    def _heard(self, timeout: float) -> Ref | None:
        """The ref of the pool, if it is done in time."""
        asked = self._request()
        done, _ = wait([asked], timeout=max(timeout, 0))
        if self._released:
            raise self._gone()
        return asked if done else None

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
        else:
            asked.cancel()

    def _request(self) -> Ref:
        """A ref of the pool; what was refused before is asked for anew."""
        with self._lock:
            if self._is_over():
                raise self._gone()
            if self._asked.done() and self._asked.failed():
                self._asked = self._begin(_AS_LONG_AS_IT_TAKES)
            return self._asked

    def _begin(self, timeout: float) -> Ref:
        strategy = self._strategy
        asked = bundles_asked(self._bundles, strategy=strategy, timeout=timeout, wait=True)
        ref, mine = ResourceManager._begin(asked), weakref.ref(self)
        ref.watch(lambda: None if mine() or ref.failed() else _give_back(ref))
        return ref

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


def _give_back(ref: Ref) -> None:
    """Take a pool that nobody wants any more, and let go of it."""
    ref._result()
    ref._value, ref._state = None, FAILED
    ref._failure = lambda: _errors.ReleasedError("who asked for this pool has let go of it")


class _Ready(Ref):
    """A ref of what is asked for, which does not wait for ever."""

    __slots__ = ("_reservation",)

    def __init__(self, reservation: Reservation, asked: Ref, seconds: float, value: Any) -> None:
        super().__init__(
            asked._connection,
            asked._id,
            finish=lambda _: reservation.reserved() if value is None else value,
        )
        self._reservation = reservation
        self.follow(asked)
        _futures.later(seconds, lambda: self.fail(lambda: reservation._late(seconds)))

    def _result(self) -> Any:
        if self._reservation._released and self.failed():
            raise self._reservation._gone()
        return super()._result()
