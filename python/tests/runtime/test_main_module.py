"""The controller's script as workers see it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from runtime.harness import Agent, Peer, Worker, runtime

from muster import _errors
from muster._runtime import mainmodule

SCRIPT = """
import multiprocessing, os, sys
print("script runs as", __name__)

class ScriptError(Exception):
    pass

def double(x):
    return 2 * x

class Actor:
    def name(self):
        return type(self).__module__, sys.modules["__main__"] is sys.modules["__muster_main__"]
    def same(self, other):
        return type(other) is Payload
    def raises(self):
        raise ScriptError("of the script")
    def spawned(self):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.map(double, [1, 2])
    def guarded(self):
        return os.environ.get("GUARDED", "no")

class Payload:
    pass

if __name__ == "__main__":
    os.environ["GUARDED"] = "ran"
"""

UNGUARDED = """
from muster._runtime import mainmodule
from muster._errors import MusterError

class Actor:
    pass

# What the SDK does at the start of init() and Cluster().
if mainmodule.importing():
    raise MusterError(mainmodule.guard_text("Cluster()"))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.py"
    path.write_text(SCRIPT)
    return path


def made(boss: Agent, line: Peer, cls: str, path: Path) -> Worker:
    worker = boss.fork(line, cls, main={"path": str(path), "module": ""})
    worker.ready()
    return worker


@pytest.mark.parametrize("module", ["__main__", "__muster_main__"])
def test_a_class_of_the_script(boss: Agent, line: Peer, script: Path, module: str) -> None:
    worker = made(boss, line, f"{module}:Actor", script)
    assert worker.line() == "script runs as __muster_main__"
    assert worker.calls.call(1, "name") == ("__muster_main__", True)
    assert worker.calls.call(2, "guarded") == "no"


def test_exceptions_of_the_script_come_back_as_its_own(
    boss: Agent, line: Peer, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = made(boss, line, "__main__:Actor", script)
    failure = worker.calls.call(1, "raises")
    ours = type(sys)("__muster_main__")
    ours.ScriptError = type("ScriptError", (Exception,), {"__module__": "__main__"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__muster_main__", ours)
    assert isinstance(_errors.from_wire(failure), ours.ScriptError)
    assert "pipeline.py" in failure["traceback"]


def test_the_script_runs_only_when_something_of_it_is_needed(
    boss: Agent, line: Peer, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = made(boss, line, "samples:Plain", script)
    assert worker.calls.call(1, "add", 1) == 2
    payload = type("Payload", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Payload", payload, raising=False)
    # As the SDK does in a controller, so that classes match both ways.
    monkeypatch.setitem(sys.modules, "__muster_main__", sys.modules["__main__"])
    (back,) = worker.calls.call(2, "note", payload())
    assert worker.line() == "script runs as __muster_main__"  # and not before
    assert type(back) is payload


def test_multiprocessing_spawn_works_in_a_worker(boss: Agent, line: Peer, script: Path) -> None:
    worker = made(boss, line, "__main__:Actor", script)
    assert worker.calls.call(1, "spawned") == [2, 4]


def test_a_script_run_with_dash_m(lone: Agent, tmp_path: Path) -> None:
    package = tmp_path / "apack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("value = 5\n")
    (package / "run.py").write_text(
        "from .part import value\n"
        "class Actor:\n"
        "    def get(self):\n"
        "        return value, __name__, __package__, __spec__.name\n"
    )
    base = runtime()
    main = {"path": "", "module": "apack.run"}
    line = lone.zygote(sys_path=[str(tmp_path), *base["sys_path"]], main=main)
    worker = lone.fork(line, "__main__:Actor", main=main)
    worker.ready()
    assert worker.calls.call(1, "get") == (5, "__muster_main__", "apack", "apack.run")


def test_sys_argv_is_the_script(lone: Agent, script: Path) -> None:
    main = {"path": str(script), "module": ""}
    line = lone.zygote(main=main)
    worker = lone.fork(line, "samples:Plain", main=main)
    worker.ready()
    assert worker.calls.call(1, "facts")["argv"] == [str(script)]


def test_a_missing_guard(boss: Agent, line: Peer, tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text(UNGUARDED)
    worker = boss.fork(line, "__main__:Actor", main={"path": str(path), "module": ""})
    failure = worker.failed()
    assert 'if __name__ == "__main__":' in failure.message
    assert str(path) in failure.message
    assert worker.exit() == 1


def test_a_script_that_fails(boss: Agent, line: Peer, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("raise RuntimeError('no')\n")
    worker = boss.fork(line, "__main__:Actor", main={"path": str(path), "module": ""})
    failure = worker.failed()
    assert failure.code == "import"
    assert "RuntimeError: no" in failure.message
    assert "bad.py" in failure["traceback"]


def test_no_script_at_all(boss: Agent, line: Peer) -> None:
    failure = boss.fork(line, "__main__:Actor").failed()
    assert failure.code == "import"
    assert "Actor" in failure.message


def test_stand_in_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text("seen = importing()\nx = 1\n")
    modules: dict[str, Any] = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = mainmodule.install({"path": str(path), "module": ""})
    module.__dict__["importing"] = mainmodule.importing
    assert module.__file__ == str(path)
    assert module.__spec__ is None
    with pytest.raises(AttributeError):
        _ = module.__path__  # a probe does not run it
    assert "x" not in module.__dict__
    assert (module.x, module.seen, mainmodule.importing()) == (1, True, False)
    with pytest.raises(AttributeError, match="has no attribute 'y'"):
        _ = module.y
