"""What ranks measured, as one number each: `reduce_metrics`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

try:
    import numpy as np
except ImportError as error:
    raise ImportError(
        f"reduce_metrics needs numpy: pip install 'muster[numpy]' ({error})"
    ) from error

_REDUCERS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "p50": lambda values: np.percentile(values, 50),
    "p99": lambda values: np.percentile(values, 99),
    "std": np.std,
    "sum": np.sum,
}


def reduce_metrics(
    metrics: dict[str, Any], reduce_func: Callable[[Any], Any] = np.mean
) -> dict[str, Any]:
    """Make one number of each list of numbers, in place, as of ``batch.meta["metrics"]``.

    A metric's name says how, as ``loss@sum`` or ``loss_sum`` (mean, max, min, p50,
    p99, std, sum); else ``reduce_func`` does it. Numbers and tensors stay, and so
    do empty lists.
    """
    kept = int, float, np.number, getattr(sys.modules.get("torch"), "Tensor", int)
    for name, value in metrics.items():
        if isinstance(value, kept):
            continue
        if not isinstance(value, (list, tuple, np.ndarray)):
            metrics[name] = float(reduce_func(value))
        elif len(value):
            metrics[name] = float(_reducer(name, reduce_func)(value))
    return metrics


def _reducer(name: str, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    _, at, tag = name.rpartition("@")
    if at and tag.strip() not in _REDUCERS:
        raise ValueError(f"metric {name!r} asks for {tag!r}; there are {', '.join(_REDUCERS)}")
    _, underscore, suffix = name.rpartition("_")
    key = tag.strip() if at else suffix if underscore else ""
    return _REDUCERS.get(key, otherwise)
