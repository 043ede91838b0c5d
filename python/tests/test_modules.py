"""Modules that no sys.path leads to: where they are told to be, and how others load them."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from muster import _modules
from muster._cluster import describe_class

SOURCE = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def double(x):
    return 2 * x
"""


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was loaded here is forgotten."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def loaded(name: str, file: Path) -> ModuleType:
    """A module as pytest loads it with --import-mode=importlib."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    while "." in name:
        name = name.rpartition(".")[0]
        sys.modules.setdefault(name, ModuleType(name))
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("forgetful")
def test_a_module_that_only_its_file_leads_to(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "down" / "far_off.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    module = loaded("deep.down.far_off", file)
    assert _modules.file_of("deep.down.far_off") == str(file)
    described = describe_class(module.Point)
    assert described["pickle"] and described["name"] == "Point"
    assert pickle.loads(described["pickle"]) is module.Point

    point = pickle.dumps(module.Point(3))
    for name in ("deep.down.far_off", "deep.down", "deep"):
        sys.modules.pop(name, None)
    there = pickle.loads(described["pickle"])  # as in another process
    assert there is not module.Point and pickle.loads(point) == there(3)
    assert pickle.loads(pickle.dumps(there(4))).x == 4
    assert list(sys.modules["deep.down"].__path__) == [str(file.parent)]
    assert _modules.find("deep.down.far_off", str(file), "double")(4) == 8
    sys.modules.pop("deep.down.far_off")
    with pytest.raises(ImportError, match="PYTHONPATH"):
        _modules.load("deep.down.far_off", str(file) + "x")


@pytest.mark.usefixtures("forgetful")
def test_modules_that_names_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _modules.file_of("json") == "" and _modules.file_of("json.decoder") == ""
    assert _modules.file_of("sys") == "" and _modules.file_of("no.such.module") == ""
    assert describe_class(json.JSONDecoder)["pickle"] == b""
    file = tmp_path / "near_by.py"
    file.write_text(SOURCE)
    loaded("near_by", file)
    assert _modules.file_of("near_by") == str(file)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _modules.file_of("near_by") == ""
    # A name that leads to another file.
    other = tmp_path / "other" / "near_by.py"
    other.parent.mkdir()
    other.write_text(SOURCE)
    loaded("near_by", other)
    assert _modules.file_of("near_by") == str(other)


@pytest.mark.usefixtures("forgetful")
def test_a_module_that_fails_is_not_left_behind(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        _modules.load("broken_one", str(file))
    assert "broken_one" not in sys.modules


class Plain:
    """Any class."""


def test_where_things_are_found() -> None:
    module = ModuleType("found_here")
    sys.modules["found_here"] = module
    try:

        class Thing:
            pass

        Thing.__module__, Thing.__qualname__ = "found_here", "Thing"
        # As a decorator leaves it: another object has its place, which knows it.
        module.Thing = SimpleNamespace(__muster_class__=Thing)  # type: ignore[attr-defined]
        sent = _modules.by_name(Thing)
        assert sent.where == ("found_here", "", "Thing")
        assert pickle.loads(pickle.dumps(sent)) is Thing
        module.Thing = 5  # type: ignore[attr-defined]
        assert _modules.by_name(Thing) is Thing
    finally:
        del sys.modules["found_here"]
    assert pickle.loads(pickle.dumps(_modules.by_name(Plain))) is Plain
    local = lambda: 1  # noqa: E731
    assert _modules.by_name(local) is local
