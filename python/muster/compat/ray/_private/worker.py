"""A name for annotations."""

from __future__ import annotations

from typing import Generic, TypeVar

R = TypeVar("R")


class RemoteFunctionNoArgs(Generic[R]):
    """What ``remote`` makes of something that takes no arguments."""
