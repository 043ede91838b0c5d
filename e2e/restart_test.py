"""The head is killed, in the middle of everything: calls just return, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import Cluster, _context
from running import cluster, eventually, output_of, pool, run_script, session
from witness import Quick, Witness, runs

pytestmark = pytest.mark.chaos

NODES = pytest.mark.parametrize("virtual", ["2x2", "2x2+relay", "2x2+net"])
RANKS = 4
IN_TIME = 30.0


def head() -> int:
    """The process of the head of now."""
    current = _context.session()
    assert current is not None and current.head is not None
    return current.head.pid


def kill_head() -> None:
    os.kill(head(), signal.SIGKILL)


def replace_head() -> None:
    """Kill the head, and wait until there is another."""
    old = head()
    os.kill(old, signal.SIGKILL)
    assert eventually(lambda: head() != old)


@contextmanager
def witnesses(virtual: str, folder: Path, kind: Any = Witness, **config: Any) -> Iterator[Cluster]:
    with (
        session(virtual),
        pool(2, 2) as rm,
        cluster(kind, rm, name="w", device_mapping="0-3", **config) as c,
    ):
        c.begin(str(folder))
        yield c


def begun(folder: Path, what: str, count: int = RANKS, name: str = "w") -> bool:
    """Whether so many ranks have begun something, soon."""
    return eventually(
        lambda: sum(what in ran for ran in runs(folder, name, RANKS)) >= count, IN_TIME
    )


@NODES
def test_idle(virtual: str, tmp_path: Path) -> None:
    """Nobody calls when it happens, three times; workers and what they know stay."""
    with witnesses(virtual, tmp_path) as c:
        pids = c.begin(str(tmp_path))
        for n in range(3):
            replace_head()
            assert c.step(n, timeout=IN_TIME) == [(n, rank) for rank in range(RANKS)]
        assert c.begin(str(tmp_path)) == pids
    assert runs(tmp_path, "w", RANKS) == [["0", "1", "2"]] * RANKS


@NODES
def test_a_blocked_call_just_returns(virtual: str, tmp_path: Path) -> None:
    """One that runs, with others behind it, and one that is answered meanwhile."""
    with witnesses(virtual, tmp_path) as c, ThreadPoolExecutor(4) as threads:
        held = threads.submit(c.until, "gate", "held")
        assert begun(tmp_path, "gate")
        behind = [c.step(n, blocking=False) for n in range(3)]
        kill_head()
        more = threads.submit(c.step, "made meanwhile")
        (tmp_path / "gate").touch()
        assert held.result(IN_TIME) == [("held", rank) for rank in range(RANKS)]
        assert muster.get(behind, IN_TIME) == [
            [(n, rank) for rank in range(RANKS)] for n in range(3)
        ]
        assert more.result(IN_TIME) == [("made meanwhile", rank) for rank in range(RANKS)]
    assert runs(tmp_path, "w", RANKS) == [["gate", "0", "1", "2", "made meanwhile"]] * RANKS


def test_it_ends_while_there_is_no_head(tmp_path: Path) -> None:
    """The method returns before another head is there, which then has to be told."""
    with witnesses("2x2", tmp_path) as c:
        ref = c.until("gate", "held", blocking=False)
        assert begun(tmp_path, "gate")
        (tmp_path / "gate").touch()
        kill_head()
        assert muster.get(ref, IN_TIME) == [("held", rank) for rank in range(RANKS)]
    assert runs(tmp_path, "w", RANKS) == [["gate"]] * RANKS


@NODES
def test_twice_in_a_row(virtual: str, tmp_path: Path) -> None:
    """The second is killed before all have come back to it."""
    with witnesses(virtual, tmp_path) as c:
        ref = c.until("gate", "held", blocking=False)
        assert begun(tmp_path, "gate")
        replace_head()
        kill_head()
        (tmp_path / "gate").touch()
        assert muster.get(ref, IN_TIME) == [("held", rank) for rank in range(RANKS)]
        assert c.step("after", timeout=IN_TIME) == [("after", rank) for rank in range(RANKS)]
    assert runs(tmp_path, "w", RANKS) == [["gate", "after"]] * RANKS


@NODES
def test_coroutines_here_and_there(virtual: str, tmp_path: Path) -> None:
    """Awaited in several loops, run in others; none of them stops for it."""
    with witnesses(virtual, tmp_path, Quick) as c, ThreadPoolExecutor(3) as threads:

        async def several(who: int) -> list[Any]:
            calls = [c.wait("gate", f"{who}/{n}", blocking=False) for n in range(5)]
            return list(await asyncio.gather(*calls))

        waiting = [threads.submit(asyncio.run, several(who)) for who in range(3)]
        assert all(begun(tmp_path, f"{who}/4") for who in range(3))
        kill_head()
        assert c.step("meanwhile", timeout=IN_TIME) == [("meanwhile", r) for r in range(RANKS)]
        (tmp_path / "gate").touch()
        for who, each in enumerate(waiting):
            assert each.result(IN_TIME) == [
                [(f"{who}/{n}", rank) for rank in range(RANKS)] for n in range(5)
            ]
    for ran in runs(tmp_path, "w", RANKS):
        assert len(ran) == len(set(ran)) == 16


def test_threads_of_a_worker(tmp_path: Path) -> None:
    with witnesses("2x2", tmp_path, max_concurrency=4) as c:
        refs = [c.until(f"gate-{n}", n, blocking=False) for n in range(3)]
        assert begun(tmp_path, "gate-2")
        (tmp_path / "gate-1").touch()
        assert muster.get(refs[1], IN_TIME) == [(1, rank) for rank in range(RANKS)]
        kill_head()
        (tmp_path / "gate-2").touch()
        assert muster.get(refs[2], IN_TIME) == [(2, rank) for rank in range(RANKS)]
        (tmp_path / "gate-0").touch()
        assert muster.get(refs[0], IN_TIME) == [(0, rank) for rank in range(RANKS)]
    for ran in runs(tmp_path, "w", RANKS):
        assert sorted(ran) == ["gate-0", "gate-1", "gate-2"]


def test_futures(tmp_path: Path) -> None:
    """Arguments that are answered, that run and that wait themselves, when it happens."""
    with witnesses("2x2", tmp_path) as c:
        answered = c.workers[0].step.remote("first")
        held = c.workers[1].until.remote("gate", "held")
        one = c.workers[1].step.remote(answered)  # waits behind held
        two = c.workers[2].step.remote(held)
        three = c.workers[3].step.remote(two)
        assert muster.get(answered, IN_TIME) == ("first", 0)
        assert begun(tmp_path, "gate", 1)
        kill_head()
        four = c.workers[0].step.remote(three)
        (tmp_path / "gate").touch()
        assert muster.get([held, one], IN_TIME) == [("held", 1), (("first", 0), 1)]
        assert muster.get(four, IN_TIME) == ((((("held", 1), 2), 3)), 0)
    assert [len(ran) for ran in runs(tmp_path, "w", RANKS)] == [2, 2, 1, 1]


def test_calls_that_are_cut_and_split(tmp_path: Path) -> None:
    with witnesses("2x2", tmp_path) as c:
        held = c.until("gate", blocking=False)
        assert begun(tmp_path, "gate")
        rows = [c.rows(list(range(n, n + 6)), blocking=False) for n in range(3)]
        each = c.execute_all_async("step", "each")
        kill_head()
        (tmp_path / "gate").touch()
        for n, ref in enumerate(rows):
            assert [row for _, row in muster.get(ref, IN_TIME)] == list(range(n, n + 6))
        assert muster.get(each, IN_TIME) == [("each", rank) for rank in range(RANKS)]
        assert muster.get(held, IN_TIME) == [(None, rank) for rank in range(RANKS)]
    for ran in runs(tmp_path, "w", RANKS):
        assert len(ran) == 5 and ran[4] == "each"


@NODES
def test_calls_from_inside_workers(virtual: str, tmp_path: Path) -> None:
    """Whoever waits inside a worker waits on; that they wait for each other stays known."""
    with (
        witnesses(virtual, tmp_path) as inner,
        pool() as rm,
        cluster(Witness, rm, name="outer", world_size=2) as outer,
    ):
        outer.begin(str(tmp_path))
        ref = outer.execute_rank_zero_async("ask", inner, "gate")
        assert begun(tmp_path, "gate")
        kill_head()
        (tmp_path / "gate").touch()
        before, held, after = muster.get(ref, IN_TIME)
        assert before == [(("before", 0), rank) for rank in range(RANKS)]
        assert held == [(("held", 0), rank) for rank in range(RANKS)]
        assert after == [(("after", 0), rank) for rank in range(RANKS)]
    for ran in runs(tmp_path, "w", RANKS):
        assert ran == ["('before', 0)", "gate", "('after', 0)"]
    assert runs(tmp_path, "outer", 1) == [["ask"]]


@NODES
def test_many_calls_in_flight(virtual: str, tmp_path: Path) -> None:
    """Killed three times while several threads call: each call runs once on each rank, in one
    order for all of them, and is answered with what it returned."""
    chance = random.Random(11)
    done = threading.Semaphore(0)
    with witnesses(virtual, tmp_path) as c, ThreadPoolExecutor(4) as threads:

        def work(who: int) -> None:
            refs = []
            for n in range(100):
                refs.append(c.step(f"{who}/{n}", blocking=False))
                if chance.random() < 0.3:
                    assert muster.get(refs.pop(0), IN_TIME)[0][0].startswith(f"{who}/")
                done.release()
            for ref in refs:
                answers = muster.get(ref, IN_TIME)
                assert [rank for _, rank in answers] == list(range(RANKS))
                assert len({what for what, _ in answers}) == 1

        working = [threads.submit(work, who) for who in range(4)]
        for _ in range(3):
            for _ in range(80):
                assert done.acquire(timeout=IN_TIME)
            replace_head()
        for each in working:
            each.result(60)
    first, *others = runs(tmp_path, "w", RANKS)
    assert len(first) == len(set(first)) == 400
    assert all(ran == first for ran in others), "one order on every rank"
    for who in range(4):
        mine = [int(what.split("/")[1]) for what in first if what.startswith(f"{who}/")]
        assert mine == list(range(100)), "and each caller's own is kept in it"


def test_cancel_and_deadline(tmp_path: Path) -> None:
    """What was asked of the old head, and what is asked of the new one."""
    with witnesses("2x2", tmp_path, Quick) as c:
        before, after, late = (c.wait("never", n, blocking=False) for n in range(3))
        assert begun(tmp_path, "2")
        before.cancel()
        kill_head()
        after.cancel()
        for ref in (before, after):
            with pytest.raises(muster.CallCancelledError):
                muster.get(ref, IN_TIME)
        with pytest.raises(muster.DeadlineError):
            muster.get(late, 0.05)
        assert c.step("goes on", timeout=IN_TIME) == [("goes on", rank) for rank in range(RANKS)]


def test_clusters_come_and_go_under_the_next_head(tmp_path: Path) -> None:
    with witnesses("2x2", tmp_path) as c, pool() as rm:
        replace_head()
        with cluster(Witness, rm, name="young", world_size=2) as young:
            young.begin(str(tmp_path))
            kill_head()
            assert young.step("x", timeout=IN_TIME) == [("x", 0), ("x", 1)]
            assert len(c.step("y", timeout=IN_TIME)) == RANKS
        with pytest.raises(muster.MusterError):
            young.step("gone", timeout=IN_TIME)


SCRIPT = """
import signal, threading
from muster import _context

