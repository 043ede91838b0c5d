"""Pools as Ray's placement groups: made, measured, explained and given back.

A pool is one group with one bundle per node of the pool. Which devices a bundle
has is found by a short task that takes all of it, unless it has all of its node; they stay the same as long as the
group is there. The group is the bridge's, and goes with it. Nothing is kept running
inside, so that workers which use Ray themselves can have all of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from . import remote
from .joining import Refused

#: Seconds for what was just given back to be seen as free everywhere.
_SETTLE = 3.0
#: Seconds between two looks while an autoscaler may add nodes.
_LOOK = 2.0
_PROBE_PATIENCE = 60.0
#: What a bundle without devices takes, as it must take something.
_LEAST_CPU = 0.01
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
        return {"name": self.name, "address": self.address, "here": self.here}


def nodes(ray: Any) -> list[Node]:
    """The nodes that are alive: this machine's first, then by address."""
    mine = ray.get_runtime_context().get_node_id()
    found = [Node(n, n["NodeID"] == mine) for n in ray.nodes() if n.get("Alive")]
    found.sort(key=lambda n: (not n.here, _numbers(n.address), n.id))
    names = [n.name for n in found]
    for node in found:
        if names.count(node.name) > 1:  # several on one host
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


def bundle(want: Mapping[str, Any]) -> dict[str, float]:
    """What one node of a pool takes of Ray's resources."""
    taken: dict[str, float] = {}
    if want["devices"]:
        taken["GPU"] = want["devices"]
    if want.get("cpus"):
        taken["CPU"] = want["cpus"]
    if not taken:
        taken["CPU"] = _LEAST_CPU
    if want.get("accelerator"):
        taken[f"accelerator_type:{want['accelerator']}"] = 0.001
    return taken


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
        strategy = want.get("strategy") or ("STRICT_SPREAD" if want["nodes"] > 1 else "PACK")
        if strategy not in STRATEGIES:
            raise Refused(f"strategy={strategy!r}; Ray has {', '.join(STRATEGIES)}", "invalid")
        elastic = grows(ray)
        if not elastic and (why := self._never(want, strategy)):
            raise Refused(why)
        labels = {str(k): str(v) for k, v in (want.get("labels") or {}).items()}
        more = {"bundle_label_selector": [labels] * want["nodes"]} if labels else {}
        name = f"{self._prefix}-{number}"
        group = placement_group([bundle(want)] * want["nodes"], strategy, name=name, **more)
        with self._lock:
            self._made[number] = group
        try:
            self._await(group, want, strategy, elastic, tell)
            granted = self._measure(group, want)
            if number in self._dropped:
                raise Refused("the pool was given up", "cancelled")
        except BaseException:
            self.release(number)
            raise
        env = {"MUSTER_RAY_GROUP": name, "MUSTER_RAY_NAMESPACE": self._prefix}
        return {"nodes": granted, "env": env}

    def _never(self, want: Mapping[str, Any], strategy: str) -> str:
        """Why no free node could ever make this pool possible; empty where one could."""
        there = nodes(self._ray)
        taken = bundle(want)
        could = [n for n in there if fits(n.total, taken) and matches(n, want)]
        enough = bool(could) if strategy != "STRICT_SPREAD" else len(could) >= want["nodes"]
        return "" if enough else explain(want, strategy, there, self._holders(), False)

    def _await(
        self,
        group: Any,
        want: Mapping[str, Any],
        strategy: str,
        elastic: bool,
        tell: Callable[[str], None],
    ) -> None:
        began = monotonic()
        if self._ready(group, min(_SETTLE, want["seconds"])):
            return
        while elastic and monotonic() - began < want["seconds"]:
            tell(explain(want, strategy, nodes(self._ray), self._holders(int(want["id"])), True))
            if self._ready(group, min(_LOOK, want["seconds"] - (monotonic() - began))):
                return
        there = nodes(self._ray)
        raise Refused(explain(want, strategy, there, self._holders(int(want["id"])), elastic))

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
        whole = {
            index
            for index, node_id in at.items()
            if there[node_id].total.get("GPU") == want["devices"]
        }
        devices: dict[int, list[str]] = {index: [] for index in at}
        if want["devices"]:
            task = ray.remote(remote.probe)
            asked = {
                task.options(
                    num_cpus=0,
                    num_gpus=want["devices"],
                    max_retries=0,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
                ).remote(): index
                for index in at
                if index not in whole
            }
            for ref, index in asked.items():
                devices[index] = ray.get(ref, timeout=_PROBE_PATIENCE)
        granted = []
        for index, node_id in at.items():
            granted.append((there[node_id], index, devices[index]))
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

    def _holders(self, but: int = -1) -> dict[str, list[str]]:
        """Who holds what, by node: the groups that Ray knows of."""
        from ray.util.placement_group import placement_group_table

        found: dict[str, list[str]] = {}
        for facts in placement_group_table().values():
            name = str(facts.get("name") or facts["placement_group_id"][:8])
            if facts["state"] != "CREATED" or name == f"{self._prefix}-{but}":
                continue
            places = facts.get("bundles_to_node_id") or {}
            for index, taken in facts["bundles"].items():
                text = ", ".join(_amount(k, v) for k, v in taken.items() if k in ("GPU", "CPU"))
                found.setdefault(places.get(index, ""), []).append(f"group {name} holds {text}")
        return found


