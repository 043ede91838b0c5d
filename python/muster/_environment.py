"""This process as a description from which workers' interpreters are made.

Workers run the controller's interpreter, with its flags, its sys.path, its
folder and its environment, and can import its script. It only describes;
nothing is started here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from . import _errors, _pickling, _values

#: Options of -X that change how code runs.
_X_OPTIONS = ("dev", "utf8", "faulthandler", "frozen_modules", "int_max_str_digits")
_HEAD_GRACE = 30.0
#: What workers do not need unless they use Ray themselves.
_RAY_SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Keys of a runtime_env that may name a file of what is to be installed.
_FILES = {"pip": (".txt",), "uv": (".txt",), "conda": (".yaml", ".yml")}
_LETTERS = {
    "debug": "d",
    "dont_write_bytecode": "B",
    "no_site": "S",
    "verbose": "v",
    "bytes_warning": "b",
    "quiet": "q",
    "optimize": "O",
}


def describe_runtime(
    *,
    python: str | None = None,
    working_dir: str | None = None,
    py_modules: Sequence[str] = (),
    preload: Sequence[str] = (),
    ray: str = "",
    runtime_env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a worker's interpreter needs, as it is in this process now."""
    if ray not in ("", "inherit"):
        raise ValueError(f"ray={ray!r}; 'inherit' lets workers use Ray themselves, '' does not")
    interpreter = python or sys.executable
    if not interpreter:
        raise _errors.MusterError(
            "this interpreter does not know its own program (sys.executable is empty); "
            "say which one workers shall use: WorkerConfig(python=...)"
        )
    if working_dir and runtime_env and "working_dir" in runtime_env:
        raise ValueError(
            f"working_dir={working_dir!r}, and runtime_env has working_dir="
            f"{runtime_env['working_dir']!r}; give one of them"
        )
    described: dict[str, Any] = {
        "python": interpreter,
        "flags": interpreter_flags(),
        "package": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        "sys_path": [*map(_absolute, _texts("py_modules", py_modules)), *_sys_path()],
        "dir": _absolute(working_dir) if working_dir else os.getcwd(),
        "preload": _texts("preload", preload),
        "env": {k: v for k, v in os.environ.items() if ray or k not in _RAY_SECRETS},
        "main": main_module(),
    }
    if runtime_env:
        described["runtime_env"] = runtime_env_text(runtime_env)
    return described


def runtime_env_text(given: Mapping[str, Any]) -> str:
    """Ray's runtime_env for the head, with paths that are the same elsewhere."""
    if not isinstance(given, Mapping):
        raise TypeError(f"runtime_env is {given!r}; it is a dict, as Ray has it")
    made: dict[str, Any] = {}
    for key, value in given.items():
        found = _found(str(key), value)
        try:
            made[str(key)] = json.loads(json.dumps(found))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"runtime_env[{key!r}] is {value!r}, which is not made of text, numbers, lists "
                f"and dicts: {error}"
            ) from None
    return json.dumps(made)


def _found(key: str, value: Any) -> Any:
    """A value of a runtime_env with its paths in full."""
    if key == "env_vars" and isinstance(value, Mapping):
        for name, word in value.items():
            if not isinstance(name, str) or not isinstance(word, str):
                raise TypeError(f"env_vars[{name!r}] is {word!r}; both sides are text")
    if key == "working_dir":
        return _there(key, _place(value))
    if key == "py_modules" and isinstance(value, (list, tuple)):
        return [_there(key, _place(module)) for module in value]
    if str(value).endswith(_FILES.get(key, ())) and isinstance(value, (str, os.PathLike)):
        return _place(value)
    return value


def _there(key: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("/") and not os.path.exists(value):
        raise ValueError(f"runtime_env[{key!r}] names {value!r}, which is not there")
    return value


def _place(value: Any) -> Any:
    """A path in full; a module as where it lies; addresses and all else as they are."""
    if isinstance(value, ModuleType) and value.__file__:
        folder, name = os.path.split(os.path.abspath(value.__file__))
        return folder if name.startswith("__init__.") else os.path.join(folder, name)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return _absolute(value) if isinstance(value, str) and value and "://" not in value else value


def _sys_path() -> list[str]:
    """sys.path without what only this process can follow: relative entries, stand-ins."""
    alias = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_runtime", "alias")
    paths = [_absolute(str(entry)) for entry in sys.path]
    return [path for path in paths if path != alias]


def _absolute(path: str) -> str:
    return os.path.abspath(path or ".")


def _texts(label: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{label} is {values!r}; it takes a list of text")
    return list(values)


def interpreter_flags() -> list[str]:
    """The flags of this interpreter that code can notice, as a new one takes them."""
    flags = []
    for name, letter in _LETTERS.items():
        if times := int(getattr(sys.flags, name)):
            flags.append("-" + letter * times)
    if sys.flags.isolated:
        flags.append("-I")
    else:
        if sys.flags.ignore_environment:
            flags.append("-E")
        if sys.flags.no_user_site:
            flags.append("-s")
        if getattr(sys.flags, "safe_path", False):
            flags.append("-P")
    flags += [f"-W{option}" for option in sys.warnoptions]
    options = getattr(sys, "_xoptions", {})
    for name in _X_OPTIONS:
        if name in options:
            value = options[name]
            flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


def main_module() -> dict[str, Any]:
    """How workers can import this process's script; empty texts where they cannot."""
    main = sys.modules.get("__main__")
    # A script that reads its arguments when it is imported reads the same in workers.
    args = [str(arg).encode(errors="replace").decode() for arg in sys.argv[1:]]
    found = {"path": "", "module": "", "args": args}
    spec = getattr(main, "__spec__", None)
    name = getattr(spec, "name", None)
    path = getattr(main, "__file__", None)
    if _pickling.main_alone():
        return found
    if name and name != "__main__":
        found["module"] = str(name)
    elif path and os.path.isfile(path):
        found["path"] = os.path.abspath(path)
    return found


def announce_main() -> None:
    """Make the script known under the name that workers have for it.

    What workers send back refers to ``__muster_main__``; it is the same module
    here. What cannot be imported there travels by value.
    """
    main = sys.modules.get("__main__")
    if main is not None:
        sys.modules["__muster_main__"] = main
    script = main_module()
    _values.set_main_importable(bool(script["path"] or script["module"]))


def head_grace() -> float:
    """Seconds that a head may be gone before those who need it give up: MUSTER_HEAD_GRACE."""
    try:
        seconds = float(os.environ.get("MUSTER_HEAD_GRACE", ""))
    except ValueError:
        return _HEAD_GRACE
    return seconds if 0 <= seconds <= 1e6 else _HEAD_GRACE
