"""Placement groups: pools of Muster's, whose nodes are the bundles.

A group can be sent to others, who use the same pools; it is its maker's to remove.
"""

from __future__ import annotations

import math
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from .... import ResourceManager, _errors, _sharing
from ...._refs import Ref
from ...._resources import bundles_asked

if TYPE_CHECKING:
    from ...._client import Connection
    from .._refs import ObjectRef

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Seconds that `ready`, and actors with devices, wait for what others hold.
PATIENCE = 30.0
_AT_ONCE = 0.01
_DEVICES = ("GPU", "NPU")
#: Held while requests go out, and for all else that makes or ends one.
_asking = threading.RLock()
#: Held while a group changes; nothing is sent meanwhile, as who reads answers needs it.
_changing = threading.RLock()


class PlacementGroup:
    """Bundles of resources that are reserved together.

    It has one request open at the head, or none. All who wait for the group wait for that one;
    for who has far more patience than is left of it, another takes its place.
    """

    def __init__(self, bundles: list[dict[str, float]], strategy: str, name: str) -> None:
        self.id = uuid.uuid4().hex[:36]
        self.bundle_specs = bundles
        self._strategy = strategy
        self._name = name
        self._reserved: list[Bundle] = []
        self._removed = False
        self._request: Ref | None = None
        self._until = 0.0  # when the request ends, on the monotonic clock
        self._waiting: list[_Ready] = []

    @property
    def bundle_count(self) -> int:
        """How many bundles there are."""
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef:
        """A ref of this group, done as soon as all of it is reserved; it fails if it cannot be."""
        from .._refs import ObjectRef, failed
        from ..exceptions import translate

        try:
            waiting = self._ask(monotonic() + PATIENCE)
        except _errors.MusterError as error:
            return failed(translate(error))
        return ObjectRef(_sharing.settled(self) if waiting is None else waiting)

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
        found = self._reserved
        if not found:
            raise self._gone()
        return found

    def _reserve(self, timeout: float) -> None:
        deadline = monotonic() + max(timeout, _AT_ONCE)
        while (waiting := self._ask(deadline)) is not None:
            try:
                self._hear(waiting, deadline)
            except _errors.ResourceError:
                now = monotonic()
                if now < self._until or now + _AT_ONCE >= deadline:
                    raise  # it can never be had, or not in our time

    def _hear(self, waiting: _Ready, deadline: float) -> None:
        """Wait for what the head says."""
        response = waiting._connection.response
        try:
            response(waiting, "pool.create", max(deadline - monotonic(), 0))
        except _errors.DeadlineError:
            if self._until > deadline:
                raise
            response(waiting, "pool.create", None)  # it is about to say who has what

    def _ask(self, until: float) -> _Ready | None:
        """What tells of the group, at that time or half-way to it; None where all is reserved."""
        with _asking:
            if self._removed:
                raise self._gone()
            self._look()
            timeout = max(until - monotonic(), _AT_ONCE)
            with _changing:
                if self._reserved:
                    return None
                # Who asks again and again does not begin again each time.
                if self._request is not None and self._until >= until - timeout / 2:
                    return self._wait_for(self._request)
            wanted = [_wanted(bundle) for bundle in self.bundle_specs]
            request = ResourceManager._begin(
                bundles_asked(wanted, strategy=self._strategy, timeout=timeout, wait=True)
            )
            waiting = None
            with _changing:
                unneeded: Ref | None = request
                if not self._reserved:  # by the last request, meanwhile
                    unneeded, self._request, self._until = self._request, request, until
                    waiting = self._wait_for(request)
            if unneeded is not None:
                _give_up(unneeded)
        request.watch(lambda: self._answered(request))
        return waiting

    def _look(self) -> None:
        """Take what has come."""
        request = self._request
        if request is not None and request.done():
            self._answered(request)

    def _wait_for(self, request: Ref) -> _Ready:
        waiting = _Ready(self, request._connection)
        self._waiting.append(waiting)
        return waiting

    def _answered(self, request: Ref) -> None:
        """Take what the head says; called by who reads it, maybe twice."""
        with _changing:
            if self._request is not request:
                return  # another has taken its place, or it was told before
            self._request = None
            waiting, self._waiting = self._waiting, []
            removed = self._removed
            if not removed and not request.failed():
                pool = ResourceManager._taken(request)
                self._reserved = [Bundle(pool, index) for index in range(self.bundle_count)]
        for one in waiting:
            if removed:
                one.fail(self._gone)
            else:
                one.follow(request)

    def _remove(self) -> None:
        with _asking:
            with _changing:
                self._removed = True
                reserved, self._reserved = self._reserved, []
                request = self._request
            if request is not None:
                _give_up(request)  # what answers it tells those who wait
        if reserved:
            reserved[0].manager.destroy_placement_group()

    def _gone(self) -> _errors.MusterError:
        return _errors.ReleasedError(f"the placement group {self._name or self.id} was removed")

    def __getstate__(self) -> dict[str, Any]:
        # Who gets the group has what the request brings, and does not ask anew.
        while (request := self._request) is not None:
            with suppress(_errors.MusterError):  # who asked is told
                request._connection.response(request, "pool.create", None)
            self._answered(request)
        with _changing:
            return {**self.__dict__, "_request": None, "_until": 0.0, "_waiting": []}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self._name or self.id})"


class _Ready(Ref):
    """A ref of a group for which the head was asked. The group sees to it."""

    __slots__ = ("_group",)

    def __init__(self, group: PlacementGroup, connection: Connection) -> None:
        # With a finish, it is no call's whose answer the head could put in an argument's place.
        super().__init__(connection, 0, finish=lambda _: group)
        self._group = group

    def _result(self) -> Any:
        return super()._result() if self.failed() else self._group


def _give_up(request: Ref) -> None:
    """Have the head reserve nothing for a request, and give back what it has for it."""
    with suppress(_errors.MusterError):  # the session is over
        request._connection.cancel(request._id)


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

    group._look()
    with _changing:
        reserved, removed = group._reserved, group._removed
    places = {index: node_id(at.node_name) for index, at in enumerate(reserved)}
    return {
        "placement_group_id": group.id,
        "name": group._name,
        "bundles": dict(enumerate(map(dict, group.bundle_specs))),
        "bundles_to_node_id": places,
        "strategy": group._strategy,
        "state": "REMOVED" if removed else "CREATED" if reserved else "PENDING",
    }


def get_current_placement_group() -> PlacementGroup | None:
    """None: children are placed where they ask to be."""
    return None
