"""How parts of DataProtos are put together: metas, metrics, arrays of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ... import _columns
from .tensors import is_tensor


def custom_np_concatenate(val: Iterable[Iterable[Any]]) -> np.ndarray[Any, Any]:
    """The elements of all, one after another, in one array of objects.

    They may be arrays of different shapes: each stays an object.
    """
    return _columns.as_objects([item for part in val for item in part])


def merged_meta(
    metas: Sequence[dict[str, Any]], global_keys: set[str] | None = None
) -> dict[str, Any]:
    """The first's, with what is under the global keys put together; one alone is as it is."""
    if len(metas) == 1:
        return metas[0]
    merged = dict(metas[0])
    for key in {"metrics"} if global_keys is None else global_keys:
        values = [meta.get(key) for meta in metas]
        given = [value for value in values if value is not None]
        if not given:
            continue
        merged[key] = _by_sub_key(given) if isinstance(given[0], dict) else values
    return merged


def _by_sub_key(dicts: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for one in dicts:
        if not isinstance(one, dict):
            raise TypeError(f"dicts cannot be merged with a {type(one).__name__}: {one!r:.80}")
        for key, value in one.items():
            found.setdefault(key, []).append(value)
    return {key: _together(values) for key, values in found.items()}


def _together(values: list[Any]) -> list[Any]:
    """Numbers as a list, lists and arrays one after another; all else as it is, in a list."""
    try:
        if np.isscalar(values[0]):
            listed: list[Any] = np.array(values).tolist()
        else:
            listed = np.concatenate(values, axis=0).tolist()
    except Exception:  # of different shapes or types
        return values
    return listed


def unite(what: str, mine: Any, its: Any) -> None:
    """Take in what the other dict, or TensorDict, has; under the same key it must be the same."""
    for key in its.keys():  # noqa: SIM118  (a TensorDict)
        if key not in mine.keys():  # noqa: SIM118
            mine[key] = its[key]
            continue
        assert same(mine[key], its[key]), (
            f"{what} {key!r} is in both, and not the same: {mine[key]!r:.80} and {its[key]!r:.80}"
        )


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, arrays and tensors included."""
    if a is b:
        return True
    if is_tensor(a) and is_tensor(b):
        return bool(a.equal(b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape:
            return False
        if a.dtype == object:
            return all(same(x, y) for x, y in zip(a.flat, b.flat, strict=True))
        return bool(np.array_equal(a, b))
    try:
        return bool(a == b)
    except Exception:  # containers of arrays have no one answer
        return False


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
    """Make one number of each list of numbers, in place.

    A metric's name says how, as ``loss@sum`` or ``loss_sum`` (mean, max, min, p50,
    p99, std, sum); else ``reduce_func`` does it. Numbers and tensors stay, and so
    do empty lists.
    """
    for name, value in metrics.items():
        if isinstance(value, (int, float, np.number)) or is_tensor(value):
            continue
        if isinstance(value, (list, tuple, np.ndarray)):
            if len(value):
                metrics[name] = float(_reducer(name, reduce_func)(value))
        else:
            metrics[name] = float(reduce_func(value))
    return metrics


def _reducer(name: str, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    _, at, tag = name.rpartition("@")
    if at:
        if tag.strip() not in _REDUCERS:
            raise ValueError(f"metric {name!r} asks for {tag!r}; there are {', '.join(_REDUCERS)}")
        return _REDUCERS[tag.strip()]
    _, underscore, suffix = name.rpartition("_")
    return _REDUCERS.get(suffix, otherwise) if underscore else otherwise
