"""A timer over the last few turns of a loop."""

from __future__ import annotations

from collections import deque
from time import perf_counter


class _Timer:
    """Times its ``with`` blocks, and counts what was done in them."""

    def __init__(self, window_size: int = 10) -> None:
        self._times: deque[float] = deque(maxlen=window_size)
        self._units: deque[float] = deque(maxlen=window_size)
        self._began: float | None = None
        self._total = 0.0
        self.count = 0

    def __enter__(self) -> None:
        if self._began is not None:
            raise RuntimeError("the timer runs already")
        self._began = perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        if self._began is not None:
            self.push(perf_counter() - self._began)
        self._began = None

    def push(self, time_delta: float) -> None:
        """Note a time."""
        self._times.append(time_delta)
        self._total += time_delta
        self.count += 1

    def push_units_processed(self, n: float) -> None:
        """Note how much was done in it."""
        self._units.append(n)

    def has_units_processed(self) -> bool:
        """Whether anything was noted."""
        return bool(self._units)

    @property
    def mean(self) -> float:
        """The mean of the last times."""
        return sum(self._times) / len(self._times) if self._times else 0.0

    @property
    def mean_units_processed(self) -> float:
        """The mean of what was done."""
        return sum(self._units) / len(self._units) if self._units else 0.0

    @property
    def mean_throughput(self) -> float:
        """How much was done in a second."""
        took = sum(self._times)
        return sum(self._units) / took if took else 0.0
