"""What batches carry beside their rows: dicts, merged where batches are put together.

A meta that came over the wire stays encoded until someone looks at it, so that
passing a batch on costs nothing for it. This module does no I/O.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from . import _records, _values

MERGED = "metrics"  # the key whose dicts merge by sub-key


class Meta:
    """One meta: a dict, or a value as it came, which stays encoded. Nobody changes it.

    Metrics are told apart by who made them, not by what they are: ranks that agree
    count each. ``origin`` is a number that whoever made them gave them, and that goes
    along for as long as they stay as they are; 0 where there are none. Of those of one
    origin some may have been left out, which somebody has changed.
    """

    __slots__ = ("bufs", "origin", "value", "values")

    values: dict[Any, Any] | None  # None: it is encoded
    value: bytes
    bufs: tuple[Any, ...]

    def __init__(self, values: Mapping[Any, Any], origin: int | None = None) -> None:
        self.values, self.value, self.bufs = _own(values), b"", ()
        if origin is None:
            origin = new_origin() if MERGED in values else 0
        self.origin = origin

    @classmethod
    def of(cls, values: dict[Any, Any], origin: int) -> Meta:
        """One of values that are nobody else's to change."""
        made = cls.__new__(cls)
        made.values, made.value, made.bufs, made.origin = values, b"", (), origin
        return made

    @classmethod
    def came(cls, value: bytes, bufs: tuple[Any, ...], origin: int) -> Meta:
        """One that came, with the buffers that its value names."""
        made = cls.__new__(cls)
        made.values, made.value, made.bufs, made.origin = None, value, bufs, origin
        return made

    def decoded(self) -> dict[Any, Any]:
        """A dict of the caller's own."""
        if self.values is not None:
            return _own(self.values)
        found: dict[Any, Any] = _values.decode(self.value, self.bufs)
        return _own(found) if self.bufs else found  # arrays lie where they came

    def encoded(self, pickle: str) -> tuple[bytes, Sequence[Any]]:
        """Its value as it goes over the wire, and the buffers of that."""
        if self.values is None:
            return self.value, self.bufs
        bufs: list[Any] = []
        return _values.encode(self.values, bufs, pickle), bufs

    def same(self, other: Meta) -> bool:
        """Whether one of both is enough."""
        if self is other:
            return True
        if self.origin != other.origin:
            return False
        if self.values is None or other.values is None:
            if self.values is not other.values or self.value != other.value:
                return False
            # What has changed has another origin.
            return bool(self.origin) or (
                len(self.bufs) == len(other.bufs) and all(map(_same_buffer, self.bufs, other.bufs))
            )
        try:
            return self.values.keys() == other.values.keys() and all(
                _same_metrics(value, other.values[key])
                if key == MERGED and self.origin
                else bool(value == other.values[key])
                for key, value in self.values.items()
            )
        except Exception:  # arrays have no one answer
            return False


def _same_metrics(a: Any, b: Any) -> bool:
    """Whether those of one origin are the same: they are, as far as they are there."""
    return not isinstance(a, dict) or not isinstance(b, dict) or a.keys() == b.keys()


