"""Cases for `roll_cases.py`: what the pipelines of rlvr and agentic do with roles and data, step
by step: sampling, rewards, log probabilities, training, weights, checkpoints, requests."""

from __future__ import annotations

import asyncio
import copy
from functools import cache, partial
from http import HTTPStatus
from itertools import chain
from typing import Any

import numpy as np
import torch

from roll_case_flows import (
    Answering,
    CallBacks,
    Environments,
    Generator,
    Laid,
    OwnConfig,
    OwnProto,
    Queue,
    Rewards,
    Router,
    Server,
    Trainer,
    picked,
)
from roll_case_roles import (
    DataProto,
    case,
    pad_dataproto_to_divisor,
    ray,
    reduce_metrics,
    role,
    some,
    told,
    unpad_dataproto,
)
from roll_cases_data import objects


def prompts(rows: int, **meta: Any) -> Any:
    words = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"][:rows]
    columns = {"ids": torch.arange(rows * 2).reshape(rows, 2), "prompt": objects(*words)}
    return DataProto.from_single_dict(columns, meta)


def trainer(name: str, world_size: int = 2) -> Any:
    return some(name, Trainer, world_size=world_size)


@cache
def pair() -> Any:
    """Two ranks for cases that leave them as they are."""
    return role("pair", Trainer, world_size=2)


# --- a step ---------------------------------------------------------------------------------------


@case
def a_step_of_sampling() -> Any:
    """Of five prompts over two dp ranks: padded, generated, unpadded, put beside the prompts."""
    request = prompts(5, generation_config={"num_return_sequences": 2})
    request.batch["prompt_id"] = torch.arange(5)
    ours = request.pop(batch_keys=["ids"])
    ours.meta_info = request.meta_info
    request = request.repeat(repeat_times=2)
    with some("generates", Generator, device_mapping="list(range(0, 4))") as c:
        c.initialize({"tp": 2})
        padded, pad = pad_dataproto_to_divisor(ours, c.dp_size)
        made = unpad_dataproto(c.generate(padded), pad * 2)
    made.union(request)
    made.rename(old_keys="prompt_id", new_keys="origin")
    groups = made.group_by("origin")
    kept = [group for group in groups.values() if len(group) == 2][:3]
    return pad, len(made), sorted(groups), DataProto.concat(kept), DataProto.concat(kept[:1])


@case
def rewards_by_domain() -> Any:
    """Each domain's rows to a role of its own, at once; then in their old order."""
    batch = prompts(5)
    batch.batch["prompt_id"] = torch.arange(5)
    batch.non_tensor_batch["domain"] = objects("math", "code", "math", "math", "code")
    with some("math", Rewards, world_size=2) as math, some("code", Rewards, world_size=1) as code:
        roles = {"math": math, "code": code}
        ray.get(
            [
                ref
                for at, one in enumerate(roles.values())
                for ref in one.initialize({"bonus": at * 100}, blocking=False)
            ]
        )
        asked = {}
        for domain, rows in batch.group_by("domain").items():
            padded, pad = pad_dataproto_to_divisor(rows, roles[domain].dp_size)
            asked[domain] = rows, pad, roles[domain].compute_rewards(padded, blocking=False)
        parts = []
        for rows, pad, refs in asked.values():
            scored = unpad_dataproto(DataProto.materialize_concat(data_refs=refs), pad)
            parts.append(scored.union(rows.select(["prompt_id"], ["domain"], [])))
    whole = DataProto.concat(parts)
    whole.reorder(indices=torch.argsort(whole.batch["prompt_id"]))
    metrics = whole.meta_info.pop("metrics")
    batch.union(whole)
    return batch, metrics


@case
def log_probs_of_rows_that_do_not_divide() -> Any:
    batch = prompts(5, global_step=3)
    refs = pair().compute_log_probs(batch, blocking=False)
    alone = DataProto.materialize_concat(data_refs=refs)
    padded, pad = pad_dataproto_to_divisor(batch, 4)
    again = pair().compute_log_probs(padded)
    metrics = reduce_metrics(alone.meta_info.pop("metrics", {}))
    batch.union(alone)
    return batch, metrics, pad, unpad_dataproto(again, pad)


