"""Cases for `roll_cases.py`: pools, configurations, and who is who on them."""

from __future__ import annotations

from functools import partial
from typing import Any

from roll_case_roles import (
    Broken,
    Probe,
    ResourceManager,
    StrategyArguments,
    WorkerConfig,
    case,
    laid,
    pool,
    ray,
    role,
    some,
    three,
    told,
)

# --- pools ---------------------------------------------------------------------------------------


def plainly(places: Any) -> Any:
    return [[(place["node_rank"], place["gpu_rank"]) for place in one] for one in places]


@case
def a_pool() -> Any:
    rm = pool()
    return rm.num_nodes, rm.gpu_per_node, rm.num_gpus, rm.node_ranks, len(rm.placement_groups)


@case
def places_of_devices() -> Any:
    rm = pool()
    return [
        plainly(rm.allocate_placement_group(world_size=2, device_mapping=[0, 5])),
        plainly(rm.allocate_placement_group(world_size=2, device_mapping=[3, 1, 4, 7])),
        plainly(rm.allocate_placement_group(1, [3, 4])),
    ]


@case
def places_without_devices() -> Any:
    rm = pool()
    return [
        plainly(rm.allocate_placement_group(world_size=3)),
        plainly(rm.allocate_placement_group(2, [])),
        plainly(rm.allocate_placement_group(0)),
    ]


@case
def what_a_place_has() -> Any:
    rm = pool()
    place = rm.allocate_placement_group(1, [5])[0][0]
    same = place["placement_group"] == rm.nodes_placement_group(1)
    return sorted(place), same, isinstance(place["ray_address"], str)


@case
def places_that_are_refused() -> Any:
    rm = pool()
    return [
        told(lambda: rm.allocate_placement_group(1, [8])),
        told(lambda: rm.allocate_placement_group(2, [0, 1, 2])),
        told(lambda: rm.allocate_placement_group(3, [0, 1])),
        told(lambda: rm.nodes_placement_group(2)),
    ]


@case
def a_place_that_is_negative() -> Any:
    return told(lambda: plainly(pool().allocate_placement_group(1, [-1])))


@case
def pools_that_are_refused() -> Any:
    pool()
    return [
        told(lambda: ResourceManager(8, 1)),
        told(lambda: ResourceManager(4, 3)),
        told(lambda: ResourceManager(4, 1)),  # all is taken
    ]


@case
def a_pool_without_gpus_on_two_nodes() -> Any:
    return told(lambda: ResourceManager(0, 2).num_nodes)


# --- configurations ------------------------------------------------------------------------------


@case
def sizes_by_devices() -> Any:
    texts = ["list(range(0,4))", "[0, 1] + [4, 5]", "range(0, 8, 2)", "[]"]
    made = [WorkerConfig(device_mapping=text) for text in texts]
    made.append(WorkerConfig(device_mapping=[0, 1], num_gpus_per_worker=2))
    made.append(WorkerConfig(device_mapping=[0, 1], world_size=7))
    return [(list(one.device_mapping), one.world_size, one.num_gpus_per_worker) for one in made]


@case
def sizes_without_devices() -> Any:
    one = WorkerConfig(world_size=2, num_gpus_per_worker=3)
    return one.device_mapping, one.world_size, one.num_gpus_per_worker, WorkerConfig().world_size


@case
def sizes_by_strategies() -> Any:
    found = []
    for name in ("vllm", "vllm_omni", "sglang", "hf_infer", "megatron_train"):
        sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
        one = WorkerConfig(
            device_mapping=list(range(8)),
            num_gpus_per_worker=2,
            strategy_args=StrategyArguments(name, sizes),
        )
        found.append((name, one.world_size, one.num_gpus_per_worker))
    return found


@case
def devices_that_do_not_divide() -> Any:
    return told(lambda: WorkerConfig(device_mapping=[0, 1, 2], num_gpus_per_worker=2))


@case
def a_setting_that_is_refused() -> Any:
    return told(lambda: WorkerConfig(offload_nccl=True, strategy_args=StrategyArguments("vllm")))


@case
def what_is_configured() -> Any:
    one = WorkerConfig(world_size=1)
    return (
        one.is_configured,
        WorkerConfig(device_mapping=[0]).is_configured,
        one.resource_placement_groups,
        one.max_concurrency,
        one.system_envs,
    )


@case
def strategies_without_settings() -> Any:
    return StrategyArguments().strategy_name, StrategyArguments("vllm", None).strategy_config


# --- who is who ----------------------------------------------------------------------------------


