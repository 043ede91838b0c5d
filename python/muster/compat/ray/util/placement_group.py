"""Placement groups: pools of Muster's, whose nodes are the bundles.

A group can be sent to others, who use the same pools; it is its maker's to remove.
"""

from __future__ import annotations

import math
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .... import ResourceManager, _errors, _sharing
from ...._refs import Ref
from ...._resources import bundles_asked

if TYPE_CHECKING:
    from .._refs import ObjectRef

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Seconds that `ready`, and actors with devices, wait for what others hold.
PATIENCE = 30.0
_AT_ONCE = 0.01
_DEVICES = ("GPU", "NPU")
_asking = threading.Lock()


class PlacementGroup:
    """Bundles of resources that are reserved together."""

    def __init__(self, bundles: list[dict[str, float]], strategy: str, name: str) -> None:
        self.id = uuid.uuid4().hex[:36]
        self.bundle_specs = bundles
        self._strategy = strategy
        self._name = name
        self._reserved: list[Bundle] = []
        self._reply: Ref | None = None  # of the head, while it is asked for them
        self._removed = False

    @property
    def bundle_count(self) -> int:
        """How many bundles there are."""
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef:
        """A ref of this group, done as soon as all of it is reserved; it fails if it cannot be."""
        from .._refs import ObjectRef, failed
        from ..exceptions import translate

        try:
            reply = self._ask(PATIENCE)
        except _errors.MusterError as error:
            return failed(translate(error))
        return ObjectRef(_sharing.settled(self) if reply is None else _Ready(self, reply))

    def wait(self, timeout_seconds: float = PATIENCE) -> bool:
        """Whether all of it is reserved within so many seconds."""
        try:
            self._reserve(timeout_seconds)
        except (_errors.ResourceError, _errors.DeadlineError):
            return False
        return True

    def reserved(self) -> list[Bundle]:
        """What each bundle has."""
        self._reserve(PATIENCE)
        return self._reserved

    def _reserve(self, timeout: float) -> None:
        timeout = max(timeout, _AT_ONCE)
        known = self._reply
        reply = self._ask(timeout)
        if reply is not None:
            late = timeout if reply is known else None  # else the head knows it
            reply._connection.response(reply, "pool.create", late)
            self._take(reply)

    def _ask(self, timeout: float) -> Ref | None:
        """What the head will say; None where all is reserved."""
        with _asking:
            if self._removed:
                raise _errors.ReleasedError(
                    f"the placement group {self._name or self.id} was removed"
                )
            reply = self._reply
            if reply is not None and reply.done():
                self._reply = None
                if not reply.failed():
                    self._hold(reply)
            if not self._reserved and self._reply is None:
                wanted = [_wanted(bundle) for bundle in self.bundle_specs]
                self._reply = ResourceManager._begin(
                    bundles_asked(wanted, strategy=self._strategy, timeout=timeout, wait=True)
                )
            return self._reply

    def _take(self, reply: Ref) -> None:
        """Have what a reply brings that is there, or raise what it tells."""
        with _asking:
            if self._reply is reply:
                self._reply = None
                if not self._removed:
                    self._hold(reply)

    def _hold(self, reply: Ref) -> None:
        pool = ResourceManager._taken(reply)
        self._reserved = [Bundle(pool, index) for index in range(self.bundle_count)]

    def _remove(self) -> None:
        with _asking:
            self._removed = True
            reserved, self._reserved = self._reserved, []
            reply, self._reply = self._reply, None
        if reserved:
            reserved[0].manager.destroy_placement_group()
        if reply is not None:
            _give_back(reply)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reply": None}  # who asked gets it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self._name or self.id})"


class _Ready(Ref):
    """A ref of a group for which the head was asked."""

    __slots__ = ("_group", "_reply")

    def __init__(self, group: PlacementGroup, reply: Ref) -> None:
        # With a finish, it is no call's whose answer the head could put in an argument's place.
        super().__init__(reply._connection, reply._id, finish=lambda _: group)
        self._group, self._reply = group, reply
        self.follow(reply)

    def _result(self) -> Any:
        if self.failed():
            return super()._result()  # raises
        self._group._take(self._reply)
        return self._group


def _give_back(reply: Ref) -> None:
    """Have what a reply brings released, which nobody wants any more."""
    left = [reply]  # it may be told twice

    def release() -> None:
        if left and not left.pop().failed():
            ResourceManager._taken(reply)  # and nobody has it

    reply.watch(release)


#: Those of this process.
_groups: dict[str, PlacementGroup] = {}


@dataclass(frozen=True)
class Bundle:
    """What a bundle has: a node of a pool, and the devices that the pool has of it."""

    manager: ResourceManager
    node: int  # its index in the pool

    @property
    def node_name(self) -> str:
        """The node, by its name."""
        return str(self.manager.nodes[self.node]["name"])

    def devices(self) -> range:
        """The numbers of its devices in the pool."""
        return self.manager.gpu_ids(self.node)


def _wanted(bundle: dict[str, float]) -> dict[str, float]:
    """A bundle in Muster's words. Of its devices, one that is asked for in part is had."""
    devices = sum(bundle.get(key, 0) for key in _DEVICES)
    return {"gpus": math.ceil(devices), "cpus": float(bundle.get("CPU", 0))}


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    **_ignored: Any,
) -> PlacementGroup:
    """Reserve bundles of resources; what is there now is reserved at once."""
    if not isinstance(bundles, list) or not bundles:
        raise ValueError("bundles is a list of dicts, one at least")
    for bundle in bundles:
        if not isinstance(bundle, dict):
            raise ValueError(f"a bundle is a dict of resources, not {bundle!r}")
        if not bundle or all(amount == 0 for amount in bundle.values()):
            raise ValueError("a bundle asks for something: its amounts are not all 0")
    if strategy not in _STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}; it is one of {', '.join(_STRATEGIES)}")
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime is {lifetime!r}; it is 'detached' or None")
    made = PlacementGroup([dict(bundle) for bundle in bundles], strategy, name)
    _groups[made.id] = made
    made.wait(0)
    return made


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """End what runs in a group and give its resources back. It may be called again."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"that is no placement group: {placement_group!r}")
    # A copy of it that came inside a value holds nothing itself.
    for group in (_groups.get(placement_group.id, placement_group), placement_group):
        group._remove()


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """A group of this process by its name."""
    for group in _groups.values():
        if group._name == placement_group_name and not group._removed:
            return group
    raise ValueError(f"there is no placement group named {placement_group_name!r}")


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """One group, or all that this process made, as Ray's tables tell of them."""
    if placement_group is not None:
        return _row(_groups.get(placement_group.id, placement_group))
    return {ident: _row(group) for ident, group in _groups.items()}


def _row(group: PlacementGroup) -> dict[str, Any]:
    from .._nodes import node_id

    if group._reply is not None and group._reply.done():
        with suppress(_errors.MusterError):
            group._take(group._reply)
    places = {index: node_id(at.node_name) for index, at in enumerate(group._reserved)}
    return {
        "placement_group_id": group.id,
        "name": group._name,
        "bundles": dict(enumerate(map(dict, group.bundle_specs))),
        "bundles_to_node_id": places,
        "strategy": group._strategy,
        "state": "REMOVED" if group._removed else "CREATED" if group._reserved else "PENDING",
    }


def get_current_placement_group() -> PlacementGroup | None:
    """None: children are placed where they ask to be."""
    return None
