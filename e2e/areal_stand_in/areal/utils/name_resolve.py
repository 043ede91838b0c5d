"""A name service: a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

_root = [Path()]


def reconfigure(config: Any) -> None:
    assert config.type == "nfs"
    _root[0] = Path(config.nfs_record_root)


def clear_subtree(name: str) -> None:
    shutil.rmtree(_root[0] / name, ignore_errors=True)


def add(name: str, value: str, replace: bool = False) -> None:
    path = _root[0] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value)
