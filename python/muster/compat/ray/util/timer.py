"""A timer over the last few turns of a loop."""

from __future__ import annotations

from collections import deque
from statistics import fmean
from time import perf_counter


class _Timer:
    """Times its ``with`` blocks, and counts what was done in them."""

    def __init__(self, window_size: int = 10) -> None:
        self._times: deque[float] = deque(maxlen=window_size)
        self._units: deque[float] = deque(maxlen=window_size)
        self.count = 0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *exc_info: object) -> None:
        self.push(perf_counter() - self._began)

    def push(self, time_delta: float) -> None:
        """Note a time."""
        self._times.append(time_delta)
        self.count += 1

    def push_units_processed(self, n: float) -> None:
        """Note how much was done in it."""
        self._units.append(n)

    @property
    def mean(self) -> float:
        """The mean of the last times."""
        return fmean(self._times or [0])

    @property
    def mean_units_processed(self) -> float:
        """The mean of what was done."""
        return fmean(self._units or [0])

    @property
    def mean_throughput(self) -> float:
        """How much was done in a second."""
        return sum(self._units) / (sum(self._times) or float("inf"))
