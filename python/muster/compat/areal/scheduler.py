"""`MusterScheduler`: AReaL's scheduler on Muster's clusters.

A role is a cluster of hosts (or several, where its workers differ or each has a
pool of its own), an engine an object in one of them. Placement, supervision,
logs and calls are Muster's; here is what AReaL's controllers expect of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import _errors
from ..._cluster import Cluster
from ..._config import WorkerConfig
from ..._logfiles import LogFiles
from ..._refs import get
from ..._resources import ResourceManager, nodes
from . import _api, _http, _roles, _tensors
from ._areal import announce, begin_trial
from ._host import Host, Opening
from ._http import Again, Refusal
from ._workers import Call, Command, Native, WorkerInfo, creation_error, read_log_tail
from .guard import EXPERIMENT, Identity, NoPortsError

__all__ = ["MusterScheduler", "WorkerInfo"]

logger = logging.getLogger("MusterScheduler")

#: Seconds that the fork of a worker that somebody else started has until it answers.
_FORK_SECONDS = 60.0
_CREATE_SECONDS = 300.0
_ENV_SECONDS = 30.0
#: Seconds that a pool is waited for.
_POOL_SECONDS = 30.0
_counter = itertools.count()


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
        self.exp_config = exp_config
        self.startup_timeout = startup_timeout
        self.health_check_interval = health_check_interval
        if log_dir is None:
            if None in (fileroot, experiment_name, trial_name):
                raise ValueError(
                    "give log_dir, or exp_config, or experiment_name, trial_name and fileroot"
                )
            names = (fileroot, "logs", getpass.getuser(), experiment_name, trial_name)
            log_dir = os.path.join(*map(str, names))
        self.log_dir = Path(log_dir)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        begin_trial(self)
        self._devices = list(gpu_devices) if gpu_devices else None
        self._per_node: int | None = per_node
        self._gpu_counter = 0
        self._named: ResourceManager | None = None  # the pool of the devices that were named
        self._pools: dict[str, list[ResourceManager]] = {}  # those of each role alone
        self._suffix = f".{number}" if (number := next(_counter)) else ""
        self._logs: LogFiles | None = None
        self._workers: dict[str, list[WorkerInfo]] = {}
        self._colocated_roles: dict[str, str] = {}
        self._allocated_ports: set[int] = set()  # of all workers; who knows LocalScheduler looks

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
        if not self._per_node and self._devices:
            self._per_node = len(self._devices)
        elif not self._per_node:
            with ResourceManager(0, 1):  # nodes are there once somebody wants them
                self._per_node = max((len(node["devices"]) for node in nodes()), default=0)
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
        openings = [
            Opening(
                self._identity(role, index),
                port_count=max(spec.port_count, 1),
                command=_roles.command(role, spec)[0],
            )
            for index, spec in enumerate(specs)
        ]
        self._start(role, self._place(role, specs), openings)
        return [info.id for info in self._workers[role]]

    _prepare_worker_specs = staticmethod(_roles.spread)

    def _refuse_another(self, role: str) -> None:
        if role in self._workers or role in self._colocated_roles:
            raise _api.WorkerCreationError(
                role, "Worker group already exists", f"call delete_workers({role!r}) first"
            )

    def _allocate_gpus(self, num_gpus: int) -> list[int]:
        """The next of the GPUs that were named: in turn, and again when all have been given."""
        first, most = self._gpu_counter, len(self.gpu_devices)
        if num_gpus > most:
            raise _api.GPUAllocationError(f"Requested {num_gpus} GPUs but only {most} available")
        self._gpu_counter += num_gpus
        return self._in_turn(first)

    def _in_turn(self, first: int) -> list[int]:
        """What was given, from a place in the turn on."""
        devices = self.gpu_devices
        return [devices[place % len(devices)] for place in range(first, self._gpu_counter)]

    def _place(self, role: str, specs: list[Any]) -> list[WorkerConfig]:
        """The clusters of a role, each with a pool; WorkerCreationError where one cannot be had."""
        made: list[WorkerConfig] = []
        first = self._gpu_counter
        try:
            for spec, config in _roles.clusters(
                specs, self.enable_tms_offload, self.startup_timeout
            ):
                made.append(self._with_pool(role, spec, config))
        except (_errors.MusterError, _api.GPUAllocationError, TypeError, ValueError) as error:
            self._release(role)
            raise _api.WorkerCreationError(
                role, f"Resource allocation failed for worker {len(made)}", str(error)
            ) from error
        if self._devices is not None:
            self._warn_of_shared(role, self._in_turn(first))
        return made

    def _with_pool(self, role: str, spec: Any, config: WorkerConfig) -> WorkerConfig:
        """Where workers go: to the devices that were named, in turn, else to some that the head
        chooses."""
        each, count = spec.gpu, config.world_size or 1
        if not each:
            return config
        if self._devices is not None:
            named = sorted(set(self._devices))
            given = [device for _ in range(count) for device in self._allocate_gpus(each)]
            if self._named is None:
                self._named = ResourceManager(devices=named, timeout=_POOL_SECONDS)
            pool, mapping = self._named, [named.index(device) for device in given]
        else:
            per_node = self.n_gpus_per_node
            pool = ResourceManager.for_workers(count, each, per_node, timeout=_POOL_SECONDS)
            self._pools.setdefault(role, []).append(pool)
            mapping = list(range(each * count))
            if _roles.strategy(spec) == "deferred":  # the pool has the GPUs, and the worker none
                return replace(config, resource_manager=pool, ray="inherit")
        return replace(
            config,
            resource_manager=pool,
            device_mapping=mapping,
            num_gpus_per_worker=each,
            span_nodes=each > pool.gpu_per_node,
        )

    def _warn_of_shared(self, role: str, new: list[int]) -> None:
        has = {
            other: {device for info in infos for device in info.gpu_devices}
            for other, infos in self._workers.items()
            if other not in self._colocated_roles
        }
        has[role] = {device for device in new if new.count(device) > 1}
        for other, theirs in has.items():
            if both := sorted(theirs.intersection(new)):
                logger.warning(
                    "role %r gets GPUs %s, which role %r has already: gpu_devices=%s are given in "
                    "turn, and again when all have been given. Say colocation where roles are to "
                    "share them",
                    *(role, both, other, self.gpu_devices),
                )

    def _release(self, role: str) -> None:
        """Give back the pools of a role."""
        for pool in self._pools.pop(role, []):
            pool.destroy_placement_group()

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
        self._check_worker_health(owner)
        targets = self._workers[owner]
        near = [target for target in targets if isinstance(target, Command)]
        if near:
            self._fork_beside(role, near, command)
        else:
            self._fork_far(role, targets, command)
        self._colocated_roles[role] = target_role
        return [info.id for info in self._workers[role]]

    def _fork_beside(self, role: str, targets: list[Command], command: str | None) -> None:
        """Fork Muster's own workers: clusters on the same devices."""
        openings = []
        for index, target in enumerate(targets):
            words = ["python", "-m", command, "--host", target.worker.ip] if command else []
            who, count = self._identity(role, index), len(target.worker.worker_ports)
            env, pid = target.handle.env(), target.pid
            openings.append(Opening(who, count, env, words, pid))
        beside = dict.fromkeys(target.handle._cluster for target in targets)
        pools = [(cluster.worker_config, cluster.resource_manager) for cluster in beside]
        configs = [replace(config, resource_manager=pool) for config, pool in pools if config]
        self._start(role, configs, openings)

    def _fork_far(self, role: str, targets: list[WorkerInfo], command: str | None) -> None:
        """Fork workers that somebody else started: they are asked to, by HTTP."""
        infos: list[WorkerInfo] = []
        try:
            for index, target in enumerate(targets):
                ports = target.tell("alloc_ports", count=len(target.worker.worker_ports))
                host = ports["host"]
                words = [sys.executable, "-m", command or _api.NATIVE_COMMANDS[-1], "--host", host]
                words += self._identity(role, index).arguments(ports["ports"][0])
                target.tell("fork", role=role, worker_index=index, raw_cmd=words)
                worker = _api.Worker(f"{role}/{index}", host, [str(p) for p in ports["ports"]])
                devices = self._get_colocated_gpus(target.role, index)
                infos.append(
                    WorkerInfo(worker, None, role, devices, 0.0, self._log(role), parent=target)
                )
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

    def _start(self, role: str, configs: list[WorkerConfig], openings: list[Opening]) -> None:
        """Make a role's clusters and open its workers; all of them, or none."""
        if self._logs is None:
            self._logs = LogFiles(self.log_dir)
        clusters: list[Cluster] = []
        infos: list[WorkerInfo] = []
        try:
            for number, config in enumerate(configs):
                name = _roles.cluster_name(role) + self._suffix
                name += f".{number}" if len(configs) > 1 else ""
                self._logs.follow(name, role)
                clusters.append(Cluster(name, Host, worker_config=config))
                infos += self._open(clusters[-1], openings[len(infos) :])
            self._admit(role, infos)
        except BaseException as error:
            self._workers.pop(role, None)
            self._allocated_ports -= _ports(infos)
            self._end(clusters)
            self._release(role)
            if isinstance(error, _errors.MusterError):
                reason = f"{type(error).__name__}: {error.message}"
                raise _api.WorkerCreationError(role, reason, str(error)) from error
            raise

    def _open(self, cluster: Cluster, openings: list[Opening]) -> Iterator[WorkerInfo]:
        """Give the workers of a cluster their places."""
        started = []
        for handle, opening in zip(cluster.workers, openings, strict=False):
            opening.address = cluster.worker2nodes[handle]
            started.append((handle, opening, handle.open_worker.remote(opening)))
        for handle, opening, ref in started:
            role, index = opening.identity.role, opening.identity.worker_index
            try:
                ports = [str(port) for port in get(ref)]
            except NoPortsError as error:
                raise _api.WorkerCreationError(
                    role, f"Resource allocation failed for worker {index}", str(error)
                ) from _api.PortAllocationError(str(error))
            worker = _api.Worker(f"{role}/{index}", opening.address, ports)
            devices = [int(at["gpu_rank"]) for at in cluster.rank2devices[handle.rank]]
            kind = Command if opening.command else Native
            info = kind(worker, None, role, devices, 0.0, self._log(role), handle=handle)
            if kind is Native and self.experiment_name and self.trial_name:
                announce(opening.identity, info.address)  # a command says itself where it is
            yield info

    def _admit(self, role: str, infos: list[WorkerInfo]) -> None:
        """Have workers be a role's, with the experiment's configuration."""
        self._workers[role] = infos
        if any(isinstance(info, Native) for info in infos):
            _tensors.install()
        self._allocated_ports.update(_ports(infos))
        if self.exp_config is not None:  # all at once: the first thing they do takes longest
            with ThreadPoolExecutor(len(infos)) as pool:
                list(pool.map(self._configure_worker, infos, range(len(infos))))

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
        return _http.healthy(worker_info.worker.ip, worker_info.port)

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
                self._named.destroy_placement_group()
                self._named = None
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
            self._release(role)

    def _cleanup_workers(self, workers: list[WorkerInfo]) -> None:
        """End workers, all at the same time."""
        self._allocated_ports -= _ports(workers)
        far = [info for info in workers if not isinstance(info, Command)]
        near = [info.handle._cluster for info in workers if isinstance(info, Command)]
        self._end(list(dict.fromkeys(near)))
        with ThreadPoolExecutor(len(far) or 1) as pool:
            for info, ended in [(info, pool.submit(info.end)) for info in far]:
                if (error := ended.exception()) is not None:
                    logger.error("%s could not be ended: %s", info.id, error)

    def _end(self, clusters: list[Cluster]) -> None:
        """Stop clusters, and have all that they printed written."""
        for cluster in clusters:
            with contextlib.suppress(_errors.MusterError):
                cluster.shutdown()
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
        self, worker_id: str, method: str, engine_name: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method of an engine and wait for its result. ``rpc_meta``, ``http_timeout``,
        ``max_retries`` and ``retry_delay`` are the call's; all else, a ``timeout`` too, is the
        method's."""
        call = self._call(worker_id, method, engine_name, args, **kwargs)
        while True:
            with call:
                return call.info.ask("call", call.timeout, **call.asked)
            time.sleep(call.pause)

    async def async_call_engine(
        self, worker_id: str, method: str, engine_name: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """The same, in any event loop."""
        call = self._call(worker_id, method, engine_name, args, **kwargs)
        while True:
            with call:
                return await call.info.awaited("call", call.timeout, **call.asked)
            await asyncio.sleep(call.pause)

    def _call(
        self,
        worker_id: str,
        method: str,
        name: str | None,
        args: Sequence[Any],
        /,
        rpc_meta: dict[str, Any] | None = None,
        http_timeout: float = 7200.0,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        **kwargs: Any,
    ) -> Call:
        asked: dict[str, Any] = {"method": method, "engine_name": name or worker_id}
        asked |= {"args": list(args), "kwargs": kwargs, "rpc_meta": rpc_meta}
        return Call(self._find(worker_id), asked, http_timeout, max_retries, retry_delay)

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
        told = {name: str(getattr(self, name)) for name in EXPERIMENT}
        return Identity(role, index, **told, log_dir=str(self.log_dir))

    def _log(self, role: str) -> str:
        return str(self.log_dir / f"{role}.log")

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.delete_workers()


def _ports(infos: list[WorkerInfo]) -> set[int]:
    return {int(port) for info in infos for port in info.worker.worker_ports}
