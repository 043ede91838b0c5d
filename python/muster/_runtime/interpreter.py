"""Making this interpreter look like the controller's: environment, paths, modules.

Says of preloads whether the process may still be forked after them. It never
runs user code but by importing what a preload names.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .board import Refusal


def adopt(runtime: Mapping[str, Any]) -> None:
    """Take over environment, folder, module path and arguments of a Runtime message."""
    set_environment(runtime.get("env") or {})
    if folder := runtime.get("dir"):
        try:
            os.chdir(folder)
        except OSError as error:
            raise Refusal(
                "startup", f"the working directory {folder} cannot be entered: {error.strerror}"
            ) from None
    path = list(runtime.get("sys_path") or ())
    if path:
        package = runtime.get("package", "")
        sys.path[:] = path if not package or package in path else [*path, package]
        importlib.invalidate_caches()
    main = runtime.get("main") or {}
    sys.argv[:] = [main.get("path") or main.get("module") or ""]


def set_environment(env: Mapping[str, str]) -> None:
    """Make ``env`` the whole environment, touching only what differs."""
    zone = os.environ.get("TZ")
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if os.environ.get("TZ") != zone:
        time.tzset()


def preload(modules: Sequence[str], telling: Callable[[str], None] | None = None) -> str:
    """Import modules; return why the process must not be forked now, or ""."""
    why = ""
    for module in modules:
        if telling is not None:
            telling(module)
        try:
            importlib.import_module(module)
        except BaseException as error:  # sys.exit in a module must not end a zygote unheard
            raise Refusal(
                "import",
                f"the preload {module!r} cannot be imported: {type(error).__name__}: {error}",
            ) from error
        if not why and (found := not_fork_safe()):
            why = f"the preload {module!r} {found}"
    return why


def not_fork_safe() -> str:
    """Return what a fork of this process would break, or "".

    Native threads alone are no reason: importing torch starts some, and workers
    forked after that import are known to work. A CUDA context is, and so are
    Python threads, which would not exist in the child.
    """
    if devices := [path for path in _open_files() if path.startswith("/dev/nvidia")]:
        return f"opened {devices[0]}, and what touched a GPU cannot be forked"
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if others:
        return f"started the thread {others[0]!r}, which forked processes would lack"
    return ""


def _open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def reseed() -> None:
    """Give this process random numbers of its own; ``random`` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
