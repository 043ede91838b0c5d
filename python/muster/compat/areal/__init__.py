"""AReaL on Muster: change the scheduler, keep the rest.

``MusterScheduler`` takes the place of AReaL's LocalScheduler; its controllers
run on it as they are. Where AReaL is installed the classes here are its own,
else equal ones. ``python -m muster.compat.areal.rpc_server`` is AReaL's worker
server. docs/migrating-from-areal.md tells more.

In the script: `scheduler`, with `_roles` (what a role asks for), `_workers` and `_http`
(how workers are called). In workers: `_host`; `guard`, `_blueprints` and
`rpc_server` are what they serve by HTTP. In both `_tensors`, and `stand_in`, which has what of
AReaL they need where it is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .stand_in import api as _own

if TYPE_CHECKING:
    from .scheduler import MusterScheduler
    from .stand_in.api import *  # noqa: F403 - the names are listed there
    from .stand_in.rtensor import RTensor, TensorShardInfo

__all__ = ["MusterScheduler", "RTensor", "TensorShardInfo"]
__all__ += _own.__all__


def __getattr__(name: str) -> Any:
    # Only what is asked for is loaded: a worker must not import AReaL before its
    # environment is complete.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _areal

    if name in ("RTensor", "TensorShardInfo"):
        return getattr(_areal.tensors(), name)
    home = ".scheduler" if name == "MusterScheduler" else "._api"
    return getattr(import_module(home, __name__), name)