def _own(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy, with metrics of its own: others may change theirs."""
    own = dict(values)
    if MERGED in own:
        own[MERGED] = _copied(own[MERGED], {})
    return own


#: How arrays are copied, by their types.
_COPIES = {("numpy", "ndarray"): "copy", ("torch", "Tensor"): "clone"}
_are_plain = frozenset((int, float, str, bool, bytes, type(None))).issuperset  # types


def _copied(value: Any, made: dict[int, Any]) -> Any:
    """Dicts, lists, tuples and arrays, with all of those in them; what else there is, is shared.
    ``made`` are copies by the identity of what they are of: a list may be in itself."""
    kind = type(value)
    if kind is tuple:
        return tuple(_copied(item, made) for item in value)
    copy = _COPIES.get((kind.__module__, kind.__name__))
    if kind not in (dict, list) and copy is None:
        return value
    own = made.get(id(value))
    if own is None:
        own = made[id(value)] = getattr(value, copy or "copy")()
        if kind is dict and not _are_plain(map(type, value.values())):
            own.update((key, _copied(item, made)) for key, item in value.items())
        elif kind is list and not _are_plain(map(type, value)):
            own[:] = [_copied(item, made) for item in value]
    return own


_LAYER = 56  # the bits of an origin above these


def new_origin(layer: int = 0) -> int:
    """A number that no other has; not by `random`, whose state forked workers share.

    It tells the layer: 0 of what stands for itself; what was added to others has a higher one
    than these."""
    return int.from_bytes(os.urandom(7), "little") | 1 | min(layer, 255) << _LAYER


def distinct(metas: Iterable[Meta]) -> list[Meta]:
    """Those that differ, in order."""
    found: list[Meta] = []
    for meta in metas:
        if not any(meta.same(other) for other in found):
            found.append(meta)
    return found


def _same_buffer(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a == b)  # references


#: The first key of a meta whose batch is an object of another class; under it the class's
#: path, ``module:name``, or a list that begins with it.
CLASS = "muster.class"
_CLASS_KEY = msgpack.packb(CLASS)


def given(meta: Mapping[Any, Any] | None) -> list[Meta]:
    """The metas of a batch to which somebody gave one."""
    return [Meta(checked(meta))] if meta else []


def checked(meta: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """ValueError for a meta that would have whoever gets its batch import a class: it may come
    from anywhere. A class that travels as a batch says so by `stand_for`."""
    if CLASS in meta:
        raise ValueError(
            f"the meta of a batch may not have the key {CLASS!r}, which would have workers import "
            f"{meta[CLASS]!r}: leave it out, or call it something else"
        )
    return meta


def stand_for(batch: Any, said: str | list[Any], meta: Mapping[Any, Any]) -> Any:
    """The batch, as one that stands for an object of a class: its path, or a list that begins
    with it; whoever gets it gets the object."""
    batch._metas = [Meta({CLASS: said, **checked(meta)})]
    return batch


def adopted(batch: Any, meta: Meta) -> Any:
    """The object that a batch stands for, where its meta says so; else the batch.

    A class that travels as a batch has ``__muster_batch__``, which makes one of an object,
    and ``__from_muster_batch__``, a class method that makes an object of one.
    """
    if not meta.value:
        return batch
    first = {0xDE: 3, 0xDF: 5}.get(meta.value[0], 1)  # behind the head of the map
    if not meta.value.startswith(_CLASS_KEY, first):
        return batch
    said = _values.decode(meta.value, meta.bufs)[CLASS]
    path = said if isinstance(said, str) else said[0]
    module, _, name = path.partition(":")
    return _records.find(module, name).__from_muster_batch__(batch)


class Look:
    """The dict that was made of the metas of a batch for somebody, who may change it."""

    __slots__ = ("_given", "_kept", "metrics", "seen", "values")

    def __init__(self, metas: Sequence[Meta]) -> None:
        dicts = [meta.decoded() for meta in metas]
        #: The metrics of each part, and their origins.
        self.metrics = _parts_of(metas, dicts)
        self.values = _merged(dicts, self.metrics)
        self.seen = _content(self.values)
        self._given = self.values.get(MERGED)
        self._kept: list[Meta] = []  # the metrics of each part as they were told last

    def metas(self) -> list[Meta]:
        """What the metas of the batch are now. Metrics that were only looked at are those
        of the same parts; others are new."""
        content = _content(self.values)
        if content != self.seen:
            now = self.values.get(MERGED)
            if now is self._given and type(now) is type(content) is type(self.seen) is dict:
                self.metrics = _with_changes(self.metrics, self.seen, content, now)
            else:
                self.metrics = [(now, new_origin())] if MERGED in self.values else []
            self.seen, self._given = content, now
            self._kept = []
        if not self._kept or not _tells_all(content):
            self._kept = [Meta({MERGED: metrics}, origin) for metrics, origin in self.metrics]
        rest = dict(self.values)
        if len(self._kept) == 1:
            rest |= self._kept[0].values or {}
            return [Meta.of(rest, self._kept[0].origin)]
        rest.pop(MERGED, None)
        return [Meta.of(rest, 0), *self._kept] if rest else [*self._kept]


Metrics = tuple[Any, int]  # of a part, and their origin


def _with_changes(
    parts: Sequence[Metrics], seen: Mapping[Any, Any], content: Mapping[Any, Any], now: Any
) -> list[Metrics]:
    """The metrics of each part after somebody changed what they are together: what is as it was
    is still theirs, the rest is a part of its own."""
    fresh = {key: value for key, value in now.items() if content[key] != seen.get(key)}
    found = []
    for metrics, origin in parts:
        left = {key: metrics[key] for key in metrics if key in now and key not in fresh}
        if left:
            found.append((left, origin))
    if fresh or not found:
        layer = max((1 + (origin >> _LAYER) for _, origin in found), default=0)
        found.append((fresh, new_origin(layer)))
    return found


def changed(metas: Sequence[Meta], entries: Mapping[Any, Any]) -> list[Meta]:
    """The metas of a batch with other entries."""
    look = Look(metas)
    look.values.update(checked(entries))
    if MERGED in entries:
        look.seen = None  # new, even where they are equal
    return look.metas()


def _content(values: Mapping[Any, Any]) -> Any:
    """What the metrics are, to be compared; of a dict, by key."""
    if MERGED not in values:
        return ()
    metrics = values[MERGED]
    if type(metrics) is not dict:
        return _compared(metrics)
    return {key: _compared(value) for key, value in metrics.items()}


def _compared(value: Any) -> Any:
    bufs: list[Any] = []
    try:
        return _values.encode(value, bufs), [bytes(memoryview(buf)) for buf in bufs]
    except Exception:  # what cannot be sent as bytes: whether it is the same object
        return id(value)


def _tells_all(content: Any) -> bool:
    """Whether the content tells all changes."""
    return int not in map(type, content.values() if type(content) is dict else (content,))


def _parts_of(metas: Sequence[Meta], dicts: Sequence[Mapping[Any, Any]]) -> list[Metrics]:
    """The metrics of each part, once, and their origins."""
    found: list[Metrics] = []
    known: dict[int, int] = {}
    for meta, values in zip(metas, dicts, strict=True):
        if MERGED not in values:
            continue
        metrics, origin = values[MERGED], meta.origin
        at = known.setdefault(origin, len(found)) if origin else len(found)
        if at == len(found):
            found.append((metrics, origin))
        elif not _same_metrics(found[at][0], metrics):
            found[at] = {**metrics, **found[at][0]}, origin
    return found


def merged(metas: Sequence[Meta]) -> dict[Any, Any]:
    """One dict of several: the first's keys win, later ones add what it lacks, and the
    dicts under "metrics" merge by sub-key."""
    return Look(metas).values


def _merged(dicts: Sequence[dict[Any, Any]], metrics: list[Metrics]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for one in dicts:
        for key, value in one.items():
            found.setdefault(key, value)
    if metrics:
        found[MERGED] = metrics[0][0] if len(metrics) == 1 else _merged_metrics(metrics)
    return found


def _merged_metrics(several: list[Metrics]) -> Any:
    if not all(isinstance(one, dict) for one, _ in several):
        return [one for one, _ in several]
    layers = Counter(origin >> _LAYER for _, origin in several)
    found: dict[Any, Any] = {}
    alone: dict[Any, bool] = {}
    for one, origin in several:
        for key, value in one.items():
            alone[key] = key not in found and layers[origin >> _LAYER] == 1
            found.setdefault(key, []).append(value)
    return {key: some[0] if alone[key] else _together(some) for key, some in found.items()}


def _together(values: list[Any]) -> Any:
    """Arrays and lists one after another, all else in a list."""
    for name, join in (("numpy", "concatenate"), ("torch", "cat")):
        module: Any = sys.modules.get(name)
        kind = getattr(module, "ndarray" if name == "numpy" else "Tensor", None)
        if kind is not None and all(isinstance(v, kind) and v.ndim for v in values):
            try:
                return getattr(module, join)(values)
            except Exception:  # of shapes or types that do not fit together
                return values
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    return values
