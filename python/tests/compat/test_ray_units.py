"""What of `muster.compat.ray` needs no session: names, options, errors, places."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import muster
from muster import Reservation, ResourceManager, _errors
from muster._environment import runtime_env_text
from muster.compat import ray as compat
from muster.compat.ray import _options, _state, exceptions
from muster.compat.ray.util.placement_group import PlacementGroup
from muster.compat.ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from muster.compat.ray.util.timer import _Timer

ray: Any = compat


class Coded(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Sealed(Exception):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("no children")


def square(x: int) -> int:
    return x * x


# --- names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("roll", "actor_train-0-G0"),
        ("roll-1a2b", "RewardScheduler-x.y"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("..", ".."),
        ("with space/and more", "ünï"),
        ("-", "-"),
    ],
)
def test_names_come_back(namespace: str, name: str) -> None:
    service = _state.service_name(namespace, name)
    assert set(service) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
    assert _state.actor_name(service) == (namespace, name)


def test_names_of_other_services_are_none() -> None:
    assert _state.service_name("a.b", "c") != _state.service_name("a", "b.c")
    assert _state.actor_name("verifier") is None
    assert _state.actor_name("muster.refs") is None
    assert _state.actor_name(_state.nameless("<lambda>")) is None
    assert _state.nameless("A") != _state.nameless("A")


# --- options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"colour": 1}, ValueError, "colour"),
        ({"num_gpus": -1}, ValueError, "0 or more"),
        ({"num_gpus": 1.5}, ValueError, "whole number"),
        ({"num_cpus": "many"}, TypeError, "a number"),
        ({"name": ""}, ValueError, "name"),
        ({"name": 5}, TypeError, "text"),
        ({"lifetime": "long"}, ValueError, "detached"),
        ({"get_if_exists": True}, ValueError, "name"),
        ({"max_concurrency": 0}, ValueError, "from 1"),
        ({"max_restarts": -2}, ValueError, "-1"),
        ({"max_restarts": "often"}, TypeError, "whole number"),
        ({"resources": {"GPU": 1}}, ValueError, "num_gpus"),
        ({"scheduling_strategy": "TIGHT"}, ValueError, "SPREAD"),
        ({"scheduling_strategy": 5}, TypeError, "SPREAD"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        _options.checked(options, actor=True)


def test_options_of_tasks_are_others() -> None:
    assert _options.checked({"num_returns": 2}, actor=False) == {"num_returns": 2}
    with pytest.raises(ValueError, match="tasks"):
        _options.checked({"namespace": "x"}, actor=False)


def test_environments() -> None:
    given = {"env_vars": {"RANK": "1"}, "working_dir": "/x", "eager_install": True}
    found = _options.config(int, {"runtime_env": given}, {"ABOUT": "me"})
    assert found.runtime_env == {"env_vars": {"RANK": "1"}, "working_dir": "/x"}
    assert found.env == {"ABOUT": "me"} and found.rank_env
    with pytest.raises(TypeError, match="text"):
        runtime_env_text({"env_vars": {"A": 1}})
    with pytest.raises(TypeError, match="a dict"):
        _options.config(int, {"runtime_env": 5})


def test_devices_that_ray_takes_for_resources() -> None:
    assert _options.place({"num_gpus": 2})["gpus"] == 2
    assert _options.place({"num_gpus": 0, "resources": {"NPU": 0.01}})["gpus"] == 0.01
    assert _options.place({"resources": {"tpu": 1}})["gpus"] == 0


@pytest.mark.parametrize("ident", ["", "nowhere", "ab", "f" * 56, "-" + "1" * 55])
def test_node_ids_that_are_none(ident: str) -> None:
    with pytest.raises(ValueError, match="node_id"):
        NodeAffinitySchedulingStrategy(ident, soft=True)


# --- devices ------------------------------------------------------------------------------


def pool_of(*nodes: tuple[str, int], alive: bool = True) -> ResourceManager:
    """A pool, as if it was reserved."""
    pool = ResourceManager.__new__(ResourceManager)
    pool.nodes = [{"name": name, "devices": [{}] * count} for name, count in nodes]
    pool._connection = cast("Any", SimpleNamespace(alive=lambda: alive))
    return pool


def test_places_in_a_group() -> None:
    pool = pool_of(("a", 4), ("b", 2), ("b", 1))
    held = Reservation([], pool=pool)
    group = PlacementGroup([{"GPU": 4}, {"GPU": 2}, {"GPU": 1}], held)
    place = _options.place({"placement_group": group, "num_gpus": 2})
    assert (place["resource_manager"], place["device_mapping"]) == (pool, [0, 1, 2, 3, 4, 5, 6])
    strategy = PlacementGroupSchedulingStrategy(group, 1)
    place = _options.place({"scheduling_strategy": strategy})
    assert place["node"] == "b"
    place = _options.place({"scheduling_strategy": strategy, "num_gpus": 1})
    assert place["device_mapping"] == [4, 5]
    with pytest.raises(TypeError, match="what placement_group"):
        _options.place({"placement_group": 5})
    with pytest.raises(ValueError, match="no bundle 3"):
        _options.place({"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 3)})
    part = PlacementGroup([{"GPU": 1}], held, nodes=[2])
    assert _options.place({"placement_group": part, "num_gpus": 1})["device_mapping"] == [6]


def test_a_group_of_a_session_that_is_over() -> None:
    held = Reservation([], pool=(pool := pool_of(("a", 1))))
    pool._connection = pool_of(alive=False)._connection
    group = PlacementGroup([{"GPU": 1}], held)
    with pytest.raises(muster.ReleasedError, match="session is over"):
        group.wait(1)
    with pytest.raises(compat.exceptions.RaySystemError, match="session is over"):
        ray.get(group.ready())


# --- errors -------------------------------------------------------------------------------


def raised(error: BaseException) -> _errors.MusterError:
    """As an error looks that came from a worker."""
    try:
        raise error
    except BaseException as caught:
        return _errors.from_wire(_errors.to_wire(caught, worker="w", node="n", method="step"))


def is_a(error: Any, *kinds: type) -> bool:
    return all(isinstance(error, kind) for kind in kinds)


def test_an_error_has_both_classes() -> None:
    error: Any = exceptions.translate(raised(Coded(5)), "actor")
    assert type(error.cause) is Coded and error.cause.code == 5 and error.code == 5
    assert is_a(error, Coded, exceptions.RayTaskError, muster.RemoteError)
    assert "code 5" in str(error) and "remote traceback" in str(error)
    assert error.function_name == "step" and error.node == "n" and error.worker == "w"
    again = pickle.loads(pickle.dumps(error))
    assert again.cause.code == 5 and str(again) == str(error) and again.node == "n"
    assert isinstance(again, Coded)


class Odd(Exception):
    """Has names of ours for its own."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.cluster, self.method = 5, None


