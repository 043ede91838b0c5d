"""Refs that are sent inside values, and values that are put."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import muster
import sharers
from muster import Batch, Cluster, ResourceManager, Service
from muster._refs import parts_of
from muster._sharing import KEEPER, Put
from running import HERE, PACKAGE, cluster, output_of, run, session


@pytest.fixture(scope="module", params=["1x2", "2x2+net"])
def takers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    nodes = int(request.param[0])
    with (
        session(request.param),
        ResourceManager(2, nodes) as rm,
        cluster(sharers.Taker, rm, name="takers", device_mapping=f"0-{2 * nodes - 1}") as made,
    ):
        yield made


@pytest.fixture
def slow(takers: Cluster) -> Iterator[Service]:
    made = muster.service(sharers.Slow, "slow", 10)
    yield made
    made.shutdown()


def test_a_ref_inside_a_value_is_a_ref(takers: Cluster, slow: Service) -> None:
    pending = slow.add.remote(1)
    kinds = takers.execute_all_async("kinds", [pending], 5)
    assert [muster.get(ref) for ref in kinds] == [["list", "int"]] * takers.world_size
    totals = takers.execute_all_async("total", [pending, muster.put(4)])
    assert not any(ref.done() for ref in totals)
    slow.let()
    assert muster.get(totals) == [15] * takers.world_size
    assert (
        takers.workers[0].total(muster.get(takers.workers[1].nested([muster.put([pending])]))) == 11
    )
    # One that is done, too; and as an argument it is what it stands for.
    assert takers.workers[0].total([pending, pending]) == 22
    assert takers.workers[0].kinds(pending, [pending]) == ["int", "list"]
    assert KEEPER in muster.list_services()


def test_refs_come_back(takers: Cluster, slow: Service) -> None:
    last = takers.workers[-1]
    found = last.calls(slow, 3)
    (mine,), put = found["mine"], found["put"]
    assert not mine.done()
    slow.let()
    assert muster.get([mine, put]) == [13, {"x": 3}]
    assert muster.get(slow.awaited.remote([mine, put])) == [13, {"x": 3}]
    assert last.total([mine, mine]) == 26
    assert pickle.loads(pickle.dumps(mine)) is mine
    assert last.same([mine, mine])


def test_a_worker_gives_a_ref_of_a_call_of_itself(takers: Cluster) -> None:
    (later,) = takers.workers[0].own(takers.workers[0])
    assert muster.get(later) == ["int"]


def test_some_of_them_are_waited_for(takers: Cluster, slow: Service) -> None:
    refs = [slow.add.remote(1), muster.put(1), muster.put(2)]
    assert takers.workers[0].first(refs, 2) == (2, 1)
    assert muster.wait(refs, 2) == (refs[1:], refs[:1])
    slow.let()
    assert takers.workers[0].first(refs, 3) == (3, 0)


def test_one_that_fails(takers: Cluster, slow: Service) -> None:
    early, late = takers.workers[0].fail.remote(), slow.fail.remote()
    muster.wait([early])
    told = [takers.workers[1].died_of.remote([ref]) for ref in (early, late)]
    slow.let()
    assert muster.get(told) == ["ZeroDivisionError True"] * 2
    with pytest.raises(ZeroDivisionError):
        takers.workers[1].total.remote(early)


def test_one_whose_worker_dies(takers: Cluster) -> None:
    mortal = muster.service(sharers.Slow, "mortal")
    pending = mortal.add.remote(1)
    told = takers.workers[0].died_of.remote([pending])
    mortal.leave.remote()
    assert muster.get(told) == "WorkerDiedError False"


def test_one_whose_maker_dies(takers: Cluster, slow: Service) -> None:
    maker = muster.service(sharers.Maker, "maker")
    (pending,) = maker.calls(slow, 3)
    told = takers.workers[0].died_of.remote([pending])
    assert muster.wait([pending, told], timeout=0.2) == ([], [pending, told])
    maker.kill_process()
    assert muster.get(told) == "WorkerDiedError False"
    with pytest.raises(muster.WorkerDiedError, match="that made this ref's call has ended"):
        muster.get(pending)


def test_one_that_the_keeper_cannot_read(takers: Cluster) -> None:
    ref = muster.put(sharers.Scripts())
    assert takers.workers[0].died_of([ref]).endswith("Error False")
    assert isinstance(muster.get(ref), sharers.Scripts)


def test_one_whose_answer_its_maker_cannot_use(takers: Cluster, slow: Service) -> None:
    early, late = parts_of(takers.workers[0].kinds.remote(1), 2), parts_of(slow.add.remote(1), 2)
    muster.wait(early, 2)
    told = [takers.workers[1].died_of.remote([ref]) for ref in (early[1], late[1])]
    slow.let()
    assert muster.get(told) == ["InvalidArgumentError False"] * 2
    with pytest.raises(muster.InvalidArgumentError, match="returned 1 values, where 2"):
        muster.get(early[1])


def test_one_that_is_made_in_a_constructor(takers: Cluster, slow: Service) -> None:
    made = muster.service(sharers.Starting, "starting", slow, takers.workers[0])
    assert made.found() == 11
    made.shutdown()


def test_many_that_are_waited_for(takers: Cluster, slow: Service) -> None:
    count = 1001  # more than an asynchronous class runs calls at once, if nothing is said
    waiting = takers.workers[0].total.remote(parts_of(slow.several.remote(count), count))
    muster.wait([waiting], timeout=0.5)
    assert takers.workers[1].total([muster.put(1), muster.put(2)]) == 3
    slow.let()
    assert muster.get(waiting) == count


def test_the_keeper_dies(takers: Cluster, slow: Service) -> None:
    put, pending = muster.put(1), slow.add.remote(1)
    takers.workers[0].total([put])
    told = takers.workers[1].died_of.remote([pending])
    muster.wait([told], timeout=0.1)
    muster.get_service(KEEPER).kill_process()
    assert muster.get(told) == "WorkerDiedError False"
    fresh = muster.service(sharers.Slow, "fresh")
    assert muster.get(fresh.awaited.remote([muster.put(2)])) == [2]
    slow.let()
    assert muster.get(fresh.awaited.remote([put, pending])) == [1, 11]
    assert takers.workers[0].total([put, pending]) == 12
    fresh.shutdown()


HEAD_KILLED = """
import os, signal, subprocess
import muster, sharers
from muster import Batch, Cluster, WorkerConfig

