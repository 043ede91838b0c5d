"""What is to be seen of a running session from outside: processes, sockets, files, ports."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import Cluster, ResourceManager
from roles import Probe
from running import below, cluster, session, titled


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    with session("2x4"), ResourceManager(4, 2) as rm:
        with cluster(Probe, rm, name="actor_train", device_mapping="0-7") as made:
            yield made


@pytest.fixture
def tree(c: Cluster) -> dict[int, tuple[int, str]]:
    """What runs below this script, Muster's part of it."""
    return {pid: at for pid, at in below(os.getpid()).items() if at[1].startswith("muster")}


def test_command_lines_say_what_they_are(tree: dict[int, tuple[int, str]]) -> None:
    lines = sorted(line for _, line in tree.values())
    assert lines.count("muster agent") == lines.count("muster warden") == 2
    heads = [line for line in lines if line.startswith("muster head")]
    assert len(heads) == 1
    assert "muster zygote" in lines
    workers = [line for line in lines if line.startswith("muster worker ")]
    assert workers == sorted(f"muster worker actor_train-{r}-G{r % 4}" for r in range(8))
    kinds = {line.split()[1] for line in lines}
    assert kinds == {"head", "agent", "warden", "zygote", "worker"}


def test_short_names_too(c: Cluster) -> None:
    assert Path(f"/proc/{c.workers[0].pid}/comm").read_text().startswith("muster")


def test_who_is_whose_child(tree: dict[int, tuple[int, str]]) -> None:
    for parent, line in tree.values():
        above = "the script" if parent == os.getpid() else tree[parent][1].split()[1]
        kind = line.split()[1]
        assert (kind, above) in {
            ("head", "the script"),
            ("warden", "head"),
            ("agent", "warden"),
            ("zygote", "agent"),
            ("worker", "agent"),
        }


def test_no_secrets_in_command_lines_or_environments(
    c: Cluster, tree: dict[int, tuple[int, str]]
) -> None:
    """Anyone may read a command line; a worker's children inherit its environment."""
    token = next(Path(os.environ["MUSTER_DIR"]).glob("muster-*/*/token")).read_text().strip()
    assert len(token) >= 32
    for pid, (_, line) in tree.items():
        assert token not in line
        assert token not in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")


def test_no_listening_tcp_ports(tree: dict[int, tuple[int, str]]) -> None:
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(fields[9])
    ours = set()
    for pid in tree:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if found := re.fullmatch(r"socket:\[(\d+)\]", target):
                ours.add(found.group(1))
    assert ours and not ours & listening


def test_sockets_are_for_their_owner_alone(c: Cluster) -> None:
    [folder] = [
        p for p in Path(os.environ["MUSTER_DIR"]).glob("muster-*/*") if (p / "head.sock").exists()
    ]
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    names = {path.name for path in folder.iterdir()}
    assert "head.sock" in names
    assert len([name for name in names if name.startswith("agent-")]) == 2
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_workers_have_no_stdin_and_their_own_session(c: Cluster) -> None:
    for worker in c.workers:
        assert os.readlink(f"/proc/{worker.pid}/fd/0") == "/dev/null"
        assert os.getsid(worker.pid) == worker.pid


def test_workers_hold_nothing_of_each_other(c: Cluster) -> None:
    """Few descriptors, and none shared with a peer but the obvious."""
    counts = [len(os.listdir(f"/proc/{worker.pid}/fd")) for worker in c.workers]
    assert max(counts) < 20, counts


def test_hold_nothing_after_a_cluster_went(c: Cluster) -> None:
    """Twenty clusters later, the head and the agents hold what they held before."""

    def held() -> dict[int, int]:
        return {
            pid: len(os.listdir(f"/proc/{pid}/fd"))
            for pid in titled("muster head") + titled("muster agent")
        }

    with ResourceManager(0, 1) as rm:
        with cluster(Probe, rm, name="warm", world_size=2):
            pass
        before = held()
        for _ in range(20):
            with cluster(Probe, rm, name="brief", world_size=2) as brief:
                brief.execute_all_sync("pid")
        after = held()
    assert all(after[pid] <= before[pid] + 2 for pid in before), (before, after)
