"""ROLL's ResourceManager on a pool of Muster's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import Reservation, _errors
from ..._config import device_ids
from ..._resources import ResourceManager as Pool
from .. import ray
from ..ray.util.placement_group import PlacementGroup


class ResourceManager:
    """``num_nodes`` nodes with ``num_gpus_per_node`` GPUs each, reserved together.

    Without ``num_nodes``, all nodes that have so many. 0 GPUs make a pool for CPU
    workers.
    """

    def __init__(self, num_gpus_per_node: int, num_nodes: int | None = None) -> None:
        if num_nodes is None:
            nodes = [node["Resources"].get("GPU", 0) for node in ray.nodes()]
            num_nodes = sum(gpus >= num_gpus_per_node for gpus in nodes)
        try:
            self.pool = Pool(num_gpus_per_node, num_nodes)
        except _errors.ResourceError as error:
            raise AssertionError(str(error)) from error  # as ROLL says it
        self.num_nodes, self.gpu_per_node = num_nodes, num_gpus_per_node
        self.num_gpus = num_gpus_per_node * num_nodes
        self.node_ranks = list(range(num_nodes))
        self.node2pg = {rank: _group_of(self.pool, rank) for rank in self.node_ranks}
        self.placement_groups = list(self.node2pg.values())

    def nodes_placement_group(self, node_rank: int) -> Any:
        """The group of one node."""
        return self.node2pg[node_rank]

    def destroy_placement_group(self) -> None:
        """End the workers on these nodes and give the nodes back."""
        self.pool.destroy_placement_group()

    def allocate_placement_group(
        self, world_size: int, device_mapping: str | Sequence[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Per rank, a dict for each of its devices: node_rank, gpu_rank, placement_group and
        ray_address. Without a mapping, ranks go round the nodes and have no devices.

        It says what the head decides, and asks nobody: ROLL's own tests call it without a pool.
        """
        address = f"{ray.get_runtime_context().gcs_address}"

        def place(node: int, device: int | None) -> dict[str, Any]:
            return {
                "node_rank": node,
                "gpu_rank": device,
                "placement_group": self.nodes_placement_group(node),
                "ray_address": address,
            }

        if not device_mapping:
            return [[place(rank % self.num_nodes, None)] for rank in range(world_size)]
        ids, gpus = device_ids(device_mapping), self.num_nodes * self.gpu_per_node
        assert gpus, f"device_mapping={device_mapping!r}, but the nodes have no GPUs"
        each = len(ids) // world_size
        if not each:
            raise ValueError(
                f"{world_size} workers, but device_mapping has {len(ids)} entries: each worker "
                "needs one at least"
            )
        assert len(ids) == each * world_size, (
            f"device_mapping has {len(ids)} entries, which world_size={world_size} does not divide"
        )
        beyond = [at for at in ids if at >= gpus]
        assert not beyond, (
            f"device_mapping names {beyond}, but the nodes have {self.num_nodes} x "
            f"{self.gpu_per_node} GPUs, 0 to {gpus - 1}"
        )
        places = [place(*divmod(at, self.gpu_per_node)) for at in ids]
        return [places[at : at + each] for at in range(0, len(places), each)]


def _group_of(pool: Pool, node: int) -> PlacementGroup:
    """One node of a pool as a placement group, for actors that are to run there."""
    has = {"GPU": pool.gpu_per_node, "CPU": pool.nodes[node]["cores"]}
    return PlacementGroup([has], Reservation([], pool=pool), nodes=[node])
