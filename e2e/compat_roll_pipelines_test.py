"""DataProtos between roles, and the shapes of ROLL's pipelines: schedulers, weight updates."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import muster  # noqa: E402
from muster.compat import ray  # noqa: E402
from muster.compat.roll import (  # noqa: E402
    Cluster,
    DataProto,
    ResourceManager,
    WorkerConfig,
    custom_np_concatenate,
)
from roll_roles import Data, Echo  # noqa: E402
from roll_schedulers import (  # noqa: E402
    CallBacks,
    ModelUpdateGroup,
    Requests,
    Scheduler,
    Trainer,
)
from running import output_of, run, session  # noqa: E402


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("1x8"):
        made = ResourceManager(4, 1)
        yield made
        made.destroy_placement_group()


def role(rm: ResourceManager, name: str, cls: Any, **config: Any) -> Any:
    return Cluster(name, cls, rm, WorkerConfig(name=name, **config))


@pytest.fixture(scope="module")
def data(rm: ResourceManager) -> Any:
    """dp 2 x tp 2."""
    preload = ("torch", "tensordict")
    return role(rm, "data", Data, device_mapping="list(range(0,4))", preload=preload)


def rows(n: int, width: int = 1, **meta: Any) -> DataProto:
    x = torch.arange(float(n * width)).reshape(n, width)
    return DataProto.from_dict({"x": x}, {"name": [f"row {at}" for at in range(n)]}, meta)


# --- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5, 8])
def test_rows_are_cut_and_put_together(data: Any, n: int) -> None:
    given = rows(n, step=3)
    out = data.double(given)
    assert isinstance(out, DataProto) and len(out) == n
    assert torch.equal(out.batch["y"], given.batch["x"] * 2)
    assert list(out.non_tensor_batch["name"]) == [f"row {at}" for at in range(n)]
    sizes = [n - n // 2, n // 2]
    assert out.meta_info == {"step": 3, "metrics": {"rows": sizes, "same": [0.5, 0.5]}}
    assert given.meta_info == {"step": 3}  # nothing was added to it


def test_what_came_goes_on_by_reference(data: Any) -> None:
    """As a script does that only passes on: no row is read here."""
    out = data.same(rows(6, step=1))
    assert out._frozen is not None
    again = data.double(DataProto.concat([data.same(out)]))
    assert again.meta_info["step"] == 1 and len(again) == 6


def test_refs_as_arguments(data: Any) -> None:
    ref = data.workers[0].same.remote(rows(4))
    assert data.total(ref) == [6.0] * 4
    wrapped = data.double(rows(4), blocking=False)
    assert [one.collected for one in wrapped] == [True, False, True, False]
    found = DataProto.materialize_concat(wrapped)
    assert found.batch["y"].flatten().tolist() == [0, 2, 4, 6]


def test_zero_copies(data: Any) -> None:
    assert data.where(rows(64, 4096)) == [True, True]  # in shared memory, in each worker


def test_writing_stays_local(data: Any) -> None:
    given = rows(4)
    assert ray.get([w.write.remote(given) for w in data.workers]) == [1.0] * 4
    assert given.batch["x"][0] == 0


def test_first_ranks_get_the_rows(data: Any) -> None:
    assert data.first(rows(5, step=1)) == [
        (0, 3, {"step": 1}),
        (1, None, {"step": 1}),
        (2, 2, {"step": 1}),
        (3, None, {"step": 1}),
    ]


def test_meta_alone(data: Any) -> None:
    out = data.metrics_only(DataProto(meta_info={"step": 4}))
    assert len(out) == 0 and out.batch is None
    assert out.meta_info == {"metrics": {"loss": [1.0, 1.0], "seen": [4, 4]}}


def test_arguments_of_different_lengths(data: Any) -> None:
    assert data.two(rows(6), ["a", "b"]) == [(0, 3, ["a"]), (2, 3, ["b"])]
    assert data.two(data=rows(4), names=list("abcd")) == [(0, 2, ["a", "b"]), (2, 2, ["c", "d"])]


def test_what_is_refused(data: Any) -> None:
    with pytest.raises(AssertionError, match="a DataProto of 1 rows, fewer than dp_size 2"):
        data.double(rows(1))
    with pytest.raises(AssertionError, match="does not divide by dp_size 2"):
        data.two(rows(4), ["a", "b", "c"])


def test_inside_other_values(data: Any) -> None:
    found = ray.get(data.workers[1].inside.remote({"data": rows(3)}))
    assert found["len"] == 3 and found["back"].non_tensor_batch["name"][0] == "row 0"


def test_objects_of_every_kind(data: Any) -> None:
    mixed = custom_np_concatenate([[{"a": 1}, None, "text", np.arange(3), (1, 2), 2.5]])
    given = DataProto.from_dict({"x": torch.ones(6)}, {"any": mixed}, {"fn": len, "t": (1,)})
    out = data.same(given)
    back = out.non_tensor_batch["any"]
    assert back[0] == {"a": 1} and back[1] is None and back[3].tolist() == [0, 1, 2]
    assert back[4] == (1, 2) and out.meta_info["fn"] is len and out.meta_info["t"] == (1,)


# --- pipelines -----------------------------------------------------------------------------------


def test_a_named_scheduler_that_calls_clusters(data: Any) -> None:
    """ROLL's DynamicSamplingScheduler: requests to workers, answers by a call back."""
    actor: Any = ray.remote(Scheduler)
    scheduler = actor.options(
        name="GenerateScheduler", namespace="roll", get_if_exists=True, max_concurrency=16
    ).remote(batch_size=6)
    ray.get(scheduler.set_scheduler.remote(actor_cluster=data, filter_even=True))
    out = ray.get(scheduler.get_batch.remote(DataProto(meta_info={"num_return_sequences": 2})))
    assert isinstance(out, DataProto) and len(out) == 12
    assert sorted(set(out.batch["prompt_id"].tolist())) == [1, 3, 5, 7, 9, 11]
    assert out.meta_info["metrics"]["scheduler/filtered"] >= 5
    same = ray.get_actor("GenerateScheduler", namespace="roll")
    assert ray.get(same.calls.remote()) == 1
    ray.kill(scheduler)


