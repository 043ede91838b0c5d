"""Classes that cannot be found, made or used: each is told to the head, by name."""

from __future__ import annotations

import cloudpickle
import pytest
from runtime.harness import Agent, Failure, Peer, Worker

from muster import _errors, _values


def failing(boss: Agent, line: Peer, cls: str, **changes: object) -> tuple[Failure, Worker]:
    worker = boss.fork(line, cls, **changes)
    failure = worker.failed()
    assert worker.exit() == 1
    assert (failure["worker"], failure["node"], failure["rank"]) == ("actor-0", "node-0", 0)
    return failure, worker


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        ("no_such.module:Actor", ["no_such.module.Actor", "no module 'no_such'", "sys.path"]),
        ("samples:Plian", ["samples.Plian", "has no 'Plian'", "did you mean 'Plain'?"]),
        ("samples:Outer.Nothing", ["samples.Outer has no 'Nothing'", "Inner"]),
        ("samples:not_a_class", ["samples.not_a_class is an int, not a class"]),
        ("samples_broken:Actor", ["importing samples_broken failed", "broken on purpose"]),
        ("samples_imports:Actor", ["importing samples_imports failed", "no_such_dependency"]),
    ],
)
def test_imports(boss: Agent, line: Peer, cls: str, words: list[str]) -> None:
    failure, _ = failing(boss, line, cls)
    assert failure.code == "import"
    for word in words:
        assert word in failure.message
    assert isinstance(_errors.from_wire(failure), ImportError)


def test_paths_without_a_module(boss: Agent, line: Peer) -> None:
    for path in ("samples.Outer.Inner", "samples:Outer.Inner"):
        changes = {"class": {"module": "", "name": path, "pickle": b""}}
        worker = boss.fork(line, "", **changes)
        worker.ready()
        assert worker.calls.call(1, "get") == "inner"
        worker.exit_now()
    changes = {"class": {"module": "", "name": "Actor", "pickle": b""}}
    failure, _ = failing(boss, line, "", **changes)
    assert "'pkg.module.Class'" in failure.message


def test_constructor_that_raises(boss: Agent, line: Peer) -> None:
    failure, _ = failing(boss, line, "samples:Broken")
    assert failure.code == "user"
    assert "cannot start with {'scale': 2}" in failure.message
    assert "samples.py" in failure["traceback"]
    assert type(_errors.from_wire(failure)).__name__ in ("CustomError", "RemoteError")


def test_constructor_that_exits(boss: Agent, line: Peer) -> None:
    assert boss.fork(line, "samples:Exits").exit() == 23


def test_configuration_that_cannot_be_decoded(boss: Agent, line: Peer) -> None:
    failure, _ = failing(boss, line, "samples:Plain", config=b"\xc1")
    assert failure.code == "encoding"
    assert "worker_config" in failure.message


def test_reserved_parameter(boss: Agent, line: Peer) -> None:
    failure, _ = failing(boss, line, "samples:TakesTimeout")
    assert failure.code == "invalid"
    assert "TakesTimeout.run" in failure.message and "'timeout'" in failure.message


def test_classes_without_the_base(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:NoBase")
    assert worker.ready()["info"] is None
    assert worker.calls.call(1, "get") == 3
    worker = boss.fork(line, "samples:NoBaseWithConfig")
    worker.ready()
    assert worker.calls.call(1, "get") == {"scale": 2}


def test_rank_info_set_by_the_constructor(boss: Agent, line: Peer) -> None:
    worker = boss.fork(line, "samples:Relaid")
    info = worker.ready()["info"]
    assert (info["tp_size"], info["tp_rank"], info["rank"]) == (2, 1, 1)


def test_class_by_value(boss: Agent, line: Peer) -> None:
    class Local:
        def get(self) -> str:
            return "by value"

    pickled = {"module": "", "name": "Local", "pickle": cloudpickle.dumps(Local)}
    worker = boss.fork(line, "", **{"class": pickled})
    worker.ready()
    assert worker.calls.call(1, "get") == "by value"
    broken = {"module": "", "name": "Local", "pickle": b"nothing"}
    failure, _ = failing(boss, line, "", **{"class": broken})
    assert (failure.code, "Local" in failure.message) == ("import", True)


def test_config_is_any_value(boss: Agent, line: Peer) -> None:
    config = _values.encode((1, {2, 3}), [])
    worker = boss.fork(line, "samples:NoBaseWithConfig", config=config)
    worker.ready()
    assert worker.calls.call(1, "get") == (1, {2, 3})
