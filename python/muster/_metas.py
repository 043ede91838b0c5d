"""What batches carry beside their rows: dicts, merged where batches are put together.

A meta that came over the wire stays encoded until someone looks at it, so that
passing a batch on costs nothing for it. This module does no I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _records, _values

MERGED = "metrics"  # the key whose dicts merge by sub-key


class Encoded(NamedTuple):
    """A meta as it came: a value, and the buffers that it names."""

    value: bytes
    bufs: tuple[Any, ...]


Meta = dict[Any, Any] | Encoded


def distinct(metas: Iterable[Meta]) -> list[Meta]:
    """Those that differ, in order; an empty one says nothing."""
    found: list[Meta] = []
    for meta in metas:
        if meta != {} and not any(_equal(meta, other) for other in found):
            found.append(meta)
    return found


def _equal(a: Meta, b: Meta) -> bool:
    if a is b:
        return True
    if isinstance(a, Encoded) and isinstance(b, Encoded):
        same = len(a.bufs) == len(b.bufs) and all(map(_same_buffer, a.bufs, b.bufs))
        return same and a.value == b.value
    if isinstance(a, dict) and isinstance(b, dict):
        try:
            return a.keys() == b.keys() and all(bool(a[key] == b[key]) for key in a)
        except Exception:  # arrays have no one answer
            return False
    return False


def _same_buffer(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a == b)  # references


def encode(meta: Meta, pickle: str) -> Encoded:
    """The meta as it goes over the wire."""
    if isinstance(meta, Encoded):
        return meta
    bufs: list[Any] = []
    return Encoded(_values.encode(meta, bufs, pickle), tuple(bufs))


#: The first key of a meta whose batch is an object of another class; under it the class's
#: path, ``module:name``, or a list that begins with it.
CLASS = "muster.class"
_CLASS_KEY = msgpack.packb(CLASS)


def adopted(batch: Any, meta: Meta) -> Any:
    """The object that a batch stands for, where its meta says so; else the batch.

    A class that travels as a batch has ``__muster_batch__``, which makes one of an object,
    and ``__from_muster_batch__``, a class method that makes an object of one.
    """
    if not isinstance(meta, Encoded) or not meta.value:
        return batch
    first = {0xDE: 3, 0xDF: 5}.get(meta.value[0], 1)  # behind the head of the map
    if not meta.value.startswith(_CLASS_KEY, first):
        return batch
    said = _values.decode(meta.value, meta.bufs)[CLASS]
    path = said if isinstance(said, str) else said[0]
    module, _, name = path.partition(":")
    return _records.find(module, name).__from_muster_batch__(batch)


def decoded(metas: Sequence[Meta]) -> list[dict[Any, Any]]:
    """Each as a dict of its own."""
    return [_values.decode(m.value, m.bufs) if isinstance(m, Encoded) else dict(m) for m in metas]


def merged(metas: Sequence[Meta]) -> dict[Any, Any]:
    """One dict of several: the first's keys win, later ones add what it lacks, and the
    dicts under "metrics" merge by sub-key."""
    dicts = decoded(metas)
    if len(dicts) == 1:
        return dicts[0]
    found: dict[Any, Any] = {}
    for one in dicts:
        for key, value in one.items():
            found.setdefault(key, value)
    several = [one[MERGED] for one in dicts if MERGED in one]
    if len(several) > 1:
        found[MERGED] = _merged_metrics(several)
    return found


def _merged_metrics(several: list[Any]) -> Any:
    if not all(isinstance(one, dict) for one in several):
        return several
    keys: dict[Any, None] = {}
    for one in several:
        keys |= dict.fromkeys(one)
    return {key: _together([one[key] for one in several if key in one]) for key in keys}


def _together(values: list[Any]) -> Any:
    """Arrays and lists one after another, all else in a list."""
    for name, join in (("numpy", "concatenate"), ("torch", "cat")):
        module: Any = sys.modules.get(name)
        kind = getattr(module, "ndarray" if name == "numpy" else "Tensor", None)
        if kind is not None and all(isinstance(v, kind) and v.ndim for v in values):
            return getattr(module, join)(values)
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    return values
