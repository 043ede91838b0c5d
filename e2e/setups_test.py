"""What workers are made with, when it is large: a service's arguments, a cluster's worker_config."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import muster
from large_test import VALUES, same
from muster import Batch, Cluster, WorkerConfig
from running import session
from setups import (
    Dropper,
    Holder,
    Maker,
    Refusing,
    Scribbler,
    Trainer,
    Weighty,
    died,
    nothing_left,
    restarting,
)
from stages import MIB, objects


@pytest.fixture(scope="module", params=["1x2", "2x1", "2x1+relay", "2x1+net"])
def somewhere(request: pytest.FixtureRequest) -> Iterator[str]:
    with session(request.param):
        yield request.param


@pytest.fixture
def elsewhere(somewhere: str) -> Iterator[WorkerConfig]:
    """Where there are two nodes, the one that the script does not put its objects on."""
    if somewhere.startswith("1"):
        yield WorkerConfig()
        return
    with muster.ResourceManager(num_gpus_per_node=1, num_nodes=2) as rm:
        yield WorkerConfig(resource_manager=rm, device_mapping=[1])


def test_arguments_of_any_kind(elsewhere: WorkerConfig) -> None:
    made = muster.service(Holder, "any", *VALUES.values(), config=elsewhere)
    for index, kind in enumerate(VALUES):
        assert same(made.get(index), VALUES[kind]), kind
    made.shutdown()
    nothing_left()


def test_a_batch_is_one_too(elsewhere: WorkerConfig) -> None:
    """It stays where it lies; the service can pass it on after its maker has let it go."""
    batch = Batch({"x": np.arange(MIB)})
    made = muster.service(Holder, "batch", batch, config=elsewhere)
    del batch
    assert made.total() == MIB * (MIB - 1) // 2
    back = made.passed_on()
    made.shutdown()
    assert np.array_equal(back["x"], np.arange(MIB))
    del back
    nothing_left()


def test_what_is_dropped_is_given_back(elsewhere: WorkerConfig) -> None:
    """Where nothing is restarted, nobody keeps it once it is read."""
    for name, kind in (("drops", Dropper), ("late", Holder)):
        made = muster.service(kind, name, np.ones(4 * MIB, np.uint8), config=elsewhere)
        if kind is Dropper:
            nothing_left()
            assert made.get() == 4 * MIB
        else:
            assert len(objects()) == 1, objects()
        made.shutdown()
        nothing_left()


def test_what_comes_of_no_service(somewhere: str) -> None:
    large = np.ones(2 * MIB, np.uint8)
    with pytest.raises(ValueError, match="not of 2097152 bytes"):
        muster.service(Refusing, "never", large)
    nothing_left()
    taken = muster.service(Holder, "taken")
    with pytest.raises(ValueError, match="living service"):
        muster.service(Holder, "taken", large, get_or_create=False)
    assert muster.service(Holder, "taken", large) == taken
    taken.shutdown()
    with pytest.raises(muster.PlacementError):
        Cluster("no", Trainer, worker_config=Weighty(world_size=1, tp=2, weights=large))
    nothing_left()


@pytest.mark.chaos
def test_workers_make_them_too(somewhere: str) -> None:
    """Such a service outlives its maker, and so does what it is made of."""
    with Cluster("makers", Maker, worker_config=WorkerConfig(world_size=2)) as makers:
        assert makers.execute_all_sync("make", "theirs", 3 * MIB) == [[3 * MIB]] * 2
    theirs = muster.get_service("theirs")
    died(lambda: theirs.seen()[2], theirs.seen()[2])
    assert theirs.seen()[0] == [3 * MIB]
    theirs.shutdown()
    nothing_left()


def test_without_pickle(somewhere: str) -> None:
    for size in (10, MIB):
        config = WorkerConfig(pickle="off")
        made = muster.service("setups.Dropper", "plain", np.zeros(size), config=config)
        assert made.get() == 8 * size
        made.shutdown()
    nothing_left()


@pytest.mark.chaos
def test_a_restart_gets_the_same_bytes(somewhere: str) -> None:
    """What a process wrote to its own is not seen by the one that takes its place."""
    large, small = np.arange(MIB), np.arange(10)
    made = muster.service(Scribbler, "phoenix", large, small, config=restarting())
    sums = [int(large.sum()), 45]
    for _ in range(2):
        first, now, pid = made.seen()
        assert (first, now) == (sums, [7 * MIB, 70])
        died(lambda: made.seen()[2], pid)
    assert made.seen()[0] == sums
    assert large[1] == 1  # nor by who gave it
    made.shutdown()
    nothing_left()


@pytest.mark.chaos
def test_a_worker_config_that_is_large(somewhere: str) -> None:
    weights = np.arange(MIB)
    for how in ("restart_worker", "restart_cluster"):
        config = Weighty(world_size=2, weights=weights, on_failure=how)
        with Cluster("train", Trainer, worker_config=config) as c:
            for _ in range(2):
                seen = c.seen()
                assert [one[:2] for one in seen] == [
                    (int(weights.sum()), [rank, MIB - 1]) for rank in range(2)
                ]
                died(lambda c=c: c.seen()[1][2], seen[1][2])
        nothing_left()
    assert config.weights is weights


def test_engines_hold_to_the_same_rules(somewhere: str) -> None:
    """Their arguments are those of a call: by the store, private, and gone with the engine."""
    large = np.arange(MIB)
    with Cluster("hosts", muster.Worker, worker_config=WorkerConfig(world_size=2)) as hosts:
        worker = hosts.workers[1]
        made = worker.create_engine("setups.Holder", "any", *VALUES.values())
        for index, kind in enumerate(VALUES):
            assert same(made.get(index), VALUES[kind]), kind
        worker.destroy_engine("any")
        nothing_left()
        first, now, _ = worker.create_engine("setups.Scribbler", "writes", large).seen()
        assert (first, now) == ([int(large.sum())], [7 * MIB]) and large[1] == 1
        assert len(objects()) == 1, objects()
        worker.destroy_engine("writes")
        nothing_left()
        assert worker.create_engine("setups.Dropper", "drops", large).get() == large.nbytes
        nothing_left()
        with pytest.raises(ValueError, match="not of 8388608 bytes"):
            worker.create_engine("setups.Refusing", "never", large)
        nothing_left()
