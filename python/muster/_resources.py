"""`ResourceManager`: nodes and devices reserved as one, and plans over them.

Owns the reservation's lifetime. Who sits where is the head's to decide, for
plans as for starts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _config, _context, _worker
from ._environment import runtime_env_text

if TYPE_CHECKING:
    from ._client import Connection
    from ._cluster import Cluster
    from ._config import WorkerConfig
    from ._refs import Ref

#: Seconds for nodes that are starting, before they are told as they are.
_JOINING_PATIENCE = 30.0
_STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")


class Plan:
    """Who would sit where; ``print(plan)`` draws it.

    ``clusters`` maps each name to a list with one dict per rank: ``rank``,
    ``name``, ``node`` (its index in the pool), ``devices`` (global ids).
    """

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.text = str(message["text"])
        self.clusters = {
            cluster["name"]: [
                {
                    "rank": worker["rank"],
                    "name": worker["name"],
                    "node": worker["node"],
                    "devices": [at["global"] for at in worker["devices"]],
                }
                for worker in cluster["workers"]
            ]
            for cluster in message["clusters"]
        }

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<muster.Plan of {', '.join(self.clusters)}>"


@dataclass(frozen=True)
class Outlook:
    """What would come of asking for a pool: `ResourceManager.outlook`."""

    #: All of it is free.
    now: bool
    #: Nodes may be added, so a ResourceManager waits for them until its timeout.
    waits: bool
    #: What there is, or what is missing and who holds it.
    text: str

    def __str__(self) -> str:
        return self.text


class ResourceManager:
    """A pool: ``num_nodes`` nodes with ``num_gpus_per_node`` GPUs each, reserved together.

    All of it is there when the constructor returns, or the error says what is
    missing and who holds it; it never waits longer than ``timeout`` seconds. 0
    GPUs per node make a pool for CPU workers. The reservation goes when the
    object does and no cluster uses it any more, at `destroy_placement_group`, or
    at the end of its ``with`` block.

    ``strategy`` is one of Ray's: "STRICT_SPREAD" (the default: each on a node of its
    own), "SPREAD", "PACK" or "STRICT_PACK", where several may share a node and then count
    as one node each. With Ray's nodes the pool is a placement group of one bundle per
    node: ``cpus_per_node`` are held beside the GPUs (this machine's own are not counted),
    and ``labels`` and ``accelerator_type`` (as "H100") choose among nodes. ``node`` names the one node that
    will do, as `muster.nodes` names it. ``devices`` names the GPUs themselves, of one node, by the
    numbers that `muster.nodes` has for them, in the place of how many (not on Ray's nodes). With ``wait``, what others hold is waited for, until
    the timeout.

    It can be pickled: workers can make clusters in it, and it stays with who made it.
    """

    def __init__(
        self,
        num_gpus_per_node: int = 0,
        num_nodes: int = 1,
        *,
        timeout: float = 30.0,
        strategy: str | None = None,
        cpus_per_node: float = 0,
        labels: Mapping[str, str] | None = None,
        accelerator_type: str | None = None,
        node: str | None = None,
        devices: Sequence[int] | None = None,
        wait: bool = False,
    ) -> None:
        asked = _asked(
            num_gpus_per_node,
            num_nodes,
            timeout=timeout,
            strategy=strategy,
            cpus_per_node=cpus_per_node,
            labels=labels,
            accelerator_type=accelerator_type,
            node=node,
            wait=wait,
        )
        if devices is not None:
            if num_gpus_per_node or num_nodes != 1 or not devices:
                raise ValueError(
                    f"devices={list(devices)!r} names the GPUs of one node; leave "
                    "num_gpus_per_node and num_nodes out, and name one at least"
                )
            for number in devices:
                _whole("a number of devices", number)
            asked["devices"] = [int(number) for number in devices]
        self._reserve(asked)

    def _reserve(self, asked: dict[str, Any]) -> None:
        connection = _context.connection("ResourceManager()")
        with _context.waiting():
            pool = connection.request("pool.create", asked)
        self._hold(connection, pool)

    def _hold(self, connection: Connection, pool: Mapping[str, Any]) -> None:
        """Be the pool that the head has reserved."""
        self.id: int = pool["id"]
        #: How many GPUs each node has; 0 where they differ.
        self.gpu_per_node: int = pool["per_node"]
        #: What each node is: name, address, cores, memory, devices.
        self.nodes: list[dict[str, Any]] = pool["nodes"]
        self._connection = connection
        self._clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()
        self._release: Any = weakref.finalize(self, _release, connection, self.id)
        self._release.atexit = False  # the head releases all of a script's pools at its end

    @classmethod
    def for_workers(
        cls,
        world_size: int,
        num_gpus_per_worker: int,
        num_gpus_per_node: int,
        *,
        timeout: float = 30.0,
        strategy: str | None = None,
        cpus_per_node: float = 0,
        labels: Mapping[str, str] | None = None,
        accelerator_type: str | None = None,
        wait: bool = False,
    ) -> ResourceManager:
        """The pool that so many workers need, where nodes have ``num_gpus_per_node``: as few nodes
        as can be, and of each no more GPUs than its workers take. A worker with more GPUs than a
        node gets whole nodes (``WorkerConfig(span_nodes=True)``)."""
        asked = _asked(
            num_gpus_per_node,
            1,
            timeout=timeout,
            strategy=strategy,
            cpus_per_node=cpus_per_node,
            labels=labels,
            accelerator_type=accelerator_type,
            wait=wait,
        )
        for label, value in (
            ("world_size", world_size),
            ("num_gpus_per_worker", num_gpus_per_worker),
        ):
            _whole(label, value)
        if world_size < 1:
            raise ValueError(f"world_size is {world_size}; it is 1 or more")
        self = cls.__new__(cls)
        self._reserve(
            {**asked, "workers": int(world_size), "gpus_per_worker": int(num_gpus_per_worker)}
        )
        return self

    @classmethod
    def for_bundles(
        cls,
        bundles: Sequence[Mapping[str, float]],
        *,
        strategy: str = "PACK",
        timeout: float = 30.0,
        labels: Mapping[str, str] | None = None,
        accelerator_type: str | None = None,
        node: str | None = None,
        wait: bool = False,
    ) -> ResourceManager:
        """A pool of bundles that may differ, each ``{"gpus": 2, "cpus": 4}``, all on nodes as
        ``strategy`` says. Bundle i is node i of the pool; `gpu_ids` has its GPUs. CPUs are
        counted on Ray's nodes alone."""
        self = cls.__new__(cls)
        self._reserve(
            bundles_asked(
                bundles,
                strategy=strategy,
                timeout=timeout,
                labels=labels,
                accelerator_type=accelerator_type,
                node=node,
                wait=wait,
            )
        )
        return self

    @classmethod
    def _begin(cls, asked: dict[str, Any]) -> Ref:
        """Ask for a pool and do not wait: a ref of it. `Ref.cancel` gives it up."""
        connection = _context.connection("ResourceManager()")

        def held(pool: Mapping[str, Any]) -> ResourceManager:
            self = cls.__new__(cls)
            self._hold(connection, pool)
            return self

        reply = connection.ask("pool.create", asked)
        reply._finish = held
        return reply

    @classmethod
    def _attach(cls, ident: int, per_node: int, nodes: list[dict[str, Any]]) -> ResourceManager:
        """A pool that another process made and holds."""
        self = cls.__new__(cls)
        self.id, self.gpu_per_node, self.nodes = ident, per_node, nodes
        self._connection = _context.connection("ResourceManager()")
        self._clusters = weakref.WeakSet()
        self._release = None
        return self

    @staticmethod
    def outlook(
        num_gpus_per_node: int = 0,
        num_nodes: int = 1,
        *,
        timeout: float = 30.0,
        strategy: str | None = None,
        cpus_per_node: float = 0,
        labels: Mapping[str, str] | None = None,
        accelerator_type: str | None = None,
        bundles: Sequence[Mapping[str, float]] | None = None,
    ) -> Outlook:
        """Whether such a pool could be had now, and if not, what is missing and who holds it;
        with ``bundles``, one of `for_bundles`.

        Nothing is reserved, so another may be quicker.
        """
        asked = _asked(
            num_gpus_per_node,
            num_nodes,
            timeout=timeout,
            strategy=strategy,
            cpus_per_node=cpus_per_node,
            labels=labels,
            accelerator_type=accelerator_type,
        )
        if bundles is not None:
            asked["bundles"] = [_bundle(bundle) for bundle in bundles]
        connection = _context.connection("ResourceManager.outlook()")
        return Outlook(**connection.request("pool.look", asked))

    @property
    def num_nodes(self) -> int:
        """How many nodes the pool has."""
        return len(self.nodes)

    @property
    def num_gpus(self) -> int:
        """How many GPUs the pool has in all."""
        return sum(len(node["devices"]) for node in self.nodes)

    def gpu_ids(self, node: int) -> range:
        """The ids of the GPUs that one of its nodes has, by the node's index in the pool."""
        first = sum(len(before["devices"]) for before in self.nodes[:node])
        return range(first, first + len(self.nodes[node]["devices"]))

    def plan(
        self,
        clusters: Mapping[str, WorkerConfig] | Iterable[tuple[str, WorkerConfig]] | None = None,
        /,
        **named: WorkerConfig,
    ) -> Plan:
        """Show who would sit where if these clusters were made; nothing starts.

        Takes a dict of name to `WorkerConfig`, a list of such pairs, or keywords.
        What would be an error at the start is the same error here.
        """
        pairs = list(clusters.items()) if isinstance(clusters, Mapping) else list(clusters or ())
        specs = [_planned(name, config) for name, config in (*pairs, *named.items())]
        return Plan(self._connection.request("plan", {"pool": self.id, "clusters": specs}))

    def allocate_placement_group(
        self, world_size: int, device_mapping: str | Sequence[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Per rank, the devices it would get: dicts of node_rank, gpu_rank, placement_group
        and ray_address."""
        config = _config.WorkerConfig(world_size=world_size, device_mapping=device_mapping)
        request = {"pool": self.id, "clusters": [_planned("allocation", config)]}
        planned = self._connection.request("plan", request)["clusters"][0]
        return [devices_of(worker, self.id) for worker in planned["workers"]]

    def destroy_placement_group(self) -> None:
        """End all that runs on this pool, whoever made it, and give it back. It may be called
        again. Who got the pool from another ends the clusters that it made itself there."""
        for cluster in list(self._clusters):
            cluster.shutdown()
        ours = self._release is not None and self._release.detach() is not None
        if ours and self._connection.alive():
            self._connection.request("pool.end", {"pool": self.id})

    def __enter__(self) -> ResourceManager:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.destroy_placement_group()

    def __reduce__(self) -> Any:
        return ResourceManager._attach, (self.id, self.gpu_per_node, self.nodes)

    def __repr__(self) -> str:
        each = f"x {self.gpu_per_node} GPUs"
        if self.num_gpus and not self.gpu_per_node:
            each = f"of {', '.join(str(len(node['devices'])) for node in self.nodes)} GPUs"
        return f"<muster.ResourceManager {self.num_nodes} nodes {each}>"


def nodes() -> list[dict[str, Any]]:
    """All nodes that there are: dicts of name, address, cores, memory (bytes), devices, ``free``
    (how many of them no pool holds), state, and ``here`` for the one that this process runs on.

    Those that are starting are waited for; one that takes longer than half a minute has the
    state "joining". Else it is "up", "suspect", "away" or "lost"; and "unused" for a node of a
    Ray cluster that no pool has had yet, of which only what Ray counts is known.
    """
    told = _context.connection("nodes()").request("nodes", {"wait_s": _JOINING_PATIENCE})
    session = _context.session()  # which that may have made
    identity = _worker._identity
    own = session.welcome.get("store_node", 0) if session is not None else None
    return [
        {
            "name": entry["node"]["name"],
            "address": entry["node"]["address"],
            "cores": entry["node"]["cores"],
            "memory": entry["node"]["memory"],
            "devices": entry["node"]["devices"],
            "free": entry["free"],
            "state": entry["state"],
            "here": entry["node"]["index"] == own
            or (identity is not None and entry["node"]["name"] == identity.node),
        }
        for entry in told["nodes"]
    ]


def _asked(
    num_gpus_per_node: int,
    num_nodes: int,
    *,
    timeout: float,
    strategy: str | None,
    cpus_per_node: float,
    labels: Mapping[str, str] | None,
    accelerator_type: str | None,
    node: str | None = None,
    wait: bool = False,
) -> dict[str, Any]:
    """The request for a pool."""
    for label, value in (("num_gpus_per_node", num_gpus_per_node), ("num_nodes", num_nodes)):
        _whole(label, value)
    if strategy is not None and strategy not in _STRATEGIES:
        raise ValueError(f"strategy={strategy!r}; there are {', '.join(_STRATEGIES)}")
    if isinstance(cpus_per_node, bool) or not isinstance(cpus_per_node, (int, float)):
        raise TypeError(f"cpus_per_node is {cpus_per_node!r}; it must be a number")
    if cpus_per_node < 0:
        raise ValueError(f"cpus_per_node is {cpus_per_node!r}; it is 0 or more")
    return {
        "gpus_per_node": int(num_gpus_per_node),
        "nodes": int(num_nodes),
        "timeout": _config.as_seconds("timeout", timeout),
        "cpus_per_node": float(cpus_per_node),
        "strategy": strategy or "",
        "labels": {str(key): str(value) for key, value in (labels or {}).items()},
        "accelerator_type": accelerator_type or "",
        "node": node or "",
        "wait": bool(wait),
    }


def bundles_asked(
    bundles: Sequence[Mapping[str, float]],
    *,
    strategy: str,
    timeout: float,
    labels: Mapping[str, str] | None = None,
    accelerator_type: str | None = None,
    node: str | None = None,
    wait: bool = False,
) -> dict[str, Any]:
    """The request for a pool of bundles."""
    asked = _asked(
        0,
        1,
        timeout=timeout,
        strategy=strategy,
        cpus_per_node=0,
        labels=labels,
        accelerator_type=accelerator_type,
        node=node,
        wait=wait,
    )
    if isinstance(bundles, (str, Mapping)) or not bundles:
        raise ValueError(f"bundles is {bundles!r}; it is a list of dicts, one at least")
    return {**asked, "bundles": [_bundle(bundle) for bundle in bundles]}


def _bundle(bundle: Mapping[str, float]) -> dict[str, Any]:
    """What one node of a pool shall have."""
    if not isinstance(bundle, Mapping):
        raise TypeError(f"a bundle is {bundle!r}; it is a dict of gpus and cpus")
    if strange := set(bundle) - {"gpus", "cpus"}:
        raise ValueError(f"a bundle has {', '.join(map(repr, strange))}; it has gpus and cpus")
    gpus, cpus = bundle.get("gpus", 0), bundle.get("cpus", 0)
    _whole("gpus of a bundle", gpus)
    if isinstance(cpus, bool) or not isinstance(cpus, (int, float)):
        raise TypeError(f"cpus of a bundle is {cpus!r}; it must be a number")
    return {"gpus": int(gpus), "cpus": float(cpus)}


def _whole(label: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{label} is {value!r}; it must be a whole number")


def devices_of(worker: Mapping[str, Any], pool: int) -> list[dict[str, Any]]:
    """A worker's places in the form that pipelines written for Ray expect."""
    places = [(at["node"], at["device"]) for at in worker["devices"]] or [(worker["node"], None)]
    return [
        {"node_rank": node, "gpu_rank": device, "placement_group": pool, "ray_address": ""}
        for node, device in places
    ]


def _planned(name: str, config: WorkerConfig) -> dict[str, Any]:
    asked = _config.as_worker_config(config)
    spec = asked.to_spec(name)
    spec["class"] = {"module": "muster", "name": "Worker", "pickle": b""}
    if asked.runtime_env:  # the rest of a runtime matters only at a start
        spec["runtime"] = {"runtime_env": runtime_env_text(asked.runtime_env)}
    return spec


def _release(connection: Connection, pool: int) -> None:
    # Called by the garbage collector, maybe in the middle of a send.
    connection.later("pool.release", {"pool": pool})
