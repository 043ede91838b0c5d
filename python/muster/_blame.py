"""Finding the part of a value that cannot be sent, to name it in an error.

Only ever runs when encoding has failed already, so it may be slow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ._marks import Broadcast, PerRank

_DEEPEST = 20
_WIDEST = 100_000


def type_name(obj: object) -> str:
    """The type of obj as people write it."""
    cls = type(obj)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def path_to(start: str, root: object, target: object) -> str:
    """Where in root the object target is: ``argument 0 -> key 'x' -> [3]``."""
    todo: list[tuple[str, object]] = [(start, root)]
    seen: set[int] = set()
    while todo and len(seen) < _WIDEST:
        path, obj = todo.pop()
        if obj is target:
            return path
        if id(obj) not in seen:
            seen.add(id(obj))
            todo += [(f"{path} -> {step}", child) for step, child in _children(obj)][::-1]
    return start


def narrow(path: str, obj: object, fails: Callable[[object], bool]) -> tuple[str, object]:
    """The smallest part of obj that fails, and the path to it."""
    for _ in range(_DEEPEST):
        for step, child in _children(obj, attributes=True):
            if fails(child):
                path, obj = f"{path} -> {step}", child
                break
        else:
            break
    return path, obj


def _children(obj: Any, attributes: bool = False) -> Iterator[tuple[str, object]]:
    if isinstance(obj, (list, tuple)):
        yield from ((f"[{i}]", child) for i, child in enumerate(obj))
    elif isinstance(obj, dict):
        for key, child in obj.items():
            yield f"key {_short(key)}", child
            if isinstance(key, (tuple, frozenset)):
                yield f"the key {_short(key)} itself", key
    elif isinstance(obj, (set, frozenset)):
        yield from ((f"element {_short(child)}", child) for child in obj)
    elif isinstance(obj, PerRank):
        yield from ((f"rank {i}", child) for i, child in enumerate(obj.values))
    elif isinstance(obj, Broadcast):
        yield "Broadcast", obj.value
    elif attributes or dataclasses.is_dataclass(obj):
        state = getattr(obj, "__dict__", None)
        if isinstance(state, dict) and not isinstance(obj, type):
            yield from ((f".{name}", child) for name, child in state.items())


def _short(obj: object) -> str:
    try:
        text = repr(obj)
    except Exception:
        text = type_name(obj)
    return text if len(text) <= 60 else text[:57] + "..."
