"""In the place of ``areal.utils.seeding``."""

from __future__ import annotations

import hashlib
import random
import sys


def set_random_seed(base_seed: int, key: str) -> None:
    """Seed what is random, differently for each worker."""
    own = int(hashlib.sha256(f"{base_seed}/{key}".encode()).hexdigest()[:8], 16)
    random.seed(own)
    if (np := sys.modules.get("numpy")) is not None:
        np.random.seed(own)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(own)
