"""Modules that others cannot import by name: where they lie, and how they are loaded there.

pytest's ``--import-mode=importlib`` and programs that load files themselves have modules
under names that no ``sys.path`` leads to. Others load such a module by its file, under the
same name, so that what refers to it by name is found as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from . import _pickling


class ByFile:
    """A class or function by its names, and the file of a module that its name does not lead to;
    unpickled, it is that class or function."""

    def __init__(self, module: str, file: str, name: str) -> None:
        self.where = module, file, name

    def __reduce__(self) -> Any:
        return find, self.where


def by_name(thing: Any) -> Any:
    """A class or function as others get it: by its names, also where a decorator has left
    another object in its place, which knows it; itself where it has none."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if not name or "<locals>" in name or _pickling.by_value(thing):
        return thing
    try:
        if find(module, "", name) is not thing:
            return thing
    except (ImportError, AttributeError):
        return thing
    return ByFile(module, file_of(module), name)


class Located:
    """A class or function for who looks for it when it is needed. A file that it lies in is loaded
    as soon as this arrives: what comes with it may be of that module, too."""

    def __init__(self, pickled: bytes, module: str, file: str) -> None:
        self._where = pickled, module, file

    def find(self) -> Any:
        """The class or function."""
        return _pickling.loads(self._where[0])

    def __reduce__(self) -> Any:
        return _arrived, self._where


def _arrived(pickled: bytes, module: str, file: str) -> Located:
    if file:
        with suppress(Exception):  # which find() raises
            load(module, file)
    return Located(pickled, module, file)


def located(thing: Any) -> Located:
    """The same for later, with arguments for it behind it."""
    module = thing.__module__
    return Located(_pickling.dumps(by_name(thing))[0], module, file_of(module))


def file_of(name: str) -> str:
    """Where a loaded module lies that its name does not lead to; "" for all others."""
    file: str | None = getattr(sys.modules.get(name), "__file__", None)
    if not file or name.startswith("__") or _near(name, file) or _leads_to(name) == _real(file):
        return ""
    return os.path.abspath(file)


def find(module: str, file: str, name: str) -> Any:
    """A class or function by its module, or the file of that; what wraps it is taken off."""
    found: Any = load(module, file) if file else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__muster_class__", found)


def load(name: str, file: str) -> ModuleType:
    """The module in a file, under the name that it has elsewhere."""
    known = sys.modules.get(name)
    if known is not None and _real(getattr(known, "__file__", None) or "") == _real(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if not os.path.isfile(file) or spec is None or spec.loader is None:
        raise ImportError(
            f"the module {name} was loaded from {file}, which is not there on this node, and "
            "sys.path does not lead to it: put the folder that its name begins in on PYTHONPATH "
            "(with pytest: pythonpath)"
        )
    _enter_package(name.rpartition(".")[0], os.path.dirname(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _enter_package(name: str, folder: str) -> None:
    """Have the packages that a module's name speaks of: those there are, or bare ones."""
    if not name or name in sys.modules:
        return
    _enter_package(name.rpartition(".")[0], os.path.dirname(folder))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


def _near(name: str, file: str) -> bool:
    """Whether the file lies where the name says, in a folder of ``sys.path``."""
    stem = os.path.splitext(os.path.abspath(file))[0]
    if os.path.basename(stem) == "__init__":
        stem = os.path.dirname(stem)
    tail = os.sep + name.replace(".", os.sep)
    home = stem.removesuffix(tail)
    return home != stem and home in {os.path.abspath(entry or ".") for entry in sys.path}


def _leads_to(name: str) -> str:
    """The file that an import of the name would load."""
    parts, spec, places = name.split("."), None, None
    for end in range(1, len(parts) + 1):
        if end > 1 and places is None:
            return ""
        spec = _spec_of(".".join(parts[:end]), places)
        places = None if spec is None else spec.submodule_search_locations
    return _real((spec and spec.origin) or "")


def _spec_of(name: str, places: Any) -> Any:
    for finder in sys.meta_path:
        look = getattr(finder, "find_spec", None)
        try:
            found = None if look is None else look(name, places)
        except Exception:  # one that fails finds nothing
            continue
        if found is not None:
            return found
    return None


def _real(file: str) -> str:
    return os.path.realpath(file) if file else ""