def test_an_error_tells_of_the_actor_and_its_method() -> None:
    service = _state.service_name("default", "env/1-ü")

    def hosted(error: Exception) -> _errors.MusterError:
        here: dict[str, Any] = {
            "worker": service,
            "cluster": service,
            "node": "n",
            "rank": 0,
            "method": "run",
        }
        return _errors.from_wire(_errors.to_wire(error, **here))

    for cause in (Coded(5), Odd()):
        error: Any = exceptions.translate(hosted(cause), "id", "step")
        assert "raised in actor 'env/1-ü' on n, method step," in str(error)
        assert error.function_name == "step" and error.worker == service
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        passed: Any = exceptions.translate(raised(error), "other", "outer")
        assert passed.function_name == "step" and "method step," in str(passed)
    assert (passed.cluster, passed.method) == (5, None)
    details = {"cluster": service, "method": "run"}
    for native in (
        _errors.CallCancelledError(f"{service}.run was cancelled", **details),
        _errors.WorkerDiedError(f"{service}.run was cancelled", **details),
    ):
        told = exceptions.translate(native, "id", "step")
        assert str(told) == "actor 'env/1-ü'.step was cancelled"
        assert str(pickle.loads(pickle.dumps(told))) == str(told)
    ended = _errors.NotFoundError(f"service {service} is no more: it was shut down")
    told = exceptions.translate(ended, "id", "step")
    assert str(told) == "actor 'env/1-ü' is no more: it was shut down"
    task = _errors.CallCancelledError(
        "task-f.1.run was cancelled", cluster="task-f.1", method="run"
    )
    assert str(exceptions.translate(task, None, "f")) == "task-f.1.f was cancelled"


