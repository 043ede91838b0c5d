"""The nodes of the session as Ray tells of them."""

from __future__ import annotations

import itertools
from typing import Any

import muster

from ... import _context
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


def name_of(ident: str) -> str | None:
    """The living node of that id, by its name."""
    alive = (node["name"] for node in muster.nodes() if node["state"] in _ALIVE)
    return next((str(name) for name in alive if node_id(name) == ident), None)


def in_turn() -> str | None:
    """One living node after the other, for what is to be spread."""
    alive = [str(node["name"]) for node in muster.nodes() if node["state"] in _ALIVE]
    return alive[next(_turns) % len(alive)] if alive else None


def nodes() -> list[dict[str, Any]]:
    """All nodes with their ids, addresses and resources."""
    session = _context.session()
    logs = "" if session is None else str(session.welcome.get("log_dir", ""))
    found = []
    for node in muster.nodes():
        alive = node["state"] in _ALIVE
        found.append(
            {
                "NodeID": node_id(node["name"]),
                "Alive": alive,
                "alive": alive,
                "NodeName": node["name"],
                "NodeManagerHostname": node["name"],
                "NodeManagerAddress": node["address"],
                "NodeManagerPort": 0,
                "ObjectManagerPort": 0,
                "ObjectStoreSocketName": f"{logs}/sockets/store" if logs else "",
                "RayletSocketName": "",
                "MetricsExportPort": 0,
                "Resources": _resources(node) if alive else {},
                "Labels": {},
            }
        )
    return found


def cluster_resources() -> dict[str, float]:
    """What all living nodes have together."""
    return _sum([_resources(node) for node in muster.nodes() if node["state"] in _ALIVE])


def available_resources() -> dict[str, float]:
    """What no pool holds. Muster does not count cores and memory: all of those are there."""
    free = [_resources(node, node["free"]) for node in muster.nodes() if node["state"] in _ALIVE]
    return {key: amount for key, amount in _sum(free).items() if amount}


def _resources(node: dict[str, Any], devices: int | None = None) -> dict[str, float]:
    found = {
        "CPU": float(node["cores"]),
        "memory": float(node["memory"]),
        f"node:{node['address']}": 1.0,
    }
    if node["devices"]:
        key = _KEYS.get(node["devices"][0]["kind"], "GPU")
        found[key] = float(len(node["devices"]) if devices is None else devices)
    return found


def _sum(parts: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for key, amount in part.items():
            total[key] = total.get(key, 0.0) + amount
    return total


def count_devices() -> int:
    """How many devices there are in all."""
    return sum(len(node["devices"]) for node in muster.nodes())


def first_address() -> str:
    """Where the first node is reached."""
    return str(muster.nodes()[0]["address"])
