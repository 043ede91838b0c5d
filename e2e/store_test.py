"""Stores under pressure: owners that die, budgets that are reached, disks that are full."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import muster
from muster import Batch
from running import IMPORTS, cluster, eventually, output_of, pool, run, run_script, session
from stages import MIB, Stage, objects, rows, stores


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores of 64 MiB spill to."""
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_SPILL_BYTES", "512MiB")
    return tmp_path


def test_the_owner_dies() -> None:
    with (
        session("1x2"),
        pool(2) as rm,
        cluster(Stage, rm, name="other", device_mapping="0-1") as other,
    ):
        with cluster(Stage, rm, name="mortal", device_mapping="0-1") as mortal:
            made = Batch.concat(mortal.make(64, 4096))
            kept = mortal.echo(made)
            with pytest.raises(muster.WorkerDiedError, match="SIGKILL"):
                mortal.die(made)
            assert (
                kept["x"][0, 0] == 0 and kept["x"][-1, 0] == 1
            )  # it lies in the store, not in them
            assert len(other.echo(kept)) == 128
        with cluster(Stage, rm, name="mortal", device_mapping="0-1") as mortal:
            with pytest.raises(muster.WorkerDiedError, match="SIGKILL"):
                mortal.die_writing(8 * MIB)
            assert len(other.echo(kept)) == 128
        del made, kept
        assert eventually(lambda: not objects()), objects()
        assert len(other.double(Batch({"x": rows(400)}))) == 400


def test_a_script_that_is_killed_leaves_nothing_in_the_stores(tmp_path: Path) -> None:
    """Another script's store goes on, and the killed one's memory is gone with its agent."""
    died = run_script(
        tmp_path,
        """
import numpy as np, signal
from muster import Batch
from stages import Stage
if __name__ == "__main__":
    rm = ResourceManager(0, 1)
    c = Cluster(name="c", worker_cls=Stage, resource_manager=rm, worker_config=WorkerConfig(world_size=2))
    held = c.double(Batch({"x": np.ones((1024, 1024))}))
    os.kill(os.getpid(), signal.SIGKILL)
""",
        PYTHONPATH=str(Path(__file__).parent),
    )
    assert died.returncode == -signal.SIGKILL, died.stderr


def test_a_small_dev_shm(tmp_path: Path) -> None:
    """As containers have it; here of 64 KiB, for 64 MiB of rows."""
    small = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    tried = run("unshare", "--mount", "sh", "-c", small)
    if tried.returncode != 0:
        pytest.skip(f"needs mounts: {tried.stderr.strip()}")
    script = tmp_path / "script.py"
    script.write_text(
        IMPORTS
        + """
import numpy as np, shutil
from muster import Batch
from stages import Stage
if __name__ == "__main__":
    assert shutil.disk_usage("/dev/shm").total == 64 << 10
    rm = ResourceManager(0, 1)
    c = Cluster(name="c", worker_cls=Stage, resource_manager=rm, worker_config=WorkerConfig(world_size=2))
    out = c.double(Batch({"x": np.ones((8192, 1024))}))
    print(out["x"].sum())
"""
    )
    done = run(
        *("unshare", "--mount", "sh", "-c", f'{small} && exec "$@"', "sh", sys.executable, script),
        PYTHONPATH=str(Path(__file__).parent),
    )
    assert output_of(done).split() == [str(2.0 * 8192 * 1024)]


def test_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", "off")
    with session("1x2"), pool(2) as rm, cluster(Stage, rm, device_mapping="0-1") as c:
        with pytest.raises(muster.StoreFullError, match="64") as caught:
            c.look(Batch({"x": np.zeros((100, 1 << 17))}))  # 100 MiB
        assert isinstance(caught.value, MemoryError)
        held = [c.double(Batch({"x": rows(1024)})) for _ in range(3)]  # 8 MiB each, views of none
        views = [h["x"] for h in held]
        with pytest.raises(muster.StoreFullError) as caught:
            for _ in range(20):
                held.append(c.double(Batch({"x": rows(1024)})))
                views.append(held[-1]["x"])
        assert "c-" in str(caught.value) or str(os.getpid()) in str(caught.value)
        del held, views, caught
        gc.collect()
        assert np.array_equal(c.double(Batch({"x": rows(1024)}))["x"], rows(1024) * 2)


def test_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_SPILL_BYTES", "256MiB")
    with session("1x2"), pool(2) as rm, cluster(Stage, rm, device_mapping="0-1") as c:
        held = [c.double(Batch({"x": rows(1024) + i})) for i in range(16)]  # 128 MiB
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        for i, h in enumerate(held):
            assert np.array_equal(h["x"], (rows(1024) + i) * 2)
        for i, h in enumerate(held):
            assert int(c.double(h)["x"][0, 0]) == 4 * i
        with pytest.raises(muster.StoreFullError, match="spill"):
            for i in range(64):
                held.append(c.double(Batch({"x": rows(1024) + i})))
        del held, h
        assert eventually(lambda: not objects()), objects()
        assert sum(node["spilled_bytes"] for node in stores()) == 0
    assert not list(tmp_path.iterdir())


