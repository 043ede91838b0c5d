"""Cases for `roll_cases.py`: modes, arguments and results of calls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import torch

from roll_case_roles import (
    DataProto,
    case,
    dispatch_one_to_all,
    laid,
    named,
    ray,
    three,
    told,
)
from roll_cases_data import data

register: Any = named("register")


# --- modes ---------------------------------------------------------------------------------------


@case
def one_to_all() -> Any:
    c = three()
    return c.one_to_all([1, 2, 3], k=(4,)), c.one_to_all(), c.one_to_all_one("x", k=1)


@case
def all_to_all() -> Any:
    return three().all_to_all([1, 2, 3], k=["a", "b", "c"]), three().all_to_all()


@case
def all_to_all_of_tuples() -> Any:
    return three().all_to_all((1, 2, 3))


@case
def all_to_all_that_is_refused() -> Any:
    wrong: list[Any] = [[1, 2], 3, {"a": 1}, "abc", None]
    return [told(partial(three().all_to_all, one)) for one in wrong]


@case
def rows() -> Any:
    c = laid()
    return c.dp_mp([1, 2, 3, 4], k=["a", "b"]), c.dp_mp([1, 2]), c.dp_mp()


@case
def rows_to_the_first() -> Any:
    return laid().dispatch_first([1, 2], k=[3, 4]), laid().first_collect_all([1, 2])


@case
def rows_that_are_refused() -> Any:
    wrong: list[Any] = [[1, 2, 3], [1], [], (1, 2), 7, "ab", None, {"a": 1}]
    return [told(partial(laid().dp_mp, one)) for one in wrong]


@case
def tensors_as_rows() -> Any:
    return laid().dp_mp(torch.arange(4))


@case
def too_few_tensors_as_rows() -> Any:
    return told(lambda: laid().dp_mp(torch.arange(1)))


@case
def results_of_other_kinds() -> Any:
    kinds = ("int", "none", "tuple", "dict", "tensor", "list")
    return [told(partial(laid().dp_mp_gives, [kind, kind])) for kind in kinds]


@case
def on_rank_zero() -> Any:
    return told(lambda: three().on_rank_zero("x"))


@case
def modes_of_ones_own() -> Any:
    c = three()
    return (
        c.custom("ab"),
        c.custom(x=[1]),
        c.custom_as_given(7),
        c.custom_as_given([1, 2, 3]),
        laid().custom_of_theirs([1, 2]),
    )


@case
def modes_that_are_refused() -> Any:
    return [
        told(lambda: register(dispatch_mode="ONE_TO_ALL")),
        told(lambda: register(dispatch_mode={"dispatch_fn": dispatch_one_to_all})),
        told(lambda: register(execute_mode="ALL")),
        told(lambda: register(dispatch_mode=None)),
    ]


@case
def without_blocking() -> Any:
    c = laid()
    made = [
        c.one_to_all(1, blocking=False),
        c.all_to_all([1, 2, 3, 4], blocking=False),
        c.one_to_all_one(1, blocking=False),
        c.dp_mp([1, 2], blocking=False),
        c.dispatch_first([1, 2], blocking=False),
        c.first_collect_all([1, 2], blocking=False),
    ]
    got = [ray.get([getattr(ref, "obj_ref", ref) for ref in refs]) for refs in made]
    return made, got


@case
def without_blocking_awaited() -> Any:
    async def run() -> Any:
        blocking = laid().one_to_all_one(5)
        bare = await asyncio.gather(*laid().one_to_all(1, blocking=False))
        wrapped = laid().dp_mp([1, 2], blocking=False)
        return blocking, bare, await asyncio.gather(*[ref.obj_ref for ref in wrapped])

    return asyncio.run(run())


@case
def wrapped_refs_awaited() -> Any:
    async def run() -> Any:
        return await laid().dp_mp([1, 2], blocking=False)[0]

    return told(lambda: asyncio.run(run()))


@case
def futures_of_refs() -> Any:
    async def run() -> Any:
        refs = laid().one_to_all(1, blocking=False)
        return await asyncio.gather(*[asyncio.wrap_future(ref.future()) for ref in refs])

    return asyncio.run(run())


@case
def waited_for() -> Any:
    refs = three().one_to_all(1, blocking=False)
    ready, left = ray.wait(refs, num_returns=3, timeout=60)
    return len(ready), left, set(ready) == set(refs)


@case
def put_together_from_refs() -> Any:
    return DataProto.materialize_concat(laid().double(data(4, step=2), blocking=False))


@case
def put_together_from_bare_refs() -> Any:
    refs = [worker.double.remote(data(2, step=1)) for worker in three().workers[:2]]
    return DataProto.materialize_concat(refs, global_keys={"rank"})


# --- execute_* -----------------------------------------------------------------------------------


@case
def execute_all() -> Any:
    c = three()
    return [
        c.execute_all_sync("plain"),
        c.execute_all_sync("plain", [1, 2, 3], k=[4, 5, 6]),
        c.execute_all_sync("plain", [1, 2, 3], k=1)[2],
        c.execute_all_sync("plain", [1, 2])[0],
        c.execute_all_sync("plain", (1, 2, 3))[0],
        c.execute_all_sync(method_name="plain", timeout=3, blocking=True)[0],
        ray.get(c.execute_all("plain", 1)),
        ray.get(c.execute_all_async("plain", 1)),
    ]


@case
def execute_rank_zero() -> Any:
    c = three()
    return [
        c.execute_rank_zero_sync("plain", [1, 2, 3]),
        ray.get(c.execute_rank_zero("plain", 1)),
        ray.get(c.execute_rank_zero_async("plain", k=2)),
    ]


@case
def execute_registered_methods() -> Any:
    return laid().execute_all_sync("dp_mp", [1, 2]), three().execute_all_sync("takes_two", 1)


@case
def methods_that_are_not_there() -> Any:
    c = three()
    return [
        told(lambda: c.nothing),
        told(lambda: c.plain),
        told(lambda: c.execute_all_sync("nothing")),
        told(lambda: c.execute_all_async("nothing")),
        told(lambda: c.execute_rank_zero_async("nothing")),
        told(lambda: c.workers[0].nothing),
    ]


@case
def signatures_that_do_not_fit() -> Any:
    c = three()
    return [
        told(lambda: c.takes_two()),
        told(lambda: c.takes_two(1, 2, 3)),
        told(lambda: c.takes_two(1, c=3)),
        told(lambda: c.execute_all_async("takes_two")),
        told(lambda: c.workers[0].takes_two.remote(1, 2, 3)),
    ]


@case
def refs_as_arguments() -> Any:
    c, ref = three(), ray.put(5)
    return [
        c.one_to_all(ref),
        c.all_to_all([ref, 1, ref]),
        c.execute_all_sync("plain", ref, k=ref)[1],
        c.execute_all_sync("plain", [ref, 1, ref]),
        ray.get(c.workers[0].plain.remote(c.workers[1].plain.remote(1))),
    ]


@case
def refs_as_rows() -> Any:
    return told(lambda: laid().dp_mp(ray.put([1, 2])))


@case
def calls_keep_their_order() -> Any:
    worker = three().workers[0]
    refs = [worker.note.remote(at) for at in range(20)]
    return ray.get(refs)[-1] == list(range(20))


# --- DataProtos ----------------------------------------------------------------------------------


@case
def data_is_cut_and_put_together() -> Any:
    return [laid().double(data(n, step=1)) for n in (2, 5)]


@case
def data_is_not_changed() -> Any:
    given = data(2, step=1)
    laid().double(given)
    sums = three().change(given)
    return given, sums


@case
def data_by_name_and_with_lists() -> Any:
    return laid().double(data=data(2, step=3)), laid().dp_mp(data(4), ["a", "b"])


@case
def data_of_too_few_rows() -> Any:
    return told(lambda: laid().double(data(1)))


@case
def data_of_meta_alone() -> Any:
    out = laid().meta_alone(DataProto(meta_info={"k": 1}))
    return out, laid().meta_alone(data(4))


@case
def data_to_the_first() -> Any:
    return laid().first_collect_all(data(5, step=1))


@case
def data_by_handles() -> Any:
    worker = three().workers[1]
    return ray.get(worker.plain.remote({"deep": [data(2, k=1)]}, data(1)))


@case
def methods_of_the_base() -> Any:
    c = three()
    return [
        c.load_states(),
        c.offload_states(1),
        c.process_weights_after_loading(),
        c.get_metrics(),
        c.execute_all_sync("add_lora")[0],
        told(lambda: c.execute_all_sync("setup_model_update")),
        c.execute_rank_zero_sync("start_model_update"),
    ]