@case
def a_step_of_training() -> Any:
    """Mini-batches in the workers, shuffled by a seed; their metrics reduced in the script."""
    c = pair()
    refs = c.train_step(prompts(4).repeat(2), blocking=False)
    done = DataProto.materialize_concat(data_refs=refs)
    metrics = done.meta_info.pop("metrics", {})
    return copy.deepcopy(metrics), reduce_metrics(metrics), done


@case
def mini_batches_that_do_not_divide() -> Any:
    c = pair()
    return told(lambda: c.train_step(prompts(6)))


@case
def checkpoints_of_two_roles() -> Any:
    with trainer("second", 1) as b:
        a = pair()
        refs = [one.do_checkpoint(global_step=5, blocking=False) for one in (a, b)]
        done = [DataProto.materialize_concat(data_refs=one, timeout=60) for one in refs]
        both = DataProto.materialize_concat([*chain(*refs)])
        return done, both, a.do_checkpoint(global_step=6, is_last_step=True)


@case
def roles_are_initialized_together() -> Any:
    with trainer("one", 1) as a, trainer("two") as b:
        refs = a.initialize(pipeline_config={"seed": 1}, blocking=False)
        refs.extend(b.initialize(pipeline_config={"seed": 2}, blocking=False))
        return ray.get(refs), a.initialized, b.initialized, len(refs)


@case
def a_role_that_does_not_initialize() -> Any:
    with trainer("fine", 1) as a, trainer("fails") as b:
        refs = [*a.initialize(None, blocking=False), *b.initialize(None, fails=1, blocking=False)]
        return told(lambda: ray.get(refs)), told(lambda: ray.get(refs[1])), b.initialized


@case
def states_are_offloaded_and_loaded() -> Any:
    with trainer("states", 1) as c:
        c.initialize(None)
        found: list[Any] = [
            c.offload_states(include=["other_params"], blocking=True),
            c.load_states(blocking=True),
            ray.get(c.load_states(blocking=False)),
            c.process_weights_after_loading(),
        ]
        return found, c.execute_all_sync("asked")


@case
def metrics_of_strategies() -> Any:
    with trainer("measured") as c:
        c.initialize(None)
        return c.get_metrics(), told(lambda: c.get_metrics(["a", "b"])), c.get_metrics(["a", "b"])


# --- results that are changed and passed on -------------------------------------------------------


@case
def a_result_is_changed_and_passed_on() -> Any:
    c = pair()
    out = c.same(prompts(3, step=1))
    out.meta_info["global_step"] = 3
    meta_alone = c.look(out)[0]
    out.batch["ids"] += 1
    out[:1].batch["ids"][0, 0] = 100
    out.batch["prompt_id"] = torch.arange(3)
    out.non_tensor_batch["uuid"] = objects("x", "y", "z")
    return meta_alone, c.look(out)[1], c.same(out)


@case
def a_result_is_cut_and_passed_on() -> Any:
    """Before and after somebody has looked at it."""
    c = pair()
    fresh = [c.same(prompts(5, step=at)) for at in range(6)]
    fresh[5].reorder(torch.tensor([4, 3, 2, 1, 0]))
    return [
        c.same(fresh[0][1:4]),
        c.same(DataProto.concat([fresh[1], fresh[2][:2]])),
        c.same(fresh[3].select_idxs(np.array([True, False, True, False, True]))),
        [c.look(part)[0][1] for part in fresh[4].chunk(2)],
        c.same(fresh[5]),
    ]


@case
def requests_that_are_copied() -> Any:
    """As many copies as there are sequences, each with settings of its own."""
    c = pair()
    data = c.same(prompts(2, generation_config={"n": 4}))
    copies = [copy.deepcopy(data) for _ in range(2)]
    copies[0].meta_info["generation_config"]["n"] = 1
    copies[1].batch["ids"][0, 0] = 50
    whole = DataProto.concat([*copies, data])
    return whole, [one.meta_info for one in (data, *copies)], [len(one) for one in copies]


@case
def a_result_outlives_its_role() -> Any:
    with trainer("short") as c:
        out, refs = c.same(prompts(3)), c.same(prompts(2), blocking=False)
        ready, _ = ray.wait([ref.obj_ref for ref in refs], num_returns=2)
    return out, len(ready)


