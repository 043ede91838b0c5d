"""Agents on Ray's nodes: started by an actor of no resources, heard of until they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from . import remote, shipping
from .environments import Environments
from .groups import Node, nodes
from .joining import Refused

#: Seconds for Ray to start an actor.
_START_PATIENCE = 60.0
_CONCURRENT = 8


class _Kept:
    def __init__(self, actor: Any, name: str) -> None:
        self.actor = actor
        self.name = name
        self.process: dict[str, int] = {}
        self.doomed = False  # it is to end, also if it has yet to begin
        self.ended = False


class Agents:
    """The agents of this bridge, by the number of their node at the head."""

    def __init__(self, ray: Any, ended: Callable[[int, str], None]) -> None:
        self._ray = ray
        self._ended = ended
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._prepared: dict[str, Any] = {}  # actors without an agent, by the node's id
        self._packer = shipping.Packer()
        self._environments = Environments(ray)
        self._shas: dict[str, str] = {}

    def known(self) -> list[dict[str, Any]]:
        """Those that run: number, name of the node, process there."""
        with self._lock:
            return [
                {"node": number, "name": kept.name, **kept.process}
                for number, kept in sorted(self._kept.items())
                if kept.process and not kept.ended
            ]

    def prepare(self, node: Node) -> None:
        """Have Ray start the actor of an agent that is about to be asked for."""
        with self._lock:
            has = any(kept.name == node.name and not kept.ended for kept in self._kept.values())
            if not (node.here or has or node.id in self._prepared):
                self._prepared[node.id] = self._actor(node)

    def unprepare(self) -> None:
        """End the actors that nobody asked for after all."""
        with self._lock:
            idle, self._prepared = self._prepared, {}
        for actor in idle.values():
            self._ray.kill(actor)

    def _actor(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            self._ray.remote(remote.Agent)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=_CONCURRENT,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote()
        )

    def launch(self, join: Mapping[str, Any], program: str) -> dict[str, int]:
        """Start the agent of a node; returns which process its warden is there."""
        ray, number, name = self._ray, int(join["node"]), str(join["name"])
        node = next((n for n in nodes(ray) if n.name == name), None)
        if node is None:
            raise Refused(f"Ray has no node {name} (any more)", "node_lost")
        with self._lock:
            actor = self._prepared.pop(node.id, None) or self._actor(node)
            kept = self._kept[number] = _Kept(actor, name)
        try:
            place = self._program(actor, program)
            kept.process = ray.get(actor.start.remote(place, dict(join)), timeout=_START_PATIENCE)
        except BaseException as error:
            self._drop(number, kept)
            raise Refused(
                f"no agent could be started on {name}: {_cause(error)}", "node_lost"
            ) from None
        threading.Thread(target=self._watch, args=(number, kept), daemon=True).start()
        if kept.doomed:
            self.kill(number)
        return kept.process

    def _program(self, actor: Any, program: str) -> str:
        """Where the muster program is on the actor's node; it is shipped if it is not there."""
        with self._lock:
            sha = self._shas.get(program, "")
        if not sha:
            sha = shipping.file_sha(program)
            with self._lock:
                self._shas[program] = sha
        there: str = self._ray.get(actor.program.remote(program, sha), timeout=_START_PATIENCE)
        return there or shipping.send_program(self._ray, actor, program, sha)

    def _watch(self, number: int, kept: _Kept) -> None:
        try:
            why = str(self._ray.get(kept.actor.wait.remote())["why"])
        except BaseException as error:
            why = f"its actor in Ray ended: {_cause(error)}"
        self._drop(number, kept)
        self._ended(number, why)

    def _drop(self, number: int, kept: _Kept) -> None:
        with self._lock:
            kept.ended = True
            if self._kept.get(number) is kept:
                del self._kept[number]
        self._environments.drop(kept.name)
        try:
            self._ray.kill(kept.actor)
        except Exception:  # it is gone
            pass

    def kill(self, number: int) -> None:
        """End an agent at once; its end is told like any other."""
        with self._lock:
            kept = self._kept.get(number)
        if kept is None or kept.ended:
            return
        kept.doomed = True
        try:
            self._ray.get(kept.actor.kill.remote(), timeout=5)
        except Exception:  # it does not answer, or is gone
            try:
                self._ray.kill(kept.actor)  # its warden sees its stdin end
            except Exception:
                pass

    def fit(self, number: int, runtime: Mapping[str, Any]) -> dict[str, Any]:
        """A runtime as the node of that number has it; what it lacks is shipped.

        The node of this machine has no agent here, and lacks nothing.
        """
        with self._lock:
            kept = self._kept.get(number)
        if kept is None and number != 0:
            raise Refused(f"there is no agent of node {number} (any more)", "node_lost")
        fitted = dict(runtime)
        if kept is not None:
            fitted = shipping.fit(self._ray, kept.actor, kept.name, runtime, self._packer)
        asked = fitted.pop("runtime_env", None)
        if not asked:
            return fitted
        there = nodes(self._ray)
        node = next((n for n in there if (n.name == kept.name if kept else n.here)), None)
        if node is None:
            raise Refused(
                f"Ray has no node {kept.name if kept else 'here'} (any more)", "node_lost"
            )
        return self._environments.apply(node, asked, fitted)


def _cause(error: BaseException) -> str:
    """The first words of what Ray says, which can be very long."""
    if isinstance(error, Refused):
        return str(error)
    inner = getattr(error, "cause", None)
    text = " ".join(str(inner or error).split())
    return f"{type(inner or error).__name__}: {text[:500]}"
