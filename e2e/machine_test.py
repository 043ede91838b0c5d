"""Troubles of the machine: a zygote that is stuck, a disk that is full, folders that are closed.

docs/troubles.md has the table of what happens; limits_test has too little of this and that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import ResourceManager
from roles import Probe
from running import cluster, output_of, run_script, session, small_disk, stopped, titled


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("1x2"), ResourceManager(2, 1) as made:
        yield made


def zygotes() -> set[int]:
    return set(titled("muster zygote"))


@pytest.mark.chaos
def test_a_zygote_that_is_stopped(rm: ResourceManager) -> None:
    """A start that needs it fails in its time and says so; the next one gets another zygote."""
    with cluster(Probe, rm, name="first", world_size=2) as first:
        before = zygotes()
        assert before
        with stopped(*before):
            with pytest.raises(TimeoutError) as caught:
                with cluster(Probe, rm, name="second", world_size=2, startup_timeout=1.5):
                    pass
            text = str(caught.value)
            assert "2 of 2 workers were not ready after 1.5s (startup_timeout)" in text
            assert "its zygote has not forked it yet and is stopped (SIGSTOP) (pid " in text
            assert "node-0" in text
            with cluster(Probe, rm, name="second", world_size=2, startup_timeout=30) as second:
                assert len(second.execute_all_sync("pid")) == 2
                assert not zygotes() & before, "the one that was stuck is gone"
        assert len(first.execute_all_sync("pid")) == 2, "workers do not need their zygote"


def test_a_preload_that_never_ends(
    rm: ResourceManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "endless_preload.py"
    module.write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    how = {"world_size": 2, "preload": ["json", "endless_preload"]}
    with pytest.raises(TimeoutError) as caught:
        with cluster(Probe, rm, name="endless", startup_timeout=5, **how):
            pass
    assert (
        "ranks 0-1: it has no process yet: its zygote is importing endless_preload (preload)"
        in (str(caught.value))
    )
    module.write_text("")
    with cluster(Probe, rm, name="endless", startup_timeout=30, **how) as c:
        assert len(c.execute_all_sync("pid")) == 2


PRINTS = r"""
class Chatty(Worker):
    def talk(self, n):
        for i in range(n):
            print("y" * 1000)
        sys.stdout.flush()
        return self.rank

if __name__ == "__main__":
    c = Cluster(name="chatty", worker_cls=Chatty, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=2))
    for _ in range(2):
        print(c.execute_all_sync("talk", 300), flush=True)
    c.shutdown()
"""


@pytest.fixture
def tiny() -> Iterator[Path]:
    with small_disk("256k") as path:
        yield path


def test_a_disk_that_fills_up_with_logs(tiny: Path, tmp_path: Path) -> None:
    """Workers go on, all output is shown, and each rank says once that it is not kept."""
    finished = run_script(tmp_path, PRINTS, MUSTER_LOG_DIR=str(tiny))
    assert output_of(finished) == "[0, 1]\n[0, 1]\n"
    assert finished.stderr.count("y" * 1000) == 1200
    for rank in range(2):
        told = [
            line
            for line in finished.stderr.splitlines()
            if line.startswith(f"[chatty-{rank}] muster: ") and "not kept" in line
        ]
        assert len(told) == 1, told
        assert "the disk is full: cannot write " in told[0] and str(tiny) in told[0]


SMALL = r"""
class Small(Worker):
    def work(self):
        return self.rank

if __name__ == "__main__":
    c = Cluster(name="small", worker_cls=Small, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=2))
    print(c.execute_all_sync("work"))
"""


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"MUSTER_DIR": "/proc/nowhere"}, "Set MUSTER_DIR to a folder"),
        ({"MUSTER_LOG_DIR": "/proc/nowhere"}, "Set MUSTER_LOG_DIR to a folder"),
    ],
)
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, variables: dict[str, str], named: str
) -> None:
    finished = run_script(tmp_path, SMALL, **variables)
    assert finished.returncode == 1
    last = finished.stderr.strip().splitlines()[-1]
    assert "/proc/nowhere" in last and named in last, finished.stderr


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """Nothing of Muster is there; of folders that cannot be written the next one is taken."""
    nowhere = "/proc/nowhere"
    odd = {"HOME": nowhere, "XDG_RUNTIME_DIR": nowhere, "XDG_CACHE_HOME": nowhere}
    assert output_of(run_script(tmp_path, SMALL, **odd)) == "[0, 1]\n"
