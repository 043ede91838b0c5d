"""Replicas of a job on hosts: `muster node` as a scheduler starts it, and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hosts import Hosts, python_with_ray
from running import BINARY, eventually, titled

TOKEN = "a-secret-of-all-replicas"
#: Small, so that three fit on a small machine.
SMALL = ["--num-cpus=2", "--num-gpus=0", "--object-store-memory=100000000"]
#: How long anything may take on a machine that does much else.
PATIENCE = 120.0


class Replica:
    """One `muster node --json` on a host; `events` is what it has said so far."""

    def __init__(
        self,
        hosts: Hosts,
        host: int,
        *command: str | Path,
        rank: int | None = None,
        world: int | None = 3,
        leader: str = "host0",
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.host, self.rank = host, host if rank is None else rank
        words: list[str | Path] = [BINARY, "node", "--json", "--python", python_with_ray()]
        if world is not None:
            words += ["--rank", str(self.rank), "--world", str(world), "--leader", leader]
        words += [f"--ray-flag={flag}" for flag in SMALL]
        self.events: list[dict[str, Any]] = []
        self.other: list[str] = []  # lines that are no JSON: the command's
        self._news = threading.Condition()
        told = {"RAY_AUTH_TOKEN": TOKEN, **(env or {})}
        self.running = hosts.popen(host, [*words, *flags, "--", *command], env=told)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.running.stderr is not None
        for line in self.running.stderr:
            with self._news:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.other.append(line.rstrip())
                self._news.notify_all()

    def until(self, event: str, text: str = "", seconds: float = PATIENCE) -> dict[str, Any]:
        """The first event of that kind whose text has text in it."""

        def found() -> dict[str, Any] | None:
            for said in self.events:
                if said["event"] == event and text in said.get("text", ""):
                    return said
            return None

        with self._news:
            self._news.wait_for(lambda: found() or not self._reader.is_alive(), seconds)
            said = found()
        assert said is not None, f"no {event} {text!r} from {self}"
        return said

    def code(self, seconds: float = PATIENCE) -> int:
        """Its exit code, when it has ended by itself."""
        code = self.running.wait(seconds)
        self._reader.join(10)
        return code

    @property
    def last(self) -> str:
        """The reason on the last line."""
        assert self.events and self.events[-1]["event"] == "end", f"no last line: {self}"
        return str(self.events[-1].get("text", ""))

    @property
    def out(self) -> str:
        assert self.running.stdout is not None
        return self.running.stdout.read()

    def ended(self) -> tuple[int, str]:
        """Exit code and reason, which have to be the same on the last line."""
        code = self.code()
        assert self.last is not None and self.events[-1]["code"] == code, str(self)
        return code, self.last

    def signal(self, number: int) -> None:
        self.running.signal(number)

    def keeper(self) -> int:
        """The process that has Ray and the command."""
        pids = titled("muster keeper", self.running.pid)
        assert len(pids) == 1, str(self)
        return pids[0]

    def __str__(self) -> str:
        lines = [json.dumps(event) for event in self.events] + self.other
        return f"rank {self.rank} on host{self.host}:\n  " + "\n  ".join(lines)


@contextlib.contextmanager
def job(hosts: Hosts) -> Iterator[Callable[..., Replica]]:
    """Starts replicas, and looks afterwards that nothing of them is left on any host."""
    made: list[Replica] = []

    def start(host: int, *command: str | Path, **how: Any) -> Replica:
        made.append(Replica(hosts, host, *command, **how))
        return made[-1]

    up = [host.index for host in hosts.hosts if host.init.poll() is None]
    try:
        yield start
        for replica in made:
            replica.code()
        gone = eventually(lambda: not any(hosts.processes(h) for h in up if alive(hosts, h)), 20)
        left = {h: hosts.processes(h) for h in up if alive(hosts, h)}
        assert gone, f"left behind: {left}"
    except BaseException:
        for replica in made:
            print(replica)
        raise
    finally:
        for h in up:
            if alive(hosts, h):
                clear(hosts, h)


def alive(hosts: Hosts, host: int) -> bool:
    return hosts[host].init.poll() is None


def clear(hosts: Hosts, host: int) -> None:
    """Ends what a failed test left on a host, and removes what lies there."""
    deadline = time.monotonic() + 20
    while (left := hosts.processes(host)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
