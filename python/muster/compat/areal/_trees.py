"""Values within values: dicts, lists and tuples, and what is at their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def mapped(value: Any, change: Callable[[Any], Any], lists: bool = False) -> Any:
    """A value with its leaves changed; itself where none is. With ``lists`` tuples become lists."""
    if isinstance(value, dict):
        made = {key: mapped(entry, change, lists) for key, entry in value.items()}
        return value if all(made[key] is entry for key, entry in value.items()) else made
    if not isinstance(value, (list, tuple)):
        return change(value)
    entries = [mapped(entry, change, lists) for entry in value]
    same = all(after is before for after, before in zip(entries, value, strict=True))
    if lists and isinstance(value, tuple):
        return entries
    return value if same else type(value)(entries)


def leaves(value: Any) -> Iterator[Any]:
    """What is at the ends of a value."""
    if isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from leaves(entry)
    else:
        yield value
