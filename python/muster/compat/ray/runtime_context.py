"""What code can ask about where it runs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from ... import _context, _service, _worker
from ..._runtime.current import current_call
from . import _nodes, _state, _workers

SCRIPT_MODE, WORKER_MODE = 0, 1
#: What tells a process which devices of a kind it may use.
_VARIABLES = {"GPU": "CUDA_VISIBLE_DEVICES", "NPU": "ASCEND_RT_VISIBLE_DEVICES"}


class RuntimeContext:
    """Where this code runs: job, node, actor, namespace."""

    @property
    def worker(self) -> Any:
        """``mode`` tells a script from a worker."""
        mode = WORKER_MODE if _context.in_worker() else SCRIPT_MODE
        return SimpleNamespace(mode=mode, worker_id=self.get_worker_id())

    @property
    def namespace(self) -> str:
        """Where names are looked for by default."""
        return _state.namespace()

    @property
    def gcs_address(self) -> str:
        """The address of what holds the session together: the head's."""
        return _context.address()

    def get_job_id(self) -> str:
        """The session's id."""
        return _state.identity(os.path.dirname(self.gcs_address), 8)

    job_id = property(get_job_id)

    def get_node_id(self) -> str:
        """The id of the node that this runs on."""
        return _nodes.node_id(_nodes.here()["name"])

    node_id = property(get_node_id)

    def get_worker_id(self) -> str:
        """This process's id."""
        return _state.identity(f"{self.get_job_id()} {os.uname().nodename} {os.getpid()}")

    def get_actor_id(self) -> str | None:
        """The id of the actor that this runs in, if it does."""
        return _state.actor().ident or None

    actor_id = property(get_actor_id)

    def get_actor_name(self) -> str | None:
        """Its name; empty where it has none."""
        return _state.actor().name if _state.actor().ident else None

    def get_task_id(self) -> str | None:
        """The id of the call that this runs in, if it does."""
        call = current_call()
        return _state.identity(f"call {call}", 48) if call else None

    task_id = property(get_task_id)

    @property
    def current_actor(self) -> Any:
        """A handle of the actor that this runs in."""
        from .actor import handle_of

        me = _worker._identity
        if not _state.actor().ident or me is None:
            raise RuntimeError("this runs in no actor")
        if (worker := _workers.named(me.worker_name)) is not None:
            return worker
        return handle_of(_service.get_service(me.cluster_name), os.environ)

    def get_assigned_resources(self) -> dict[str, float]:
        """What this actor or task has taken."""
        return dict(_state.actor().resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The devices that this process may use, by their kind."""
        taken = _state.actor().resources
        return {
            key: [str(number) for number in _visible(variable)] if taken.get(key) else []
            for key, variable in _VARIABLES.items()
        }


_context_of_process = RuntimeContext()


def get_runtime_context() -> RuntimeContext:
    """Where this code runs."""
    _context.connection("get_runtime_context()")
    return _context_of_process


def get_gpu_ids() -> list[Any]:
    """The devices of this actor or task, by their numbers on the node."""
    return _visible(_VARIABLES["GPU"]) if _state.actor().resources.get("GPU") else []


def _visible(variable: str) -> list[Any]:
    text = os.environ.get(variable, "")
    return [int(part) if part.isdigit() else part for part in text.split(",") if part]
