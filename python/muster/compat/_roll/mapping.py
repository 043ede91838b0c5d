"""device_mapping where its ids are needed before there is a head to ask."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import lru_cache

from ..._embedded import find_binary


def parse_mapping(mapping: str | Iterable[int]) -> list[int]:
    """The ids that a device_mapping names: a list, or text that Muster's own parser reads."""
    if isinstance(mapping, str):
        return list(_read(mapping))
    ids = list(mapping)
    for at in ids:
        if isinstance(at, (bool, str)) or not hasattr(at, "__index__") or at < 0:
            raise ValueError(f"device_mapping={mapping!r}: {at!r} is no id, a whole number from 0")
    return [int(at) for at in ids]


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[int, ...]:
    done = subprocess.run(
        [find_binary(), "mapping", "--", text], capture_output=True, text=True, check=False
    )
    if done.returncode:
        told = done.stderr.strip().removeprefix("muster: ").removeprefix("device_mapping: ")
        raise ValueError(f"device_mapping={text!r} names no list of ids: {told}")
    return tuple(map(int, done.stdout.split()))
