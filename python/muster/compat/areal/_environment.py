"""What surrounds a role's workers: variables, the name service, and errors as AReaL tells them."""

from __future__ import annotations

import os
from typing import Any

from ... import _errors
from . import _api, _engines
from ._areal import INSTALLED, part
from ._client import Again, Late, Refusal
from ._host import join_names
from ._workers import WorkerInfo, failed

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def of(spec: Any, offload: bool) -> dict[str, str]:
    """A role's variables: AReaL's base, threads by CPUs unless set, the role's own last."""
    env: dict[str, str] = {}
    if INSTALLED:
        env |= part("infra.utils.launcher").get_env_vars()
        if offload:
            env |= part("utils.offload").get_tms_env_vars()
    for name in _THREADS:
        env[name] = os.environ.get(name, str(spec.cpu or 8))
    return env | {str(key): str(value) for key, value in (spec.env_vars or {}).items()}


def begin_trial(scheduler: Any) -> None:
    """Forget what AReaL's name service knows of this trial from before."""
    if not (INSTALLED and scheduler.experiment_name and scheduler.trial_name):
        return
    join_names(scheduler.name_resolve_type, scheduler.nfs_record_root, scheduler.etcd3_addr)
    root = part("utils.names").trial_root(scheduler.experiment_name, scheduler.trial_name)
    part("utils.name_resolve").clear_subtree(root)


def creation_error(info: WorkerInfo, engine: str, error: Exception) -> Exception:
    """Why an engine could not be made, as AReaL tells it."""
    message = str(getattr(error, "message", None) or error)
    if isinstance(error, _errors.WorkerDiedError):
        return failed(info.id, error)
    if isinstance(error, _api.SchedulerError):
        return error
    if isinstance(error, Refusal):
        if "Failed to import" in message:
            return _api.EngineImportError(engine, message)
        return _api.EngineCreationError(info.id, message, error.status)
    if isinstance(error, _errors.WorkerImportError):
        return _api.EngineImportError(engine, f"Failed to import engine '{engine}': {message}")
    if isinstance(error, (_engines.EngineExistsError, _engines.EngineTypeError)):
        return _api.EngineCreationError(info.id, message, 400)
    if isinstance(error, _errors.RemoteError):
        return _api.EngineCreationError(info.id, f"Failed to instantiate engine: {message}", 500)
    if isinstance(error, (_errors.DeadlineError, Late)):
        return _api.EngineCreationError(info.id, f"Request timed out: {message}")
    if isinstance(error, (Again, _errors.NodeLostError, _errors.HeadLostError)):
        return _api.RPCConnectionError(info.id, info.worker.ip, info.port, message)
    return _api.EngineCreationError(info.id, f"Unexpected error: {message}")
