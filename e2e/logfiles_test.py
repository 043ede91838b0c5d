"""What workers print, in files that the script names."""

from __future__ import annotations

from pathlib import Path

import pytest

import muster
from muster import Cluster, LogFiles, WorkerConfig
from running import session


class Speaker(muster.Worker):
    """Says things."""

    def say(self, text: str) -> None:
        print(f"{text} of {self.rank}", flush=True)


class Keeper(muster.Worker):
    """Keeps logs of others, as far as a worker can."""

    def keep(self, folder: str) -> None:
        files = LogFiles(folder)
        files.follow("speaker")
        files.drain()
        files.close()


TWO = WorkerConfig(world_size=2)


def _has(folder: Path, text: str) -> bool:
    """Whether both ranks have said it, in the file of all."""
    merged = (folder / "logs" / "merged.log").read_text()
    return all(f"{text} of {rank}" in merged for rank in (0, 1))


@pytest.mark.parametrize("virtual", ["2x1", "2x1+net"])
def test_files_by_name(tmp_path: Path, virtual: str) -> None:
    with session(virtual):
        files = LogFiles(tmp_path / "logs")
        files.follow("speaker", "actor")
        files.follow("other", "actor")
        files.follow("third")
        for name in ("speaker", "other", "third", "nobody"):
            with Cluster(name, Speaker, worker_config=TWO) as cluster:
                cluster.execute_all_sync("say", f"word of {name}")
                files.drain()
                while name != "nobody" and not _has(tmp_path, f"word of {name}"):
                    files.drain()  # another node's lines may come after its answer
        files.close()
        with Cluster("third", Speaker, worker_config=TWO) as cluster:
            cluster.execute_all_sync("say", "late")
    actor, third, merged = (
        (tmp_path / "logs" / f"{name}.log").read_text().splitlines()
        for name in ("actor", "third", "merged")
    )
    assert sorted(actor) == [f"word of {n} of {r}" for n in ("other", "speaker") for r in (0, 1)]
    assert sorted(third) == ["word of third of 0", "word of third of 1"], "until it was closed"
    assert sorted(merged) == sorted(
        [f"[actor] {x}" for x in actor] + [f"[third] {x}" for x in third]
    )


def test_a_folder_that_goes_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with session("1x2"):
        files = LogFiles(tmp_path / "logs")
        files.follow("speaker")
        (tmp_path / "logs").rmdir()
        with Cluster("speaker", Speaker, worker_config=TWO) as cluster:
            for word in ("once", "twice"):
                cluster.execute_all_sync("say", word)
                files.drain()
        files.close()
    assert capfd.readouterr().err.count("what speaker prints is kept no longer") == 1


def test_in_a_worker(tmp_path: Path) -> None:
    with session("1x2"), Cluster("keeper", Keeper, worker_config=TWO) as keeper:
        keeper.workers[0].keep(str(tmp_path / "logs"))
    assert not list((tmp_path / "logs").iterdir())
