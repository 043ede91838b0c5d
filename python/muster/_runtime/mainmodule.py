"""The controller's script, as workers see it.

Classes, functions and exceptions of the script live in ``__main__`` there. In a
worker a module of the same content is made under the name ``__muster_main__``
(so that ``if __name__ == "__main__":`` is false) and stands in for ``__main__``
as well. The script is run only when something of it is needed.

It never decides whether a script may start clusters: the SDK asks `importing`
and raises the text that `guard_text` gives.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import threading
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

NAME = "__muster_main__"


class MainModule(ModuleType):
    """A module that runs the controller's script at the first look at its content."""

    def __init__(self, path: str, module: str) -> None:
        super().__init__(NAME)
        own = self.__dict__
        own["_muster"] = _Script(path, module)
        # multiprocessing reads these two to import the script in its children.
        own["__spec__"] = None
        if path:
            own["__file__"] = path

    def __getattr__(self, name: str) -> Any:
        # Dunder names are probes by tools, and never worth running a script for.
        if not (name.startswith("__") and name.endswith("__")):
            script: _Script = self.__dict__["_muster"]
            if script.run(self) and name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {NAME!r} (the controller's script) has no attribute {name!r}")


class _Script:
    """The script behind a MainModule, and how far its running is."""

    def __init__(self, path: str, module: str) -> None:
        self.path = path
        self.module = module
        self.state = "new" if path or module else "absent"
        self.failure: BaseException | None = None
        self.lock = threading.RLock()

    def run(self, target: MainModule) -> bool:
        """Run the script unless it has been; return whether there is one."""
        if self.state == "done":
            return True
        with self.lock:
            if self.state == "new":
                self.state = "running"
                try:
                    exec(self._code(target), target.__dict__)
                except BaseException as error:
                    self.state, self.failure = "failed", error
                    raise
                self.state = "done"
            if self.state == "failed":
                where = self.path or self.module
                raise ImportError(f"the script {where} could not be imported") from self.failure
        return self.state != "absent"

    def _code(self, target: MainModule) -> CodeType:
        if not self.module:
            with io.open_code(os.path.abspath(self.path)) as file:
                code: CodeType = compile(file.read(), self.path, "exec", dont_inherit=True)
            return code
        spec = importlib.util.find_spec(self.module)
        code_of = getattr(spec.loader, "get_code", None) if spec is not None else None
        found: CodeType | None = code_of(self.module) if code_of is not None else None
        if spec is None or found is None:
            raise ImportError(
                f"the controller runs as python -m {self.module}, but the worker finds no such "
                f"module on its sys.path {sys.path}"
            )
        target.__dict__.update(
            __spec__=spec, __file__=spec.origin, __package__=spec.parent, __loader__=spec.loader
        )
        return found


def install(main: Mapping[str, str]) -> MainModule:
    """Put a stand-in for the controller's script into ``sys.modules``."""
    path, module = main.get("path", ""), main.get("module", "")
    target = MainModule(path, module)
    target.__dict__["_muster_replaced"] = sys.modules.get("__main__")
    for name in ("__main__", NAME):
        sys.modules[name] = target
    if "__mp_main__" in sys.modules:  # multiprocessing's own alias, made at its import
        sys.modules["__mp_main__"] = target
    # Children that multiprocessing spawns get this path, and there the name is
    # looked up afresh: a module of that name says what it stands for.
    alias = os.path.join(os.path.dirname(__file__), "alias")
    if alias not in sys.path:
        sys.path.append(alias)
    return target


def load(target: MainModule) -> None:
    """Run the script now, if there is one and it has not been run."""
    script: _Script = target.__dict__["_muster"]
    script.run(target)


def importing() -> bool:
    """Return whether this process is a worker that is importing the controller's script."""
    module = sys.modules.get(NAME)
    script = module.__dict__.get("_muster") if isinstance(module, MainModule) else None
    return isinstance(script, _Script) and script.state == "running"


def guard_text(what: str) -> str:
    """Return the words for a script that starts things while workers import it."""
    module = sys.modules.get(NAME)
    script = module.__dict__.get("_muster") if isinstance(module, MainModule) else None
    where = (script.path or script.module) if isinstance(script, _Script) else "the script"
    return (
        f"{what} was called while a worker imported {where} to find its classes. Workers import "
        "the controller's script, so what starts clusters must not run on import. Put it under\n\n"
        '    if __name__ == "__main__":\n'
        "        ...\n\n"
        "and keep classes and functions above it."
    )