class Calm(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def until(self, path):
        while not os.path.exists(path):
            time.sleep(0.005)
        return self.rank

def kill():
    os.kill(_context.session().head.pid, signal.SIGKILL)
"""


def test_one_line_tells_of_it(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        SCRIPT
        + """
if __name__ == "__main__":
    with Cluster("c", Calm, worker_config=WorkerConfig(world_size=2)) as c:
        ref = c.until(sys.argv[1], blocking=False)
        kill()
        open(sys.argv[1], "w").close()
        print(muster.get(ref))
""",
        str(tmp_path / "gate"),
    )
    assert output_of(done) == "[0, 1]\n"
    told = [line for line in done.stderr.splitlines() if not line.startswith("muster: cluster c")]
    assert len(told) == 1, done.stderr
    assert "was killed by SIGKILL; a new one took over after" in told[0]
    assert told[0].endswith("nothing was lost")


def test_shutdown_is_done_by_the_next(tmp_path: Path) -> None:
    """Killed before it is asked to stop everything, and while it does."""
    done = run_script(
        tmp_path,
        SCRIPT
        + """
if __name__ == "__main__":
    for wait in (0, 0.002, 0.01, 0.03):
        muster.init(log_to_stderr=False, progress=False)
        c = Cluster("c", Calm, worker_config=WorkerConfig(world_size=2, grace=1))
        workers = [w.pid for w in c.workers]
        if wait:
            threading.Timer(wait, kill).start()
        else:
            kill()
        began = time.monotonic()
        muster.shutdown()
        for pid in workers:
            try:
                os.kill(pid, 0)
                print("still there after", wait)
            except ProcessLookupError:
                pass
        if time.monotonic() - began > 20:
            print("took long", wait)
    print("over")
""",
    )
    assert output_of(done) == "over\n"


def test_a_head_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        SCRIPT
        + """
if __name__ == "__main__":
    c = Cluster("c", Calm, worker_config=WorkerConfig(world_size=1, grace=1))
    ref = c.until("never", blocking=False)
    try:
        for _ in range(11):
            before = _context.session().head.pid
            kill()
            until = time.monotonic() + 20
            while (_context.session().head.pid == before and _context.session().connection.alive()
                   and time.monotonic() < until):
                time.sleep(0.005)
        muster.get(ref)
    except muster.HeadLostError as error:
        print(error)
""",
    )
    out = output_of(done)
    assert "killed by SIGKILL" in out
    assert "It was started anew 10 times within 60 s, and ended each time" in out
