"""What a user asks of a cluster's workers: `WorkerConfig`.

Owns the fields, their types and their translation into the description that
the head checks and places. Whether a mapping fits a pool, or a shape a world
size, is the head's to say: there is one authority, and one wording.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isnan
from typing import Any

from . import _embedded, _errors, _resources

_SIZES = {
    "tp": ("tensor_model_parallel_size", "tensor_parallel_size"),
    "pp": ("pipeline_model_parallel_size", "pipeline_parallel_size"),
    "cp": ("context_parallel_size", "context_model_parallel_size"),
    "ep": ("expert_model_parallel_size", "expert_parallel_size"),
}
#: An inference engine's own tensor parallelism lies inside one worker that has
#: several devices; it is then no matter of ranks.
_WITHIN_WORKER = "tensor_parallel_size"
_FOR_EVER = 10.0 * 365 * 86400  # seconds, within what clocks can count


@dataclass
class WorkerConfig:
    """How many workers a cluster has, where they run and what surrounds them.

    ``device_mapping`` lists global device ids of the pool, as a list or as text
    (``"0-7,16-23"``, ``"list(range(0,8))"``); rank r takes the r-th group of
    ``num_gpus_per_worker`` entries. Without a mapping, workers are CPU workers,
    ``world_size`` of them. ``tp``, ``pp``, ``cp`` and ``ep`` are the parallel
    sizes; where they are not given, ``strategy_args`` is asked for them under
    Megatron's names.

    The object reaches each worker as its ``worker_config``. Subclass it as a
    dataclass to carry more.
    """

    world_size: int | None = None
    device_mapping: str | Sequence[int] | None = None
    #: Devices of one worker; by default it follows from the mapping and world_size.
    num_gpus_per_worker: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    #: A dict, or an object with ``strategy_config``, that the workers make sense of.
    strategy_args: Any = None
    #: Variables for the workers, on top of the controller's own environment.
    env: dict[str, str] = field(default_factory=dict)
    #: Another name for ``env``.
    system_envs: dict[str, str] = field(default_factory=dict)
    #: Calls a worker runs at once: 1 by default, 1000 for classes with async methods.
    max_concurrency: int | None = None
    #: Modules to import once, before workers are forked.
    preload: Sequence[str] = ()
    start: str = "fork"
    #: Seconds until every worker must be ready.
    startup_timeout: float | None = None
    #: "own": a worker sees its devices alone; "node": all of its node's.
    visible_devices: str = "own"
    #: The interpreter; by default the controller's.
    python: str | None = None
    working_dir: str | None = None
    #: Folders put in front of the workers' sys.path.
    py_modules: Sequence[str] = ()
    #: "off" refuses values that only pickle can carry.
    pickle: str = "on"
    #: Seconds between asking a worker to end and ending it.
    grace: float | None = None
    #: When a worker's process ends: "fail" (its calls, now and later), "restart_worker"
    #: (that rank alone) or "restart_cluster"; ``initialize`` is then run again.
    on_failure: str = "fail"
    #: Restarts within ``restart_window`` seconds, 3 in 600 by default; then it is "fail".
    max_restarts: int | None = None
    restart_window: float | None = None
    #: GPUs that a service takes: a whole number, or the part of one (0.25). The head chooses
    #: them among those that other services have left: of all that there are, or with
    #: ``resource_manager`` of that pool, and of what ``device_mapping`` names of it.
    gpus: float | None = None
    #: Seconds that it waits for GPUs that others have, 30 by default.
    gpus_timeout: float | None = None
    #: Lets the devices of one worker lie on several nodes.
    span_nodes: bool = False
    #: The node of the pool that CPU workers run on, by name; by default they are spread.
    node: str | None = None
    #: The pool; `Cluster` also takes it as an argument of its own.
    #: A service that takes ``gpus`` may have a list of them: one of these will do.
    resource_manager: _resources.ResourceManager | Sequence[_resources.ResourceManager] | None = (
        field(default=None, repr=False, compare=False)
    )
    #: Lets ``env`` set the variables, too, that Muster sets for each rank.
    rank_env: bool = False
    #: "inherit" gives the workers Ray's token, so that they can use Ray themselves.
    ray: str = ""
    #: Ray's runtime_env: env_vars, working_dir and py_modules everywhere; pip, uv, conda and
    #: py_executable with Ray's nodes.
    runtime_env: Mapping[str, Any] | None = None

    def shape(self) -> dict[str, int]:
        """The parallel sizes asked for; 0 where nobody said anything."""
        sizes = {"dp": 0}
        for name, spellings in _SIZES.items():
            given = getattr(self, name)
            declared = self._declared(spellings)
            if given is None:
                sizes[name] = next(iter(declared.values()), 0)
                continue
            sizes[name] = _count(name, given)
            for spelling, size in declared.items():
                if size != given and spelling != _WITHIN_WORKER:
                    raise ValueError(
                        f"{name}={given}, but strategy_args says {spelling}={size}; "
                        "give one of them, or the same in both"
                    )
        return sizes

    def _declared(self, spellings: Sequence[str]) -> dict[str, int]:
        """The sizes that strategy_args gives under these names."""
        args = self.strategy_args
        inner = args.get("strategy_config") if isinstance(args, Mapping) else None
        if not isinstance(args, Mapping):
            inner = getattr(args, "strategy_config", None)
        found: dict[str, int] = {}
        for source in (args, inner):
            if not isinstance(source, Mapping):
                continue
            for spelling in spellings:
                size = source.get(spelling)
                if size is None or (spelling == _WITHIN_WORKER and self._several_devices()):
                    continue
                found.setdefault(spelling, _count(f"strategy_args' {spelling}", size))
        return found

    def _several_devices(self) -> bool:
        return (self.num_gpus_per_worker or 1) > 1

    def to_spec(self, name: str) -> dict[str, Any]:
        """The cluster's description for the head, but for class, runtime and config."""
        mapping = self.device_mapping
        text = mapping if isinstance(mapping, str) else ""
        listed: list[int] = []
        if mapping is not None and not isinstance(mapping, str):
            if isinstance(mapping, (bytes, Mapping)) or not hasattr(mapping, "__iter__"):
                raise TypeError(
                    f"device_mapping is {mapping!r}; it takes text such as '0-7', "
                    "or a list of global device ids"
                )
            listed = [_integer("an id in device_mapping", entry) for entry in mapping]
        spec = {
            "name": name,
            "world": _count("world_size", self.world_size),
            "has_mapping": mapping is not None,
            "mapping_text": text,
            "mapping": listed,
            "devices_per_worker": _integer("num_gpus_per_worker", self.num_gpus_per_worker),
            "span_nodes": bool(self.span_nodes),
            "node": _text("node", self.node or ""),
            "shape": self.shape(),
            "env": self.environment(),
            "rank_env": bool(self.rank_env),
            "max_concurrency": _count("max_concurrency", self.max_concurrency),
            "start": _text("start", self.start),
            "visible_devices": _text("visible_devices", self.visible_devices),
            "startup_timeout": as_seconds("startup_timeout", self.startup_timeout),
            "grace": as_seconds("grace", self.grace),
            "on_failure": _text("on_failure", self.on_failure),
            "max_restarts": _count("max_restarts", self.max_restarts),
            "restart_window": as_seconds("restart_window", self.restart_window),
            "pickle": _pickle(self.pickle),
        }
        if self.gpus:
            spec["gpus"] = _number("gpus", self.gpus)
        return spec

    def environment(self) -> dict[str, str]:
        """``env`` and ``system_envs`` as one."""
        merged: dict[str, str] = {}
        for label, variables in (("env", self.env), ("system_envs", self.system_envs)):
            if not isinstance(variables, Mapping):
                raise TypeError(f"{label} is a dict of text to text, not {variables!r}")
            entries: Mapping[Any, Any] = variables
            for key, value in entries.items():
                if not isinstance(key, str) or not isinstance(value, (str, int, float)):
                    raise TypeError(f"{label}[{key!r}] is {value!r}; both sides must be text")
                word = str(value)
                if merged.setdefault(key, word) != word:
                    raise ValueError(
                        f"env says {key}={merged[key]!r}, system_envs (the same under another "
                        f"name) says {word!r}; give one of them"
                    )
        return merged