@case
def names_without_devices() -> Any:
    return [one["worker_name"] for one in three().execute_all_sync("attributes")]


@case
def attributes() -> Any:
    return three().execute_all_sync("attributes")[2]


@case
def names_places_and_environment() -> Any:
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "CLUSTER_NAME", "WORKER_NAME")
    envs = {"MY": "own", "LOCAL_RANK": "5"}
    with some("infer", device_mapping=[3, 1, 4, 5], num_gpus_per_worker=2, system_envs=envs) as c:
        return (
            c.rank2devices,
            c.execute_all_sync("environment", *names, "CUDA_VISIBLE_DEVICES", "MY"),
            [one["local_rank"] for one in c.execute_all_sync("attributes")],
            c.execute_all_sync("get_visible_gpus"),
            plainly(c.placement_groups),
        )


@case
def a_worker_on_two_nodes() -> Any:
    with some("span", device_mapping=[3, 4], num_gpus_per_worker=2) as c:
        found = c.execute_all_sync("environment", "WORKER_NAME", "CUDA_VISIBLE_DEVICES")
        return found, c.rank2devices, c.world_size


@case
def master_of_all_ranks() -> Any:
    found = three().execute_all_sync("get_master_addr_and_port")
    variables = three().execute_all_sync("environment", "MASTER_ADDR", "MASTER_PORT")
    ours = (three().master_addr, three().master_port)
    in_environment = {(one["MASTER_ADDR"], int(one["MASTER_PORT"])) for one in variables}
    return set(found) == {ours}, in_environment == {ours}, type(three().master_port).__name__


@case
def tables_of_workers() -> Any:
    c = three()
    return (
        [c.worker2rank[worker] for worker in c.workers],
        all(c.rank2worker[at] == worker for at, worker in enumerate(c.workers)),
        set(c.worker2nodes) == set(c.workers),
        c.rank2devices,
        c.world_size,
        c.cluster_name,
        c.worker_config.name,
    )


@case
def sizes_before_initialize() -> Any:
    c = three()
    return c.dp_size, c.tp_size, c.pp_size, c.cp_size, c.worker_rank_info, c.initialized


@case
def sizes_after_initialize() -> Any:
    c = laid()
    return c.dp_size, c.tp_size, c.worker_rank_info, c.get_rank_info(3), c.initialized


@case
def sizes_read_before_and_after() -> Any:
    with some("stale", world_size=2) as c:
        before = c.dp_size
        c.initialize(None, tp=2)
        return before, c.dp_size


@case
def ranks_that_are_not_there() -> Any:
    return [told(partial(three().get_rank_info, at)) for at in (-1, 3)]


@case
def virtual_stages() -> Any:
    settings = {"virtual_pipeline_model_parallel_size": 2}
    args = StrategyArguments("megatron_train", settings)
    with some("virtual", world_size=1, strategy_args=args) as c:
        return c.vp_size


@case
def virtual_stages_without_a_strategy() -> Any:
    return told(lambda: three().vp_size)


@case
def workers_by_name() -> Any:
    three()
    found = ray.get_actor("three-2", namespace="roll")
    return (
        ray.get(found.plain.remote(1)),
        ray.get(ray.get_actor("three-0").plain.remote()),
        found == three().workers[2],
        told(lambda: ray.get_actor("three-3", namespace="roll")),
        told(lambda: ray.get_actor("three-0", namespace="other")),
        sorted(name for name in ray.util.list_named_actors() if name.startswith("three")),
    )


@case
def classes_by_path_and_decorated() -> Any:
    found = []
    for at, given in enumerate(("roll_case_roles.Probe", ray.remote(Probe))):
        with some(f"path{at}", given, world_size=1) as c:
            found.append(c.one_to_all(1))
    return found


@case
def a_class_that_is_not_there() -> Any:
    return told(lambda: role("bad", "roll_case_roles.Prope", world_size=1))


@case
def a_name_that_is_taken() -> Any:
    three()
    return told(lambda: role("three", world_size=1))


@case
def a_constructor_that_fails() -> Any:
    return told(lambda: role("broken", Broken, world_size=1))


@case
def threads_without_async_methods() -> Any:
    def run() -> Any:
        with some("threads", world_size=1, max_concurrency=4) as c:
            return c.one_to_all(1)

    return told(run)


@case
def the_shared_storage() -> Any:
    found = three().execute_all_sync("stored", "key", "value")
    return sorted(kept for kept, _ in found), {value for _, value in found}


@case
def a_master_in_the_shared_storage() -> Any:
    return three().execute_rank_zero_sync("where_it_is", "three")
