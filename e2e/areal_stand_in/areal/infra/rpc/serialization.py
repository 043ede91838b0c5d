"""Values over HTTP; here only those that JSON has."""

from __future__ import annotations

from typing import Any


def serialize_value(value: Any) -> Any:
    return value


def deserialize_value(value: Any) -> Any:
    return value