def test_an_error_that_is_passed_on_keeps_its_cause() -> None:
    first = exceptions.translate(raised(Coded(5)), "a")
    second: Any = exceptions.translate(raised(first), "b")
    assert type(second.cause) is Coded and not hasattr(second.cause, "cause")
    assert isinstance(second, Coded)
    died = exceptions.translate(raised(exceptions.ActorDiedError("x", "gone")), "b")
    assert isinstance(died, exceptions.ActorDiedError)
    assert isinstance(died, exceptions.RayTaskError)


def test_errors_of_other_kinds() -> None:
    kinds: list[tuple[_errors.MusterError, str | None, type]] = [
        (_errors.WorkerDiedError("gone"), "a", exceptions.ActorDiedError),
        (_errors.WorkerDiedError("gone"), None, exceptions.WorkerCrashedError),
        (_errors.NotFoundError("gone"), "a", exceptions.ActorDiedError),
        (_errors.CallCancelledError("stop"), None, exceptions.TaskCancelledError),
        (_errors.EncodingError("no"), "a", TypeError),
        (_errors.StoreFullError("no"), "a", exceptions.ObjectStoreFullError),
        (_errors.DeadlockError("no"), "a", exceptions.RaySystemError),
        (_errors.DeadlineError("late"), "a", exceptions.GetTimeoutError),
    ]
    for error, actor, kind in kinds:
        found = exceptions.translate(error, actor)
        assert isinstance(found, kind) and isinstance(found, exceptions.RayError)
        assert str(error) in str(found)
        assert isinstance(found, type(error)) and exceptions.translate(found, actor) is found
        again = pickle.loads(pickle.dumps(found))
        assert isinstance(again, kind) and isinstance(again, type(error))
        assert str(again) == str(found)
    told = exceptions.translate(raised(exceptions.ConstructionFailed("why")), "a")
    assert isinstance(told, exceptions.ActorDiedError) and told.actor_init_failed
    plain = KeyError("x")
    assert exceptions.translate(plain) is plain


def test_a_class_that_has_no_children() -> None:
    error = exceptions.RayTaskError("f", "text", Sealed("x"))
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert type(one) is exceptions.RayTaskError and isinstance(one.cause, Sealed)
    told = exceptions.translate(raised(Sealed("x")), "a")
    assert is_a(told, exceptions.RayTaskError) and "no children" not in str(told)


# --- the rest -----------------------------------------------------------------------------


def test_what_is_remote() -> None:
    made = ray.remote(num_cpus=2)(Coded)
    assert made.__muster_class__ is Coded and made.__ray_metadata__.modified_class is Coded
    with pytest.raises(TypeError, match="remote already"):
        ray.remote(made)
    with pytest.raises(TypeError, match="inherit"):

        class Child(made):  # type: ignore[valid-type, misc]
            pass

    with pytest.raises(TypeError, match="by name"):
        ray.remote()
    function = ray.remote(square)
    with pytest.raises(TypeError, match=r"square\.remote"):
        function(2)
    assert pickle.loads(pickle.dumps(function)).__muster_class__ is square


def test_nothing_runs_yet() -> None:
    assert not ray.is_initialized()
    assert isinstance(muster.Ref, type) and issubclass(muster.Ref, ray.ObjectRef)
    ray.shutdown()


def test_init_refuses() -> None:
    with pytest.raises(RuntimeError, match="colour"):
        ray.init(colour="red")
    with pytest.raises(ValueError, match="local_mode"):
        ray.init(local_mode=True)
    with pytest.raises(ValueError, match="namespace"):
        ray.init(namespace="")
    with pytest.raises(TypeError, match="text"):
        ray.init(runtime_env={"env_vars": {"A": 1}})
    assert not ray.is_initialized()


def test_install_refuses_beside_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(ImportError, match="imported already"):
        ray.install()


def test_a_timer_over_a_window() -> None:
    timer = _Timer(window_size=2)
    for time, units in ((1.0, 1), (2.0, 6), (4.0, 6)):
        timer.push(time)
        timer.push_units_processed(units)
    assert timer.mean == 3 and timer.mean_units_processed == 6 and timer.mean_throughput == 2
    assert timer.count == 3
