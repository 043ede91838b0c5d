"""What a role asks for: a spec for each worker, and what its clusters are made with.

What a pool may take, and where, is the head's to decide; here is only how much is asked for.
"""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..._config import WorkerConfig
from .._quoting import quoted
from . import _api
from ._areal import INSTALLED, part

#: Seconds that a process has between SIGTERM, in which engines are destroyed, and SIGKILL; what
#: it has started itself has three.
GRACE = 4.0
#: What every worker needs; AReaL and what it imports come once the environment is complete.
_PRELOAD = (
    "muster.compat.areal._host",
    "muster.compat.areal._blueprints",
    # AReaL imports it first, and it takes longest.
    *(("torch",) if INSTALLED and find_spec("torch") is not None else ()),
)
_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")


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


def clusters(specs: list[Any], offload: bool, patience: float) -> list[tuple[Any, WorkerConfig]]:
    """The clusters of a role, without pools: equal workers make one, unless each is to have a pool
    of its own, so that instances come and go alone."""
    alike = all(spec == specs[0] for spec in specs) and strategy(specs[0]) == "shared"
    return [
        (
            spec,
            WorkerConfig(
                world_size=len(specs) if alike else 1,
                env=variables(spec, offload),
                rank_env=True,  # a role may set any variable
                grace=GRACE,
                # AReaL's time is for workers that are there; to import takes longer.
                startup_timeout=max(patience, 300.0),
                python=command("", spec)[1],
                preload=_PRELOAD,
            ),
        )
        for spec in (specs[:1] if alike else specs)
    ]


def strategy(spec: Any) -> str:
    """How a worker's pool is made."""
    return str(getattr(spec, "ray_placement_strategy", "shared")) if spec.gpu > 0 else "shared"


def variables(spec: Any, offload: bool) -> dict[str, str]:
    """A role's variables: AReaL's base, threads by CPUs unless set, the role's own last."""
    env: dict[str, str] = {}
    if INSTALLED:
        env |= part("infra.utils.launcher").get_env_vars()
        if offload:
            env |= part("utils.offload").get_tms_env_vars()
    for name in (*(f"{library}_NUM_THREADS" for library in _THREADS), "VECLIB_MAXIMUM_THREADS"):
        env[name] = os.environ.get(name, str(spec.cpu or 8))
    return env | {str(key): str(value) for key, value in (spec.env_vars or {}).items()}


def command(role: str, spec: Any) -> tuple[list[str], str | None]:
    """The server to run in a worker, none where that is AReaL's own, which ours stands for; and
    the Python that this is run by, unless it is just "python"."""
    words = shlex.split(spec.cmd or "")
    if "--port" in words:
        raise _api.WorkerCreationError(
            role,
            "Custom command should not include --port argument",
            "the scheduler chooses the port, and tells the command",
        )
    if words and not any(word in _api.NATIVE_COMMANDS for word in words):
        return words, None
    named = words and "/" in words[0] and Path(words[0]).name.startswith("python")
    return [], words[0] if named else None


def cluster_name(role: str) -> str:
    """The cluster that a role is; no two roles have the same. A name begins with a letter, a digit
    or ``_``, and two dots are in no other."""
    name = quoted(role)
    return f"role..{name}" if name[:1] in ("-", ".") else name
