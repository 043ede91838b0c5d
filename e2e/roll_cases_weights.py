"""Cases for `roll_cases.py`: weights that go from role to role, and what strategies are asked
around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roll_case_flows import Trainer
from roll_case_roles import case, ray, some, told

if TYPE_CHECKING:
    from muster.compat.roll import Dispatch, Worker, register
else:
    from roll_case_roles import Dispatch, Worker, register

TOTAL = "time/train/model_update/total"


@case
def weights_go_from_role_to_role() -> Any:
    """Train workers hold the cluster that infers, and call its workers by their devices."""
    with some("train", Trainer, device_mapping=[0, 1]) as train:
        with some("infer", Trainer, device_mapping=[0, 1, 2, 4]) as infer:
            ray.get([*train.initialize(None, blocking=False), *infer.initialize(0, blocking=False)])
            ends = {"infer_cluster": infer, "model_update_name": "train_2_infer"}
            ray.get([worker.setup_model_update.remote(**ends) for worker in train.workers])
            name = {"model_update_name": "train_2_infer"}
            done = ray.get([worker.start_model_update.remote(**name) for worker in train.workers])
            for one in done:
                metrics = one.meta_info["metrics"]
                metrics[TOTAL] = metrics[TOTAL] > 0
            wrong = told(lambda: ray.get(train.workers[0].start_model_update.remote("nobody")))
            return done, infer.execute_all_sync("weight"), wrong


# --- states --------------------------------------------------------------------------------------


class Plain:
    """A strategy that has no states to load."""

    offload_nccl = False

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def model_update(self, model_update_name: str) -> dict[str, float]:
        self.asked.append("update")
        if model_update_name == "nobody":
            raise KeyError(model_update_name)
        return {}


class Loading(Plain):
    """Writes down which states it is to load and to offload."""

    def __init__(self, load_kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.load_kwargs = load_kwargs

    def get_model_update_load_kwargs(self) -> dict[str, Any]:
        return self.load_kwargs

    def load_states(self, *args: Any, **kwargs: Any) -> None:
        self.asked.append(("load", args, _sorted(kwargs)))

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        self.asked.append(("offload", args, _sorted(kwargs)))


def _sorted(kwargs: dict[str, Any]) -> dict[str, Any]:
    """By their values: ROLL's are members of an enumeration, in the order of a set."""
    return {
        name: sorted(getattr(one, "value", one) for one in value) if name == "include" else value
        for name, value in kwargs.items()
    }


class Stated(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, load_kwargs: dict[str, Any] | None) -> None:
        self.strategy = Plain() if load_kwargs is None else Loading(load_kwargs)

    def updated(self, name: str) -> Any:
        done = told(lambda: sorted(self.start_model_update(name).meta_info["metrics"]))
        return done, self.strategy.asked


@case
def states_around_an_update() -> Any:
    found = []
    with some("stated", Stated, world_size=1) as c:
        for load_kwargs in ({"include": ["model_params"], "non_blocking": True}, {}):
            for name in ("there", "nobody"):
                c.initialize(load_kwargs)
                found.append(c.execute_rank_zero_sync("updated", name))
    return found


@case
def an_update_without_states() -> Any:
    with some("stateless", Stated, world_size=1) as c:
        c.initialize(None)
        return c.execute_rank_zero_sync("updated", "there")
