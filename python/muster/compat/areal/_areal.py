"""AReaL, where it is installed. It is imported late: in workers once their environment is set."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

INSTALLED = find_spec("areal") is not None


def part(name: str) -> Any:
    """A module of AReaL's."""
    return import_module(f"areal.{name}")
