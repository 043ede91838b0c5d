"""Spans, kept in the order in which they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SPANS: list[list[Any]] = []


@contextmanager
def trace_scope(name: str, *, category: str, args: dict[str, Any]) -> Iterator[None]:
    yield
    SPANS.append([name, category, args])
