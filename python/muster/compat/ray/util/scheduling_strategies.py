"""Ray's scheduling strategies: where an actor or a task is to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .placement_group import PlacementGroup

_ID_DIGITS = 56


class PlacementGroupSchedulingStrategy:
    """In a placement group; -1 is any of its bundles."""

    def __init__(
        self,
        placement_group: PlacementGroup,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks


class NodeAffinitySchedulingStrategy:
    """On one node; with ``soft``, elsewhere if that is not there."""

    def __init__(self, node_id: Any, soft: bool, **_ignored: Any) -> None:
        if not isinstance(node_id, str):
            node_id = node_id.hex()
        try:
            number = int(node_id, 16)
        except ValueError:
            number = -1
        # All ones is how Ray writes the id of no node.
        if len(node_id) != _ID_DIGITS or not 0 <= number < 16**_ID_DIGITS - 1:
            raise ValueError(f"node_id is {node_id!r}; nodes() tells those of this cluster")
        self.node_id: str = node_id
        self.soft = soft


class NodeLabelSchedulingStrategy:
    """By labels of nodes, of which Muster's have none: it says nothing here."""

    def __init__(self, hard: Any = None, *, soft: Any = None) -> None:
        self.hard = hard
        self.soft = soft