if __name__ == "__main__":
    with Cluster("takers", sharers.Taker, worker_config=WorkerConfig(world_size=2)) as takers:
        slow = muster.service(sharers.Slow, "slow", 10)
        pending, put = slow.add.remote(1), muster.put(4)
        totals = takers.execute_all_async("total", [pending, put])
        (mine,) = muster.service(sharers.Maker, "maker").calls(slow, 3)
        head = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "muster head"], capture_output=True)
        os.kill(int(head.stdout), signal.SIGKILL)
        slow.let()
        print(muster.get(totals), muster.get(mine), takers.workers[0].total([pending, mine]))
"""


@pytest.mark.chaos
def test_the_head_is_killed_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HEAD_KILLED)
    done = run(sys.executable, tmp_path / "script.py", PYTHONPATH=f"{PACKAGE}:{HERE}")
    assert output_of(done).splitlines()[-1] == "[15, 15] 13 24"


EARLIER = """
import pickle
import numpy as np
import muster, sharers

if __name__ == "__main__":
    told = b""
    for session in range(2):
        muster.init(virtual="1x1")
        slow = muster.service(sharers.Slow, "slow", 10)
        if not told:
            told = pickle.dumps([muster.put(3), muster.put(np.zeros(1 << 18)), slow.add.remote(1)])
            muster.shutdown()
    small, *others = pickle.loads(told)
    print(muster.get(small))
    print(muster.wait(others, 2, timeout=30) == (others, []), [ref.done() for ref in others])
    for ref in others:
        for use in (muster.get, slow.awaited, lambda ref, **how: slow.awaited([ref], **how)):
            try:
                print("got", use(ref, timeout=30))
            except muster.ReleasedError as error:
                print(str(error).split("this ")[1].split(",")[0])
