"""torch is imported once for all workers of a node, where they would each import it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from muster.compat import _preloads
from muster.compat.ray import _options


def module(monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> Any:
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(source, vars(made))
    return made


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(monkeypatch, "torch", "class Tensor: pass")
    made.nn = ModuleType("torch.nn")
    monkeypatch.setattr(_preloads, "find_spec", lambda name: None)


USES = "import torch\nclass Actor: pass\ndef task(): pass"
PLAIN = "import json\nclass Actor: pass\ndef task(): pass"
SOURCES = {
    "imports it": (USES, ("torch",)),
    "inherits from one that does": (
        "from base import Actor as B\nclass Actor(B): pass\ndef task(): pass",
        ("torch",),
    ),
    "names a function of one": (f"{PLAIN}\nfrom base import task as other", ("torch",)),
    "names a module that does": (f"{PLAIN}\nimport base", ("torch",)),
    "has names from it": (f"{PLAIN}\nfrom torch import Tensor", ("torch",)),
    "has a part of it": (f"{PLAIN}\nfrom torch import nn", ("torch",)),
    "does not": (PLAIN, ()),
    "has something else of that name": (f"{PLAIN}\ntorch = 5", ()),
}


@pytest.mark.parametrize("what", SOURCES)
@pytest.mark.parametrize("name", ["Actor", "task"])
def test_where_its_module(monkeypatch: pytest.MonkeyPatch, what: str, name: str) -> None:
    source, expected = SOURCES[what]
    module(monkeypatch, "base", USES)
    found = module(monkeypatch, "user", source)
    assert _preloads.of(getattr(found, name), None) == expected
    assert tuple(_options.config(getattr(found, name), {}).preload) == expected


def test_not_where_the_script_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module(monkeypatch, "user", USES)
    monkeypatch.delitem(sys.modules, "torch")
    assert _preloads.of(found.Actor, {}) == ()


def test_what_tensors_come_in_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module(monkeypatch, "user", USES)
    monkeypatch.setattr(_preloads, "find_spec", lambda name: object())
    assert _preloads.of(found.Actor, {}) == ("torch", "tensordict")


def test_what_is_installed_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_preloads.INSTALLED, "1")
    found = module(monkeypatch, "user", USES)
    assert _preloads.of(found.Actor, {}) == ("muster.compat.ray._installed", "torch")


def test_what_has_no_module() -> None:
    class Odd:
        __module__ = None  # type: ignore[assignment]

    assert _preloads.of(Odd, None) == () and _preloads.of(Odd(), None) == ()


@pytest.mark.parametrize("key", ["pip", "uv", "conda", "py_executable"])
def test_not_for_another_interpreter(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    found = module(monkeypatch, "user", USES)
    assert tuple(_options.config(found.Actor, {"runtime_env": {key: "x"}}).preload) == ()
    variables = {"runtime_env": {"env_vars": {"A": "1"}}}
    assert tuple(_options.config(found.Actor, variables).preload) == ("torch",)
