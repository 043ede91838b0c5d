"""What workers would each import by themselves, and a node imports once, before they are forked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

#: Is set where `muster.compat.ray` is to be found by ``import ray``.
INSTALLED = "MUSTER_RAY_INSTALLED"
#: What of a runtime_env gives another interpreter, which may have other modules.
_INTERPRETERS = {"conda", "pip", "py_executable", "uv"}


def of(thing: Any, runtime_env: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What workers of a class, or of a function, preload."""
    found: tuple[str, ...] = ()
    if os.environ.get(INSTALLED):  # before the user's modules look for Ray
        found = ("muster.compat.ray._installed",)
    if _needs_torch(thing) and not _INTERPRETERS & {*(runtime_env or ())}:
        found += ("torch",)  # which takes seconds
        if find_spec("tensordict") is not None:
            found += ("tensordict",)
    return found


def _needs_torch(thing: Any) -> bool:
    """Whether its module has imported torch, or one that this has names from."""
    torch = sys.modules.get("torch")
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if torch is None or not isinstance(module, ModuleType):
        return False
    return any(
        f"{one.__name__}.".startswith("torch.") or vars(one).get("torch") is torch
        for one in (module, *_named(module))
    )


def _named(module: ModuleType) -> list[ModuleType]:
    """The modules that a module's names are, or are from."""
    values = [*vars(module).values()]
    homes = {value.__module__ for value in values if isinstance(value, (type, FunctionType))}
    values += map(sys.modules.get, homes)
    return [value for value in values if isinstance(value, ModuleType)]
