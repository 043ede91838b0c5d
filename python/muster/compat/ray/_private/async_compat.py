"""Whether a class runs its calls on an event loop."""

from __future__ import annotations

import inspect


def has_async_methods(cls: type) -> bool:
    """Whether a class has ``async def`` methods, and so runs its calls side by side."""
    return any(
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        for _, function in inspect.getmembers(cls, inspect.isfunction)
    )
