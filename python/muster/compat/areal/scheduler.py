"""`MusterScheduler`: AReaL's scheduler on Muster's clusters.

A role is a cluster of hosts (or several, where its workers differ or each has a
pool of its own), an engine an object in one of them. Placement, supervision,
logs and calls are Muster's; here is what AReaL's controllers expect of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ... import _errors
from ..._cluster import Cluster
from ..._config import WorkerConfig
from ..._logfiles import LogFiles
from ..._refs import get
from . import _api, _roles, _tensors
from ._areal import INSTALLED, announce, begin_trial
from ._client import Again, Refusal, join
from ._host import Host, Opening
from ._workers import (
    GRACE,
    Attempts,
    Command,
    Native,
    WorkerInfo,
    creation_error,
    read_log_tail,
)
from .guard import NAMES, Identity, NoPortsError

__all__ = ["MusterScheduler", "WorkerInfo"]

logger = logging.getLogger("MusterScheduler")

#: Seconds that the fork of a worker that somebody else started has until it answers.
_FORK_SECONDS = 60.0
_CREATE_SECONDS = 300.0
_ENV_SECONDS = 30.0
_counter = itertools.count()
#: What every worker needs; AReaL and what it imports come once the environment is complete.
_PRELOAD = (
    "muster.compat.areal._host",
    "muster.compat.areal._blueprints",
    # AReaL imports it first, and it takes longest.
    *(("torch",) if INSTALLED and find_spec("torch") is not None else ()),
)


class MusterScheduler(_api.Scheduler):
    """Starts workers, hosts engines in them and calls those, for AReaL's controllers.

    The arguments are those of AReaL's LocalScheduler; ``exp_config`` overrides the
    others. ``gpu_devices`` names the GPUs to use; by default all that Muster sees.
    """

    def __init__(
        self,
        gpu_devices: list[int] | None = None,
        log_dir: str | None = None,
        startup_timeout: float = 30.0,
        health_check_interval: float = 1.0,
        *,
        experiment_name: str | None = None,
        trial_name: str | None = None,
        fileroot: str | None = None,
        enable_tms_offload: bool | None = None,
        name_resolve_type: str = "nfs",
        nfs_record_root: str = "/tmp/areal/name_resolve",
        etcd3_addr: str = "localhost:2379",
        exp_config: Any = None,
    ) -> None:
        per_node = None
        if exp_config is not None:
            cluster, resolve = exp_config.cluster, exp_config.cluster.name_resolve
            experiment_name, trial_name = exp_config.experiment_name, exp_config.trial_name
            fileroot, per_node = cluster.fileroot, getattr(cluster, "n_gpus_per_node", None)
            enable_tms_offload = getattr(exp_config, "enable_offload", False)
            name_resolve_type = resolve.type
            nfs_record_root, etcd3_addr = resolve.nfs_record_root, resolve.etcd3_addr
        self.experiment_name, self.trial_name = experiment_name, trial_name
        self.fileroot, self.enable_tms_offload = fileroot, bool(enable_tms_offload)
        self.name_resolve_type = name_resolve_type
        self.nfs_record_root, self.etcd3_addr = nfs_record_root, etcd3_addr
        self._devices = list(gpu_devices) if gpu_devices else None
        self.exp_config = exp_config
        self.startup_timeout = startup_timeout
        self.health_check_interval = health_check_interval
        self.log_dir = Path(log_dir) if log_dir is not None else self._default_logs()
        self.log_dir.mkdir(parents=True, exist_ok=True)
        begin_trial(self)
        self._per_node: int | None = per_node
        self._named = _roles.Named(self._devices) if self._devices else None
        self._gpu_counter = 0
        self._suffix = f".{number}" if (number := next(_counter)) else ""
        self._logs: LogFiles | None = None
        self._workers: dict[str, list[WorkerInfo]] = {}
        self._shares: dict[str, list[_roles.Share]] = {}
        self._colocated_roles: dict[str, str] = {}
        self._allocated_ports: set[int] = set()  # of all workers; who knows LocalScheduler looks

    def _default_logs(self) -> Path:
        for name in ("experiment_name", "trial_name", "fileroot"):
            if getattr(self, name) is None:
                raise ValueError(f"give log_dir, or exp_config, or {name} with the two others")
        return Path(str(self._identity("", -1).logs()))

    @property
    def gpu_devices(self) -> list[int]:
        """The GPUs of a node that workers may get, as CUDA_VISIBLE_DEVICES names them."""
        if self._devices is not None:
            return self._devices
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if all(name.strip().isdigit() for name in named):
            return [int(name) for name in named]
        return list(range(self.n_gpus_per_node))

    @property
    def n_gpus_per_node(self) -> int:
        """How many GPUs a node has."""
        if not self._per_node:
            self._per_node = len(self._devices) if self._devices else _roles.count_devices()
        return self._per_node

    # --- workers ---------------------------------------------------------

    def create_workers(self, job: Any, *args: Any, **kwargs: Any) -> list[str]:
        """Start a role's workers; returns their ids, ``role/index``."""
        role, count = job.role, job.replicas
        self._refuse_another(role)
        if count < 1:
            raise _api.WorkerCreationError(
                role, "Invalid configuration", "replicas must be greater than 0"
            )
        specs = self._prepare_worker_specs(role, count, list(job.tasks or []))
        strategy = job.scheduling_strategy
        kind = _api.SchedulingStrategyType(strategy.type)
        if kind == _api.SchedulingStrategyType.colocation:
            return self._colocate(role, count, strategy)
        commands = [_roles.command(role, spec) for spec in specs]
        per_node = self.n_gpus_per_node if any(spec.gpu for spec in specs) else 0
        shares = _roles.shares(role, specs, per_node, self._named, self._allocate_gpus)
        self._shares[role] = shares
        if self._named is not None:
            self._warn_of_shared(role, self._named.given_twice(shares, self._shares))
        openings = [
            Opening(self._identity(role, index), "", max(spec.port_count, 1), command=words)
            for index, (spec, words) in enumerate(zip(specs, commands, strict=True))
        ]
        self._start(role, shares, openings)
        return [info.id for info in self._workers[role]]

    _prepare_worker_specs = staticmethod(_roles.spread)

    def _refuse_another(self, role: str) -> None:
        if role in self._workers or role in self._colocated_roles:
            raise _api.WorkerCreationError(
                role, "Worker group already exists", f"call delete_workers({role!r}) first"
            )

    def _allocate_gpus(self, num_gpus: int) -> list[int]:
        """The next of the GPUs that were named: in turn, and again when all have been given."""
        devices, first = self.gpu_devices, self._gpu_counter
        if num_gpus > len(devices):
            raise _api.GPUAllocationError(
                f"Requested {num_gpus} GPUs but only {len(devices)} available"
            )
        self._gpu_counter += num_gpus
        return [devices[place % len(devices)] for place in range(first, self._gpu_counter)]

    def _warn_of_shared(self, role: str, twice: dict[str, list[int]]) -> None:
        for other, devices in twice.items():
            logger.warning(
                "role %r gets GPUs %s, which role %r has already: gpu_devices=%s are given in turn, "
                "and again when all have been given. Say colocation where roles are to share them",
                *(role, devices, other, self.gpu_devices),
            )

    def _colocate(self, role: str, count: int, strategy: Any) -> list[str]:
        target = strategy.target
        if not target:
            raise _api.WorkerCreationError(
                role, "Invalid strategy", "Colocation strategy requires target role to be specified"
            )
        owner = self._owner(target)
        if owner is None:
            raise _api.WorkerNotFoundError(f"Cannot colocate with role '{target}' - role not found")
        beside = self._workers[owner]
        if count != len(beside):
            raise _api.WorkerCreationError(
                role,
                "Replica count mismatch",
                f"{role} has {count} replicas, {target}, beside which it is to be, {len(beside)}",
            )
        if strategy.fork:
            return self.fork_workers(role, target)
        self._colocated_roles[role] = target
        return [info.id for info in beside]

    def fork_workers(self, role: str, target_role: str, command: str | None = None) -> list[str]:
        """Start a process beside each worker of another role, on its devices and with its
        environment as it is now. ``command`` is a module to run; else it hosts engines."""
        owner = self._owner(target_role)
        if owner is None:
            raise _api.WorkerNotFoundError(f"Target role '{target_role}' not found for fork")
        self._refuse_another(role)
        targets = self._workers[owner]
        self._check_worker_health(owner)
        near = [target for target in targets if isinstance(target, Command)]
        if near:
            self._fork_beside(role, near, command)
        else:
            self._fork_far(role, owner, command)
        self._colocated_roles[role] = target_role
        return [info.id for info in self._workers[role]]

    def _fork_beside(self, role: str, targets: list[Command], command: str | None) -> None:
        """Fork Muster's own workers: a cluster on the same devices."""
        openings = []
        for index, target in enumerate(targets):
            words = ["python", "-m", command, "--host", target.worker.ip] if command else []
            who, count = self._identity(role, index), len(target.worker.worker_ports)
            env, pid = target.handle.env(), target.pid
            openings.append(Opening(who, "", count, env, command=words, target=pid))
        self._start(role, _beside(targets), openings)

    def _fork_far(self, role: str, target_role: str, command: str | None) -> None:
        """Fork workers that somebody else started: they are asked to, by HTTP."""
        infos: list[WorkerInfo] = []
        try:
            for index, target in enumerate(self._workers[target_role]):
                ports = target.tell("alloc_ports", count=len(target.worker.worker_ports))
                host = ports["host"]
                words = [sys.executable, "-m", command or _api.NATIVE_COMMANDS[-1], "--host", host]
                words += self._identity(role, index).arguments(ports["ports"][0])
                target.tell("fork", role=role, worker_index=index, raw_cmd=words)
                worker = _api.Worker(f"{role}/{index}", host, [str(p) for p in ports["ports"]])
                devices = self._get_colocated_gpus(target_role, index)
                log = str(self.log_dir / f"{role}.log")
                infos.append(WorkerInfo(worker, None, role, devices, 0.0, log, parent=target))
            self._wait_ready(role, infos, _FORK_SECONDS)
            self._admit(role, infos)
        except (Again, Refusal, _api.SchedulerError) as error:
            self._workers.pop(role, None)
            self._cleanup_workers(infos)
            raise _api.WorkerCreationError(role, "Failed to fork", str(error)) from error

    def _get_colocated_gpus(self, target_role: str, worker_idx: int) -> list[int]:
        """The devices of the worker beside which another one is put."""
        beside = self._workers.get(target_role)
        if beside is None:
            raise _api.WorkerNotFoundError(
                f"Cannot colocate with role '{target_role}' - role not found"
            )
        if worker_idx >= len(beside):
            raise ValueError(
                f"Cannot colocate with {target_role}/{worker_idx}: only {len(beside)} workers exist"
            )
        return beside[worker_idx].gpu_devices

    def _start(self, role: str, shares: list[_roles.Share], openings: list[Opening]) -> None:
        """Make a role's clusters and open its workers; all of them, or none."""
        if self._logs is None:
            self._logs = LogFiles(self.log_dir)
        clusters: list[Cluster] = []
        infos: list[WorkerInfo] = []
        try:
            for number, share in enumerate(shares):
                name = _roles.cluster_name(role) + self._suffix
                if len(shares) > 1:
                    name += f".{number}"
                self._logs.follow(name, role)
                cluster = self._make(name, share)
                clusters.append(cluster)
                infos += self._open(cluster, share, openings)
            self._admit(role, infos)
        except BaseException as error:
            self._allocated_ports -= _ports(self._workers.pop(role, []))
            self._end(clusters, self._shares.pop(role, []))
            if isinstance(error, _errors.MusterError):
                reason = f"{type(error).__name__}: {error.message}"
                raise _api.WorkerCreationError(role, reason, str(error)) from error
            raise

    def _admit(self, role: str, infos: list[WorkerInfo]) -> None:
        """Have workers be a role's, with the experiment's configuration."""
        self._workers[role] = infos
        if any(isinstance(info, Native) for info in infos):
            _tensors.install()
        self._allocated_ports.update(_ports(infos))
        if self.exp_config is not None:  # all at once: the first thing they do takes longest
            with ThreadPoolExecutor(len(infos)) as pool:
                list(pool.map(self._configure_worker, infos, range(len(infos))))

    def _open(
        self, cluster: Cluster, share: _roles.Share, openings: list[Opening]
    ) -> list[WorkerInfo]:
        """Give the workers of a cluster their places."""
        share = replace(share, pool=cluster.resource_manager)
        mine = list(zip(cluster.workers, [openings[i] for i in share.indices], strict=True))
        for handle, opening in mine:
            opening.address = cluster.worker2nodes[handle]
        started = [handle.open_worker.remote(opening) for handle, opening in mine]
        infos: list[WorkerInfo] = []
        devices, each = share.mapping or [], len(share.mapping or ()) // len(mine)
        for (handle, opening), ref in zip(mine, started, strict=True):
            who = opening.identity
            try:
                ports = [str(port) for port in get(ref)]
            except NoPortsError as error:
                raise _api.WorkerCreationError(
                    who.role,
                    f"Resource allocation failed for worker {who.worker_index}",
                    str(error),
                ) from _api.PortAllocationError(str(error))
            worker = _api.Worker(f"{who.role}/{who.worker_index}", opening.address, ports)
            kind = Command if opening.command else Native
            named = self.experiment_name and self.trial_name
            if named and kind is Native:  # a command says itself where it is
                announce(who, join(worker.ip, int(ports[0])))
            own, devices = devices[:each], devices[each:]
            log = str(self.log_dir / f"{who.role}.log")
            at: dict[str, Any] = {"handle": handle, "share": share}
            infos.append(kind(worker, None, who.role, own, log_file=log, **at))
        return infos

    def _make(self, name: str, share: _roles.Share) -> Cluster:
        spec = share.spec
        env = _roles.variables(spec, self.enable_tms_offload)
        deferred = share.pool is not None and share.mapping is None
        config = WorkerConfig(
            world_size=len(share.indices),
            device_mapping=share.mapping,
            num_gpus_per_worker=spec.gpu if share.mapping else None,
            span_nodes=share.span,
            env=env,
            rank_env=True,  # a role may set any variable
            grace=GRACE,
            # AReaL's time is for workers that are there, see get_workers; to import takes longer.
            startup_timeout=max(self.startup_timeout, 300.0),
            python=_roles.interpreter(spec),
            preload=_PRELOAD,
            ray="inherit" if deferred else "",
        )
        return Cluster(name, Host, share.pool, config)

    def _configure_worker(self, worker_info: WorkerInfo, worker_rank: int) -> None:
        """Give a worker the experiment's configuration."""
        if not isinstance(worker_info, Native):
            self._wait_ready(worker_info.role, [worker_info], self.startup_timeout)
        try:
            asked = {"config": self.exp_config, "role": worker_info.role, "rank": worker_rank}
            worker_info.ask("configure", _CREATE_SECONDS, **asked)
        except _api.SchedulerError:
            raise
        except Exception as error:
            status = str(getattr(error, "status", 500))
            raise _api.WorkerConfigurationError(worker_info.id, str(error), status) from error

    def get_workers(self, role: str, timeout: float | None = None) -> list[Any]:
        """The workers of a role, once all can be called; ``timeout`` is for all together."""
        owner = self._owner(role)
        if owner is None:
            raise _api.WorkerNotFoundError(role)
        infos = self._workers[owner]
        self._check_worker_health(owner)
        self._wait_ready(role, infos, self.startup_timeout if timeout is None else timeout)
        return [info.worker for info in infos]

    def _check_worker_health(self, role: str) -> None:
        """Raise WorkerFailedError where a process of a role has ended."""
        for info in self._workers.get(role, []):
            info.check()

    def _is_worker_ready(self, worker_info: WorkerInfo) -> bool:
        """Whether a worker answers."""
        return worker_info.ready()

    def _wait_ready(self, role: str, infos: Sequence[WorkerInfo], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        waiting = [info for info in infos if not self._is_worker_ready(info)]
        while waiting:
            for info in waiting:
                info.check()
            if time.monotonic() > deadline:
                raise _api.WorkerTimeoutError(role, timeout)
            time.sleep(min(self.health_check_interval, max(0.0, deadline - time.monotonic())))
            waiting = [info for info in waiting if not self._is_worker_ready(info)]

    def delete_workers(self, role: str | None = None, reverse_order: bool = False) -> None:
        """End a role's workers, or all: engines are destroyed, forks end first. All of a role's
        processes are gone on return. They are told to end at once, so ``reverse_order`` changes
        nothing."""
        if role is None:
            for each in [*self._colocated_roles, *self._workers]:
                if each in self._colocated_roles or each in self._workers:
                    self.delete_workers(each)
            if self._named is not None:
                self._named.release()
            if self._logs is not None:
                self._logs.close()
                self._logs = None
            return
        if role not in self._workers and role not in self._colocated_roles:
            logger.warning("there is no role %r to delete", role)
            return
        for other in [other for other, of in self._colocated_roles.items() if of == role]:
            self.delete_workers(other)
        self._colocated_roles.pop(role, None)
        infos = self._workers.pop(role, None)
        if infos is not None:
            self._cleanup_workers(infos)
            _roles.release(self._shares.pop(role, []))

    def _cleanup_workers(self, workers: list[WorkerInfo]) -> None:
        """End workers, all at the same time."""
        self._allocated_ports -= _ports(workers)
        far = [info for info in workers if not isinstance(info, Command)]
        near = [info.handle._cluster for info in workers if isinstance(info, Command)]
        self._end(list(dict.fromkeys(near)), [])
        for step in (WorkerInfo.end, WorkerInfo.see_off):
            for info in far:
                try:
                    step(info)
                except Exception as error:
                    logger.error("%s could not be ended: %s", info.id, error)
        _tensors.leave(join(info.worker.ip, info.port) for info in workers)

    def _end(self, clusters: list[Cluster], shares: list[_roles.Share]) -> None:
        """Stop clusters and give back what they were on."""
        for cluster in clusters:
            with contextlib.suppress(_errors.MusterError):
                cluster.shutdown()
        _roles.release(shares)
        if self._logs is not None and clusters:
            self._logs.drain()

    # --- engines ---------------------------------------------------------

    async def set_worker_env(self, worker_id: str, env: dict[str, str]) -> None:
        """Change the environment of a living worker, for engines and forks to come."""
        info = self._verify_worker_alive(worker_id)
        if not env:
            return
        try:
            texts = {key: str(value) for key, value in env.items()}
            await info.awaited("set_env", _ENV_SECONDS, env=texts)
        except _api.WorkerFailedError:
            raise
        except Exception as error:
            raise _api.SchedulerError(
                worker_id, f"could not set variables of {worker_id!r}: {error}"
            ) from error

    async def create_engine(
        self, worker_id: str, engine: str, engine_name: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Make an object of a class, by its import path, in a worker."""
        info = self._verify_worker_alive(worker_id)
        if not isinstance(engine, str):
            raise _api.EngineCreationError(
                worker_id, f"Engine must be a string import path, got {type(engine)}"
            )
        try:
            asked: dict[str, Any] = {"engine": engine, "engine_name": engine_name or worker_id}
            asked |= {"init_args": list(args), "init_kwargs": kwargs}
            return await info.awaited("create_engine", _CREATE_SECONDS, **asked)
        except Exception as error:
            raise creation_error(info, engine, error) from error

    def call_engine(
        self,
        worker_id: str,
        method: str,
        engine_name: str | None = None,
        *args: Any,
        rpc_meta: dict[str, Any] | None = None,
        http_timeout: float = 7200.0,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        **kwargs: Any,
    ) -> Any:
        """Call a method of an engine and wait for its result."""
        info, asked = self._asked(worker_id, method, engine_name, args, kwargs, rpc_meta)
        attempts = Attempts(info, method, max_retries, retry_delay)
        while True:
            try:
                return info.ask("call", http_timeout, **asked)
            except Exception as error:
                pause = attempts.failed(error)
            time.sleep(pause)

    async def async_call_engine(
        self,
        worker_id: str,
        method: str,
        engine_name: str | None = None,
        *args: Any,
        rpc_meta: dict[str, Any] | None = None,
        http_timeout: float = 7200.0,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        **kwargs: Any,
    ) -> Any:
        """Call a method of an engine and await its result, in any event loop."""
        info, asked = self._asked(worker_id, method, engine_name, args, kwargs, rpc_meta)
        attempts = Attempts(info, method, max_retries, retry_delay)
        while True:
            try:
                return await info.awaited("call", http_timeout, **asked)
            except Exception as error:
                pause = attempts.failed(error)
            await asyncio.sleep(pause)

    def _asked(
        self, worker_id: str, method: str, name: str | None, args: Any, kwargs: Any, meta: Any
    ) -> tuple[WorkerInfo, dict[str, Any]]:
        asked: dict[str, Any] = {"method": method, "engine_name": name or worker_id}
        asked |= {"args": list(args), "kwargs": kwargs, "rpc_meta": meta}
        return self._find(worker_id), asked

    # --- who is where ----------------------------------------------------

    def _owner(self, role: str) -> str | None:
        """The role that has the processes of a role."""
        seen: set[str] = set()
        while role not in self._workers and role not in seen:
            seen.add(role)
            role = self._colocated_roles.get(role, role)
        return role if role in self._workers else None

    def _find_worker_by_id(self, worker_id: str) -> WorkerInfo | None:
        for infos in self._workers.values():
            for info in infos:
                if info.id == worker_id:
                    return info
        return None

    def _find(self, worker_id: str) -> WorkerInfo:
        info = self._find_worker_by_id(worker_id)
        if info is None:
            raise _api.WorkerNotFoundError(worker_id)
        return info

    def _verify_worker_alive(self, worker_id: str) -> WorkerInfo:
        info = self._find(worker_id)
        info.check()
        return info

    _read_log_tail = staticmethod(read_log_tail)

    def _identity(self, role: str, index: int) -> Identity:
        told = {name: str(getattr(self, name)) for name in NAMES}
        kept = getattr(self, "log_dir", None)  # which is made of the others
        return Identity(role, index, **told, log_dir=kept and str(kept))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.delete_workers()


def _beside(targets: list[Command]) -> list[_roles.Share]:
    """The places of other workers, for forks of them."""
    places = [target.share for target in targets]
    return [share for place, share in enumerate(places) if share not in places[:place]]


def _ports(infos: list[WorkerInfo]) -> set[int]:
    return {int(port) for info in infos for port in info.worker.worker_ports}