@case
def no_rows_are_sent() -> Any:
    c = pair()
    return told(lambda: c.same(prompts(4)[:0])), told(lambda: c.no_rows_on_one(prompts(4)))


@case
def results_that_do_not_fit_together() -> Any:
    def made(what: str) -> Any:
        return pair().by_rank(prompts(4), [what, what]).batch["t"]

    return [told(partial(made, what)) for what in ("width", "name", "type")]


@case
def results_of_which_one_is_meta_alone() -> Any:
    c = pair()
    return [
        (c.but_one(prompts(3), [rank, rank]), c.same(c.but_one(prompts(4), [rank, rank])))
        for rank in (0, 1)
    ]


@case
def tensors_of_every_type() -> Any:
    kinds = (torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.uint8, torch.complex64)
    made = {str(kind): torch.ones(2, 1, dtype=kind) for kind in kinds}
    made |= {
        "deep": torch.zeros(2, 1, 2, 1),
        "none": torch.zeros(2, 0),
        "t": torch.arange(4.0)[::2],
    }
    c = pair()
    out = c.same(DataProto.from_dict(made))
    return {name: (str(one.dtype), one.tolist()) for name, one in out.batch.items()}


@case
def objects_that_hold_tensors() -> Any:
    data = prompts(3)
    data.non_tensor_batch["multi_modal_data"] = picked(3)
    c = pair()
    return c.same(data), c.same(data.select_idxs([2, 2, 0]))


@case
def arrays_beside_no_tensors() -> Any:
    data = prompts(3)
    taken = data.pop(batch_keys=["ids"])
    c = pair()
    out = c.same(data)
    return len(data), len(out), out, len(taken), data.group_by("prompt")["bb"]


@case
def rows_without_columns() -> Any:
    data = prompts(3, k=1)
    data.pop(["ids"], ["prompt"])
    out = pair().same(data)
    return len(data), out, pair().execute_all_sync("apply", len, data), len(out.repeat(2))


@case
def metas_of_every_kind() -> Any:
    data = prompts(2)
    data.meta_info = {
        1: "a",
        (2, 3): {4},
        "types": [torch.bfloat16, torch.device("cpu"), HTTPStatus.OK, slice(1, 2), range(3)],
        "numbers": [np.float32(1.5), 2**80, None, b"x", frozenset([1])],
        "tensors": {"t": torch.ones(1), "a": np.arange(2)},
    }
    return pair().same(data).meta_info


@case
def data_that_is_changed_after_it_was_sent() -> Any:
    """What was sent is what there was, also of rows that take some room."""
    found = []
    for rows in (2, 100_000):
        data = DataProto.from_dict({"ids": torch.zeros(rows, 2)}, meta_info={"k": [1]})
        refs = pair().same(data, blocking=False)
        data.batch["ids"] += 1
        data.meta_info["k"].append(2)
        late = pair().look(data)
        done = DataProto.materialize_concat(refs)
        found.append((done.batch["ids"].sum().item(), done.meta_info, late))
    return found


@case
def tensors_with_gradients() -> Any:
    made = {"ids": torch.ones(2, requires_grad=True), "wide": torch.zeros(1, 2).expand(2, 2)}
    out = pair().same(DataProto.from_dict(made))
    return out.batch["ids"].requires_grad, out


# --- requests and schedulers ----------------------------------------------------------------------


def request(at: int, **meta: Any) -> Any:
    data = prompts(1, request_id=f"r{at}", **meta)
    data.batch["ids"] += at
    return data


@case
def requests_are_held_back_and_let_go() -> Any:
    """While weights are updated, as a router does."""
    with some("serves", Server, world_size=2) as c:
        router = ray.remote(Router).options(max_concurrency=100).remote(c)
        ray.get(router.suspend.remote())
        refs = [router.generate.remote(request(at)) for at in range(4)]
        none, waiting = ray.wait(refs, timeout=0.2)
        held = ray.get(router.resume.remote())
        c.execute_all_sync("answer", 2)
        found = ray.get(refs)
        sizes = ray.get(router.sizes.remote())
        ray.kill(router)
        return none, len(waiting), held, DataProto.concat(found), sizes


