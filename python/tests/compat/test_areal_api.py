"""The names that stand for AReaL's where it is not installed, and what decides who broadcasts."""

from __future__ import annotations

import string
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from muster import _errors
from muster.compat import areal
from muster.compat.areal import _host, _http, _roles, _workers, guard
from muster.compat.areal.stand_in import api as stand_in

ALLOWED = set(string.ascii_letters + string.digits + "_-.")


def test_errors_have_areals_fields() -> None:
    made: list[tuple[Any, dict[str, Any]]] = [
        (
            areal.WorkerCreationError("r", "why", "how"),
            {"worker_key": "r", "reason": "why", "details": "how"},
        ),
        (areal.WorkerConfigurationError("r", "why"), {"details": ""}),
        (areal.WorkerFailedError("r/0", -9, "last"), {"exit_code": -9, "stderr": "last"}),
        (areal.WorkerNotFoundError("r/0"), {"worker_id": "r/0"}),
        (areal.WorkerTimeoutError("r", 3), {"worker_key": "r", "timeout": 3}),
        (areal.EngineCreationError("r/0", "why", 500), {"reason": "why", "status_code": 500}),
        (areal.EngineCallError("r/0", "m", "why"), {"method": "m", "attempt": 1}),
        (areal.EngineImportError("a.B", "why"), {"import_path": "a.B"}),
        (areal.PortAllocationError("why"), {"reason": "why"}),
        (areal.GPUAllocationError("why"), {"reason": "why"}),
        (areal.RPCConnectionError("r/0", "h", 1, "why"), {"host": "h", "port": 1}),
    ]
    for error, fields in made:
        assert areal.SchedulerError in type(error).__mro__
        assert {name: getattr(error, name) for name in fields} == fields
    assert not issubclass(areal.EngineImportError, areal.EngineCreationError)


def test_specs() -> None:
    spec = areal.SchedulingSpec()
    assert (spec.cpu, spec.gpu, spec.mem, spec.port_count, spec.cmd) == (8, 0, 32, 2, None)
    assert areal.SchedulingStrategy() == stand_in.SchedulingStrategy("separation", None, True)
    with pytest.raises(ValueError, match="shared, separate, deferred"):
        areal.SchedulingSpec(ray_placement_strategy="packed")
    assert areal.Worker("a/0", "h").worker_ports == []
    assert set(areal.__all__) == {name for name in areal.__all__ if getattr(areal, name)}
    with pytest.raises(AttributeError, match="nothing"):
        _ = areal.nothing


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    spec = areal.SchedulingSpec(cpu=3, env_vars={"OMP_NUM_THREADS": "9", "RANK": "1", "A": "b"})
    env = _roles.variables(spec, offload=False)
    assert env["MKL_NUM_THREADS"] == "3", "by its CPUs"
    assert env["OPENBLAS_NUM_THREADS"] == "5", "unless it was set"
    assert env["OMP_NUM_THREADS"] == "9" and env["A"] == "b", "and the role has the last word"
    assert env["RANK"] == "1", "whatever it is"


class Engine:
    initialized = True

    def __init__(self, train: bool) -> None:
        if train:
            self.current_data_parallel_head = lambda: 0


@pytest.mark.parametrize(
    ("train", "meta", "expected"),
    [
        (True, None, True),
        (False, None, False),
        (True, {}, True),
        (True, {"broadcast": False}, False),
        (False, {"broadcast": True}, True),
    ],
)
def test_who_broadcasts(train: bool, meta: Any, expected: bool) -> None:
    assert _host.wants_broadcast(Engine(train), meta) is expected


def test_broadcasts_that_cannot_be() -> None:
    for meta in ("yes", {"broadcast": "yes"}):
        with pytest.raises(ValueError, match="rpc_meta"):
            _host.wants_broadcast(Engine(True), meta)
    fresh = Engine(True)
    fresh.initialized = False
    assert not _host.wants_broadcast(fresh, None)


def test_calls() -> None:
    update: Future[int] = Future()
    update.set_result(5)
    engine = SimpleNamespace(update=lambda: update, wrong=lambda: {}.x)  # type: ignore[attr-defined]
    assert _host.call(engine, "e", "update", [], {}, None) == 5, "what is under way is waited for"
    with pytest.raises(_http.Refusal, match="'walk'") as unknown:
        _host.call(engine, "e", "walk", [], {}, None)
    assert unknown.value.status == 400
    with pytest.raises(AttributeError, match="no attribute 'x'"):
        _host.call(engine, "e", "wrong", [], {}, None)


def test_arguments_of_commands() -> None:
    who = guard.Identity("r", 2, "e", "t", fileroot="/f")
    assert who.arguments(7) == [
        *("--port", "7", "--experiment-name", "e", "--trial-name", "t"),
        *("--role", "r", "--worker-index", "2", "--fileroot", "/f"),
    ]


def test_clusters() -> None:
    spec, other = areal.SchedulingSpec(), areal.SchedulingSpec(env_vars={"A": "b"})
    apart = areal.SchedulingSpec(gpu=1, ray_placement_strategy="separate")

    def sizes(*specs: Any) -> list[int | None]:
        return [config.world_size for _, config in _roles.clusters(list(specs), False, 30)]

    assert sizes(spec, spec, spec) == [3]
    assert sizes(spec, other) == [1, 1]
    assert sizes(apart, apart) == [1, 1]


def test_roles_that_differ_are_clusters_that_differ() -> None:
    names = [_roles.cluster_name(role) for role in ("a/b", "a_b", "a.b", "/b", "-b", "b", "ä")]
    assert len(set(names)) == len(names)
    assert all(name[0].isalnum() and set(name) <= ALLOWED for name in names)
    assert _roles.cluster_name("actor_train-0") == "actor_train-0"


def test_who_died() -> None:
    host = _host.Host()
    host.create_engine(SimpleNamespace, "e", step=judged)
    with pytest.raises(_http.Refusal, match=r"'step' failed.*judge") as told:
        host.do_call("step", "e")
    host.destroy_engine("e")
    worker = areal.Worker(id="actor/0", ip="127.0.0.1", worker_ports=["1"], engine_ports=[])
    native = _workers.Native(worker, None, "actor", handle=None)  # type: ignore[arg-type]
    with pytest.raises(_http.Refusal, match=r"'step' failed.*judge"), native._telling("call"):
        raise told.value
    with pytest.raises(areal.WorkerFailedError, match="actor/0"), native._telling("call"):
        raise _errors.WorkerDiedError("actor-0 died", cluster="actor", signal="SIGKILL")


def judged() -> None:
    raise _errors.WorkerDiedError("judge died", cluster="judge", signal="SIGKILL")