def test_a_scheduler_that_is_called_back(rm: ResourceManager) -> None:
    """A method of the scheduler goes along in the requests' meta, and workers call it."""
    infer = role(rm, "called", Requests, world_size=2, preload=("torch", "tensordict"))
    scheduler = ray.remote(CallBacks).options(name="back", max_concurrency=8).remote()
    out = ray.get(scheduler.get_batch.remote(infer, 6, scheduler.report_response.remote))
    assert out.batch["y"].tolist() == [0, 2, 4, 6, 8, 10]
    ray.kill(scheduler)
    infer.shutdown()


def test_weights_from_train_to_infer(rm: ResourceManager) -> None:
    """ROLL's ModelUpdateGroup: train workers hold the infer cluster and call its workers."""
    train = role(rm, "train", Trainer, device_mapping="[0, 1]")
    infer = role(rm, "infer", Trainer, device_mapping="[0, 1, 2, 3]")
    train.initialize(None)
    infer.initialize(None)
    group = ModelUpdateGroup(train, infer, frequency=2)
    assert group.model_update(step=1) == {}
    train.execute_all_sync("learn", 5.0)
    metrics = group.model_update(step=2)
    assert metrics.pop("time/train/model_update/total") > 0  # seconds
    assert metrics == {"time/train/model_update/buckets": 2.0}
    assert infer.execute_all_sync("weight") == [5.0] * 4
    train.shutdown()
    infer.shutdown()


def test_giving_a_pool_back_ends_its_workers(rm: ResourceManager) -> None:
    other = ResourceManager(2, 1)
    c: Any = Cluster("short", Echo, other, WorkerConfig(device_mapping="0-1"))
    assert len(c.one_to_all()) == 2
    other.destroy_placement_group()
    with pytest.raises(muster.MusterError):
        c.one_to_all()
    ResourceManager(4, 1).destroy_placement_group()  # all that is left is there again


# --- the page ------------------------------------------------------------------------------------


def test_the_pipeline_of_the_page(repository: Path) -> None:
    script = repository / "examples" / "roll" / "pipeline.py"
    printed = output_of(run(sys.executable, script, virtual="1x4", timeout=110, PYTHONPATH=_path()))
    assert _steps(printed) == STEPS


STEPS = [f"{step} {{'actor/loss': {11.0 + 2 * step}, 'actor/rows_sum': 6.0}}" for step in range(3)]


def _steps(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "actor/loss" in line]


def _path() -> str:
    return str(Path(muster.__file__).resolve().parent.parent)


def test_the_pages_diff_is_of_that_pipeline(repository: Path) -> None:
    """What is added is in the example; nothing but imports changes."""
    taken, added = _diff(repository)
    script = (repository / "examples" / "roll" / "pipeline.py").read_text()
    assert added and "\n".join(added) in script
    assert all("import" in line for line in taken)


def _diff(repository: Path) -> tuple[list[str], list[str]]:
    """What the page takes out of a pipeline, and what it puts there."""
    page = (repository / "docs" / "migrating-from-roll.md").read_text()
    found = re.search(r"^```text\n(--- .*?)^```$", page, re.M | re.S)
    assert found is not None
    _, _, *changed = found[1].splitlines()
    taken, added = ([line[1:] for line in changed if line.startswith(sign)] for sign in "-+")
    return taken, added


@pytest.mark.timeout(280)
@pytest.mark.skipif(
    find_spec("roll") is None or find_spec("ray") is None,
    reason="needs roll: ROLL and Ray are not both installed",
)
def test_the_pipeline_before_its_imports_were_changed(repository: Path, tmp_path: Path) -> None:
    taken, added = _diff(repository)
    script = (repository / "examples" / "roll" / "pipeline.py").read_text()
    script = script.replace("\n".join(added), "\n".join(taken))
    script = script.replace("log_to_driver=True", "log_to_driver=True, num_gpus=4")  # made up
    (tmp_path / "before.py").write_text(script)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:  # for sockets' sake
        done = run(
            sys.executable,
            "before.py",
            cwd=tmp_path,
            virtual=None,
            timeout=250,
            RAY_TMPDIR=short,
            RAY_AUTH_MODE="disabled",  # or it writes a token into the user's home
            PYTHONPATH=":".join(sys.path),
        )
    assert _steps(done.stdout) == STEPS, done.stdout[-4000:] + done.stderr[-2000:]
