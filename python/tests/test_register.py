"""Marks on methods, and the worker base they stand on."""

from __future__ import annotations

import socket

import pytest

from muster import Cluster, Dispatch, Execute, RankInfo, Worker, _worker, hold_ports, register
from muster._register import RESERVED_NAMES, Registration


def mark(function: object) -> Registration:
    found = function.__muster__  # type: ignore[attr-defined]
    assert isinstance(found, Registration)
    return found


def test_the_default_is_all_to_all_on_all() -> None:
    @register()
    def f(self: object) -> None: ...

    assert (mark(f).dispatch, mark(f).execute) == ("ALL_TO_ALL", "ALL")
    assert (mark(f).collective, mark(f).idempotent, mark(f).on_timeout) == (False, False, "")


def test_modes_are_given_by_enum_or_name() -> None:
    @register(
        Dispatch.ONE_TO_ALL, Execute.RANK_ZERO, collective=True, idempotent=True, on_timeout="kill"
    )
    def f(self: object) -> None: ...

    @register(dispatch_mode="DP_MP_COMPUTE", execute_mode="ALL")
    def g(self: object) -> None: ...

    assert repr(mark(f)) == "Registration(ONE_TO_ALL, RANK_ZERO)"
    assert (mark(f).collective, mark(f).idempotent, mark(f).on_timeout) == (True, True, "kill")
    assert mark(g).dispatch == "DP_MP_COMPUTE"


def test_a_mode_of_ones_own() -> None:
    def cut(cluster: object) -> None: ...
    def join(cluster: object, results: object) -> None: ...

    @register({"dispatch_fn": cut, "collect_fn": join})
    def f(self: object) -> None: ...

    assert (mark(f).dispatch, mark(f).dispatch_fn, mark(f).collect_fn) == ("CUSTOM", cut, join)
    with pytest.raises(ValueError, match="dispatch_fn and collect_fn"):
        register({"dispatch_fn": cut})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dispatch_mode": "SOME"}, "dispatch_mode is 'SOME'; it can be ONE_TO_ALL"),
        ({"execute_mode": "MOST"}, "execute_mode is 'MOST'; it can be ALL, RANK_ZERO"),
        ({"on_timeout": "cry"}, "on_timeout is 'cry'"),
    ],
)
def test_wrong_modes_are_told(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        register(**arguments)  # type: ignore[arg-type]


def test_forgotten_parentheses_are_told() -> None:
    with pytest.raises(TypeError, match="takes parentheses"):

        @register  # type: ignore[arg-type]
        def f(self: object) -> None: ...


def test_static_and_class_methods_are_marked() -> None:
    class Some(Worker):
        @register(Dispatch.ONE_TO_ALL)
        @staticmethod
        def one() -> None: ...

        @register(Dispatch.ONE_TO_ALL)
        @classmethod
        def two(cls) -> None: ...

    assert mark(Some.one).dispatch == mark(Some.two).dispatch == "ONE_TO_ALL"


def test_the_reserved_names_are_what_a_cluster_has() -> None:
    public = {name for name in dir(Cluster) if not name.startswith("_")}
    assert public | {"resource_manager", "worker_config", "initialized"} == RESERVED_NAMES


def test_a_worker_knows_who_it_is_before_its_constructor_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = RankInfo(world_size=4, dp_size=2, pp_size=2, rank=3, dp_rank=1, pp_rank=1)
    identity = _worker.Identity(3, 4, "actor", "actor-3", "10.0.0.1", 4711, info, "10.0.0.2")
    monkeypatch.setattr(_worker, "_identity", identity)

    class Careless(Worker):
        def __init__(self, worker_config: object) -> None:  # without super().__init__
            self.seen = (self.rank, self.world_size, self.cluster_name, self.master_port)

    worker = Careless({"a": 1})
    assert worker.seen == (3, 4, "actor", 4711)
    assert worker.worker_config == {"a": 1}
    assert worker.get_rank_info().is_pipeline_last_stage
    assert worker.get_node_ip() == "10.0.0.2"


def test_a_worker_by_hand_is_alone_in_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    worker = Worker()
    assert (worker.rank, worker.world_size, worker.worker_config) == (0, 1, None)
    assert worker.get_metrics() == {}
    assert worker.get_devices_info() == [
        {"rank": 0, "node_rank": 0, "gpu_rank": 1},
        {"rank": 1, "node_rank": 0, "gpu_rank": 3},
    ]


def test_held_ports_can_be_bound_by_who_reuses_addresses_alone() -> None:
    first, second = hold_ports(2)
    assert first != second
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", first))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", second))
        server.listen()
    with pytest.raises(ValueError, match="cannot hold -1 ports"):
        hold_ports(-1)
    assert 0 < Worker.get_free_port() < 65536
