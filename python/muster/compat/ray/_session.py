"""From `init` to `shutdown`: Ray's arguments as Muster's."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import muster

from ... import _context
from ..._environment import runtime_env_text
from . import _options, _state
from .util.placement_group import _groups

#: What only concerns processes of Ray's own, or what Muster does not count.
_RAYS_OWN = """configure_logging dashboard_host dashboard_port enable_resource_isolation
include_dashboard job_config labels logging_config logging_format logging_level num_cpus
object_store_memory resources system_reserved_cpu system_reserved_memory""".split()  # noqa: SIM905


class _Job:
    """What `init` set, to be taken back by `shutdown`."""

    open = False
    before: ClassVar[dict[str, str | None]] = {}


def init(
    address: str | None = None,
    *,
    num_gpus: int | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    ignore_reinit_error: bool = False,
    log_to_driver: bool = True,
    local_mode: bool = False,
    **more: Any,
) -> dict[str, str]:
    """Start Muster, or take part in what runs.

    ``address`` is ``None``, "auto" or "local" for this machine, the path of a Muster head's
    socket, or ``host:port`` of a Ray cluster, whose nodes are then used. ``num_gpus`` beyond
    what the machine has are stand-ins, as Ray's are.
    """
    if strange := sorted(key for key in more if key not in _RAYS_OWN and not key.startswith("_")):
        raise RuntimeError(f"init() does not know {', '.join(strange)}")
    if local_mode:
        raise ValueError("local_mode is not there: actors and tasks are processes")
    _state.namespace(namespace)  # refuses what is none
    environment = json.loads(runtime_env_text(_options.environment(runtime_env)))
    if (_Job.open and is_initialized()) or _context.in_worker():
        if ignore_reinit_error:
            return _addresses()
        raise RuntimeError(
            "ray.init() was called before. Call ray.shutdown() first, or pass "
            "ignore_reinit_error=True"
        )
    _start(address, num_gpus, log_to_driver)
    variables = environment.pop("env_vars", {})
    variables |= {_state.RUNTIME_ENV: json.dumps(environment)} if environment else {}
    variables |= {_state.NAMESPACE: namespace} if namespace else {}
    _Job.before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)  # workers inherit it, and their workers
    _Job.open = True
    return _addresses()


def _start(address: str | None, num_gpus: int | None, logs: bool) -> None:
    if _context.session() is not None:
        return
    where = None if address in ("auto", "local") else address
    backend = "ray" if where and os.sep not in where else None
    muster.init(address=where, backend=backend, log_to_stderr=logs)
    if num_gpus and sum(len(node["devices"]) for node in muster.nodes()) < num_gpus:
        muster.shutdown()
        muster.init(virtual=f"1x{num_gpus}", log_to_stderr=logs)


def _addresses() -> dict[str, str]:
    return {"address": _context.address(), "node_ip_address": muster.nodes()[0]["address"]}


def shutdown() -> None:
    """End everything that the script made. It may be called again."""
    if _context.in_worker():
        return  # the session is the script's
    _Job.open = False
    for key, value in _Job.before.items():
        os.environ.pop(key, None)
        os.environ.update({} if value is None else {key: value})
    _Job.before = {}
    _groups.clear()
    muster.shutdown()


def is_initialized() -> bool:
    """Whether there is a session: always in workers."""
    return _context.in_worker() or _context.session() is not None
