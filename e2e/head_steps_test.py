"""The head kills itself at a step of its own work: the script does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

import muster
from running import cluster, pool, session
from witness import Witness, runs

pytestmark = pytest.mark.chaos

RANKS = 4

# As head.Options.Fault tells them: each step of requests and of calls, some of them
# when others are under way.
STEPS = [
    "pool reserved:1",
    "cluster registered:1",
    "port held:1",
    "worker ready:2",
    "cluster up:1",
    "responding:2",
    "responded:2",
    "call:3",
    "submitted:4",
    "sending:5",
    "flushed:20",
    "result:7",
    "answering:2",
    "cluster stopping:1",
    "workers stopped:1",
]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at(
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MUSTER_FAULT_HEAD", step)
    virtual = ("2x2", "2x2+relay", "2x2+net")[STEPS.index(step) % 3]
    with (
        session(virtual),
        pool(2, 2) as rm,
        cluster(Witness, rm, name="w", device_mapping="0-3") as c,
    ):
        c.begin(str(tmp_path))
        refs = [c.step(n, blocking=False) for n in range(8)]
        made = c.rows(list(range(6)), blocking=False)
        used = c.rows(made, blocking=False)
        assert muster.get(refs, 30) == [[(n, r) for r in range(RANKS)] for n in range(8)]
        assert [row for _, (_, row) in muster.get(used, 30)] == list(range(6))
        assert c.step("last", timeout=30) == [("last", r) for r in range(RANKS)]
    assert capsys.readouterr().err.count("took over") == 1
    for ran in runs(tmp_path, "w", RANKS):
        assert [line for line in ran if line.isdigit()] == [str(n) for n in range(8)]
        assert len(ran) == 8 + 2 + 1  # with the rows made, the rows used, and the last
