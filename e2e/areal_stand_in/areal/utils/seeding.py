"""Seeds."""

from __future__ import annotations

import os


def set_random_seed(seed: int, key: str) -> None:
    os.environ["AREAL_SEEDED"] = f"{seed}/{key}"
