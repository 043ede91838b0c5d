"""The nodes of the session as Ray tells of them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import muster

from . import _state

_turns = itertools.count()
#: How Ray calls the devices of each kind.
_KEYS = {"ascend": "NPU"}
#: States of nodes that something can be placed on.
_ALIVE = ("up", "unused")


def node_id(name: str) -> str:
    """A node's id, in the form that Ray's have."""
    return _state.identity(f"node {name}")


def here() -> dict[str, Any]:
    """The node that this process runs on; where none is, the first."""
    nodes = muster.nodes()
    found: dict[str, Any] = next((node for node in nodes if node["here"]), nodes[0])
    return found


def _alive() -> list[dict[str, Any]]:
    return [node for node in muster.nodes() if node["state"] in _ALIVE]


def name_of(ident: str) -> str | None:
    """The living node of that id, by its name."""
    return next((str(n["name"]) for n in _alive() if node_id(n["name"]) == ident), None)


def in_turn() -> str | None:
    """One living node after the other, for what is to be spread."""
    alive = _alive()
    return str(alive[next(_turns) % len(alive)]["name"]) if alive else None


def nodes() -> list[dict[str, Any]]:
    """All nodes with their ids, addresses and resources."""
    return [
        {
            "NodeID": node_id(node["name"]),
            "Alive": alive,
            "alive": alive,
            "NodeName": node["name"],
            "NodeManagerHostname": node["name"],
            "NodeManagerAddress": node["address"],
            "Resources": dict(_resources(node, len(node["devices"]))) if alive else {},
            "Labels": {},
        }
        for node in muster.nodes()
        for alive in [node["state"] in _ALIVE]
    ]


def cluster_resources() -> dict[str, float]:
    """What all living nodes have together."""
    return dict(sum((_resources(node, len(node["devices"])) for node in _alive()), Counter()))


def available_resources() -> dict[str, float]:
    """What no pool holds. Muster does not count cores and memory: all of those are there."""
    return dict(sum((_resources(node, node["free"]) for node in _alive()), Counter()))


def _resources(node: dict[str, Any], devices: int) -> Counter[str]:
    found = {"CPU": node["cores"], "memory": node["memory"], f"node:{node['address']}": 1}
    if node["devices"]:
        found[_KEYS.get(node["devices"][0]["kind"], "GPU")] = devices
    return Counter({key: float(amount) for key, amount in found.items()})