def fits(has: Mapping[str, float], taken: Mapping[str, float]) -> bool:
    """Whether a bundle fits into what is there."""
    return all(has.get(name, 0) + 1e-9 >= amount for name, amount in taken.items())


def matches(node: Node, want: Mapping[str, Any]) -> bool:
    """Whether a node has the labels that are asked for, as far as they are plain values."""
    for key, value in (want.get("labels") or {}).items():
        text = str(value)
        if text.startswith(("in(", "!in(")):
            inside = node.labels.get(key) in text[text.index("(") + 1 : -1].replace(" ", "").split(
                ","
            )
            if inside == text.startswith("!"):
                return False
        elif (node.labels.get(key) != text.lstrip("!")) != text.startswith("!"):
            return False
    return True


def explain(
    want: Mapping[str, Any],
    strategy: str,
    there: Sequence[Node],
    holders: Mapping[str, list[str]],
    elastic: bool,
) -> str:
    """Why a pool cannot be had now: wanted, what each node has, who holds it, what to do."""
    count, taken = int(want["nodes"]), bundle(want)
    each = " and ".join(_amount(k, v) for k, v in taken.items() if (k, v) != ("CPU", _LEAST_CPU))
    apart = {"STRICT_SPREAD": ", each on a node of its own", "STRICT_PACK": ", all on one node"}
    text = (
        f"not enough for ResourceManager(num_gpus_per_node={want['devices']}, num_nodes={count}) "
        f"in Ray: wanted {_plural(count, 'bundle')}{' of ' + each if each else ''}"
        f"{apart.get(strategy, '') if count > 1 else ''}"
    )
    if labels := want.get("labels"):
        text += " with labels " + ", ".join(f"{k}={v}" for k, v in labels.items())
    free = sum(fits(n.available, taken) and matches(n, want) for n in there)
    could = sum(fits(n.total, taken) and matches(n, want) for n in there)
    text += f"; {_plural(free, 'node')} of {len(there)} could take one now"
    for node in there[:16]:
        text += f"\n  {node.name}: {_has(node, taken)}"
        if not matches(node, want):
            text += "; other labels"
        for holder in holders.get(node.id, ()):
            text += f"; {holder}"
    if len(there) > 16:
        text += f"\n  … and {_plural(len(there) - 16, 'more node')}"
    if elastic:
        return text + "\nan autoscaler may add nodes; it is waited for"
    if could:
        return (
            text + "\nwhat is held comes free when the pool or the Ray job that holds it ends; "
            "clusters that share devices share one ResourceManager"
        )
    return text + "\nno node of this Ray cluster has that much: ask for less, or add nodes"


def _has(node: Node, taken: Mapping[str, float]) -> str:
    parts = []
    for name in taken:
        total, free = node.total.get(name, 0), node.available.get(name, 0)
        if name.startswith("accelerator_type:"):
            parts.append(("has " if total else "no ") + name.removeprefix("accelerator_type:"))
        else:
            parts.append(f"{_amount(name, total)}, {free:g} free")
    return ", ".join(parts)


def _amount(name: str, amount: float) -> str:
    if name.startswith("accelerator_type:"):
        return name.removeprefix("accelerator_type:")
    return f"{amount:g} {name}" + ("" if amount == 1 else "s")


def _plural(n: int, noun: str) -> str:
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


def grows(ray: Any) -> bool:
    """Whether an autoscaler looks after this cluster: Ray says how far it may grow."""
    said = os.environ.get("MUSTER_RAY_AUTOSCALER", "")
    if said:
        return said not in ("0", "off", "no")
    try:
        return bool(ray._private.state.state.get_max_resources_from_cluster_config())
    except Exception:  # an inner part of Ray's, and not of every release
        return False
