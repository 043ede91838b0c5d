"""Ray's scheduling strategies: where an actor or a task is to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ID_DIGITS = 56


@dataclass
class PlacementGroupSchedulingStrategy:
    """In a placement group; -1 is any of its bundles."""

    placement_group: Any
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


class NodeAffinitySchedulingStrategy:
    """On one node; with ``soft``, elsewhere if that is not there."""

    def __init__(self, node_id: Any, soft: bool, **_ignored: Any) -> None:
        self.node_id: str = node_id if isinstance(node_id, str) else node_id.hex()
        self.soft = soft
        digits = set(self.node_id) <= set("0123456789abcdefABCDEF")
        # All ones is how Ray writes the id of no node.
        if len(self.node_id) != _ID_DIGITS or not digits or self.node_id == "f" * _ID_DIGITS:
            raise ValueError(f"node_id is {node_id!r}; nodes() tells those of this cluster")
