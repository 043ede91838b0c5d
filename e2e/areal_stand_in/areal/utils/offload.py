"""Variables for memory that can be offloaded."""

from __future__ import annotations


def get_tms_env_vars() -> dict[str, str]:
    return {"AREAL_TMS": "1"}
