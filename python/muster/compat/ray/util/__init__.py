"""What lies in ``ray.util``: placement groups, strategies, names of actors."""

from __future__ import annotations

from typing import Any

from .... import list_services, list_workers
from . import scheduling_strategies
from .placement_group import placement_group, placement_group_table, remove_placement_group

__all__ = [
    "get_node_ip_address",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
    "scheduling_strategies",
]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of living actors; with ``all_namespaces``, dicts of name and namespace."""
    from .._state import actor_name, namespace
    from ..actor import WORKERS

    named = [found for service in list_services() if (found := actor_name(service))]
    if all_namespaces or namespace() == WORKERS:
        named += [(WORKERS, name) for name in list_workers()]
    if all_namespaces:
        return [{"name": name, "namespace": where} for where, name in named]
    return [name for where, name in named if where == namespace()]


def get_node_ip_address() -> str:
    """The address of the node that this runs on."""
    from .._nodes import here

    return str(here()["address"])
