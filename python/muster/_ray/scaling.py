"""Whether an autoscaler looks after the Ray cluster, and what it is doing.

Ray has no one word for that. Every head node runs a monitor that reports as an
autoscaler does, also where it can start nothing; the kinds of nodes that it tells of
are then made up, one for each node.
"""

from __future__ import annotations

import json
import os
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: What made-up kinds of nodes begin with.
_MADE_UP = "node_"
_ASK_PATIENCE = 5


@dataclass(frozen=True)
class Scaling:
    """What is known of an autoscaler."""

    grows: bool
    #: What it is about to add, for people; empty if nothing is known.
    doing: str = ""
    #: What it says of groups that it can never make room for.
    hopeless: tuple[str, ...] = ()

    def refuses(self, group: str) -> bool:
        """Whether it says that no nodes of its kinds could have a group, by its id."""
        return self.grows and any(text.startswith(group) for text in self.hopeless)


def look(ray: Any) -> Scaling:
    """The autoscaler of this cluster; MUSTER_RAY_AUTOSCALER has the last word."""
    found = _found(ray)
    said = os.environ.get("MUSTER_RAY_AUTOSCALER", "")
    if not said:
        return found
    grows = said not in ("0", "off", "no")
    return Scaling(grows, found.doing if grows else "")


def _found(ray: Any) -> Scaling:
    try:
        if ray._private.state.state.get_max_resources_from_cluster_config():
            return Scaling(True)
    except Exception:  # inner parts of Ray's, here and below, and not of every release
        pass
    for ask in (_second, _first):
        try:
            found = ask(ray)
        except Exception:
            traceback.print_exc()  # into the bridge's log
            continue
        if found is not None:
            return found
    return Scaling(False)


def _second(ray: Any) -> Scaling | None:
    """Ray's autoscaler of now, which reports to the GCS."""
    from ray._raylet import GcsClient
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    if not is_autoscaler_v2(fetch_from_server=True):
        return None
    address = ray.get_runtime_context().gcs_address
    reply = GetClusterStatusReply()
    reply.ParseFromString(GcsClient(address).get_cluster_status(timeout_s=_ASK_PATIENCE))
    state = reply.autoscaling_state
    kinds = [node.ray_node_type_name for node in reply.cluster_resource_state.node_states]
    coming = Counter[str]()
    for asked in state.pending_instance_requests:
        coming[asked.ray_node_type_name] += asked.count
    for node in state.pending_instances:
        coming[node.ray_node_type_name] += 1
    hopeless = tuple(gang.details for gang in state.infeasible_gang_resource_requests)
    # Nodes of an autoscaler's have a kind from the start, before it has said a word.
    return Scaling(_real(kinds), doing(coming), hopeless)


def _first(ray: Any) -> Scaling | None:
    """The one before, which leaves a line in Ray's store of keys."""
    from ray.experimental.internal_kv import _internal_kv_get

    text = _internal_kv_get(ray._private.ray_constants.DEBUG_AUTOSCALING_STATUS)
    return reported(json.loads(text)) if text else None


def reported(status: dict[str, Any]) -> Scaling:
    """What the line of the first autoscaler says."""
    report = status.get("autoscaler_report") or {}
    coming = Counter[str](report.get("pending_launches") or {})
    for _, kind, _ in report.get("pending_nodes") or ():
        coming[kind] += 1
    kinds = [*(report.get("active_nodes") or ()), *(report.get("idle_nodes") or ())]
    return Scaling(_real(kinds), doing(coming))


def _real(kinds: Iterable[str]) -> bool:
    return any(kind and not kind.startswith(_MADE_UP) for kind in kinds)


def doing(coming: Counter[str]) -> str:
    """The nodes that are on their way, for people."""
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(coming.items()) if count > 0)
