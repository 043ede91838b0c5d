"""Ray on hosts, scripts that use it from the first, and what is left of them afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hosts import Hosts, Ray, Running
from running import IMPORTS

ROOT = Path(__file__).resolve().parent.parent
# Three nodes of eight stand-ins: Ray counts eight GPUs on each, and none is there.
VIRTUAL = "3x8"

# What is left in Ray: actors that live, groups that are not removed, devices that are held.
LEFT = """
import json, sys
import ray
from ray.util.placement_group import placement_group_table
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False, namespace="look")
actors = ray._private.state.actors().values()
alive = [a["Name"] or a["ActorClassName"] for a in actors if a["State"] not in ("DEAD",)]
groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
free = ray._private.state.available_resources_per_node()
for node in ray.nodes():
    has, here = node["Resources"].get("GPU", 0), free.get(node["NodeID"], {}).get("GPU", 0)
    if node["Alive"] and here < has:
        groups.append(f"{node['NodeManagerAddress']} has {here:g} of {has:g} GPUs free")
print("left:" + json.dumps(alive + groups))
"""


class Cluster:
    """Ray on three hosts, and scripts that use it from the first."""

    def __init__(self, hosts: Hosts, ray: Ray) -> None:
        self.hosts, self.ray = hosts, ray
        self._count = 0

    def env(self, **more: str) -> dict[str, str]:
        return {**self.ray.env, "MUSTER_BACKEND": "ray", "MUSTER_VIRTUAL": VIRTUAL, **more}

    def script(self, source: str, imports: str = IMPORTS, **files: str) -> Path:
        """A script in a folder of its own on the first host."""
        self._count += 1
        folder = self.hosts.scratch / f"work-{self._count}"
        outside = self.hosts[0].path(folder)
        outside.mkdir()
        for name, text in files.items():
            (outside / f"{name}.py").write_text(text)
        (outside / "script.py").write_text(imports + source)
        return folder / "script.py"

    def start(self, source: str, env: dict[str, str] | None = None, **files: str) -> Running:
        path = self.script(source, **files)
        return self.program([self.ray.python, path], env, path.parent)

    def program(
        self,
        command: Sequence[str | Path],
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Running:
        """Starts a program on the first host, in a folder that may be there alone."""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd or self.hosts.scratch)]
        return self.hosts.popen(
            0, [*inside, *command], env=env or self.env(), stdin=subprocess.PIPE
        )

    def run(self, source: str, env: dict[str, str] | None = None, **files: str) -> Any:
        """A script run to a good end; what it printed last, as JSON."""
        done = self.finish(self.start(source, env, **files))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def finish(self, running: Running, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        try:
            out, err = running.communicate(timeout=timeout)
        finally:
            running.kill()
        return subprocess.CompletedProcess([], running.wait(), out, err)

    def left(self) -> list[str]:
        """What Ray still has of anybody's."""
        done = self.hosts.run(
            0, [str(self.ray.python), "-c", LEFT, self.ray.address], env=self.ray.env, check=True
        )
        line = next(li for li in done.stdout.splitlines() if li.startswith("left:"))
        return list(json.loads(line.removeprefix("left:")))

    def up(self) -> list[int]:
        """The hosts that are there."""
        return [host.index for host in self.hosts.hosts if host.init.poll() is None]

    def musters(self, *on: int) -> list[str]:
        """Muster's processes on hosts (none named: on all), the bridge included."""
        return [
            f"host{host}: {pid} {line}"
            for host in on or self.up()
            for pid, line in self.hosts.processes(host).items()
            if line.startswith("muster") or "muster._ray" in line or "muster zygote" in line
        ]

    def pids(self, host: int, what: str) -> list[int]:
        found = self.hosts.processes(host)
        return sorted(pid for pid, line in found.items() if line.startswith(what) or what in line)

    def files(self) -> list[str]:
        """Folders of sessions and agents, and named memory, on all hosts."""
        sessions, found = f"muster-{os.getuid()}", []
        for host in self.up():
            scratch = self.hosts[host].path(self.hosts.scratch)
            made = [path for path in scratch.glob("muster-*") if path.name != sessions]
            made += [path for path in scratch.glob(f"{sessions}/*") if path.name != "logs"]
            made += self.hosts[host].path("/dev/shm").glob("*muster*")
            found += [f"host{host}: {path.name}" for path in made]
        return found

    def nothing_is_left(self, files: bool = True, devices: bool = True) -> None:
        """Nor folders, unless raylets were killed: what those take along clears up no more.

        Nor devices that are held, unless a node is cut off: Ray cannot have it let go of them.
        """

        def left() -> list[str]:
            return [what for what in self.left() if devices or not what.endswith("GPUs free")]

        until(lambda: not self.musters(), lambda: f"left: {self.musters()}")
        until(lambda: not (files and self.files()), lambda: f"left: {self.files()}")
        until(lambda: not left(), lambda: f"left in Ray: {left()}", 60)


def with_torch() -> dict[str, str]:
    """What has the interpreter with Ray find torch too; where there is none, a skip."""
    if importlib.util.find_spec("torch") is not None:
        return {}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = ROOT / "build" / "venv-torch" / "lib" / version / "site-packages"
    if not (packages / "torch").is_dir():
        raise unittest.SkipTest(
            f"needs torch: `make test-torch` makes build/venv-torch ({version})"
        )
    return {
        "PYTHONPATH": os.pathsep.join(
            [*filter(None, [os.environ.get("PYTHONPATH")]), str(packages)]
        )
    }


def until(true: Callable[[], bool], problem: Callable[[], str], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.1)
