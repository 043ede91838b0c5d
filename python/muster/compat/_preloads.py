"""What workers would each import by themselves, and a node imports once, before they are forked."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any


def torch(thing: Any) -> tuple[str, ...]:
    """torch, which takes seconds, where the module of a class or function has imported it, or
    one that it has its names from; and what tensors come in."""
    wanted = sys.modules.get("torch")
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if wanted is None or not isinstance(module, ModuleType):
        return ()
    for one in (module, *_named(module)):
        if f"{one.__name__}.".startswith("torch.") or vars(one).get("torch") is wanted:
            break
    else:
        return ()
    return "torch", *(("tensordict",) if find_spec("tensordict") is not None else ())


def _named(module: ModuleType) -> list[ModuleType]:
    """The modules that a module's names are, or are from."""
    values = [*vars(module).values()]
    homes = {value.__module__ for value in values if isinstance(value, (type, FunctionType))}
    values += map(sys.modules.get, homes)
    return [value for value in values if isinstance(value, ModuleType)]
