"""Pools as Ray's placement groups: looked at, made, measured and given back.

A pool is one group with one bundle per node of the pool. Which devices a bundle
has is found by a short task that takes all of it, unless it has all of its node; they
stay the same as long as the group is there. The group is the bridge's, and goes with it. Nothing is kept running
inside, so that workers which use Ray themselves can have all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from . import reasons, remote, scaling
from .joining import Refused
from .reasons import bundles
from .scaling import Scaling

#: Seconds for what was just given back to be seen as free everywhere.
_SETTLE = 3.0
#: And for a group, also where a pool was to be had at once.
_LEAST = 1.0
#: Seconds between two looks while an autoscaler may add nodes.
_LOOK = 2.0
_PROBE_PATIENCE = 60.0
#: The label by which Ray tells its nodes apart.
_NODE_ID = "ray.io/node-id"
STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")


class Node:
    """A node of Ray's that is alive."""

    def __init__(self, facts: Mapping[str, Any], here: bool) -> None:
        self.id = str(facts["NodeID"])
        self.address = str(facts["NodeManagerAddress"])
        named = str(facts.get("NodeName") or "")
        self.name = named or self.address
        self.total: dict[str, float] = dict(facts.get("Resources") or {})
        self.available: dict[str, float] = dict(self.total)
        self.labels: dict[str, str] = dict(facts.get("Labels") or {})
        self.here = here

    def told(self) -> dict[str, Any]:
        """As the head hears of it."""
        return {
            "name": self.name,
            "address": self.address,
            "here": self.here,
            "cores": int(self.total.get("CPU", 0)),
            "memory": int(self.total.get("memory", 0)),
            "gpus": int(self.total.get("GPU", 0)),
        }


def nodes(ray: Any) -> list[Node]:
    """The nodes that are alive: this machine's first, then by address."""
    mine = ray.get_runtime_context().get_node_id()
    found = [Node(n, n["NodeID"] == mine) for n in ray.nodes() if n.get("Alive")]
    found.sort(key=lambda n: (not n.here, _numbers(n.address), n.id))
    names = [n.name for n in found]
    for node in found:
        # Several on one host; what the head was told of the script's own stays true.
        if names.count(node.name) > 1 and not node.here:
            node.name = f"{node.name}-{node.id[:6]}"
    for node_id, free in _available(ray).items():
        for node in found:
            if node.id == node_id:
                node.available = dict(free)
    return found


def _available(ray: Any) -> dict[str, dict[str, float]]:
    try:
        per_node: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    except Exception:  # an inner part of Ray's: without it there are the totals
        return {}
    return per_node


def _numbers(address: str) -> tuple[Any, ...]:
    parts = address.split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else (address,)


