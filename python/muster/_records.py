"""Dataclasses by import path: which can travel so, and how they are rebuilt.

A plain dataclass is no more than its fields, so it is rebuilt from them without
running ``__init__`` or ``__post_init__``. Any other is left to pickle.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from ._errors import EncodingError, ProtocolError
from ._pickling import MAINS, by_value, named

_HOOKS = (
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)


def fields_of(record: Any) -> Mapping[str, Any] | None:
    """The fields of a plain dataclass instance; None where only pickle keeps it exact."""
    cls: Any = type(record)
    names = _names(cls)
    if names is None or not named(cls) or by_value(cls):
        return None
    if cls.__dictoffset__:
        state: dict[str, Any] = record.__dict__
        return state if state.keys() == names.keys() else None
    try:
        return {name: getattr(record, name) for name in names}
    except AttributeError:
        return None  # an empty slot


@functools.lru_cache(maxsize=4096)
def _names(cls: Any) -> dict[str, None] | None:
    """The names of the fields in order, where instances are made of them alone."""
    if "<locals>" in cls.__qualname__ or cls in copyreg.dispatch_table:
        return None
    for name in _HOOKS:
        owner = next((c for c in cls.__mro__ if name in vars(c)), object)
        # The ones that dataclass(slots=True, frozen=True) adds do as we do.
        if owner is not object and getattr(vars(owner)[name], "__module__", "") != "dataclasses":
            return None
    names = dict.fromkeys(field.name for field in dataclasses.fields(cls))
    slots: set[str] = set()
    for base in cls.__mro__:
        own = vars(base).get("__slots__", ())
        slots.update((own,) if isinstance(own, str) else own)
    slots.discard("__weakref__")
    if slots and (cls.__dictoffset__ or slots != names.keys()):
        return None
    return names


def rebuild(module: Any, qualname: Any, fields: Any) -> Any:
    """A record from the wire. EncodingError where its class is not here or differs."""
    if not (isinstance(module, str) and isinstance(qualname, str) and isinstance(fields, dict)):
        raise ProtocolError("a dataclass is [module, name, fields]")
    cls = find(module, qualname)
    if not hasattr(cls, "__dataclass_fields__"):
        raise EncodingError(f"{module}.{qualname} was sent as a dataclass, but is none here")
    names = _names(cls)
    if names is None or fields.keys() != names.keys():
        raise EncodingError(
            f"the dataclass {module}.{qualname} was sent with the fields {sorted(fields)}, here it "
            f"has {sorted(names or ())}: do both sides import the same code?"
        )
    record = object.__new__(cls)
    if cls.__dictoffset__:
        record.__dict__.update(fields)
    else:
        for name, value in fields.items():
            object.__setattr__(record, name, value)
    return record


def find(module: str, qualname: str) -> Any:
    """The class of something that was sent. EncodingError where it is not here."""
    home: Any = sys.modules.get(module)
    if home is None and module in MAINS:
        # The script's module has one name in the controller, another in workers.
        home = sys.modules.get(MAINS[0]) if module == MAINS[1] else sys.modules.get(MAINS[1])
    try:
        found: Any = home if home is not None else importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise EncodingError(
            f"the class {module}.{qualname} cannot be imported here "
            f"({type(error).__name__}: {error}): both sides need the module"
        ) from None
    if not isinstance(found, type):
        raise EncodingError(f"{module}.{qualname} was sent as a class, but is none here")
    return found
