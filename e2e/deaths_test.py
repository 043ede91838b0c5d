"""Workers that die, do not start, or cannot be made: told by name, and nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import Cluster, ResourceManager, Worker, WorkerConfig
from roles import Caller, Echo
from running import cluster, eventually, session
from trouble import Leaver, Picky, Trouble


@pytest.fixture(scope="module", params=["1x4", "2x2+relay", "2x2+net"])
def rm(request: pytest.FixtureRequest) -> Iterator[ResourceManager]:
    nodes = int(request.param[0])
    with session(request.param), ResourceManager(4 // nodes, nodes) as made:
        yield made


DEATHS = {
    "exit": "exit code 17",
    "sys.exit": "exit code 23",
    "SIGKILL": "SIGKILL",
    "SIGSEGV": "SIGSEGV",
    "SIGABRT": "SIGABRT",
}


@pytest.mark.parametrize("how", DEATHS)
def test_death_in_a_call(rm: ResourceManager, how: str) -> None:
    with cluster(Trouble, rm, name="frail", device_mapping="0-1", grace=1.0) as c:
        began = time.monotonic()
        with pytest.raises(muster.MusterError) as caught:
            c.execute_all_sync("die", how, 1)
        assert time.monotonic() - began < 5
        text = str(caught.value)
        assert "frail-1-G1" in text
        assert DEATHS[how] in text
        assert f"{how} is coming" in text, "its last lines"
        began = time.monotonic()
        for attempt in (
            lambda: c.execute_all_sync("pid"),
            lambda: c.stuck_in_here(5),
            lambda: c.workers[1].call("pid"),
        ):
            with pytest.raises(muster.MusterError, match=r"frail-1-G1.*" + DEATHS[how]):
                attempt()
        assert time.monotonic() - began < 2, "later calls fail at once"


def test_death_between_calls(rm: ResourceManager) -> None:
    with cluster(Trouble, rm, name="idle", world_size=2) as c:
        pid = c.workers[1].call("pid")
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
        began = time.monotonic()
        with pytest.raises(muster.MusterError, match=r"idle-1.*SIGKILL"):
            c.execute_all_sync("pid", timeout=30)
        assert time.monotonic() - began < 3


def test_death_fails_every_pending_call(rm: ResourceManager) -> None:
    with cluster(Trouble, rm, name="many", world_size=2, grace=1.0) as c:
        refs = [c.stuck_in_here(1, blocking=False), *c.execute_all_async("count")]
        os.kill(c.workers[1].pid, signal.SIGKILL)
        for ref in refs:
            try:
                muster.get(ref, timeout=10)
            except muster.MusterError as error:
                assert "many-1" in str(error) and "SIGKILL" in str(error)


def test_death_is_told_to_a_worker_that_called(rm: ResourceManager) -> None:
    with (
        cluster(Trouble, rm, name="frail", world_size=1) as frail,
        cluster(Caller, rm, name="caller", world_size=1) as caller,
    ):
        with pytest.raises(muster.MusterError, match=r"frail-0.*exit code 17"):
            caller.execute_all_sync("through", frail, "die", "exit", 0)
        assert caller.world_size == 1


def test_other_clusters_live_on(rm: ResourceManager) -> None:
    with (
        cluster(Trouble, rm, name="frail", device_mapping="0-1") as frail,
        cluster(Echo, rm, name="other", device_mapping="0-1") as other,
    ):
        with pytest.raises(muster.MusterError):
            frail.execute_all_sync("die", "SIGKILL", 0)
        assert other.same([1, 2, 3]) == [1, 2, 3]


def test_a_name_is_free_again_after_a_death(rm: ResourceManager) -> None:
    for _ in range(2):
        with cluster(Trouble, rm, name="phoenix", world_size=1) as c:
            with pytest.raises(muster.MusterError):
                c.execute_all_sync("die", "exit", 0)


def test_killed_workers_take_their_children_along(rm: ResourceManager) -> None:
    with cluster(Leaver, rm, name="parent", world_size=1) as c:
        children = c.execute_rank_zero_sync("leave_children")
        os.kill(c.workers[0].pid, signal.SIGKILL)
        gone = eventually(lambda: not any(os.path.exists(f"/proc/{p}") for p in children))
        assert gone, children


def start(rm: ResourceManager, cls: Any, **config: Any) -> str:
    """The text of the error that keeps a cluster from starting; its class is the caller's."""
    began = time.monotonic()
    try:
        Cluster("start", cls, rm, WorkerConfig(**{"world_size": 3, **config})).shutdown()
    finally:
        assert time.monotonic() - began < 20
    raise AssertionError("it started")