class Groups:
    """The groups of this bridge, by the number that the head gave them."""

    def __init__(self, ray: Any, prefix: str, prepare: Callable[[Node], None]) -> None:
        self._ray = ray
        self._prefix = prefix
        self._prepare = prepare
        self._lock = threading.Lock()
        self._made: dict[int, Any] = {}
        self._dropped: set[int] = set()

    def known(self) -> list[int]:
        """The numbers of those that are there."""
        with self._lock:
            return sorted(self._made)

    def reserve(self, want: Mapping[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        """Make a group and say which nodes and devices it has, all of it or nothing."""
        from ray.util.placement_group import placement_group

        ray, number = self._ray, int(want["id"])
        strategy, there = _strategy(want), nodes(ray)
        only = _only(want, there)
        if not reasons.room(want, strategy, there, False):
            scales = scaling.look(ray)
            if only or not scales.grows:
                raise Refused(self._why(want, strategy, scales))
        labels = {str(k): str(v) for k, v in (want.get("labels") or {}).items()} | only
        more = {"bundle_label_selector": [labels] * want["nodes"]} if labels else {}
        name = f"{self._prefix}-{number}"
        group = placement_group(bundles(want), strategy, name=name, **more)
        with self._lock:
            self._made[number] = group
        try:
            self._await(group, want, strategy, tell)
            granted = self._measure(group, want)
            if number in self._dropped:
                raise Refused("the pool was given up", "cancelled")
        except BaseException:
            self.release(number)
            raise
        env = {"MUSTER_RAY_GROUP": name, "MUSTER_RAY_NAMESPACE": self._prefix}
        return {"nodes": granted, "env": env}

    def look(self, want: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a pool could be had now, or later, and why not; nothing is held."""
        strategy, there, scales = _strategy(want), nodes(self._ray), scaling.look(self._ray)
        _only(want, there)
        if reasons.room(want, strategy, there, True):
            text = f"there is room for {reasons.wanted(want, strategy)} in Ray"
            return {"now": True, "waits": scales.grows, "text": text}
        why = self._why(want, strategy, scales)
        return {"now": False, "waits": scales.grows, "text": why}

    def _why(self, want: Mapping[str, Any], strategy: str, scales: Scaling) -> str:
        """Why a pool cannot be had now."""
        there, but = nodes(self._ray), f"{self._prefix}-{want['id']}"
        held = reasons.usage(self._ray, self._prefix, want.get("users") or {}, but).told(there)
        return reasons.explain(want, strategy, there, held, scales)

    def _await(
        self, group: Any, want: Mapping[str, Any], strategy: str, tell: Callable[[str], None]
    ) -> None:
        """Wait for a group: for a moment, or as long as an autoscaler may add nodes."""
        began = monotonic()
        patience = _SETTLE
        while True:
            left = max(want["seconds"], _LEAST) - (monotonic() - began)
            if self._ready(group, min(patience, left)):
                return
            scales = scaling.look(self._ray)
            if scales.refuses(group.id.hex()):
                why = self._why(want, strategy, Scaling(False))
                raise Refused(f"{why}\nthe cluster's autoscaler says that it can make no room")
            why = self._why(want, strategy, scales)
            if not scales.grows or left <= patience:
                raise Refused(why)
            patience = _LOOK
            tell(why)

    def _ready(self, group: Any, seconds: float) -> bool:
        return bool(group.wait(max(0.01, seconds)))

    def _measure(self, group: Any, want: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Which node and devices each bundle has, this machine's first."""
        from ray.util.placement_group import placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._ray
        there = {n.id: n for n in nodes(ray)}
        at = {int(k): v for k, v in placement_group_table(group)["bundles_to_node_id"].items()}
        for node_id in sorted(set(at.values()) & set(there)):
            self._prepare(there[node_id])
        gone = set(at.values()) - set(there)
        if gone:
            raise Refused(f"a node of the pool ({min(gone)[:8]}) died as it was reserved")
        gpus = [taken.get("GPU", 0) for taken in bundles(want)]
        whole = {
            index
            for index, node_id in at.items()
            if there[node_id].total.get("GPU", 0) == gpus[index] > 0
        }
        devices: dict[int, list[str]] = {index: [] for index in at}
        task = ray.remote(remote.probe)
        asked = {
            task.options(
                num_cpus=0,
                num_gpus=gpus[index],
                max_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote(): index
            for index in at
            if gpus[index] and index not in whole
        }
        for ref, index in asked.items():
            devices[index] = ray.get(ref, timeout=_PROBE_PATIENCE)
        granted = []
        for index, node_id in sorted(at.items()):
            granted.append((there[node_id], index, devices[index]))
        if not want.get("bundles"):  # those have an order of their own
            granted.sort(key=lambda g: (not g[0].here, _numbers(g[0].address), g[0].id, g[2]))
        return [{**n.told(), "devices": ids, "all": i in whole} for n, i, ids in granted]

    def release(self, number: int) -> None:
        """Give a group back."""
        from ray.util.placement_group import remove_placement_group

        with self._lock:
            self._dropped.add(number)
            group = self._made.pop(number, None)
        if group is not None:
            remove_placement_group(group)  # what runs inside ends with it


def _only(want: Mapping[str, Any], there: Sequence[Node]) -> dict[str, str]:
    """What selects the one node that a pool is to have, where one is named."""
    name = want.get("node")
    if not name:
        return {}
    for node in there:
        if node.name == name:
            return {_NODE_ID: node.id}
    raise Refused(
        f"Ray has no node {name!r} that is alive; it has {', '.join(n.name for n in there)}"
    )


def _strategy(want: Mapping[str, Any]) -> str:
    strategy = str(want.get("strategy") or ("STRICT_SPREAD" if want["nodes"] > 1 else "PACK"))
    if strategy not in STRATEGIES:
        raise Refused(f"strategy={strategy!r}; Ray has {', '.join(STRATEGIES)}", "invalid")
    return strategy
