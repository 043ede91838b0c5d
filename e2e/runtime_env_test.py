"""Ray's runtime_env where nodes are this machine's: what Muster does itself, and what needs Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import Cluster, WorkerConfig
from roles import Probe
from running import session


@pytest.fixture(scope="module", autouse=True)
def head() -> Iterator[None]:
    with session("1x2"):
        yield


def start(**config: Any) -> Cluster:
    return Cluster("env", Probe, worker_config=WorkerConfig(world_size=1, **config))


def module(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"value = {value}\n")
    return path


def test_variables_folders_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE_OF_IT", "base")
    module(tmp_path / "work" / "in_work.py", 1)
    package = module(tmp_path / "lib" / "pkg_of_env" / "__init__.py", 2).parent
    single = module(tmp_path / "lib" / "single_of_env.py", 3)
    monkeypatch.chdir(tmp_path)
    env = {
        "env_vars": {"ADDED": "1", "JOINED": "${BASE_OF_IT}:more"},
        "working_dir": "work",  # from where the script is
        "py_modules": [package, str(single)],
    }
    with start(runtime_env=env, env={"OWN": "2"}) as c:
        assert c.execute_all_sync("environment", "ADDED", "JOINED", "OWN") == [
            {"ADDED": "1", "JOINED": "base:more", "OWN": "2"}
        ]
        assert c.execute_all_sync("folder") == [str(tmp_path / "work")]
        found = [
            c.execute_all_sync("value", name) for name in ("in_work", "pkg_of_env", "single_of_env")
        ]
        assert found == [[1], [2], [3]]


def test_a_module_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module(tmp_path / "given_itself" / "__init__.py", 7)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = importlib.import_module("given_itself")
    monkeypatch.undo()
    config = {"world_size": 1, "runtime_env": {"py_modules": [given]}}
    with Cluster("env", Probe, worker_config=config) as c:
        assert c.execute_all_sync("value", "given_itself") == [7]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"pip": ["six"]}, "has pip, which Ray sets up, .*MUSTER_BACKEND=ray"),
        ({"conda": "env.yaml", "env_vars": {}}, "has conda, which Ray sets up"),
        ({"working_dir": "s3://bucket/code.zip"}, "has working_dir, which Ray sets up"),
        ({"container": {"image": "x"}}, "container.* cannot be had by workers"),
        ({"worker_process_setup_hook": "m.f"}, "preload"),
        ({"env_var": {}}, 'did you mean "env_vars"'),
        ({"colour": 1}, 'no "colour"; it has env_vars, working_dir, py_modules, pip'),
        ({"env_vars": {"RANK": "1"}}, "RANK"),
        ({"env_vars": {"OWN": "2"}}, "give one of them"),
        ({"working_dir": "/no/such/folder"}, "/no/such/folder.*not there"),
        ({"py_modules": ["no_such_module"]}, "no_such_module.*not there"),
        ({"pip": object()}, "not made of text"),
        (["env_vars"], "it is a dict"),
    ],
)
def test_what_cannot_be(env: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        start(runtime_env=env, env={"OWN": "1"})


def test_two_folders_to_work_in(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        start(runtime_env={"working_dir": str(tmp_path)}, working_dir="/")


def test_a_plan_says_what_a_start_would() -> None:
    with muster.ResourceManager(1, 1) as rm:
        with pytest.raises(ValueError, match="did you mean"):
            rm.plan(c=WorkerConfig(world_size=1, runtime_env={"env_var": {}}))
