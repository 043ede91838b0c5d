"""Names of the name service."""

from __future__ import annotations


def trial_root(experiment: str, trial: str) -> str:
    return f"{experiment}/{trial}"


def worker_discovery(experiment: str, trial: str, role: str, index: int) -> str:
    return f"{experiment}/{trial}/{role}/{index}"
