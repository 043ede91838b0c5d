"""Finding the user's class and making the one object of it.

Every failure names what was asked for and what was found instead.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .._errors import MusterError
from . import mainmodule
from .board import Refusal


def find(where: Mapping[str, Any], main: mainmodule.MainModule) -> type:
    """Return the class that a Class message names."""
    if where.get("pickle"):
        return _from_pickle(where["pickle"], where.get("name", ""))
    module, name = where.get("module", ""), where.get("name", "")
    if not module and ":" in name:
        module, _, name = name.partition(":")
    path = f"{module}.{name}" if module else name
    if not module:
        module, name = _split(path)
    if module in ("__main__", mainmodule.NAME):
        holder: ModuleType = _run_script(main, path)
    else:
        holder = _import(module, path)
    found = _walk(holder, module, name, path)
    found = getattr(found, "__muster_class__", found)  # a class that was wrapped in something
    if not isinstance(found, type):
        raise Refusal("import", f"{path} is {_a_kind(found)}, not a class")
    return found


def named(path: Any) -> type:
    """The class itself, or the one that a path leads to, in the script or any module."""
    if not isinstance(path, str):
        found = getattr(path, "__muster_class__", path)
        if isinstance(found, type):
            return found
        raise Refusal("type", f"a class, or a path as 'pkg.module.Class', is needed, not {path!r}")
    script = sys.modules.get(mainmodule.NAME)
    if not isinstance(script, mainmodule.MainModule):
        script = mainmodule.MainModule("", "")
    return find({"name": path}, script)


def construct(cls: type, config: Any) -> Any:
    """Make the object: with the configuration if the constructor takes an argument."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return cls(config)
    try:
        signature.bind(config)
    except TypeError:
        try:
            signature.bind()
        except TypeError:
            return cls(config)  # neither fits: the constructor's own error says why
        return cls()
    return cls(config)


def _from_pickle(data: bytes, name: str) -> type:
    try:
        found = pickle.loads(data)
    except Exception as error:
        raise Refusal(
            "import",
            f"the class {name or 'of the workers'} was sent by value and could not be rebuilt: "
            f"{type(error).__name__}: {error}",
        ) from error
    if not isinstance(found, type):
        raise Refusal("import", f"{name} is {_a_kind(found)}, not a class")
    return found


def _split(path: str) -> tuple[str, str]:
    """Cut a dotted path behind its longest part that is a module."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        try:
            if module in sys.modules or importlib.util.find_spec(module) is not None:
                return module, ".".join(parts[count:])
        except (ImportError, ValueError, AttributeError):
            continue
    if len(parts) == 1:
        raise Refusal(
            "import",
            f"{path!r} is no path of a class, as worker_cls and engines have it: that begins with "
            "its module, as 'pkg.module.Class'",
        )
    return ".".join(parts[:-1]), parts[-1]


def _import(module: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing == module or module.startswith(missing + "."):
            raise Refusal(
                "import",
                f"cannot import {path}: there is no module {missing!r} on the worker's sys.path "
                f"({', '.join(repr(p) for p in sys.path)})",
            ) from None
        raise Refusal(
            "import", f"cannot import {path}: importing {module} failed: {error}"
        ) from error
    except Exception as error:
        raise Refusal(
            "import",
            f"cannot import {path}: importing {module} failed: {type(error).__name__}: {error}",
        ) from error


def _run_script(main: mainmodule.MainModule, path: str) -> ModuleType:
    try:
        mainmodule.load(main)
    except MusterError:  # starting a cluster there: its text says all
        raise
    except Exception as error:
        raise Refusal(
            "import",
            f"cannot import {path}: workers import the controller's script to find it, which "
            f"failed: {type(error).__name__}: {error}",
        ) from error
    return main


def _walk(holder: ModuleType, module: str, name: str, path: str) -> Any:
    found: Any = holder
    walked = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            classes = sorted(n for n, v in vars(found).items() if isinstance(v, type))
            near = difflib.get_close_matches(part, classes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            has = f" (it has the classes {', '.join(classes)})" if classes and not near else ""
            file = getattr(holder, "__file__", None)
            raise Refusal(
                "import",
                f"cannot import {path}: {walked} has no {part!r}{hint}{has}"
                + (f"; {module} is {file}" if file else ""),
            ) from None
        walked = f"{walked}.{part}"
    return found


def _a_kind(found: Any) -> str:
    kind = type(found).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