def test_holders_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has handles is said by a full store and by muster store, also of who never reads."""
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", "off")
    script = f"the script (process {os.getpid()})"
    with session("1x2"), pool(2) as rm, cluster(Stage, rm, device_mapping="0-1") as c:
        names = [w.name for w in c.workers]
        held = [c.double(Batch({"x": rows(1024)}))]
        c.keep_handle(c.double(Batch({"x": rows(1024)})))
        handles = [{h["holder"] for h in o["handles"]} for o in objects()]
        assert {script} in handles and set(names) in handles, handles
        assert all(h["seconds"] >= 0 for o in objects() for h in o["handles"])
        with pytest.raises(muster.StoreFullError) as caught:
            for _ in range(20):
                held.append(c.double(Batch({"x": rows(1024)})))
        text = str(caught.value)
        assert f"held by {script} for" in text and f"{script} has" in text, text
        assert f"{names[0]} has" in text and f"{names[1]} has" in text, text


def test_copies_have_the_maker_of_what_they_are_copies_of() -> None:
    with session("2x1+net"), pool(1, 2) as rm, cluster(Stage, rm, device_mapping="0-1") as c:
        made = c.double(Batch({"x": rows(1024)}))
        assert made["x"][-1, 0] == 2046
        copies = [o for o in objects() if o["state"] == "copy"]
        makers = {o["maker"] for o in copies}
        assert copies and makers <= {w.name for w in c.workers}, copies


def test_what_workers_keep_unread_is_spilled(spills: Path) -> None:
    """A handle keeps no bytes in memory, whoever has it; they are there when they are read."""
    with session("1x2"), pool(2) as rm, cluster(Stage, rm, device_mapping="0-1") as c:
        for i in range(16):  # 128 MiB
            c.keep_handle(c.double(Batch({"x": rows(1024) + i})))
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        expected = [int(((rows(1024) + i) * 2).sum()) for i in range(16)]
        assert c.sums() == [expected, expected]
        c.let_go()
        assert eventually(lambda: not objects()), objects()
    assert not list(spills.iterdir())


def test_what_a_worker_made_and_got_as_an_argument_is_spilled(spills: Path) -> None:
    """Its own handle stays when the argument goes, and keeps no bytes in memory either."""
    with session("1x1"), pool(1) as rm, cluster(Stage, rm, device_mapping="0") as c:
        for i in range(16):  # 128 MiB
            made = c.make_and_keep(1024, 1024, i)[0]
            assert c.look(made)[0][0] == 1024
            del made
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        assert c.sums() == [[i << 20 for i in range(16)]]
        c.let_go()
        assert eventually(lambda: not objects()), objects()


def test_what_was_read_and_is_kept_is_spilled(spills: Path) -> None:
    """What nobody looks at any more is let go of with the next call, by the script and by who
    ran one; but for what was written, which is nowhere else."""
    with session("1x1"), pool(1) as rm, cluster(Stage, rm, device_mapping="0") as c:
        held: list[Batch] = []
        for i in range(16):  # 128 MiB
            held.append(c.double(Batch({"x": rows(1024) + i})))
            c.keep_handle(held[-1])
            assert held[-1]["x"][0, 0] == held[-1][0]["x"][0] == 2 * i
            assert len(c.sums()[0]) == i + 1
            if i < 2:
                held[-1]["x"][7] = -1
        assert sum(node["spilled_bytes"] for node in stores()) > 0
        for i, one in enumerate(held):
            assert one["x"][0, 0] == 2 * i and (one["x"][7, 0] == -1) == (i < 2)
        assert c.sums() == [[int(((rows(1024) + i) * 2).sum()) for i in range(16)]]
        c.let_go()
        del held, one
        assert eventually(lambda: not objects()), objects()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_the_owner_dies_while_it_is_spilled(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had made is whole, in memory or on disk, another cluster's rows too, and in the end
    nothing is left."""
    monkeypatch.setenv("MUSTER_STORE_BYTES", "64MiB")
    monkeypatch.setenv("MUSTER_SPILL_DIR", str(tmp_path))
    rng = random.Random(seed)
    with session("1x4"), pool(4) as rm, cluster(Stage, rm, name="other", device_mapping="0-1") as o:
        for _ in range(3):
            with cluster(Stage, rm, name="mortal", device_mapping="2-3") as mortal:
                held: list[Batch] = []
                after = rng.randrange(10, 16)
                last = mortal.double(Batch({"x": rows(1024)}), blocking=False)
                with contextlib.suppress(muster.WorkerDiedError):
                    while len(held) < 30:
                        held.append(muster.get(last))
                        last = mortal.double(Batch({"x": rows(1024) + len(held)}), blocking=False)
                        if len(held) == after:  # by now, each that is made has another spilled
                            os.kill(mortal.workers[rng.randrange(2)].pid, signal.SIGKILL)
                assert len(held) < 30
                assert sum(node["spilled_bytes"] for node in stores()) > 0
                for i, made in enumerate(held):
                    assert np.array_equal(made["x"], (rows(1024) + i) * 2)
                    assert len(o.double(made)) == 1024
                del held, last, made
        gc.collect()
        assert eventually(lambda: not objects()), objects()
        assert sum(node["spilled_bytes"] for node in stores()) == 0
    assert not list(tmp_path.iterdir())
