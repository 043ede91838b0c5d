"""AReaL, where it is installed, and its name service. It is imported late: in workers once their
environment is set."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

INSTALLED = find_spec("areal") is not None


def part(name: str) -> Any:
    """A module of AReaL's, or what stands for it."""
    if INSTALLED:
        return import_module(f"areal.{name}")
    return import_module(f".stand_in.{name.rpartition('.')[2]}", __package__)


def serialization() -> Any:
    """How values are JSON, over HTTP."""
    return part("infra.rpc.serialization")


def tensors() -> Any:
    """The module that has RTensor and the shards of this process."""
    return part("infra.rpc.rtensor")


def join_names(mine: Any) -> None:
    """Have this process be part of the name service that an experiment says."""
    if not (INSTALLED and mine.name_resolve_type):
        return
    given = {name: getattr(mine, name) for name in ("nfs_record_root", "etcd3_addr")}
    config = {key: value for key, value in given.items() if value is not None}
    made = part("api.cli_args").NameResolveConfig(type=mine.name_resolve_type, **config)
    part("utils.name_resolve").reconfigure(made)


def begin_trial(mine: Any) -> None:
    """Forget what the name service knows of this trial from before."""
    if INSTALLED and mine.experiment_name and mine.trial_name:
        join_names(mine)
        root = part("utils.names").trial_root(mine.experiment_name, mine.trial_name)
        part("utils.name_resolve").clear_subtree(root)


def announce(mine: Any, node_addr: str) -> None:
    """Tell the name service, of which this process is part, where a worker is."""
    if INSTALLED and mine.experiment_name and mine.trial_name:
        who = (mine.experiment_name, mine.trial_name, mine.role, mine.worker_index)
        key = part("utils.names").worker_discovery(*who)
        part("utils.name_resolve").add(key, node_addr, replace=True)