@case
def requests_are_aborted() -> Any:
    with some("aborts", Server, world_size=2) as c:
        refs = [c.workers[at % 2].generate_request.remote(request(at)) for at in range(4)]
        c.execute_all_sync("arrived", 2)
        some_of_them = c.abort_requests(["r1", "nobody"])
        router = ray.remote(Router).remote(c)
        rest = sorted(chain(*ray.get(router.abort.remote())))
        ray.kill(router)
        return some_of_them, rest, [one.meta_info["finish"] for one in ray.get(refs)]


@case
def rollouts_fill_a_queue_until_they_are_stopped() -> Any:
    """Environments play in threads of their workers, and put what came of it into an actor."""
    queue = ray.remote(Queue).options(name="queue", max_concurrency=1000).remote(6)
    with some("envs", Environments, world_size=2, max_concurrency=8) as c:
        loops = c.run_rollout_loop(queue, seed=1, blocking=False)
        batch = ray.get(queue.get_batch.remote(), timeout=120)
        c.stop()
        ended = ray.get(loops, timeout=120)
    ray.kill(queue)
    return len(batch), set(batch["env"]) <= {"0.0", "0.1", "1.0", "1.1"}, ended


@case
def answers_by_a_function_in_the_meta() -> Any:
    back = ray.remote(CallBacks).options(name="back", max_concurrency=16).remote()
    with some("answers", Answering, world_size=2) as c:
        for at in range(4):
            meta = {"response_callback_fn": back.report_response.remote}
            c.workers[at % 2].add_request.remote(command="ADD", data=request(at, **meta))
        found = ray.get(back.collect.remote(4), timeout=60)
    ray.kill(back)
    return found


@case
def schedulers_by_name() -> Any:
    """Made once however often asked for, gone when killed, and then made anew."""
    with some("routed", Server, world_size=1) as c, some("other", Server, world_size=2) as other:
        options = {"name": "RewardScheduler-x", "namespace": "roll", "get_if_exists": True}
        made = [ray.remote(Router).options(**options).remote(one) for one in (c, other)]
        sizes = ray.get([one.sizes.remote() for one in made])
        same = made[0] == ray.get_actor("RewardScheduler-x", namespace="roll")
        del options["get_if_exists"]
        taken = told(lambda: ray.remote(Router).options(**options).remote(c))
        ray.kill(made[0])
        gone = told(lambda: ray.get_actor("RewardScheduler-x", namespace="roll"))
        after = told(lambda: ray.get(made[1].sizes.remote()))
        again = ray.remote(Router).options(**options).remote(other)
        found = ray.get(again.sizes.remote()), ray.get(again.name.remote())
        ray.kill(again)
        return sizes, same, taken, gone, after, found


@case
def functions_and_classes_of_the_script() -> Any:
    """Filters and collators that pipelines hand to their schedulers and workers."""
    limit = 2

    class Collate:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, rows: list[int]) -> list[int]:
            return rows[: self.size]

    c = pair()
    apply = partial(c.execute_rank_zero_sync, "apply")
    return [
        apply(lambda rows: [row for row in rows if row > limit], [1, 2, 3]),
        apply(Collate(2), [1, 2, 3]),
        apply(lambda kind: kind(1)([5, 6]), Collate),
        apply(partial(max, 3), 2),
    ]


@case
def a_script_awaits_several_roles() -> Any:
    async def run() -> Any:
        with trainer("right", 1) as b:
            a, batch = pair(), prompts(4, global_step=1)
            probs = a.compute_log_probs(batch, blocking=False)
            steps = b.train_step(batch, blocking=False)
            done = await asyncio.gather(*[ref.obj_ref for ref in (*probs, *steps)])
            values = DataProto.concat(done[:2])
            blocking = a.compute_log_probs(batch)
            return values, len(done), blocking.batch["log_probs"].equal(values.batch["log_probs"])

    return asyncio.run(run())


