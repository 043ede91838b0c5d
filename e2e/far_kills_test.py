"""Nodes, agents and heads are killed while rows travel between nodes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import muster
from far_batches_test import CHUNK, numbers, readers
from muster import Batch
from restart_test import kill_head
from running import BINARY, eventually, output_of, run

pytestmark = pytest.mark.chaos

IN_TIME = 60.0
VIRTUAL = pytest.mark.parametrize("virtual", ["3x2+net", "3x2+net+plain"])


@VIRTUAL
def test_the_node_that_has_the_rows_is_killed(virtual: str) -> None:
    """What it alone had is lost, and says so; what others have of it is read from there."""
    with readers(virtual, 3) as r:
        made = r.make(40 * CHUNK // 8192)
        mine = made[2]  # on node-1
        copied = made[3]
        assert r.workers[0].call("total", copied, ["x"]) == [int(copied["x"].sum())]
        agents = r.agent()
        ref = r.workers[4].total.remote(mine, ["x"])
        os.kill(agents[2], signal.SIGKILL)
        try:
            assert muster.get(ref, IN_TIME) == [int((numbers(40 * CHUNK // 8192) + 2).sum())]
        except muster.MusterError as error:
            assert "node-1" in str(error)
        assert r.workers[0].call("total", copied, ["x"]) == [
            int((numbers(40 * CHUNK // 8192) + 3).sum())
        ]
        del made, mine, copied


def test_rows_that_are_lost_half_way(tmp_path: Path) -> None:
    """The error names the node, and nothing of what was there is kept by it."""
    with readers("3x2+net", 3) as r:
        agents = r.agent()
        mine = r.make(4 * CHUNK // 8192)[2]  # on node-1
        refs = [r.workers[rank].late.remote(mine, str(tmp_path)) for rank in (0, 4)]
        for rank in (0, 4):
            assert eventually((tmp_path / f"begun-{rank}").exists, IN_TIME)
        os.kill(agents[2], signal.SIGKILL)
        assert eventually(lambda: "lost" in output_of(run(BINARY, "status", virtual=None)))
        (tmp_path / "go").touch()
        for told in muster.get(refs, IN_TIME):
            assert "node-1 are lost with it" in told, told
        del mine, refs


@VIRTUAL
def test_the_node_that_reads_is_killed(virtual: str) -> None:
    """What it had on its way is given up, and those whom it was to pass it on go on."""
    with readers(virtual, 3) as r:
        agents = r.agent()
        x = numbers(60 * CHUNK // 8192)
        sent = Batch({"x": x})
        refs = [r.workers[rank].total.remote(sent, ["x"]) for rank in (2, 4)]
        os.kill(agents[2], signal.SIGKILL)
        with pytest.raises(muster.MusterError, match="node-1"):
            muster.get(refs[0], IN_TIME)
        assert muster.get(refs[1], IN_TIME) == [int(x.sum())]
        del sent, refs


def test_the_head_is_killed_while_rows_travel() -> None:
    with readers("3x2+net", 3) as r:
        x = numbers(60 * CHUNK // 8192)
        sent = Batch({"x": x})
        ref = r.total(sent, ["x"], blocking=False)
        killer = threading.Timer(0.05, kill_head)
        killer.start()
        assert muster.get(ref, IN_TIME) == [[int(x.sum())]] * 6
        killer.join()
        assert r.total(sent, ["x"], timeout=IN_TIME) == [[int(x.sum())]] * 6
        del sent, ref


def test_a_copy_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "48MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    with readers("2x2+net", 2) as r:
        for i in range(6):  # copies make room for each other, and spilled ones are sent too
            x = numbers(5 * CHUNK // 8192) + i
            kept = Batch({"x": x})
            assert r.total(kept, ["x"]) == [[int(x.sum())]] * 4
        r.keep(kept)
        del kept
        r.let_go()