"""


def test_one_of_an_earlier_session(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(EARLIER)
    done = run(sys.executable, tmp_path / "script.py", PYTHONPATH=f"{PACKAGE}:{HERE}")
    over = ["ref was made in a session that is over"] * 6
    assert output_of(done).splitlines() == ["3", "True [True, True]", *over]


def test_what_is_put_is_what_it_was(takers: Cluster) -> None:
    array = np.arange(1 << 18, dtype=np.float64)
    small, text = np.ones(3), "text"
    ref = muster.put({"a": [array, array[:5]], "b": small, "c": text, "d": array + 1})
    expected = float(array.mean())
    array[:] = small[:] = 0
    found = muster.get(ref)
    assert float(found["a"][0].mean()) == expected and found["a"][1].tolist() == [0, 1, 2, 3, 4]
    assert found["b"].tolist() == [1, 1, 1] and found["c"] == text
    assert float(found["d"].mean()) == expected + 1
    found["b"][:] = found["a"][0][:] = found["d"][:] = 7
    again = muster.get(ref)  # made anew
    assert again["b"].tolist() == [1, 1, 1]
    assert float(again["a"][0].mean()) == expected == float(again["d"].mean()) - 1
    with pytest.raises(TypeError, match="already"):
        muster.put(ref)


def test_a_batch_that_is_put_is_what_it_was(takers: Cluster) -> None:
    batch = Batch({"x": np.zeros(1 << 17)}, {"step": 1})
    ref = muster.put({"rows": batch, "small": np.ones(3)})
    batch["x"][:] = 1
    batch.meta["step"] = 2
    first = muster.get(ref)
    assert first["rows"].meta == {"step": 1} and not first["rows"]["x"].any()
    first["rows"]["x"][:] = 2
    first["small"][:] = 2
    second = muster.get(ref)
    assert not second["rows"]["x"].any() and second["small"].tolist() == [1, 1, 1]
    assert takers.workers[-1].kinds(ref) == ["dict"]


def test_what_is_put_is_written_once(takers: Cluster) -> None:
    array = np.arange(1 << 18, dtype=np.float64)
    ref = muster.put(array)
    assert isinstance(ref, Put)
    batch = ref._kept.passed().__muster_batch__()
    before: list[object] = []
    batch._encode(before)
    assert takers.execute_all_sync("mean", ref) == [float(array.mean())] * takers.world_size
    assert (
        muster.get([w.mean.remote(ref) for w in takers.workers])
        == [float(array.mean())] * takers.world_size
    )
    assert takers.workers[0].total([ref]).shape == array.shape
    after: list[object] = []
    batch._encode(after)
    assert before[0].right.object == after[0].right.object  # type: ignore[attr-defined]
    # Who writes to it has it alone.
    assert takers.execute_all_sync("writes", ref) == [1.0 * len(array)] * takers.world_size
    assert float(muster.get(ref).mean()) == float(array.mean())


def test_what_is_put_can_be_cut_by_who_received_it(takers: Cluster) -> None:
    maker = muster.service(sharers.Maker, "cutter")
    rows = list(np.arange(4.0)[:, None].repeat(1 << 15, axis=1))
    assert maker.cut(takers, [muster.put(rows)]) == [0, 1, 2, 3]
    maker.shutdown()


def test_what_is_put_can_be_cut_and_constructed_with(takers: Cluster) -> None:
    ref = muster.put([1, 2, 3, 4])
    assert [row for _, row in takers.rows(ref)] == [1, 2, 3, 4]
    base = {"x": 5, "large": np.zeros(1 << 18)}
    made = muster.service(sharers.Slow, "based", muster.put(base))
    made.let()
    assert made.add(2) == 7
    made.shutdown()