@case
def a_batch_with_a_limit() -> Any:
    """`ray.get(ref, timeout=rpc_timeout)`: the call goes on, and its value comes later."""
    with some("waits", Server, world_size=1) as c:
        ref = c.workers[0].generate_request.remote(request(0))
        late = told(lambda: ray.get(ref, timeout=0.2))
        c.execute_all_sync("answer", 1)
        return late, ray.get(ref, timeout=60)


@case
def roles_on_the_same_devices() -> Any:
    """As train and infer share them; each worker sees its own."""
    with some("shares", Trainer, device_mapping=[0, 1, 2, 3]) as a:
        b = role("with", Trainer, device_mapping=[0, 1, 2, 3], num_gpus_per_worker=2)
        with some("again", Trainer, device_mapping=[1]) as c:
            found = [one.execute_all_sync("get_visible_gpus") for one in (a, b, c)]
            names = sorted(
                name
                for name in ray.util.list_named_actors()
                if name.startswith(("shares", "with", "again"))
            )
        for worker in b.workers:
            ray.kill(worker)
        return found, names, told(lambda: ray.get(b.workers[0].weight.remote()))


# --- layouts, configurations and names ------------------------------------------------------------


@case
def stages_and_sequences() -> Any:
    """Where results count, and who gets rows: the last stage's, and the first rank's."""
    found = []
    for name, sizes in (("staged", {"pp": 2}), ("split", {"cp": 2, "tp": 2})):
        with some(name, Laid, world_size=4) as c:
            c.initialize(**sizes)
            refs = c.first(prompts(4), blocking=False)
            found.append(
                (
                    (c.dp_size, c.tp_size, c.pp_size, c.cp_size),
                    c.all([1, 2]),
                    c.first(prompts(4)),
                    [ref.collected for ref in refs],
                    ray.get([ref.obj_ref for ref in refs]),
                    c.first_of_all(prompts(3)),
                )
            )
    return found


@case
def a_config_of_ones_own() -> Any:
    """Fields of a subclass, and what was set on it later, are there in the workers."""
    config = OwnConfig(name="own", world_size=2, loss="ppo", system_envs={"A": "1"})
    config.generating_args = {"temperature": 0.5}
    config.checkpoint_config = {"type": "file"}
    with some("own", Laid, config=config) as c:
        found = c.execute_all_sync("configured")
        return found, type(c.worker_config).__name__, c.worker_config is config


@case
def roles_without_a_size() -> Any:
    return told(lambda: role("sizeless", Trainer).world_size), told(
        lambda: role("none", Trainer, device_mapping=[]).world_size
    )


@case
def a_device_that_is_named_twice() -> Any:
    with some("twice", Laid, device_mapping=[0, 0]) as c:
        return c.execute_all_sync("configured"), c.rank2devices


@case
def names_of_every_kind() -> Any:
    def made(name: str) -> Any:
        with some(name, Laid, world_size=1) as c:
            by_name = ray.get_actor(f"{name}-0", namespace="roll") == c.workers[0]
            return c.cluster_name, c.execute_all_sync("named"), by_name

    return [told(partial(made, name)) for name in ("reward-math_rule.v2", "x-1", "a/b", "a b", "é")]


@case
def data_by_lists() -> Any:
    """One DataProto for each rank, lists of them as rows, and inside values that come back."""
    c, several = pair(), [prompts(1, at=at) for at in range(2)]
    return [
        c.execute_all_sync("apply", len, [*several, several[0]]),
        c.execute_all_sync("apply", [len, len], several),
        c.lists(several),
        c.each(several),
    ]


@case
def refs_inside_a_meta() -> Any:
    data = prompts(2, ref=ray.put(5), nested=[{"ref": ray.put(prompts(1))}])
    out = pair().open_meta(data)
    return out, ray.get(data.meta_info["ref"])


@case
def a_batch_that_is_taken_away() -> Any:
    d = prompts(2)
    return told(lambda: setattr(d, "batch", None)), told(lambda: DataProto(batch={"x": 1}))


@case
def data_of_ones_own_class() -> Any:
    own = OwnProto.from_dict({"ids": torch.ones(2)}, meta_info={"k": 1})
    out = pair().kind_of(own)
    return out, type(own[:1]).__name__, type(own.clone()).__name__, type(own[[0]]).__name__
