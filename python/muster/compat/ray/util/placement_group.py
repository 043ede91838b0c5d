"""Placement groups: reservations of Muster's, whose bundles are the nodes of a pool.

A group can be sent to others, who use the same pool; it is its maker's to remove.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

from .... import Reservation, _errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .... import ResourceManager
    from .._refs import ObjectRef

#: Seconds that `ready`, and actors in a group, wait for what others hold.
PATIENCE = 30.0
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_STATES = {"pending": "PENDING", "reserved": "CREATED", "released": "REMOVED"}
#: Those that this process has made.
_groups: dict[str, PlacementGroup] = {}


class PlacementGroup:
    """Bundles of resources that are reserved together, as soon as they are there."""

    def __init__(
        self,
        bundles: list[dict[str, float]],
        held: Reservation,
        strategy: str = "PACK",
        nodes: Sequence[int] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex[:36]
        self.bundle_specs = bundles
        self.bundle_count = len(bundles)
        #: Which nodes of the pool the bundles are.
        self.nodes = range(len(bundles)) if nodes is None else nodes
        self._held = held
        self._strategy = strategy

    def ready(self) -> ObjectRef:
        """A ref of this group, done as soon as all of it is reserved; it fails if it cannot be."""
        from .._refs import ObjectRef, failed
        from ..exceptions import translate

        try:
            return ObjectRef(self._held.ready(PATIENCE, self))
        except _errors.MusterError as error:
            return failed(translate(error))

    def wait(self, timeout_seconds: float = PATIENCE) -> bool:
        """Whether all of it is reserved within so many seconds."""
        return self._held.wait(timeout_seconds)

    def pool(self) -> ResourceManager:
        """What it has, as soon as that is there."""
        return self._held.pool(PATIENCE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self._held.name or self.id})"

    def __reduce__(self) -> Any:
        return _arrived, (self.id, self.__dict__)


def _arrived(ident: str, state: dict[str, Any]) -> PlacementGroup:
    """A group that came inside a value: where this process made it, that very one."""
    group = _groups.get(ident)
    if group is None:
        group = PlacementGroup.__new__(PlacementGroup)
        group.__dict__.update(state)
    return group


def placement_group(
    bundles: list[dict[str, float]], strategy: str = "PACK", name: str = "", **_ignored: Any
) -> PlacementGroup:
    """Reserve bundles of resources; what is there now is reserved at once."""
    if not isinstance(bundles, list) or not bundles:
        raise ValueError("bundles is a list of dicts, one at least")
    for bundle in bundles:
        if not isinstance(bundle, dict) or not any(bundle.values()):
            raise ValueError(f"a bundle is a dict of resources, not all of them 0, not {bundle!r}")
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; it is one of {', '.join(_STRATEGIES)}")
    wanted = [
        {  # of devices, one that is asked for in part is had
            "gpus": math.ceil(bundle.get("GPU", 0) + bundle.get("NPU", 0)),
            "cpus": float(bundle.get("CPU", 0)),
        }
        for bundle in bundles
    ]
    held = Reservation(wanted, strategy=strategy, name=name)
    made = PlacementGroup([dict(bundle) for bundle in bundles], held, strategy)
    _groups[made.id] = made
    return made


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """End what runs in a group and give its resources back. It may be called again."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"that is no placement group: {placement_group!r}")
    placement_group._held.release()


def placement_group_table(placement_group: PlacementGroup) -> dict[str, Any]:
    """A group as Ray's tables tell of it."""
    from .._nodes import node_id

    held, nodes = placement_group._held, enumerate(placement_group.nodes)
    pool = held.reserved()
    return {
        "placement_group_id": placement_group.id,
        "name": held.name,
        "bundles": dict(enumerate(placement_group.bundle_specs)),
        "bundles_to_node_id": {at: node_id(pool.nodes[n]["name"]) for at, n in nodes if pool},
        "strategy": placement_group._strategy,
        "state": _STATES[held.state],
    }
