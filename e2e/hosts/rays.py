"""Real Ray, one node per host."""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts.network import Hosts, Running

ROOT = Path(__file__).resolve().parent.parent.parent
PORT = 6379
#: How long Ray may take to start a node, on a machine that does much else.
START_SECONDS = 150.0
# Ray gives its own node 30 s, which a busy machine may not have for it.
SLOW = "timed out during startup"
TRIES = 4

# Alive nodes, one JSON line each time there is another count, until there are
# as many as were asked for.
NODES = """
import sys, time
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
deadline = time.monotonic() + float(sys.argv[3])
while len([n for n in ray.nodes() if n["Alive"]]) < int(sys.argv[2]):
    if time.monotonic() > deadline:
        sys.exit(f"Ray has {ray.nodes()}")
    time.sleep(0.1)
"""


def python_with_ray() -> Path:
    """An interpreter that has Ray; where there is none, the test is skipped."""
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable)
    python = ROOT / "build" / "venv-ray" / "bin" / "python"
    if python.exists():
        return python
    raise unittest.SkipTest("needs ray: `make test-ray` makes build/venv-ray")


class Ray:
    """Ray on the hosts: `address` and `token` of it, `env` for programs that use it.

    `token` None turns authentication off. What only one node has goes by
    `resources` and `labels`, by host.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        on: Sequence[int] | None = None,
        cpus: int = 8,
        gpus: int = 8,
        memory: int = 300_000_000,
        token: str | None = "",
        resources: Mapping[int, str] | None = None,
        labels: Mapping[int, str] | None = None,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        self._hosts, self.python = hosts, python or python_with_ray()
        self.on = list(range(len(hosts))) if on is None else list(on)
        self.head = self.on[0]
        self.address = f"{hosts[self.head].address}:{PORT}"
        self.token = secrets.token_hex(16) if token == "" else token
        self.env = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "disabled" if token is None else "token",
            **({"RAY_AUTH_TOKEN": self.token} if self.token else {}),
            **(env or {}),
        }
        self._flags = [
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
            f"--object-store-memory={memory}",
        ]
        self._flags += ["--disable-usage-stats", *flags]
        self._own = {
            host: ([f"--resources={resources[host]}"] if resources and host in resources else [])
            + ([f"--labels={labels[host]}"] if labels and host in labels else [])
            for host in self.on
        }
        self.start(self.head)
        others = [self._starting(host) for host in self.on[1:]]
        for host, running in zip(self.on[1:], others, strict=True):
            self._finish(host, running)
        self.wait_for_nodes(len(self.on))

    def ray(self, *words: str) -> list[str]:
        """A command line of Ray's own program."""
        return [str(self.python), "-m", "ray.scripts.scripts", *words]

    def start(self, host: int) -> None:
        """Starts the Ray node of a host; the head's, if it is the first."""
        self._finish(host, self._starting(host))

    def _starting(self, host: int) -> Running:
        at = self._hosts[host]
        where = (
            [
                "--head",
                f"--port={PORT}",
                "--include-dashboard=false",
                f"--temp-dir={at.scratch}/ray",
            ]
            if host == self.head
            else [f"--address={self.address}"]
        )
        flags = [f"--node-ip-address={at.address}", *self._flags, *self._own.get(host, [])]
        env = {k: v for k, v in self.env.items() if k != "RAY_ADDRESS"}
        env["RAY_raylet_start_wait_time_s"] = f"{START_SECONDS * 0.8:g}"
        # Into a file: what Ray starts keeps what it is given open.
        log = at.path(at.scratch) / "ray-start.log"
        with log.open("a") as out:
            command = self.ray("start", *where, *flags)
            return self._hosts.popen(host, command, env=env, stdout=out, stderr=subprocess.STDOUT)

    def _finish(self, host: int, running: Running, tries: int = TRIES) -> None:
        try:
            code = running.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            code = running.wait()
        if code == 0:
            return
        at = self._hosts[host]
        path = at.path(at.scratch) / "ray-start.log"
        log = path.read_text(errors="replace")
        if tries > 1 and SLOW in log:
            self._hosts.run(host, self.ray("stop", "--force"), env=self.env, timeout=START_SECONDS)
            path.write_text("")
            self._finish(host, self._starting(host), tries - 1)
            return
        raise OSError(f"ray start on {at.name} exited with {code}:\n{log[-3000:]}")

    def wait_for_nodes(self, count: int, seconds: float = 60) -> None:
        """Returns when Ray has that many living nodes."""
        command = [str(self.python), "-c", NODES, self.address, str(count), str(seconds)]
        self._hosts.run(self.head, command, env=self.env, timeout=seconds + 30, check=True)

    def pids(self, host: int, program: str) -> list[int]:
        """The processes of a host that run one of Ray's programs: raylet, gcs_server, …"""
        found = []
        for pid, line in self._hosts.processes(host).items():
            if os.path.basename(line.split(" ")[0]) == program:
                found.append(pid)
        return found
