"""Arguments on their way from a data-parallel head to its peers."""

from __future__ import annotations

from typing import Any


def tensor_container_to(value: Any, device: Any) -> Any:
    return {"on": device, "value": value}


def broadcast_tensor_container(value: Any, src_rank: int, group: Any) -> Any:
    if isinstance(value["value"], list):
        return [f"{value['value']} on {value['on']} from {src_rank} in {group}"]
    return value["value"]
