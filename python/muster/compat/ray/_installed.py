"""Importing this is `muster.compat.ray.install`: for workers that are told what to preload."""

from __future__ import annotations

from . import install

install()
