"""Which pool the workers of a role come from.

Training has one pool for all its workers, rollout one for each instance, so
that instances come and go alone. What a pool may take, and where, is the head's
to decide; here is only how much is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import _errors
from ..._resources import ResourceManager, nodes
from . import _api

#: Seconds that a pool is waited for.
_PATIENCE = 30.0


@dataclass
class Share:
    """Workers that make one cluster: their places in the role, pool and devices."""

    indices: list[int]
    spec: Any
    pool: ResourceManager | None = None
    mapping: list[int] | None = None
    span: bool = False
    #: Whether the pool is others' too, and stays when this goes.
    lent: bool = False


def count_devices() -> int:
    """How many GPUs a node has, as Muster sees them."""
    with ResourceManager(0, 1):  # nodes are there once somebody wants them
        return max((len(node["devices"]) for node in nodes()), default=0)


class Named:
    """The devices of one node that a user named: a pool, of which roles get some in turn."""

    def __init__(self, devices: list[int]) -> None:
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        named = {str(device) for device in devices}
        # Muster counts the devices that this process sees.
        self._ids = {d: visible.index(str(d)) if named <= set(visible) else d for d in devices}
        self._pool: ResourceManager | None = None

    def place(self, share: Share, devices: list[int]) -> None:
        """Have a share be on some of them."""
        if self._pool is None:
            self._pool = ResourceManager(max(self._ids.values()) + 1, 1, timeout=_PATIENCE)
        share.pool, share.lent = self._pool, True
        share.mapping = [self._ids[device] for device in devices]

    def release(self) -> None:
        """Give the pool back."""
        if self._pool is not None:
            self._pool.destroy_placement_group()
            self._pool = None


def shares(
    role: str,
    specs: list[Any],
    per_node: int,
    named: Named | None,
    allocate: Callable[[int], list[int]],
) -> list[Share]:
    """Cut a role into clusters, each with a pool; WorkerCreationError where one cannot be had."""
    made: list[Share] = []
    try:
        for share in _grouped(specs):
            made.append(share)
            if named is not None and share.spec.gpu > 0:
                given = [allocate(share.spec.gpu) for _ in share.indices]
                named.place(share, [device for devices in given for device in devices])
            else:
                _reserve(share, per_node)
    except (_errors.MusterError, _api.GPUAllocationError, ValueError) as error:
        release(made)
        at = made[-1].indices[0]
        raise _api.WorkerCreationError(
            role, f"Resource allocation failed for worker {at}", str(error)
        ) from error
    return made


def release(made: list[Share]) -> None:
    """Give pools back."""
    for share in made:
        if share.pool is not None and not share.lent:
            share.pool.destroy_placement_group()


def _grouped(specs: list[Any]) -> list[Share]:
    """Equal workers make one cluster, unless each is to have a pool of its own."""
    alike = all(spec == specs[0] for spec in specs)
    if alike and _strategy(specs[0]) == "shared":
        return [Share(list(range(len(specs))), specs[0])]
    return [Share([index], spec) for index, spec in enumerate(specs)]


def _strategy(spec: Any) -> str:
    return str(getattr(spec, "ray_placement_strategy", "shared")) if spec.gpu > 0 else "shared"


def _reserve(share: Share, per_node: int) -> None:
    each, total = share.spec.gpu, share.spec.gpu * len(share.indices)
    if total == 0:
        return
    count = 1  # of nodes
    if per_node and total > per_node:
        count = -(-total // per_node)
        if each < per_node and per_node % each:
            raise ValueError(
                f"workers of {each} GPUs do not fill nodes of {per_node}: {total} GPUs would have "
                "workers that lie on two nodes"
            )
    # As many on each node as it takes, and no more: what is left is for others.
    whole = per_node if each > per_node > 0 else -(-total // (count * each)) * each
    share.pool = ResourceManager(whole, count, timeout=_PATIENCE)
    if _strategy(share.spec) != "deferred":  # else the pool has the GPUs, and the worker none
        share.mapping = list(range(total))
        share.span = each > whole
