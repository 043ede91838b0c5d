"""What a role asks for: a spec for each worker, its variables and command, and a pool.

Training has one pool for all its workers, rollout one for each instance, so
that instances come and go alone. What a pool may take, and where, is the head's
to decide; here is only how much is asked for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import _errors
from ..._resources import ResourceManager, nodes
from .._quoting import quoted
from . import _api
from ._areal import INSTALLED, part

#: Seconds that a pool is waited for.
_PATIENCE = 30.0


_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def variables(spec: Any, offload: bool) -> dict[str, str]:
    """A role's variables: AReaL's base, threads by CPUs unless set, the role's own last."""
    env: dict[str, str] = {}
    if INSTALLED:
        env |= part("infra.utils.launcher").get_env_vars()
        if offload:
            env |= part("utils.offload").get_tms_env_vars()
    for name in _THREADS:
        env[name] = os.environ.get(name, str(spec.cpu or 8))
    return env | {str(key): str(value) for key, value in (spec.env_vars or {}).items()}


def spread(role: str, count: int, tasks: list[Any]) -> list[Any]:
    """One need for each worker."""
    if not tasks:
        tasks = [_api.SchedulingSpec(cpu=1, mem=1024, gpu=0, port_count=2)]
    if len(tasks) == 1:
        return tasks * count
    if len(tasks) != count:
        raise _api.WorkerCreationError(
            role,
            "Invalid configuration",
            f"schedulings length ({len(tasks)}) must be 1 or equal to replicas ({count})",
        )
    return tasks


def command(role: str, spec: Any) -> list[str]:
    """The server to run in a worker; none where that is AReaL's own, which ours stands for."""
    words = shlex.split(spec.cmd or "")
    if "--port" in words:
        raise _api.WorkerCreationError(
            role,
            "Custom command should not include --port argument",
            "the scheduler chooses the port, and tells the command",
        )
    return [] if any(word in _api.NATIVE_COMMANDS for word in words) else words


def interpreter(spec: Any) -> str | None:
    """The Python that a role's command names, unless it is just "python"."""
    words = shlex.split(spec.cmd or "")
    first = words[0] if words else ""
    named = "/" in first and Path(first).name.startswith("python")
    return first if named and any(word in _api.NATIVE_COMMANDS for word in words) else None


def cluster_name(role: str) -> str:
    """The cluster that a role is; no two roles have the same. A name begins with a letter, a digit
    or ``_``, and two dots are in no other."""
    name = quoted(role)
    return f"role..{name}" if name[:1] in ("-", ".") else name


# --- pools ----------------------------------------------------------------------------


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
        self._devices = sorted(set(devices))
        self._pool: ResourceManager | None = None

    def place(self, share: Share, devices: list[int]) -> None:
        """Have a share be on some of them."""
        if self._pool is None:
            self._pool = ResourceManager(devices=self._devices, timeout=_PATIENCE)
        share.pool, share.lent = self._pool, True
        share.mapping = [self._devices.index(device) for device in devices]

    def given_twice(
        self, made: list[Share], before: dict[str, list[Share]]
    ) -> dict[str, list[int]]:
        """The roles that have devices of new ones already, and which. ``before`` is what all roles
        have, the new one's among it."""
        new = [place for share in made if share.lent for place in share.mapping or ()]
        found: dict[str, list[int]] = {}
        for role, theirs in before.items():
            places = [place for share in theirs if share.lent for place in share.mapping or ()]
            least = 1 if theirs is made else 0
            both = [place for place in sorted(set(new)) if places.count(place) > least]
            if both:
                found[role] = [self._devices[place] for place in both]
        return found

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
    except (_errors.MusterError, _api.GPUAllocationError, TypeError, ValueError) as error:
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
    each, count = share.spec.gpu, len(share.indices)
    if each:
        share.pool = ResourceManager.for_workers(count, each, per_node, timeout=_PATIENCE)
    if (
        each and _strategy(share.spec) != "deferred"
    ):  # else the pool has the GPUs, and the worker none
        share.mapping = list(range(each * count))
        share.span = share.pool is not None and each > share.pool.gpu_per_node
