"""Why a pool cannot be had now: what is wanted, what each node has, who holds it.

Pure, but for `usage`, which asks Ray who holds what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .groups import Node
    from .scaling import Scaling

#: What a bundle without devices takes, as it must take something.
LEAST_CPU = 0.01
_TYPE = "accelerator_type:"
_SHOWN = ("GPU", "CPU")
_MOST_NODES = 16


def bundle(want: Mapping[str, Any]) -> dict[str, float]:
    """What one node of a pool takes of Ray's resources."""
    taken: dict[str, float] = {}
    if want["devices"]:
        taken["GPU"] = want["devices"]
    if want.get("cpus"):
        taken["CPU"] = want["cpus"]
    if not taken:
        taken["CPU"] = LEAST_CPU
    if want.get("accelerator"):
        taken[f"{_TYPE}{want['accelerator']}"] = 0.001
    return taken


def bundles(want: Mapping[str, Any]) -> list[dict[str, float]]:
    """What each node of a pool takes."""
    if not want.get("bundles"):
        return [bundle(want)] * int(want["nodes"])
    return [
        bundle({**want, "devices": one["gpus"], "cpus": one.get("cpus", 0)})
        for one in want["bundles"]
    ]


def total(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What all bundles take together."""
    sums: dict[str, float] = {}
    for one in taken:
        for name, amount in one.items():
            sums[name] = sums.get(name, 0) + amount
    return sums


def fits(has: Mapping[str, float], taken: Mapping[str, float]) -> bool:
    """Whether a bundle fits into what is there."""
    return all(has.get(name, 0) + 1e-9 >= amount for name, amount in taken.items())


def times(has: Mapping[str, float], taken: Mapping[str, float]) -> int:
    """How many bundles fit into what is there."""
    return min(int(has.get(name, 0) / amount + 1e-6) for name, amount in taken.items() if amount)


def matches(node: Node, want: Mapping[str, Any]) -> bool:
    """Whether a node is the one that is asked for, and has the labels, as far as they are plain
    values."""
    if want.get("node") not in (None, "", node.name):
        return False
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


def room(want: Mapping[str, Any], strategy: str, there: Sequence[Node], free: bool) -> bool:
    """Whether all bundles have room in what is free, or in all that the nodes have.

    Of bundles that differ, whether each has room somewhere and all have in sum: where they go
    is Ray's to say.
    """
    taken, count = bundle(want), int(want["nodes"])
    has = [node.available if free else node.total for node in there if matches(node, want)]
    if want.get("bundles"):
        every = bundles(want)
        if strategy == "STRICT_PACK":
            return any(fits(one, total(every)) for one in has)
        return (
            all(any(fits(one, size) for one in has) for size in every)
            and fits(total(has), total(every))
            and (strategy != "STRICT_SPREAD" or len(has) >= count)
        )
    each = [times(one, taken) for one in has]
    if strategy == "STRICT_SPREAD":
        return sum(n > 0 for n in each) >= count
    return (max(each, default=0) if strategy == "STRICT_PACK" else sum(each)) >= count


def explain(
    want: Mapping[str, Any],
    strategy: str,
    there: Sequence[Node],
    holders: Mapping[str, list[str]],
    scaling: Scaling,
) -> str:
    """Why a pool cannot be had now: wanted, what each node has, who holds it, what to do."""
    every = bundles(want)
    taken = max(every, key=lambda one: (one.get("GPU", 0), one.get("CPU", 0)))
    text = f"not enough for {_asked(want)} in Ray: wanted {wanted(want, strategy)}"
    free = sum(fits(n.available, taken) and matches(n, want) for n in there)
    one = "the largest" if want.get("bundles") else "one"
    text += f"; {_plural(free, 'node')} of {len(there)} could take {one} now"
    for node in there[:_MOST_NODES]:
        text += f"\n  {node.name}: {_has(node, total(every))}"
        if not matches(node, want):
            text += "; another node" if want.get("node") else "; other labels"
        for holder in holders.get(node.id, ()):
            text += f"; {holder}"
    if len(there) > _MOST_NODES:
        text += f"\n  … and {_plural(len(there) - _MOST_NODES, 'more node')}"
    for holder in holders.get("", ()):
        text += f"\n  {holder}"
    if scaling.grows:
        coming = f" ({scaling.doing} on the way)" if scaling.doing else ""
        return text + f"\nan autoscaler may add nodes{coming}; it is waited for"
    if not any(fits(n.total, taken) and matches(n, want) for n in there):
        return text + "\nno node of this Ray cluster has that much: ask for less, or add nodes"
    text += (
        "\nwhat is held comes free when the pool or the Ray job that holds it ends; "
        "clusters that share devices share one ResourceManager"
    )
    if not room(want, strategy, there, False):
        text += ". Even then it is not enough: ask for less, or add nodes"
    return text


def _asked(want: Mapping[str, Any]) -> str:
    if want.get("bundles"):
        return "ResourceManager.for_bundles(…)"
    return f"ResourceManager(num_gpus_per_node={want['devices']}, num_nodes={want['nodes']})"


def wanted(want: Mapping[str, Any], strategy: str) -> str:
    """What is asked for, in Ray's words."""
    count = int(want["nodes"])
    kinds = [
        " and ".join(_amount(k, v) for k, v in taken.items() if (k, v) != ("CPU", LEAST_CPU))
        for taken in bundles(want)
    ]
    each = kinds[0] if len(set(kinds)) == 1 else "; ".join(kind or "no GPUs" for kind in kinds)
    apart = {"STRICT_SPREAD": ", each on a node of its own", "STRICT_PACK": ", all on one node"}
    text = f"{_plural(count, 'bundle')}{' of ' + each if each else ''}"
    text += apart.get(strategy, "") if count > 1 else ""
    if labels := want.get("labels"):
        text += " with labels " + ", ".join(f"{k}={v}" for k, v in labels.items())
    if want.get("node"):
        text += f" on {want['node']}"
    return text


def _has(node: Node, taken: Mapping[str, float]) -> str:
    parts = []
    for name in taken:
        total, free = node.total.get(name, 0), node.available.get(name, 0)
        if name.startswith(_TYPE):
            parts.append(("has " if total else "no ") + name.removeprefix(_TYPE))
        else:
            parts.append(f"{_amount(name, total)}, {free:g} free")
    return ", ".join(parts)


def _amount(name: str, amount: float) -> str:
    if name.startswith(_TYPE):
        return name.removeprefix(_TYPE)
    return f"{amount:g} {name}" + ("" if amount == 1 else "s")


def _plural(n: int, noun: str) -> str:
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


# --- who holds what ----------------------------------------------------------


class Usage:
    """Who holds what on each node, put together from what Ray tells."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._held: dict[str, dict[str, float]] = {}

    def add(self, node: str, who: str, amounts: Mapping[str, float]) -> None:
        """Somebody holds this on a node."""
        held = {name: amounts[name] for name in _SHOWN if amounts.get(name, 0) > 0}
        if not held:
            return
        sums = self._held.setdefault(node, {})
        for name, amount in held.items():
            sums[name] = sums.get(name, 0) + amount
        self._texts.setdefault(node, []).append(f"{who} holds {_sum(held)}")

    def waits(self, who: str, wanted: str) -> None:
        """Somebody waits for something, too."""
        self._texts.setdefault("", []).append(f"{who} waits for {wanted}")

    def told(self, there: Sequence[Node]) -> dict[str, list[str]]:
        """By node, with what nobody was found for: tasks, or what was not told yet."""
        for node in there:
            rest = {
                name: node.total.get(name, 0)
                - node.available.get(name, 0)
                - self._held.get(node.id, {}).get(name, 0)
                for name in _SHOWN
            }
            rest = {name: amount for name, amount in rest.items() if amount > 1e-3}
            if rest:
                self._texts.setdefault(node.id, []).append(f"tasks of Ray's hold {_sum(rest)}")
        return self._texts


def _sum(amounts: Mapping[str, float]) -> str:
    return " and ".join(_amount(name, amount) for name, amount in amounts.items())


def usage(ray: Any, prefix: str, users: Mapping[str, str], but: str) -> Usage:
    """Who holds what, as Ray knows it: groups, and actors outside of them.

    ``users`` says whose the pools of this session are, by number; ``but`` is the group
    that all this is about.
    """
    from ray.util.placement_group import placement_group_table

    found = Usage()
    for facts in placement_group_table().values():
        name = str(facts.get("name") or facts["placement_group_id"][:8])
        if facts["state"] == "REMOVED" or name == but:
            continue
        who = group_name(name, prefix, users)
        if facts["state"] != "CREATED":
            sizes = facts["bundles"].values()
            found.waits(who, ", ".join(_sum(size) for size in sizes))
            continue
        places = facts.get("bundles_to_node_id") or {}
        for index, taken in facts["bundles"].items():
            found.add(places.get(index, ""), who, taken)
    for node, who, taken in _actors(ray):
        found.add(node, who, taken)
    return found


def group_name(name: str, prefix: str, users: Mapping[str, str]) -> str:
    """Whose a group is: a pool of this session, of another one's, or not Muster's."""
    session, _, number = name.rpartition("-")
    if session == prefix:
        by = users.get(number, "")
        return f"pool {number}" + (f" ({by})" if by else "")
    if session.startswith("muster-") and number.isdigit():
        return f"pool {number} of session {session.removeprefix('muster-')}"
    return f"group {name}"


def _actors(ray: Any) -> list[tuple[str, str, dict[str, float]]]:
    """Actors that hold something outside of groups: node, name, what."""
    try:
        from ray.core.generated.gcs_pb2 import ActorTableData

        rows = ray._private.state.state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
        tables = [ActorTableData.FromString(row) for row in rows]
    except Exception:  # inner parts of Ray's: without them they count as tasks
        return []
    found = []
    for actor in tables:
        if not actor.placement_group_id.strip(b"\xff"):  # no id is all ones
            name = actor.name or actor.class_name
            who = f"actor {name} (job {actor.job_id.hex()})"
            found.append((actor.address.node_id.hex(), who, dict(actor.required_resources)))
    return found
