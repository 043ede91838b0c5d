"""What lies in ``ray.util``: placement groups, strategies, names of actors."""

from __future__ import annotations

from typing import Any

from .... import _service
from . import scheduling_strategies
from .placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
    "scheduling_strategies",
]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of living actors; with ``all_namespaces``, dicts of name and namespace."""
    from .. import _workers
    from .._names import actor_name
    from .._state import namespace

    named = [found for service in _service.list_services() if (found := actor_name(service))]
    if all_namespaces or namespace() == _workers.NAMESPACE:
        named += [(_workers.NAMESPACE, name) for name in _workers.names()]
    if all_namespaces:
        return [{"name": name, "namespace": where} for where, name in named]
    return [name for where, name in named if where == namespace()]


def get_node_ip_address(address: str = "") -> str:
    """The address of the node that this runs on."""
    from .._nodes import here

    return str(here()["address"])
