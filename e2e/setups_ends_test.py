"""What workers are made with, when the head ends, the store is full, and what the head has of it."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from large_test import Large
from muster import Batch, Cluster, WorkerConfig
from restart_test import head, replace_head
from running import eventually, run_script, session
from setups import Dropper, Holder, Scribbler, Trainer, Weighty, died, nothing_left, restarting
from stages import MIB, objects


@pytest.mark.chaos
@pytest.mark.parametrize("virtual", ["1x2", "2x1+relay", "2x1+net"])
def test_another_head_has_it(virtual: str) -> None:
    """Killed, and killed again: what a service was made with is there for its next process."""
    large = np.arange(MIB)
    with session(virtual):
        made = muster.service(Scribbler, "kept", large, config=restarting(), keep=False)
        gone = muster.service(Dropper, "dropped", large)
        for _ in range(2):
            replace_head()
            first, _, pid = made.seen()
            assert first == [int(large.sum())]
            died(lambda: made.seen()[2], pid)
        assert gone.get() == large.nbytes
        (held,) = objects()
        assert held["what"] == "the arguments of service kept"
        made.shutdown()
        nothing_left()


@pytest.mark.chaos
def test_the_head_ends_while_it_is_made(tmp_path: Path) -> None:
    """The request is sent again, and what it names is still there."""
    source = """
    import threading, signal
    import numpy as np
    from muster import _context

    class Slow:
        def __init__(self, given, folder):
            with open(folder + "/begun", "a") as file:
                file.write("x")
            while not os.path.exists(folder + "/go"):
                time.sleep(0.01)
            self.total = int(given.sum())

        def get(self):
            return self.total

    def begun(folder, times):
        while not os.path.exists(folder + "/begun") or os.path.getsize(folder + "/begun") < times:
            time.sleep(0.01)

    def kill(folder):
        begun(folder, 1)
        os.kill(_context.session().head.pid, signal.SIGKILL)
        begun(folder, 2)
        open(folder + "/go", "w").close()

    if __name__ == "__main__":
        muster.init()
        threading.Thread(target=kill, args=(sys.argv[1],)).start()
        made = muster.service(Slow, "slow", np.arange(1 << 20), sys.argv[1])
        print(made.get() == (1 << 20) * ((1 << 20) - 1) // 2)
    """
    done = run_script(tmp_path, textwrap.dedent(source), str(tmp_path), virtual="1x1")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_more_than_the_store_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "32MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", "off")
    with session("1x1"):
        with pytest.raises(muster.StoreFullError, match=r"the arguments of service big.*32"):
            muster.service(Dropper, "big", np.zeros(64 * MIB, np.uint8))
        config = Weighty(world_size=1, weights=np.zeros(64 * MIB, np.uint8))
        with pytest.raises(muster.StoreFullError, match=r"the worker_config of big.*32"):
            Cluster("big", Trainer, worker_config=config)
        assert muster.list_services() == []
        held = muster.service(Dropper, "held", np.zeros(20 * MIB, np.uint8), config=restarting())
        with pytest.raises(muster.StoreFullError, match="the arguments of service held"):
            muster.service(Dropper, "other", np.zeros(20 * MIB, np.uint8))
        with (
            Cluster("host", muster.Worker) as host,
            pytest.raises(muster.StoreFullError, match="the arguments of service held"),
        ):
            host.workers[0].create_engine("setups.Dropper", "e", np.zeros(20 * MIB, np.uint8))
        held.shutdown()
        nothing_left()
        other = muster.service(Dropper, "other", np.zeros(20 * MIB, np.uint8))
        assert other.get() == 20 * MIB


@pytest.mark.chaos
def test_a_restart_gets_what_was_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "32MiB")
    with session("1x1"):
        large = np.arange(20 * MIB // 8)
        made = muster.service(Scribbler, "kept", large, config=restarting(), keep=False)
        held = muster.service(Holder, "held", np.ones(20 * MIB, np.uint8))
        spilled = [one["what"] for one in objects() if one["state"] == "spilled"]
        assert spilled == ["the arguments of service kept"], objects()
        first, _, pid = made.seen()
        died(lambda: made.seen()[2], pid)
        assert made.seen()[0] == first == [int(large.sum())]
        held.shutdown()
        made.shutdown()
        nothing_left()


@pytest.mark.chaos
@pytest.mark.parametrize("virtual", ["2x1", "2x1+net"])
def test_the_node_is_lost_where_it_lies(virtual: str) -> None:
    """A node that has got all of it can do without; where none has, that is the error."""
    large = np.arange(MIB)
    with session(virtual), muster.ResourceManager(1, 2) as rm:
        config = restarting()
        config.resource_manager, config.device_mapping = rm, [1]
        made = muster.service(Scribbler, "far", large, config=config, keep=False)
        pid = made.seen()[2]
        near = WorkerConfig(resource_manager=rm, device_mapping=[0])
        os.kill(muster.service(Holder, "near", config=near).agent(), signal.SIGKILL)
        assert eventually(lambda: "lost" in [node["state"] for node in muster.nodes()], 30)
        if virtual == "2x1+net":
            died(lambda: made.seen()[2], pid)
            assert made.seen()[0] == [int(large.sum())]
            return
        os.kill(pid, signal.SIGKILL)
        lost = "could not get the arguments of its constructor: the store of node 0"
        assert eventually(lambda: lost in _error_of(made), 30), _error_of(made)


def _error_of(made: Any) -> str:
    try:
        made.seen()
        return ""
    except muster.MusterError as error:
        return str(error)


def test_the_head_has_none_of_it() -> None:
    """256 MiB pass it by: at its peak it has not a tenth of that."""
    size = 256 * MIB
    with session("1x2"):
        before = _peak(head())
        made = muster.service(Dropper, "large", np.zeros(size, np.uint8), config=restarting())
        with Cluster("c", Trainer, worker_config=_zeros(size)) as c:
            assert [one[0] for one in c.seen()] == [0, 0]
            engine = c.workers[0].create_engine("setups.Dropper", "e", np.zeros(size, np.uint8))
            assert engine.get() == size
        assert made.get() == size
        assert _peak(head()) - before < 25 * MIB
        made.shutdown()
        nothing_left()


def test_nor_of_large_text() -> None:
    """As an argument, in a constructor, as a result, in the meta of a batch."""
    size = 64 * MIB
    text = "é" * (size // 2)
    with session("1x2"), Cluster("c", Large, worker_config=WorkerConfig(world_size=2)) as c:
        before = _peak(head())
        assert c.size(text) == [len(text)] * 2 and c.size([[text], "b"]) == [2, 2]
        assert c.workers[0].call("back", {"a": text}) == {"a": text}
        assert c.size(bytearray(size)) == [size] * 2
        many = [text[: 20 << 10]] * (size // (40 << 10))
        assert c.size(many) == [len(many)] * 2
        made = muster.service(Holder, "text", text, config=restarting())
        assert made.get(0) == text
        batch = Batch({"x": np.arange(4)}, meta={"prompt": text})
        assert [one.meta["prompt"] == text for one in c.back(batch)] == [True, True]
        assert _peak(head()) - before < 25 * MIB
        del batch
        made.shutdown()
        nothing_left()


def _zeros(size: int) -> Weighty:
    return Weighty(world_size=2, weights=np.zeros(size, np.uint8), on_failure="restart_worker")


def _peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
