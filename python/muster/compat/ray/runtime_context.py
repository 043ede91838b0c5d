"""What code can ask about where it runs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from ... import _context, _service, _worker
from ..._runtime.current import current_call
from . import _nodes, _state

SCRIPT_MODE, WORKER_MODE = 0, 1


class RuntimeContext:
    """Where this code runs: job, node, actor, namespace."""

    @property
    def worker(self) -> Any:
        """``mode`` tells a script from a worker."""
        return SimpleNamespace(mode=WORKER_MODE if _context.in_worker() else SCRIPT_MODE)

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

    def get_node_id(self) -> str:
        """The id of the node that this runs on."""
        return _nodes.node_id(_nodes.here()["name"])

    def get_actor_id(self) -> str | None:
        """The id of the actor that this runs in, if it does."""
        return _state.Me.ident or None

    def get_actor_name(self) -> str | None:
        """Its name; empty where it has none."""
        return _state.Me.name if _state.Me.ident else None

    def get_task_id(self) -> str | None:
        """The id of the call that this runs in, if it does."""
        call = current_call()
        return _state.identity(f"call {call}", 48) if call else None

    @property
    def current_actor(self) -> Any:
        """A handle of the actor that this runs in."""
        from .actor import handle_of, worker_named

        me = _worker._identity
        if not _state.Me.ident or me is None:
            raise RuntimeError("this runs in no actor")
        if _state.Me.is_worker:
            return worker_named(me.worker_name)
        return handle_of(_service.get_service(me.cluster_name), os.environ)


def get_runtime_context() -> RuntimeContext:
    """Where this code runs."""
    _context.connection("get_runtime_context()")
    return RuntimeContext()


def get_gpu_ids() -> list[Any]:
    """The devices of this actor or task, by their numbers on the node."""
    visible = _worker._visible_devices() if _context.in_worker() else []
    return [int(part) if part.isdigit() else part for part in visible]
