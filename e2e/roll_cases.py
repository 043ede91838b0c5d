"""What pipelines do with ROLL's clusters, as cases that run on ROLL and on `muster.compat.roll`.

`roll_cases.txt` has the outcome of each on ROLL, and beside it ours where it is another one.
`compat_roll_cases_test.py` holds ours against it, and ROLL's too where that is installed; with
ROLL_CASES=roll, `python roll_cases.py` prints them all. Here: errors, time limits, async methods
and ends; DataProtos, places, calls, weights and the steps of pipelines are in modules of their own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import roll_cases_calls  # noqa: F401  (for their cases)
import roll_cases_data  # noqa: F401
import roll_cases_flows  # noqa: F401
import roll_cases_pipelines  # noqa: F401
import roll_cases_places  # noqa: F401
import roll_cases_weights  # noqa: F401
import roll_cases_workers  # noqa: F401
from roll_case_roles import (
    CASES,
    DataProto,
    Slow,
    case,
    laid,
    pool,
    raised,
    ray,
    role,
    shown,
    some,
    start,
    three,
    told,
)

# --- errors --------------------------------------------------------------------------------------


@case
def errors_of_methods() -> Any:
    c = three()
    found = [told(lambda: c.fail(1)), told(lambda: ray.get(c.workers[0].fails.remote()))]
    refs = c.fail(1, blocking=False)
    return found, ray.get([refs[0], refs[2]]), told(lambda: ray.get(refs[1]))


@case
def errors_with_constructors_of_their_own() -> Any:
    return told(lambda: three().fail_own())


@case
def errors_of_execute() -> Any:
    c = three()
    return told(lambda: c.execute_all_sync("fails")), told(
        lambda: c.execute_rank_zero_sync("fails")
    )


@case
def what_an_error_says() -> Any:
    try:
        three().fail(1)
    except ZeroDivisionError as error:
        text = str(error)
        return (
            "raise ZeroDivisionError" in text,
            "rank 1" in text,
            shown(getattr(error, "cause", None)),
        )
    return None


@case
def an_error_that_is_awaited() -> Any:
    async def run() -> Any:
        return await three().fail(0, blocking=False)[0]

    return told(lambda: asyncio.run(run()))


@contextmanager
def limit(seconds: str) -> Iterator[None]:
    os.environ["roll_RPC_TIMEOUT"] = seconds  # noqa: SIM112  (so it is called)
    try:
        yield
    finally:
        del os.environ["roll_RPC_TIMEOUT"]  # noqa: SIM112


@case
def a_call_over_its_time() -> Any:
    with some("late", world_size=1) as c:
        with limit("1"):
            return [
                told(lambda: c.sleep(30)),
                told(lambda: DataProto.materialize_concat(c.sleep(30, blocking=False))),
            ]


@case
def a_call_without_any_time() -> Any:
    with some("hasty", world_size=1) as c:
        with limit("0"):
            return told(lambda: c.sleep(30))


@case
def a_call_after_one_over_its_time() -> Any:
    with some("after", world_size=1) as c:
        with limit("1"):
            told(lambda: c.sleep(2))
        return c.one_to_all(1)


@case
def calls_with_time_enough() -> Any:
    with limit("60"):
        return three().sleep(0), ray.get(three().sleep(0, blocking=False))


@case
def a_limit_is_not_for_execute() -> Any:
    with limit("1"):
        return three().execute_all_sync("sleep", 1.5)


@case
def a_limit_that_is_no_number() -> Any:
    with limit("soon"):
        return told(lambda: three().sleep(0))


@case
def a_process_that_ends() -> Any:
    with some("mortal", world_size=2) as c:
        return [
            told(lambda: ray.get(c.workers[1].die.remote())),
            told(lambda: c.one_to_all(1)),
            ray.get(c.workers[0].plain.remote(1)),
            told(lambda: ray.get(c.one_to_all(1, blocking=False)[0])),
            told(lambda: ray.get(c.one_to_all(1, blocking=False)[1])),
        ]


@case
def a_worker_that_is_killed() -> Any:
    with some("killed", world_size=2) as c:
        ray.kill(c.workers[0])
        return told(lambda: c.one_to_all(1)), told(lambda: c.execute_rank_zero_sync("plain"))


# --- async methods, other roles ------------------------------------------------------------------


@cache
def slow() -> Any:
    return role("slow", Slow, world_size=2)


@case
def async_methods_run_at_once() -> Any:
    c = slow()
    waiting = [c.wait(blocking=False) for _ in range(50)]
    c.open()
    return [ray.get(refs) for refs in waiting] == [[0, 1]] * 50, c.rows([1, 2]), c.not_async(1)


@case
def async_methods_that_fail() -> Any:
    return told(lambda: slow().fail()), told(lambda: ray.get(slow().fail(blocking=False)))


@case
def async_methods_call_others() -> Any:
    return [
        slow().execute_all_sync("ask", three().workers[2]),
        slow().execute_all_sync("in_a_thread", three()),
        slow().execute_all_sync("ask_blocking", three()),
    ]


@case
def a_cluster_inside_a_worker() -> Any:
    return laid().execute_all_sync("use", three(), three().workers[1])[3]


@case
def a_pool_is_given_back() -> Any:
    """The last case: the workers of all others end with it."""
    c = three()
    c.one_to_all(1)
    pool().destroy_placement_group()
    try:
        ray.get(c.workers[0].sleep.remote(60), timeout=60)
    except Exception as error:
        return raised(error)
    return None


def main(wanted: list[str]) -> int:
    end = start()
    for name, function in CASES.items():
        if not wanted or name in wanted:
            print(f"{name} = {told(function)}", flush=True)
    end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
