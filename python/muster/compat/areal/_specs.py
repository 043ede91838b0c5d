"""What a role's specs ask for: one for each worker, and what runs in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from . import _api


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
