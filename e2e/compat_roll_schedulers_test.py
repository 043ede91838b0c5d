"""ROLL's DynamicSamplingScheduler and ModelUpdateGroup, as it has them, with stub strategies: an
async scheduler with a name, and weights that go from train to infer workers over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import muster  # noqa: E402
from muster.compat import ray  # noqa: E402
from muster.compat.roll import Cluster, DataProto, ResourceManager, WorkerConfig  # noqa: E402
from roll_sampling import Engine, Rewards, named_scheduler  # noqa: E402
from roll_schedulers import ModelUpdateGroup  # noqa: E402
from roll_weights import InferWorker, TrainWorker  # noqa: E402
from running import session  # noqa: E402


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("1x4"):
        made = ResourceManager(4, 1)
        yield made
        made.destroy_placement_group()


def role(rm: ResourceManager, name: str, cls: Any, **config: Any) -> Any:
    return Cluster(name, cls, rm, WorkerConfig(name=name, **config))


# --- sampling ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines(rm: ResourceManager) -> Iterator[Any]:
    made = role(rm, "actor_infer", Engine, device_mapping="[0, 1]")
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def rewards(rm: ResourceManager) -> Iterator[Any]:
    made = role(rm, "reward", Rewards, world_size=2)
    yield made
    made.shutdown()


def scheduler_of(engines: Any, rewards: Any, **config: Any) -> Any:
    given = {"max_running_requests": 3, "async_generation_ratio": 0, "filter": [], "long": []}
    made = named_scheduler(given | config)
    ray.get(made.set_scheduler.remote(engines, {"default": rewards}))
    return made


def batch_of(scheduler: Any, step: int, size: int) -> Any:
    data = DataProto(meta_info={"generation_config": {"num_return_sequences": 1}, "step": step})
    return ray.get(scheduler.get_batch.remote(data, global_step=step, batch_size=size))


def end(scheduler: Any) -> None:
    ray.get(scheduler.shutdown.remote())
    ray.kill(scheduler)


def test_prompts_are_generated_rewarded_and_filtered(engines: Any, rewards: Any) -> None:
    scheduler = scheduler_of(engines, rewards, filter=[1, 4])
    out = batch_of(scheduler, 0, 6)
    assert isinstance(out, DataProto) and len(out) == 6
    ids = out.batch["prompt_id"].tolist()
    assert sorted(ids) == [0, 2, 3, 5, 6, 7]
    assert out.batch["scores"].tolist() == [float(prompt * 10) for prompt in ids]
    assert out.batch["response"][:, 0].tolist() == ids
    assert set(out.batch["response"][:, 1].tolist()) == {0, 1}  # both engines had some
    assert set(out.non_tensor_batch["by"]) == {"reward-0", "reward-1"}
    assert out.meta_info["metrics"]["scheduler/filtered"] == 2 and out.meta_info["step"] == 0
    same = ray.get_actor("DynamicSamplingScheduler-default", namespace="roll")
    assert len(batch_of(same, 1, 2)) == 2
    end(scheduler)


def test_what_was_aborted_goes_on_where_it_was(engines: Any, rewards: Any) -> None:
    """Async generation: prompts of one step run on while weights change, and end in a later one."""
    scheduler = scheduler_of(engines, rewards, async_generation_ratio=1, long=[1, 2])
    first = batch_of(scheduler, 0, 2)
    assert not {1, 2} & set(first.batch["prompt_id"].tolist())
    assert ray.get(scheduler.running_requests.remote(at_least=2)) == 2
    ray.get(scheduler.pause_sampling.remote())
    assert ray.get(scheduler.running_requests.remote(at_least=0)) == 0
    second = batch_of(scheduler, 1, 4)
    assert {1, 2} <= set(second.batch["prompt_id"].tolist())
    of_one = second.batch["prompt_id"].tolist().index(1)
    assert second.batch["response"][of_one].tolist()[:2] == [1, -1]  # what it had by then
    assert second.non_tensor_batch["began"][of_one] == 0
    assert second.meta_info["metrics"]["scheduler/aborted"] == 2
    end(scheduler)


def test_workers_come_and_go(engines: Any, rewards: Any) -> None:
    scheduler = scheduler_of(engines, rewards, async_generation_ratio=3, long=[0, 1])
    batch_of(scheduler, 0, 2)
    assert ray.get(scheduler.running_requests.remote(at_least=2)) == 2
    assert ray.get(scheduler.shrink_workers.remote([1])) >= 1
    assert engines.load_states_partial([]) == [True, False]
    ray.get(scheduler.pause_sampling.remote())
    more = batch_of(scheduler, 1, 6)
    assert more.meta_info["metrics"]["scheduler/aborted"] == 2
    response = dict(
        zip(more.batch["prompt_id"].tolist(), more.batch["response"].tolist(), strict=True)
    )
    assert response[0] == [0, -1, 0] and response[1] == [1, -1, 0]  # the one that was left
    ray.get(scheduler.expand_workers.remote([1]))
    assert engines.load_states_partial([]) == [True, True]
    end(scheduler)


def test_what_a_task_raises_reaches_who_waits(engines: Any, rewards: Any) -> None:
    scheduler = scheduler_of(engines, rewards)
    with pytest.raises(TypeError, match="not iterable"):
        ray.get(scheduler.shrink_workers.remote(5))
    with pytest.raises(muster.RemoteError):
        ray.get(engines.workers[0].generate_request.remote({}))
    assert len(batch_of(scheduler, 0, 2)) == 2
    end(scheduler)


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "infer", "each", "calls"),
    [
        ("[0, 1]", "[2, 3]", 1, [4.0, 0.0]),  # apart: rank 0 broadcasts to both
        ("[0, 1, 2, 3]", "[0, 1, 2, 3]", 2, [2.0, 0.0, 2.0, 0.0]),  # two ranks for each engine
        ("[0, 1]", "[0, 1, 2, 3]", 1, [6.0, 2.0]),  # half of both
    ],
    ids=["separated", "colocated", "overlapping"],
)
def test_weights_over_gloo(
    rm: ResourceManager, train: str, infer: str, each: int, calls: list[float]
) -> None:
    trainers = role(rm, "actor_train", TrainWorker, device_mapping=train)
    inferers = role(rm, "actor_infer2", InferWorker, device_mapping=infer, num_gpus_per_worker=each)
    try:
        ray.get(trainers.initialize("config", blocking=False))
        ray.get(inferers.initialize("config", blocking=False))
        group = ModelUpdateGroup(trainers, inferers)
        total = 0.0
        for step in range(2):
            total += trainers.train_step(float(step + 1))[0]
            metrics = group.model_update(step)
            mean = sum(calls) / len(calls)
            assert metrics.pop("time/actor_train/model_update/total") > 0  # seconds
            assert metrics == {"time/actor_train/model_update/calls": mean}
            seen = inferers.seen()
            assert [(one["w"], one["b"]) for one in seen] == [([total] * 3, [total])] * len(seen)
        assert {one["of"] for one in inferers.seen()} <= {0, each}
    finally:
        trainers.shutdown()
        inferers.shutdown()
