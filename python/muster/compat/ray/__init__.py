"""Ray's calls on Muster: ``import muster.compat.ray as ray``.

The calls that RL pipelines make of Ray itself: actors and tasks are services of Muster's,
refs are its futures, placement groups its pools. docs/ray-calls.md has the table of calls,
and what differs. Ray itself is neither needed nor imported.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Any

from .. import _preloads
from . import actor, exceptions, runtime_context, runtime_env, util
from ._nodes import available_resources, cluster_resources, nodes
from ._options import Remote
from ._refs import ObjectRef, cancel, get, put, wait
from ._session import init, is_initialized, shutdown
from .actor import get_actor, kill, method
from .remote_function import RemoteFunction
from .runtime_context import SCRIPT_MODE, WORKER_MODE, get_gpu_ids, get_runtime_context

__version__ = "2.60.0"  # whose behaviour this is

__all__ = [
    "SCRIPT_MODE",
    "WORKER_MODE",
    "ObjectRef",
    "__version__",
    "actor",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "install",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "runtime_context",
    "runtime_env",
    "shutdown",
    "util",
    "wait",
]


def remote(*args: Any, **options: Any) -> Any:
    """Make an actor class of a class, a remote function of a function.

    Used as ``@ray.remote``, ``@ray.remote(num_gpus=1)`` or ``ray.remote(Class)``.
    """
    if options and not args:
        return lambda thing: _remote(thing, options)
    if options or len(args) != 1:
        raise TypeError(
            "remote is used as @ray.remote or with options by name, as @ray.remote(num_cpus=1)"
        )
    return _remote(args[0], {})


def _remote(thing: Any, options: dict[str, Any]) -> Any:
    if isinstance(thing, Remote):
        raise TypeError(f"{thing!r} is remote already")
    if isinstance(thing, type):
        return actor.ActorClass(thing, options)
    if callable(thing) and hasattr(thing, "__qualname__"):
        return RemoteFunction(thing, options)
    raise TypeError(f"remote() takes a class or a function, not {thing!r}")


def install() -> None:
    """Have ``import ray`` find this module, here and in all workers that are made later.

    For code that cannot be edited. Call it before anything imports Ray; where Ray itself is
    imported already it refuses.
    """
    ours = sys.modules[__name__]
    there = sys.modules.get("ray")
    if there is not None and there is not ours:
        raise ImportError(
            f"Ray itself is imported already, from {getattr(there, '__file__', None)}: call "
            "muster.compat.ray.install() before that"
        )
    sys.modules["ray"] = ours
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        name = found.name.removeprefix(__name__)
        if not name.startswith("._") or name.startswith("._private"):
            sys.modules[f"ray{name}"] = importlib.import_module(found.name)
    os.environ[_preloads.INSTALLED] = "1"
