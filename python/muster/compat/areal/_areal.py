"""Whether AReaL is installed. It is not imported to find out: in workers that comes later."""

from __future__ import annotations

from importlib.util import find_spec

INSTALLED = find_spec("areal") is not None
