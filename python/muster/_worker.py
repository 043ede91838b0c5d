"""What a worker class stands on: its place among the ranks, and small services.

Owns `Worker`, `RankInfo` and held ports. It runs inside worker processes (and
anywhere a user constructs the class by hand, as in unit tests); it never talks
to the head.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._register import Dispatch, register

if TYPE_CHECKING:
    import socket

    from typing_extensions import Self

    from ._runtime.engines import Engines


@dataclass
class RankInfo:
    """One rank's place in the parallel layout of its cluster.

    The default layout is Megatron's: tensor parallel ranks are neighbours, then
    context, data and pipeline parallel ones. A worker whose framework lays ranks
    out otherwise assigns its own ``self.rank_info``; that then decides who gets
    what.
    """

    world_size: int = 1
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    rank: int = 0
    tp_rank: int = 0
    dp_rank: int = 0
    pp_rank: int = 0
    cp_rank: int = 0

    @property
    def is_pipeline_last_stage(self) -> bool:
        """Whether this rank holds the end of the model, where results appear."""
        return self.pp_rank == self.pp_size - 1


@dataclass
class Identity:
    """Who the worker of this process is; its attributes become the object's own."""

    rank: int
    world_size: int
    cluster_name: str
    worker_name: str
    master_addr: str
    master_port: int
    rank_info: RankInfo
    node_address: str = "127.0.0.1"
    node: str = ""


#: Set by the worker runtime before the user's class is constructed.
_identity: Identity | None = None
_engines: Engines | None = None


def _identity_from_environment() -> Identity:
    """Stand in for the runtime where a class is constructed by hand."""
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return Identity(
        rank=rank,
        world_size=world,
        cluster_name=os.environ.get("CLUSTER_NAME", ""),
        worker_name=os.environ.get("WORKER_NAME", ""),
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=int(os.environ.get("MASTER_PORT", "0")),
        rank_info=RankInfo(world_size=world, dp_size=world, rank=rank, dp_rank=rank),
    )


class Worker:
    """The base of worker classes.

    One object of the class lives in each process of a cluster. Its identity
    (``rank``, ``world_size``, ``rank_info``, ``cluster_name``, ``worker_name``,
    ``master_addr``, ``master_port``) is there before ``__init__`` runs, so a
    subclass may leave out ``super().__init__``. ``worker_config`` is the
    `WorkerConfig` that the cluster was made with.
    """

    rank: int
    world_size: int
    cluster_name: str
    worker_name: str
    master_addr: str
    master_port: int
    rank_info: RankInfo
    worker_config: Any

    def __new__(cls, worker_config: Any = None, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        identity = _identity if _identity is not None else _identity_from_environment()
        self.rank = identity.rank
        self.world_size = identity.world_size
        self.cluster_name = identity.cluster_name
        self.worker_name = identity.worker_name
        self.master_addr = identity.master_addr
        self.master_port = identity.master_port
        self.rank_info = identity.rank_info
        self.worker_config = worker_config
        return self

    def __init__(self, worker_config: Any = None) -> None:
        self.worker_config = worker_config

    @register(Dispatch.ONE_TO_ALL)
    def load_states(self, *args: Any, **kwargs: Any) -> None:
        """Bring the worker's states onto its device. The base does nothing."""

    @register(Dispatch.ONE_TO_ALL)
    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """Take the worker's states off its device. The base does nothing."""

    @register(Dispatch.ONE_TO_ALL)
    def process_weights_after_loading(self, *args: Any, **kwargs: Any) -> None:
        """Finish weights that were just loaded. The base does nothing."""

    @register(Dispatch.ONE_TO_ALL)
    def get_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Say what the worker measured. The base measures nothing."""
        return {}

    def get_rank_info(self) -> RankInfo:
        """This rank's place in the parallel layout, as it is now."""
        return self.rank_info

    def get_devices_info(self) -> list[dict[str, Any]]:
        """The devices this worker sees: dicts of rank, node_rank and gpu_rank."""
        node_rank = int(os.environ.get("NODE_RANK", "0"))
        return [
            {
                "rank": index,
                "node_rank": node_rank,
                "gpu_rank": int(text) if text.isdigit() else text,
            }
            for index, text in enumerate(_visible_devices())
        ]

    @staticmethod
    def get_node_ip() -> str:
        """The address under which other workers reach this worker's node."""
        return _identity.node_address if _identity is not None else "127.0.0.1"

    @staticmethod
    def get_free_port() -> int:
        """A port that nobody uses right now; `hold_ports` also keeps others off it."""
        import socket

        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    # --- engines: further objects in this process ---------------------------------

    def create_engine(self, path: str | type, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Make ``path(*args, **kwargs)`` in this process, a further object under a name."""
        _here().create(path, name, *args, **kwargs)

    def engine(self, name: str, /) -> Any:
        """The engine of that name: the object itself."""
        return _here().get(name)

    def call_engine(self, name: str, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a public method of an engine."""
        return _here().bound(name, method)(*args, **kwargs)

    def destroy_engine(self, name: str, /) -> Any:
        """End an engine: its ``destroy()`` or ``close()`` is run, if it has one."""
        return _here().destroy(name)

    def engines(self) -> dict[str, str]:
        """The engines of this process: name to class."""
        return _here().classes()

    @staticmethod
    def hold_ports(count: int) -> list[int]:
        """Reserve ports on this node for as long as this process lives; see `muster.hold_ports`."""
        return hold_ports(count)


def _here() -> Engines:
    """The engines of this process."""
    global _engines
    if _engines is None:
        from ._runtime.engines import Engines

        _engines = Engines()
    return _engines


#: Sockets that keep held ports; they live as long as the process.
_held: list[socket.socket] = []


def hold_ports(count: int) -> list[int]:
    """Reserve ``count`` ports on this node for as long as this process lives.

    The ports are bound but not listened on: a server that sets SO_REUSEADDR (as
    torch, uvicorn and most others do) can bind them, a plain bind by somebody
    else is refused.
    """
    import socket

    if count < 0:
        raise ValueError(f"cannot hold {count} ports; give 0 or more")
    fresh: list[socket.socket] = []
    try:
        for _ in range(count):
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            fresh.append(holder)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
    except OSError:
        for holder in fresh:
            holder.close()
        raise
    _held.extend(fresh)
    return [int(holder.getsockname()[1]) for holder in fresh]


def _visible_devices() -> list[str]:
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        if text := os.environ.get(variable, ""):
            return [part.strip() for part in text.split(",")]
    return []
