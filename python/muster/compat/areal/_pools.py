"""Which pool the workers of a role come from.

Training has one pool for all its workers, rollout one for each instance, so
that instances come and go alone. What a pool may take, and where, is the head's
to decide; here is only how much is asked for.
"""

from __future__ import annotations

import os
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
    chosen: Chosen | None = None


def count_devices() -> int:
    """How many GPUs a node has, as Muster sees them."""
    with ResourceManager(0, 1):  # nodes are there once somebody wants them
        return max((len(node["devices"]) for node in nodes()), default=0)


class Chosen:
    """The devices that a user named, on one node: roles take what is free of them."""

    def __init__(self, devices: list[int]) -> None:
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        named = [str(device) for device in devices]
        # Muster counts the devices that this process sees.
        ids = [visible.index(name) for name in named] if set(named) <= set(visible) else devices
        self._free = list(ids)
        self._size = max(ids) + 1
        self._pool: ResourceManager | None = None

    def take(self, share: Share, count: int) -> None:
        """Give devices to a share."""
        if count > len(self._free):
            raise ValueError(
                f"Requested {count} GPUs but only {len(self._free)} available of gpu_devices"
            )
        if self._pool is None:
            self._pool = ResourceManager(self._size, 1, timeout=_PATIENCE)
        share.pool, share.chosen = self._pool, self
        share.mapping, self._free = self._free[:count], self._free[count:]

    def give_back(self, share: Share) -> None:
        """Have a share's devices free again, and the pool with the last of them."""
        self._free = sorted({*self._free, *(share.mapping or ())})
        share.mapping = None


def shares(role: str, specs: list[Any], per_node: int, chosen: Chosen | None) -> list[Share]:
    """Cut a role into clusters, each with a pool; WorkerCreationError where one cannot be had."""
    made: list[Share] = []
    try:
        for share in _grouped(specs):
            made.append(share)
            if chosen is not None and share.spec.gpu > 0:
                chosen.take(share, share.spec.gpu * len(share.indices))
            else:
                _reserve(share, per_node)
    except (_errors.MusterError, ValueError) as error:
        release(made)
        at = made[-1].indices[0]
        cause = _api.GPUAllocationError(str(error))
        cause.__cause__ = error
        raise _api.WorkerCreationError(
            role, f"Resource allocation failed for worker {at}", str(error)
        ) from cause
    return made


def release(made: list[Share]) -> None:
    """Give pools back."""
    for share in made:
        if share.chosen is not None:
            share.chosen.give_back(share)
        elif share.pool is not None:
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
