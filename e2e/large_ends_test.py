"""Large values where things end: budgets, sessions, interpreters, and calls that are interrupted."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from large_test import Large
from running import cluster, eventually, pool, run_script, session
from stages import MIB, objects


def test_a_full_store_names_what_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "32MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", "off")
    with session("1x1"), pool(1) as rm, cluster(Large, rm, device_mapping="0") as c:
        with pytest.raises(MemoryError, match="32") as caught:
            c.total(np.zeros(64 * MIB, np.uint8))
        assert isinstance(caught.value, muster.StoreFullError)
        with pytest.raises(muster.StoreFullError, match=r"result of make.*store"):
            c.make(64 * MIB, 1)
        held = [c.make(8 * MIB, n)[0] for n in range(3)]
        with pytest.raises(muster.StoreFullError):
            for n in range(10):
                held.append(c.make(8 * MIB, n)[0])
        assert [int(value[-1]) for value in held[:3]] == [0, 1, 2]
        held.clear()
        assert c.total(np.ones(16 * MIB, np.uint8)) == [(16 * MIB, 16 * MIB)]


def test_views_outlive_the_session() -> None:
    with session("1x1"), pool(1) as rm, cluster(Large, rm, device_mapping="0") as c:
        (held,) = c.make(4 * MIB, 9)
        kept = [c.make(4 * MIB, n)[0] for n in range(3)]
    assert (held == 9).all() and [int(value.sum()) // value.nbytes for value in kept] == [0, 1, 2]
    held += 1
    with session("1x1"), pool(1) as rm, cluster(Large, rm, device_mapping="0") as c:
        (again,) = c.back(held)
        assert (again == 10).all()


def test_interrupts_leave_a_session_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is raised at the first step of a finalizer is dropped by Python. pytest would keep it
    # to show it, with its frames and what they hold.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    class Stop(BaseException):
        pass

    def stop(_number: int, _frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    hit = 0
    try:
        with session("1x1"), pool(1) as rm, cluster(Large, rm, device_mapping="0") as c:
            value = np.arange(MIB)
            for step in range(200):
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 1e-4 + (step % 50) * 2e-4)
                        (back,) = c.back(value)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Stop:
                    hit += 1
                else:
                    assert np.array_equal(back, value)
                back = None
            assert np.array_equal(c.back(value)[0], value)
            assert eventually(lambda: not objects()), objects()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hit > 10


def test_an_interpreter_that_ends_with_views_says_nothing(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
import numpy as np
from large_test import Large
if __name__ == "__main__":
    rm = ResourceManager(0, 1)
    c = Cluster(name="c", worker_cls=Large, resource_manager=rm, worker_config=WorkerConfig(world_size=1))
    held = c.make(1 << 22, 3)
    cycle = [held[0]]
    cycle.append(cycle)
    print(int(held[0].sum()) >> 20)
""",
        PYTHONPATH=str(Path(__file__).parent),
    )
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr
    assert "Exception" not in done.stderr and "Traceback" not in done.stderr
