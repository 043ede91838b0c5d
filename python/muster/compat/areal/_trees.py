"""Values within values, and what becomes of them on their way between controller and engine.

AReaL sends JSON, so engines and controllers are used to what comes of that: tuples
arrive as lists, processes as None. All else goes as Muster sends it.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ._tensors import sent


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


def plain(value: Any, lists: bool = True) -> Any:
    """What is sent in the place of a value: itself where nothing in it has to change. In fields
    of dataclasses tuples are meant."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, subprocess.Popen):
            return None
        if (made := sent(leaf)) is not leaf:
            return made
        for entry in fields(leaf) if is_dataclass(leaf) and not isinstance(leaf, type) else ():
            before = getattr(leaf, entry.name, None)
            after = plain(before, lists=False)
            if after is not before:
                made = copy.copy(leaf) if made is leaf else made
                object.__setattr__(made, entry.name, after)
        return made

    return mapped(value, change, lists)