def test_constructor_that_raises(rm: ResourceManager) -> None:
    with pytest.raises(ValueError, match="rank 1 found no checkpoint") as caught:
        start(rm, Picky, strategy_args={"raise": 1})
    assert isinstance(caught.value, muster.MusterError)
    assert "start-1" in str(caught.value) and "in __init__" in str(caught.value)


def test_constructor_that_exits(rm: ResourceManager) -> None:
    with pytest.raises(muster.MusterError, match=r"start-2.*exit code 17") as caught:
        start(rm, Picky, strategy_args={"exit": 2})
    assert "about to leave" in str(caught.value)


def test_constructor_that_is_killed(rm: ResourceManager) -> None:
    with pytest.raises(muster.MusterError, match=r"start-0.*SIGKILL"):
        start(rm, Picky, strategy_args={"kill": 0})


def test_constructor_that_hangs(rm: ResourceManager) -> None:
    with pytest.raises(TimeoutError) as caught:
        start(rm, Picky, strategy_args={"hang": 1}, startup_timeout=4.0, grace=0.5)
    assert isinstance(caught.value, muster.MusterError)
    assert "start-1" in str(caught.value)
    assert "wait_for_checkpoint" in str(caught.value), "where it hangs"


def test_every_rank_fails_and_one_is_told(rm: ResourceManager) -> None:
    with pytest.raises(TypeError, match="more") as caught:
        start(rm, Demanding)
    assert isinstance(caught.value, muster.MusterError)


class Demanding(Worker):
    """Takes what nobody gives it."""

    def __init__(self, worker_config: Any, more: int) -> None:
        super().__init__(worker_config)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("no_such_module.Worker", "no_such_module"),
        ("roles.NoSuch", "NoSuch"),
        ("roles", "roles"),
        ("", "worker_cls"),
        ("roles.", "roles"),
        (".Echo", "Echo"),
        ("roles.seen", "seen"),
        ("os.path.join", "join"),
        ("json.decoder.NoSuch", "NoSuch"),
    ],
)
def test_a_class_that_cannot_be_imported(rm: ResourceManager, path: str, named: str) -> None:
    with pytest.raises((ImportError, TypeError, ValueError), match=named) as caught:
        start(rm, path)
    assert isinstance(caught.value, muster.MusterError)
    if path.startswith(("no_such_module", "roles.NoSuch", "json")):
        assert isinstance(caught.value, ImportError)
        assert path in str(caught.value)


def test_nearest_class_is_told(rm: ResourceManager) -> None:
    with pytest.raises(ImportError, match="Echo"):
        start(rm, "roles.Ecko")


@pytest.mark.parametrize(
    ("source", "kind", "told"),
    [
        ("raise RuntimeError('at import')", RuntimeError, "at import"),
        ("import no_such_module", ImportError, "no_such_module"),
        ("def broken(:", SyntaxError, "broken"),
        ("import os; os._exit(9)", muster.MusterError, "exit code 9"),
        ("import sys; sys.exit(4)", muster.MusterError, "4"),
    ],
)
def test_a_module_that_fails_at_import(
    rm: ResourceManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    kind: type[BaseException],
    told: str,
) -> None:
    """It arrives as ImportError or in its own class; always with what went wrong, and where."""
    (tmp_path / "bad_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((ImportError, kind), match=told) as caught:
        start(rm, "bad_module.Actor")
    assert isinstance(caught.value, muster.MusterError)
    assert "start-" in str(caught.value)
    if "exit" not in source:
        assert "bad_module" in str(caught.value)


@pytest.mark.parametrize(
    "cls", [5, None, Echo.same, [Echo]], ids=["number", "nothing", "function", "list"]
)
def test_what_is_no_class(rm: ResourceManager, cls: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        start(rm, cls)


def test_after_all_that_it_works(rm: ResourceManager) -> None:
    with cluster(Echo, rm, name="start", world_size=2) as c:
        assert c.same([1, 2]) == [1, 2]


def test_preload_that_cannot_be_imported(rm: ResourceManager) -> None:
    with pytest.raises(ImportError, match="no_such_preload") as caught:
        start(rm, Echo, preload=["no_such_preload"])
    assert isinstance(caught.value, muster.MusterError)
