"""AReaL's scheduler API: its own classes where it is installed, else equal ones."""

from __future__ import annotations

from ._areal import INSTALLED, part
from .stand_in import api as _own
from .stand_in.api import *  # noqa: F403 - the names are listed there

if INSTALLED:
    for _home in ("api", "api.cli_args", "infra.scheduler.exceptions"):
        _module = part(_home)
        globals().update({n: getattr(_module, n) for n in _own.__all__ if hasattr(_module, n)})

#: What AReaL's own worker is started by; ours speaks the same protocol.
NATIVE_COMMANDS = ("areal.infra.rpc.rpc_server", "muster.compat.areal.rpc_server")
