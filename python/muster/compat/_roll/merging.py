"""How parts of DataProtos are put together: metas, metrics, arrays of objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ... import _columns


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, without importing torch for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def custom_np_concatenate(val: Iterable[Iterable[Any]]) -> np.ndarray[Any, Any]:
    """The elements of all, one after another, in one array of objects.

    They may be arrays of different shapes: each stays an object.
    """
    return _columns.as_objects([item for part in val for item in part])


def by_key(dicts: Iterable[Any]) -> dict[str, list[Any]]:
    """What several dicts have, under each key a list."""
    found: dict[str, list[Any]] = {}
    for one in dicts:
        if not isinstance(one, dict):
            raise TypeError(f"dicts cannot be merged with a {type(one).__name__}: {one!r:.80}")
        for key, value in one.items():
            found.setdefault(key, []).append(value)
    return found


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
        if given and isinstance(given[0], dict):
            merged[key] = {sub: _together(several) for sub, several in by_key(given).items()}
        elif given:
            merged[key] = values
    return merged


def _together(values: list[Any]) -> list[Any]:
    """Numbers as a list, lists and arrays one after another; all else as it is, in a list."""
    try:
        joined = np.array(values) if np.isscalar(values[0]) else np.concatenate(values, axis=0)
        listed: list[Any] = joined.tolist()
    except Exception:  # of different shapes or types
        return values
    return listed


def unite(what: str, mine: Any, its: Any) -> None:
    """Take in what the other dict, or TensorDict, has; under the same key it must be equal."""
    for key, value in its.items():
        known = key in mine.keys()  # noqa: SIM118  (a TensorDict)
        assert not known or same(mine[key], value), (
            f"{what} {key!r} is in both, and not the same: {mine[key]!r:.80} and {value!r:.80}"
        )
        if not known or not is_tensor(value):  # as ROLL does: of equal tensors its own stays
            mine[key] = value


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, arrays and tensors included."""
    if is_tensor(a) and is_tensor(b):
        return bool(a.equal(b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype == object and a.shape == b.shape:
            return all(map(same, a.flat, b.flat))
        return bool(np.array_equal(a, b))
    try:
        return a is b or bool(a == b)
    except Exception:  # containers of arrays have no one answer
        return False
