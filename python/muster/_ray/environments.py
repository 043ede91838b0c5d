"""What Ray sets up for a runtime_env, and how workers are started with it.

Ray makes an environment for its own processes, and keeps it for as long as one of them
needs it. So for each environment that a node's workers need there is an actor of no
resources that says what it finds around it, and stays. Beside it a plain process of
Ray's says the same: what differs is what Ray has done.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any

from . import remote
from .groups import Node
from .joining import Refused

#: Seconds for Ray to set up an environment, where its config does not say.
_SETUP_PATIENCE = 600.0
_PLAIN_PATIENCE = 60.0
#: Variables that Ray sets for each of its processes anew, or that go by sys.path.
_NOISE = {
    "OMP_NUM_THREADS",
    "PATH",
    "PYTHONPATH",
    "PS1",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
}


class Environments:
    """The environments of this bridge, by node and by what was asked for."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._lock = threading.Lock()
        self._making: dict[tuple[str, str], threading.Lock] = {}
        self._made: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
        self._plain: dict[str, dict[str, Any]] = {}

    def apply(
        self, node: Node, asked: Mapping[str, Any], runtime: dict[str, Any]
    ) -> dict[str, Any]:
        """A runtime with what Ray has set up on a node for these wishes."""
        key = (node.name, json.dumps(asked, sort_keys=True))
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # once for all clusters that ask
            if key not in self._made:
                made = self._make(node, asked)
                with self._lock:
                    self._made[key] = made
            found = self._made[key][1]
            if node.name not in self._plain:
                self._plain[node.name] = self._look_around(node)
        return changed(runtime, found, self._plain[node.name], "working_dir" in asked)

    def _options(self, node: Node) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return {"num_cpus": 0, "scheduling_strategy": there}

    def _make(self, node: Node, asked: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        ray = self._ray
        patience = (asked.get("config") or {}).get("setup_timeout_seconds") or _SETUP_PATIENCE
        actor = None
        try:
            actor = (
                ray.remote(remote.Environment)
                .options(**self._options(node), max_restarts=0, runtime_env=dict(asked))
                .remote()
            )
            return actor, ray.get(actor.about.remote(), timeout=float(patience) + 30)
        except Exception as error:
            if actor is not None:
                ray.kill(actor)
            raise Refused(
                f"Ray could not set up the runtime_env on {node.name}: {cause(error)}", "startup"
            ) from None

    def _look_around(self, node: Node) -> dict[str, Any]:
        task = self._ray.remote(remote.surroundings).options(**self._options(node))
        found: dict[str, Any] = self._ray.get(task.remote(), timeout=_PLAIN_PATIENCE)
        return found

    def drop(self, name: str) -> None:
        """Let go of those of a node that nobody uses any more."""
        with self._lock:
            gone = [self._made.pop(key) for key in list(self._made) if key[0] == name]
            self._plain.pop(name, None)
        for actor, _ in gone:
            try:
                self._ray.kill(actor)
            except Exception:  # it is gone
                pass


def cause(error: BaseException) -> str:
    """What Ray says went wrong: the end of it, which names what failed."""
    text = str(error).strip()
    return text if len(text) < 2000 else f"{text[:500]} … {text[-1400:]}"


def changed(
    runtime: dict[str, Any], found: Mapping[str, Any], plain: Mapping[str, Any], moved: bool
) -> dict[str, Any]:
    """A runtime with what is otherwise in an environment than in a plain process."""
    made = dict(runtime)
    if found["python"] != plain["python"]:
        made["python"] = found["python"]
    if moved:
        made["dir"] = found["dir"]
    new = [path for path in found["path"] if path and path not in plain["path"]]
    made["sys_path"] = [*new, *(path for path in made["sys_path"] if path not in new)]
    made["env"] = variables(found["env"], plain["env"])
    made["path"] = _added(found["env"].get("PATH", ""), plain["env"].get("PATH", ""))
    return made


def _added(found: str, plain: str) -> list[str]:
    """The folders that were put into a list of them."""
    known = plain.split(os.pathsep)
    return [folder for folder in found.split(os.pathsep) if folder and folder not in known]


def variables(found: Mapping[str, str], plain: Mapping[str, str]) -> dict[str, str]:
    """The variables that Ray has set for an environment."""
    return {
        name: value
        for name, value in found.items()
        if plain.get(name) != value and name not in _NOISE and not name.startswith("RAY_")
    }
