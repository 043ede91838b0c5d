"""A call hangs: where everybody is, who is behind, and how it is ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
from muster import Cluster, ResourceManager
from running import BINARY, IMPORTS, cluster, environment, eventually, run, session
from stuck import Deaf, Held, Server, Team

#: Seconds in which every rank is where it gets stuck, and the others have answered.
ENOUGH = 2


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    saved = os.environ.get("MUSTER_CANCEL_GRACE")
    os.environ["MUSTER_CANCEL_GRACE"] = "1"
    try:
        with session("2x4"), ResourceManager(4, 2) as made:
            yield made
    finally:
        if saved is None:
            del os.environ["MUSTER_CANCEL_GRACE"]
        else:
            os.environ["MUSTER_CANCEL_GRACE"] = saved


def stacks(*args: str) -> str:
    done = run(BINARY, "stacks", *args, "--session", str(os.getpid()))
    assert done.returncode == 0, done
    return done.stdout


def test_the_odd_rank_is_seen_at_once(rm: ResourceManager) -> None:
    with cluster(Team, rm, name="team", device_mapping="0-7", grace=0.5) as team:
        with pytest.raises(TimeoutError) as caught:
            team.step(odd=5, timeout=ENOUGH)
        error = caught.value
        assert isinstance(error, muster.MusterError)
        together, alone = error.groups
        assert together["ranks"] == [0, 1, 2, 3, 4, 6, 7] and alone["ranks"] == [5]
        assert together["place"].startswith("in all_reduce (stuck.py:")
        assert alone["place"].startswith("in next_rows (stuck.py:")
        lines = str(error).splitlines()
        assert lines[2].startswith("  ranks 0-4,6-7 in all_reduce (stuck.py:")
        assert lines[3].startswith("  rank 5 in next_rows (stuck.py:")
        assert str(error).count("had not answered") == 2, "each place once"
        assert "like 6 more at this place" in str(error)
        assert len(error.stacks) == 8, "a program gets all"

        text = stacks("team")
        assert text.splitlines()[0] == lines[2].strip() and text.splitlines()[1] == lines[3].strip()
        assert text.count("main thread (most recent call first)") == 2
        views = json.loads(stacks("team", "--json"))
        assert [view["group"] for view in views] == [0, 0, 0, 0, 0, 1, 0, 0]
        assert views[5]["place"] == alone["place"]
        assert views[5]["frames"][-1]["function"] == "step"


def test_who_has_left_the_others_behind_is_told_too(rm: ResourceManager) -> None:
    """The usual bug: a rank returns early, and the others wait for it."""
    with cluster(Team, rm, name="team", world_size=3, grace=0.5) as team:
        with pytest.raises(TimeoutError) as caught:
            team.step(odd=9, early=1, timeout=ENOUGH)
        text = str(caught.value)
        assert "no answer within 2s from 2 of 3 ranks" in text
        assert "  rank 1 (answered): it is idle: it waits for a call\n" in text
        assert "ranks 0,2 in all_reduce" in text


def test_the_watchdog_warns_once(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = tmp_path / "script.py"
    script.write_text(
        IMPORTS
        + f"""
from stuck import Team
if __name__ == "__main__":
    with Cluster("team", Team, ResourceManager(0, 1), WorkerConfig(world_size=4)) as team:
        print(team.until({str(go_on)!r}, 2))
