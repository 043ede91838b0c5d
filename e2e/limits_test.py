"""A machine that has too little: of open files, of disk, of memory, of permissions."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import ResourceManager
from roles import Probe
from running import cluster, environment, eventually, output_of, run_script, session, titled

SCRIPT = r"""
class Small(Worker):
    def work(self, n=0):
        print("x" * 1000, flush=True)
        return self.rank
    def spam(self, n):
        for i in range(n):
            print("y" * 1000)
        sys.stdout.flush()
        return self.rank

if __name__ == "__main__":
    n = int(sys.argv[1])
    c = Cluster(name="small", worker_cls=Small, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=n))
    print(c.execute_all_sync("work"), flush=True)
    if len(sys.argv) > 2:
        print(c.execute_all_sync("spam", int(sys.argv[2])), flush=True)
    c.shutdown()
    print("end", flush=True)
"""


def limited(
    folder: Path, limits: str, *args: str, **extra: str
) -> subprocess.CompletedProcess[str]:
    """The script under a shell's limits."""
    path = folder / "small.py"
    path.write_text("import os, sys\nfrom muster import *\nimport muster\n" + SCRIPT)
    words = " ".join([sys.executable, str(path), *args])
    return subprocess.run(
        ["bash", "-c", f"{limits} && exec {words}"],
        env=environment("1x2", **extra),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


def told(finished: subprocess.CompletedProcess[str]) -> str:
    """What a script that failed said last: one error for people, from our side."""
    assert finished.returncode == 1, (finished.stdout, finished.stderr)
    assert "Traceback" in finished.stderr
    assert "panic" not in finished.stderr and "goroutine" not in finished.stderr
    return finished.stderr


@pytest.mark.parametrize("files", [16, 24, 32, 48, 64])
def test_too_few_open_files(tmp_path: Path, files: int) -> None:
    """It works, or says that it is open files that are missing; it never hangs."""
    finished = limited(tmp_path, f"ulimit -n {files}", "64")
    if finished.returncode == 0:
        assert finished.stdout.endswith("end\n")
    else:
        text = told(finished)
        assert "open files" in text, text
        assert "ulimit -n" in text, "and what to do"


def test_few_open_files_are_enough_for_few_workers(tmp_path: Path) -> None:
    assert output_of(limited(tmp_path, "ulimit -n 96", "2")) == "[0, 1]\nend\n"


def test_a_soft_limit_is_raised_where_it_may_be(tmp_path: Path) -> None:
    assert output_of(limited(tmp_path, "ulimit -S -n 64", "64")).endswith("end\n")


def test_more_connections_than_open_files() -> None:
    """Whoever is too many is turned away; the head takes connections again afterwards."""
    with session("1x2"), ResourceManager(0, 1) as rm, cluster(Probe, rm, world_size=1) as c:
        heads = titled("muster head")
        held = len(os.listdir(f"/proc/{heads[0]}/fd"))
        old = resource.prlimit(heads[0], resource.RLIMIT_NOFILE)
        resource.prlimit(heads[0], resource.RLIMIT_NOFILE, (held + 20, old[1]))
        [path] = Path(os.environ["MUSTER_DIR"]).glob("muster-*/*/head.sock")
        lines = []
        for _ in range(40):
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(20)
            line.connect(str(path))
            lines.append(line)
        assert b"open files" in lines[-1].recv(4096)
        assert c.execute_all_sync("pid", timeout=20), "who is in stays in"
        for line in lines:
            line.close()
        resource.prlimit(heads[0], resource.RLIMIT_NOFILE, old)
        with cluster(Probe, rm, name="late", world_size=1) as late:
            assert late.execute_all_sync("pid", timeout=20)


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """Log files hit the limit; the run does not."""
    finished = limited(tmp_path, "ulimit -f 8", "2", "100", MUSTER_LOG_DIR=str(tmp_path / "logs"))
    assert output_of(finished) == "[0, 1]\n[0, 1]\nend\n"
    assert finished.stderr.count("y" * 1000) == 200, "live output is whole"


def test_little_memory(tmp_path: Path) -> None:
    """An address space that does not take the call: a MemoryError, or an error that says so."""
    source = r"""
import resource
class Big(Worker):
    def make(self, n): return bytearray(n)
if __name__ == "__main__":
    c = Cluster(name="big", worker_cls=Big, resource_manager=ResourceManager(0, 1))
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    try:
        c.execute_rank_zero_sync("make", 256 << 20)
    except MemoryError:
        print("MemoryError")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        print(len(c.execute_rank_zero_sync("make", 10)))
    except muster.MusterError as error:
        print("told", bool(str(error)))
"""
    out = output_of(run_script(tmp_path, source)).splitlines()
    assert out[0] == "MemoryError"
    assert out[1] in ("10", "told True")


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A control group of 256 MiB or as many as are asked for, below the one that this runs in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    mine = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    if "memory" in mine:
        path, limit = Path("/sys/fs/cgroup/memory" + mine["memory"]), "memory.limit_in_bytes"
    else:
        path, limit = Path("/sys/fs/cgroup" + mine.get("", "/")), "memory.max"
    path /= f"muster-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / limit).write_text(str(getattr(request, "param", 256) << 20))
    except OSError as error:
        if path.is_dir():
            path.rmdir()
        pytest.skip(f"needs cgroups: {error}")
    yield path
    assert eventually(lambda: not (path / "cgroup.procs").read_text().strip())
    path.rmdir()


def test_a_worker_that_the_kernel_kills_for_memory(tmp_path: Path, group: Path) -> None:
    source = r"""
class Hungry(Worker):
    def eat(self, mib):
        if self.rank == 1:
            print("I am hungry", flush=True)
            return len(bytearray(b"x") * (mib << 20))
if __name__ == "__main__":
    with open(sys.argv[1] + "/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))
    c = Cluster(name="hungry", worker_cls=Hungry, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=2))
    try:
        c.execute_all_sync("eat", 600, timeout=40)
    except muster.MusterError as error:
        print(error)
"""
    out = output_of(run_script(tmp_path, source, str(group)))
    assert "hungry-1" in out and "SIGKILL" in out and "I am hungry" in out
    assert "memory" in out.lower(), "that it was the kernel, and why"


@pytest.mark.parametrize("group", [512], indirect=True)
@pytest.mark.parametrize("budget", ["", "4GiB"])
@pytest.mark.parametrize("spill", ["off", "on"])
def test_batches_in_a_group_of_little_memory(
    tmp_path: Path, group: Path, budget: str, spill: str
) -> None:
    """Who holds more than the group has is told, or it goes to disk; the kernel kills nobody, also
    where the budget is more than there is."""
    source = r"""
import numpy as np
from muster import Batch
class Doubling(Worker):
    @register(Dispatch.DP_MP_COMPUTE)
    def double(self, b):
        return Batch({"x": b["x"] * 2})
if __name__ == "__main__":
    with open(sys.argv[1] + "/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))
    c = Cluster(name="two", worker_cls=Doubling, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=2))
    held = []
    try:
        for i in range(150):
            held.append(c.double(Batch({"x": np.full((512, 1024), i)})))
    except muster.StoreFullError as error:
        print("told", "memory" in str(error), f"process {os.getpid()}" in str(error))
    print("held", len(held), flush=True)
    while held:  # what is read is put together in this process
        x = held.pop()["x"]
        assert x[0, 0] == x[-1, -1] == 2 * len(held)
    print("then", int(c.double(Batch({"x": np.full((512, 1024), 7)}))["x"][5, 5]))
"""
    variables = {"MUSTER_SPILL_DIR": "off" if spill == "off" else str(tmp_path)}
    if budget:
        variables["MUSTER_STORE_BYTES"] = budget
    out = output_of(run_script(tmp_path, source, str(group), **variables)).splitlines()
    assert out[-1] == "then 14"
    if spill == "on":
        assert out[:-1] == ["held 150"]
    else:
        assert out[0] == "told True True" and 4 <= int(out[1].split()[1]) < 150


@pytest.mark.parametrize("group", [768], indirect=True)
def test_workers_that_grow_get_what_batches_do_not_need_any_more(
    tmp_path: Path, group: Path
) -> None:
    """Memory that a store keeps for later batches is not what the kernel kills a worker for."""
    source = r"""
import numpy as np
from muster import Batch
class Growing(Worker):
    @register(Dispatch.DP_MP_COMPUTE)
    def double(self, b):
        return Batch({"x": b["x"] * 2})
    def grow(self, mib):
        self.kept = []
        for _ in range(mib):
            self.kept.append(bytearray(b"x") * (1 << 20))
        return len(self.kept)
if __name__ == "__main__":
    with open(sys.argv[1] + "/cgroup.procs", "w") as f:
        f.write(str(os.getpid()))
    c = Cluster(name="one", worker_cls=Growing, resource_manager=ResourceManager(0, 1),
                worker_config=WorkerConfig(world_size=1))
    for i in range(3):
        held = [c.double(Batch({"x": np.full((8, 1 << 20), i, np.int8)})) for _ in range(40)]
        del held
    print("grew", c.execute_rank_zero_sync("grow", 400), flush=True)
    print("then", int(c.double(Batch({"x": np.full((4, 8), 7)}))["x"][3, 3]))
"""
    variables = {"MUSTER_SPILL_DIR": "off", "MUSTER_STORE_BYTES": "384MiB"}
    out = output_of(run_script(tmp_path, source, str(group), **variables)).splitlines()
    assert out == ["grew 400", "then 14"]


@pytest.fixture
def tiny() -> Iterator[Path]:
    """A disk of 256 KiB, with nothing on it yet."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a tiny disk has to be mounted")
    libc = ctypes.CDLL(None, use_errno=True)
    path = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))  # short, for sockets' sake
    if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=256k") != 0:
        path.rmdir()
        pytest.skip(f"needs mounts: {os.strerror(ctypes.get_errno())}")
    yield path
    libc.umount2(os.fsencode(path), 2)
    path.rmdir()


def fill(disk: Path) -> None:
    for i in range(10_000):
        try:
            (disk / f"filler-{i}").write_bytes(bytes(4096))
        except OSError:
            return


def test_a_full_disk_for_logs(tiny: Path, tmp_path: Path) -> None:
    """Output that cannot be kept is still shown, and calls go on."""
    finished = limited(tmp_path, "true", "2", "500", MUSTER_LOG_DIR=str(tiny))
    assert output_of(finished) == "[0, 1]\n[0, 1]\nend\n"
    assert finished.stderr.count("y" * 1000) == 1000


def test_a_disk_that_is_full_from_the_start(tiny: Path, tmp_path: Path) -> None:
    fill(tiny)
    finished = limited(tmp_path, "true", "2", "10", MUSTER_LOG_DIR=str(tiny))
    if finished.returncode == 0:
        assert finished.stdout == "[0, 1]\n[0, 1]\nend\n"
    else:
        assert "No space left" in told(finished) or "no space left" in finished.stderr


def test_a_disk_that_is_full_for_sockets(tiny: Path, tmp_path: Path) -> None:
    fill(tiny)
    finished = limited(tmp_path, "true", "1", MUSTER_DIR=str(tiny))
    if finished.returncode != 0:
        assert "no space left" in told(finished).lower()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"MUSTER_DIR": "/proc/nowhere"}, "/proc/nowhere"),
        ({"MUSTER_DIR": "/tmp/" + "x" * 200}, "MUSTER_DIR"),
        ({"MUSTER_DIR": "/dev/null"}, "/dev/null"),
        ({"MUSTER_LOG_DIR": "/proc/nowhere"}, "/proc/nowhere"),
        ({"MUSTER_BINARY": "/no/such/muster"}, "/no/such/muster"),
        ({"MUSTER_BINARY": "/etc/passwd"}, "/etc/passwd"),
        ({"MUSTER_BINARY": "/bin/false"}, "/bin/false|exit code 1"),
        ({"MUSTER_BINARY": "/bin/true"}, "/bin/true|exit code 0"),
        ({"MUSTER_VIRTUAL": "lots"}, "lots"),
        ({"MUSTER_ADDRESS": "/no/head.sock"}, "/no/head.sock"),
    ],
)
def test_variables_that_lead_nowhere(tmp_path: Path, variables: dict[str, str], named: str) -> None:
    text = told(limited(tmp_path, "true", "1", **variables))
    assert re.search(named, text.splitlines()[-1] + text), text


def test_without_dev_shm_or_home(tmp_path: Path) -> None:
    """A bare container: no HOME, no USER, no TMPDIR, no PATH."""
    finished = limited(tmp_path, "unset HOME USER TMPDIR PATH LANG XDG_RUNTIME_DIR", "2")
    assert output_of(finished) == "[0, 1]\nend\n"


def test_another_locale_and_odd_variables(tmp_path: Path) -> None:
    odd = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "ODD": "\udcff", "NEW\nLINE": "a\nb"}
    finished = limited(tmp_path, "true", "2", **odd)
    assert output_of(finished) == "[0, 1]\nend\n"
