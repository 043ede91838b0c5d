"""The environment that every worker has."""

from __future__ import annotations


def get_env_vars(more: str | None = None) -> dict[str, str]:
    return {"AREAL_BASE": "1", "AREAL_MINE": "base"}