"""
    )
    env = environment(MUSTER_WATCHDOG="1s", PYTHONPATH=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, script],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        bound = threading.Timer(40, process.kill)
        bound.start()
        try:
            assert process.stderr is not None and process.stdout is not None
            said = ""
            for line in process.stderr:
                said += line
                if "no answer from" in line:
                    break
            told = run(BINARY, "status", "--session", str(process.pid)).stdout
            go_on.touch()
            said += process.stderr.read()
            printed = process.stdout.read()
            assert process.wait(20) == 0, said
        finally:
            bound.cancel()
            process.kill()
    assert printed == "[0, 1, 2, 3]\n", said
    (warning,) = (line for line in said.splitlines() if "no answer from" in line)
    assert warning.startswith("muster: team.until: no answer from 1 of 4 ranks (team-2 on ")
    assert "rank 2 in until (stuck.py:" in warning
    assert "  ! " + warning.removeprefix("muster: ") in told


def test_gil_held_in_c(rm: ResourceManager) -> None:
    """Stacks are told, a cancel says that it cannot, and a kill does what was asked."""
    with (
        cluster(Held, rm, name="spared", world_size=2, grace=0.5) as spared,
        cluster(Held, rm, name="killed", world_size=2, grace=0.5) as killed,
    ):
        refs = [c.in_c(blocking=False) for c in (spared, killed)]
        for name in ("spared", "killed"):
            assert eventually(lambda n=name: "keep_the_gil" in stacks(n, "0"))  # type: ignore[misc]
        assert refs[0].cancel() and refs[1].cancel(kill=True)
        with pytest.raises(muster.CallCancelledError, match="still in C") as caught:
            muster.get(refs[0], timeout=30)
        assert "1 of 2 ranks (spared-0 on" in str(caught.value)
        assert "in keep_the_gil" in str(caught.value), "where it is"
        with pytest.raises(muster.CallCancelledError, match="killed, because still in C"):
            muster.get(refs[1], timeout=30)
        with pytest.raises(muster.WorkerDiedError, match=r"killed-0 .*SIGKILL"):
            killed.execute_all_sync("pid", timeout=30)
        assert spared.workers[1].call("pid", timeout=30)
        os.kill(spared.workers[0].pid, 0)  # nobody asked for its end


def test_gil_held_in_c_at_a_deadline_that_kills(rm: ResourceManager) -> None:
    with cluster(Held, rm, name="held", world_size=2, grace=0.5) as held:
        with pytest.raises(TimeoutError, match=r"1 of 2 ranks \(held-0 on") as caught:
            held.deadly(timeout=ENOUGH)
        assert "in keep_the_gil" in str(caught.value)
        with pytest.raises(muster.WorkerDiedError, match=r"held-0 .*SIGKILL"):
            held.execute_all_sync("pid", timeout=30)


def test_cancel_as_designed(rm: ResourceManager) -> None:
    """A task in a loop, an exception in a thread, and code that catches everything."""
    with (
        cluster(Server, rm, name="server", world_size=1, grace=0.5) as server,
        cluster(Team, rm, name="team", world_size=1, grace=0.5) as team,
        cluster(Deaf, rm, name="deaf", world_size=1, grace=0.5) as deaf,
    ):
        refs = [
            server.execute_rank_zero_async("wait"),
            team.workers[0].step.remote(odd=0),
            deaf.execute_rank_zero_async("in_python", 60),
        ]
        for name, inside in (("server", "in wait"), ("team", "next_rows"), ("deaf", "in_python")):
            assert eventually(lambda n=name, i=inside: i in stacks(n)), name  # type: ignore[misc]
        assert all(ref.cancel() for ref in refs)
        for ref in refs[:2]:
            with pytest.raises(muster.CallCancelledError) as caught:
                muster.get(ref, timeout=30)
            assert "still in C" not in str(caught.value)
        with pytest.raises(muster.CallCancelledError, match="code that cannot be interrupted"):
            muster.get(refs[2], timeout=30)
        assert server.execute_rank_zero_sync("pid", timeout=30), "a loop is as good as before"
        with pytest.raises(muster.TaintedError, match=r"clear_taint\(\)"):
            team.execute_rank_zero_sync("pid", timeout=30)
        team.workers[0].clear_taint()
        assert team.execute_rank_zero_sync("pid", timeout=30)


def _spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


@pytest.mark.skipif(_spy() is None, reason="needs pyspy: no py-spy on PATH or beside the Python")
def test_frames_of_c_code(rm: ResourceManager) -> None:
    def held_in_c(c: Cluster) -> str:
        with pytest.raises(TimeoutError) as caught:
            c.in_c(timeout=ENOUGH)
        return str(caught.value)

    with cluster(Held, rm, name="held", world_size=1, grace=0.5) as held:
        text = held_in_c(held)
        if "frames of C code are not known: py-spy" in text and "ermission" in text:
            pytest.skip("needs ptrace: py-spy may not look at other processes here")
        assert "main thread, with C code (most recent call first):" in text
        assert "ffi_call (libffi" in text.split("with C code")[1]
