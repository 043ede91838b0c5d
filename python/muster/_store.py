"""Putting bytes into the stores of this machine, and opening what lies there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _objects

if TYPE_CHECKING:
    import numpy

INLINE = 64 << 10  # content of fewer bytes rides in frames


def place(size: int, fill: Callable[[numpy.ndarray[Any, Any]], None], what: str) -> _objects.Source:
    """New content of exactly ``size`` bytes, written by ``fill``; ``what`` says for people
    what it is. What ``fill`` raises is passed on, and nothing is left behind."""
    return _objects.place_inline(size, fill)