def device_ids(mapping: str | Iterable[int]) -> list[int]:
    """The ids that a ``device_mapping`` names, text or not, where they are needed before there
    is a cluster: ``device_ids("0-3,8")`` is ``[0, 1, 2, 3, 8]``."""
    if isinstance(mapping, str):
        return list(_ids_of(mapping))
    ids = [_integer("an id in device_mapping", at) for at in mapping]
    for at in ids:
        if at < 0:
            raise ValueError(f"device_mapping={mapping!r}: {at} is no id, a whole number from 0")
    return ids


@lru_cache(maxsize=256)
def _ids_of(text: str) -> tuple[int, ...]:
    """As the head reads it: there is one parser, and one wording."""
    import subprocess

    asked = [_embedded.find_binary(), "mapping", "--", text]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip().removeprefix("muster: ").removeprefix("device_mapping: ")
        raise ValueError(f"device_mapping={text!r} names no list of ids: {told}")
    return tuple(map(int, done.stdout.split()))


def as_worker_config(config: object) -> WorkerConfig:
    """Take what a user gave as worker_config: one of ours, a dict of its fields, or none."""
    if config is None:
        return WorkerConfig(world_size=1)
    if isinstance(config, WorkerConfig):
        return config
    if isinstance(config, Mapping):
        known = {entry.name for entry in fields(WorkerConfig)}
        if strange := sorted(str(key) for key in config if key not in known):
            raise TypeError(
                f"WorkerConfig has no field {', '.join(strange)}; it has {', '.join(sorted(known))}"
            )
        return WorkerConfig(**config)
    raise TypeError(
        f"worker_config takes a WorkerConfig (or a subclass of it), not {type(config).__name__}"
    )


