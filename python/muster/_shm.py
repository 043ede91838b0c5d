"""Shared memory: mappings by address, and copying with more than one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

Job = tuple["numpy.ndarray[Any, Any]", "numpy.ndarray[Any, Any]"]


def copy_all(jobs: Sequence[Job]) -> None:
    """Copy each source, an array of bytes, into its destination of the same size."""
    for target, source in jobs:
        target[:] = source