#: What a worker_cls begins with that is a program and not a class.
_PROGRAM = "exec:"


def command_of(worker_cls: type | str) -> list[str]:
    """The program, by its full path, and its arguments; empty where workers are Python."""
    if not isinstance(worker_cls, str) or not worker_cls.startswith(_PROGRAM):
        return []
    try:
        words = shlex.split(worker_cls[len(_PROGRAM) :])
    except ValueError as error:
        raise ValueError(f"worker_cls={worker_cls!r} cannot be split into words: {error}") from None
    if not words:
        raise ValueError(f"worker_cls={worker_cls!r} names no program")
    found = shutil.which(words[0])  # as a shell looks: on PATH, unless there is a slash in it
    if found is None:
        raise _errors.WorkerImportError(
            f"worker_cls={worker_cls!r}: {os.path.abspath(words[0])!r} is not a program"
            if os.sep in words[0]
            else f"worker_cls={worker_cls!r}: there is no program {words[0]!r} on PATH"
        )
    return [os.path.abspath(found), *words[1:]]


def _integer(label: str, value: Any) -> int:
    """Accept what is exactly a whole number (numpy's too); None counts as 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{label} is {value!r}; it must be a whole number")
    return int(value)


def _count(label: str, value: Any) -> int:
    """A size that somebody gave; None counts as 0, which means that it follows from others."""
    number = _integer(label, value)
    if value is not None and number < 1:
        raise ValueError(f"{label} is {value}; it must be 1 or more, or None")
    return number


def _number(label: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{label} is {value!r}; it must be a number")
    return float(value)


def as_seconds(label: str, value: Any) -> float:
    """A number of seconds for the head; None counts as 0, its default."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{label} is {value!r}; it is a number of seconds")
    number = float(value)
    if isnan(number):
        raise ValueError(f"{label} is not a number; it is in seconds")
    return min(number, _FOR_EVER)


def _text(label: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{label} is {value!r}; it must be text")
    return str(value)


def _pickle(value: Any) -> str:
    if isinstance(value, bool):  # pickle=False reads naturally, so it works
        return "on" if value else "off"
    return _text("pickle", value)
