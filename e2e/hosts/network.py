"""Hosts as namespaces: made, entered, cut off, slowed down and removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from hosts import remains
from hosts.memory import Memory
from hosts.remains import ip

if TYPE_CHECKING:
    from hosts.rays import Ray

ROOT = Path(__file__).resolve().parent.parent.parent
INIT = Path(__file__).with_name("init.py")
NETWORK = "10.77.0"
START_SECONDS = 20.0


class Unavailable(unittest.SkipTest):
    """Hosts cannot be made here; a test that needs them is skipped."""

    def __init__(self, why: str) -> None:
        super().__init__(f"needs hosts: {why}")


@dataclass
class Host:
    """One host; `pid` is its first process, as seen from outside."""

    index: int
    name: str
    address: str
    namespace: str
    scratch: Path
    init: subprocess.Popen[str]
    pid: int = 0

    def path(self, inside: str | Path) -> Path:
        """A file of the host, as seen from outside, while the host is up."""
        return Path(f"/proc/{self.pid}/root{inside}")


class Running:
    """A program that runs on a host. `pid` is its own, as seen from outside."""

    def __init__(self, host: Host, popen: subprocess.Popen[str]) -> None:
        self.host, self.popen = host, popen
        self.stdout, self.stderr, self.stdin = popen.stdout, popen.stderr, popen.stdin
        self.pid = _only_child(popen)

    def signal(self, number: int) -> None:
        """Signals the program itself, not what has entered the host for it."""
        if self.popen.poll() is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def poll(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout: float = 60) -> int:
        """Its exit code, or minus the signal that ended it."""
        return self.popen.wait(timeout)

    def communicate(self, stdin: str | None = None, timeout: float = 60) -> tuple[str, str]:
        """What it wrote to the pipes that it has, to its end."""
        out, err = self.popen.communicate(stdin, timeout)
        return out or "", err or ""


class Hosts:
    """Hosts on one switch, for the time of a with block.

    The hosts of `bare` do not have the tree, apart from the folders of `kept` (by
    default this interpreter's virtual environment and those with Ray and torch).
    """

    def __init__(
        self, count: int, *, bare: Iterable[int] = (), kept: Iterable[Path] | None = None
    ) -> None:
        if not 1 <= count <= 200:
            raise ValueError(f"{count} hosts; 1 to 200 can be had")
        self._count, self._bare = count, set(bare)
        venvs = {ROOT / "build" / "venv-ray", ROOT / "build" / "venv-torch", Path(sys.prefix)}
        self._kept = sorted(v for v in venvs if v.is_relative_to(ROOT) and v.exists())
        if kept is not None:
            self._kept = list(kept)
        self._running: list[Running] = []
        self._memory = Memory()
        self.hosts: list[Host] = []

    def __enter__(self) -> Hosts:
        check()
        remains.clear_dead_runs()
        self._lock = remains.Lock()
        self.name = self._lock.name
        self.scratch = remains.SCRATCH / self.name
        try:
            self._make()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def __len__(self) -> int:
        return len(self.hosts)

    def _make(self) -> None:
        self.scratch.mkdir(mode=0o755)
        self._switch = f"{self.name}-sw"
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "name", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "dev", "bridge", "up")
        names = "".join(
            f"{NETWORK}.{i + 1} host{i}.muster.test host{i}\n" for i in range(self._count)
        )
        for i in range(self._count):
            self.hosts.append(self._start(i, names))
        for host in self.hosts:
            self._await(host)

    def _start(self, index: int, names: str) -> Host:
        space = f"{self.name}-{index}"
        port = f"p{index}"
        ip("netns", "add", space)
        ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "eth0", "netns", space)
        ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        ip("-n", space, "addr", "add", f"{NETWORK}.{index + 1}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")
        bare = index in self._bare
        told = {
            "name": f"host{index}",
            "scratch": str(self.scratch),
            "files": {"/etc/hosts": f"127.0.0.1 localhost\n{names}", "/etc/resolv.conf": ""},
            "hidden": [str(ROOT)] if bare else [],
            "kept": [str(path) for path in self._kept] if bare else [],
        }
        spaces = ["--pid", "--mount", "--uts", "--ipc", "--mount-proc", "--propagation", "private"]
        enter = ["ip", "netns", "exec", space, "unshare", "--fork", "--kill-child"]
        init = subprocess.Popen(
            [*enter, *spaces, sys.executable, "-I", str(INIT), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        return Host(index, f"host{index}", f"{NETWORK}.{index + 1}", space, self.scratch, init)

    def _await(self, host: Host) -> None:
        assert host.init.stdout is not None
        if host.init.stdout.readline().strip() != "up":
            _, problem = host.init.communicate(timeout=START_SECONDS)
            raise OSError(f"{host.name} did not come up: {problem.strip()}")
        host.pid = _only_child(host.init)

    def environment(self, host: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What programs of a host find, with all folders for state in its scratch folder."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MUSTER_"))}
        folder = str(self.scratch)
        own = {"HOSTNAME": f"host{host}", "MUSTER_DIR": folder}
        own |= dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR"), folder)
        return {**kept, **own, **(extra or {})}

    def popen(
        self,
        host: int,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
    ) -> Running:
        """Starts a program on a host; env adds to environment(host)."""
        at = self.hosts[host]
        if at.init.poll() is not None:
            raise OSError(f"{at.name} is down")
        enter = [
            "nsenter",
            "-t",
            str(at.pid),
            "-n",
            "-p",
            "-m",
            "-u",
            "-i",
            f"--wd={cwd or self.scratch}",
        ]
        popen = subprocess.Popen(
            [*self._memory.entering(host), *enter, "--", *(str(word) for word in command)],
            env=self.environment(host, env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
        )
        running = Running(at, popen)
        self._running.append(running)
        return running

    def run(
        self,
        host: int,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str = "",
        timeout: float = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on a host to its end; one that takes longer is killed."""
        running = self.popen(host, command, env=env, cwd=cwd, stdin=subprocess.PIPE)
        try:
            out, err = running.communicate(stdin, timeout)
        finally:
            running.kill()
            running.wait()
        done = subprocess.CompletedProcess(list(command), running.wait(), out, err)
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(map(str, command))} on host{host} exited with {done.returncode}:\n{out}{err}"
            )
        return done

    def processes(self, host: int) -> dict[int, str]:
        """Every process of a host but its first: pid as seen from outside, and command line."""
        inside = os.stat(f"/proc/{self.hosts[host].pid}/ns/pid").st_ino
        found = {}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if not entry.isdigit() or os.stat(f"/proc/{entry}/ns/pid").st_ino != inside:
                    continue
                line = Path(f"/proc/{entry}/cmdline").read_bytes().rstrip(b"\0")
                if int(entry) != self.hosts[host].pid and line:  # a zombie has none
                    found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def link(self, host: int, up: bool) -> None:
        """Pulls a host's cable out of the switch, or puts it back."""
        ip("-n", self._switch, "link", "set", f"p{host}", "up" if up else "down")

    def shape(
        self,
        host: int,
        *,
        loss: float = 0,
        delay: float = 0,
        rate: str = "",
        queue: str = "50ms",
        way: str = "both",
    ) -> None:
        """Makes a host's link worse; without arguments, good again.

        loss is in percent (100 with one way is a one-way partition), delay in
        milliseconds each way, rate as tc has it ("100mbit"), with a queue of what
        may wait for so long; way is "out" (what the host sends), "in" or "both".
        """
        at = self.hosts[host]
        for space, device, name in (
            (at.namespace, "eth0", "out"),
            (self._switch, f"p{host}", "in"),
        ):
            for kind in ("root", "clsact"):
                _tc(space, "qdisc", "del", "dev", device, kind, check=False)
            if way not in (name, "both"):
                continue
            if loss:
                _tc(space, "qdisc", "add", "dev", device, "clsact")
                _tc(
                    space,
                    *f"filter add dev {device} egress bpf da bytecode".split(),
                    _dropping(loss),
                )
            if delay:
                limit = ["rate", rate] if rate else []
                _tc(
                    space,
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "netem",
                    "delay",
                    f"{delay}ms",
                    *limit,
                )
            elif rate:
                how = ["tbf", "rate", rate, "burst", "256kb", "latency", queue]
                _tc(space, "qdisc", "add", "dev", device, "root", *how)

    def limit_memory(self, host: int, size: int) -> None:
        """Gives a host only so many bytes, as a container has: also what it reads of itself."""
        self._memory.limit(self.hosts[host], f"{self.name}-{host}", size)

    def ray_up(self, **how: Any) -> Ray:
        """A Ray node on each host, the head's on the first; see Ray."""
        from hosts.rays import Ray

        return Ray(self, **how)

    def crash(self, host: int) -> None:
        """Takes a host down at once, as a power cut does: nobody is told by a FIN."""
        at = self.hosts[host]
        self.link(host, up=False)
        with contextlib.suppress(ProcessLookupError):
            os.kill(at.pid, signal.SIGKILL)
        at.init.wait(START_SECONDS)

    def down(self) -> None:
        """Ends every process of the hosts and removes all that was made."""
        for host in self.hosts:
            if host.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host.pid, signal.SIGKILL)
            host.init.kill()
            host.init.wait()
            for pipe in (host.init.stdin, host.init.stdout, host.init.stderr):
                if pipe:
                    pipe.close()
        for running in self._running:
            running.popen.wait()  # its host is gone
            for stream in (running.stdin, running.stdout, running.stderr):
                if stream:
                    stream.close()
        self.hosts, self._running = [], []
        remains.clear(self.name)
        self._lock.release()


def check() -> None:
    """Raises Unavailable where hosts cannot be made, with the reason."""
    if os.geteuid() != 0:
        raise Unavailable("only root can make network namespaces")
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no program {program} (iproute2, util-linux)")
    probe = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount", "--uts", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        raise Unavailable(f"no namespaces: {probe.stderr.strip()}")


def _only_child(popen: subprocess.Popen[str]) -> int:
    """The process that unshare or nsenter has made; 0 if it has ended already."""
    deadline = time.monotonic() + START_SECONDS
    while popen.poll() is None:
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                stat = (
                    Path("/proc", entry, "stat").read_text(errors="replace")
                    if entry.isdigit()
                    else ""
                )
                if stat and int(stat[stat.rindex(")") + 2 :].split()[1]) == popen.pid:
                    return int(entry)
        if time.monotonic() > deadline:
            raise OSError(f"{popen.args!r} did not start within {START_SECONDS:g} s")
        time.sleep(0.005)
    return 0


def _tc(space: str, *words: str, check: bool = True) -> None:
    if shutil.which("tc") is None:
        raise unittest.SkipTest("needs tc: there is no program tc (iproute2)")
    done = subprocess.run(["tc", "-n", space, *words], capture_output=True, text=True, check=False)
    if not check or done.returncode == 0:
        return
    if "netem" in words and "No such file" in done.stderr + done.stdout:
        raise unittest.SkipTest("needs netem: this kernel cannot delay packets (sch_netem)")
    raise OSError(f"tc {' '.join(words)}: {done.stderr.strip()}")


def _dropping(percent: float) -> str:
    """A filter of classic BPF that drops packets at random: needs no netem."""
    random, at_least, give, drop, pass_on = 0xFFFFF038, 53, 6, 2, 0
    limit = min(round(percent / 100 * 2**32), 2**32 - 1)
    return f"4,32 0 0 {random},{at_least} 1 0 {limit},{give} 0 0 {drop},{give} 0 0 {pass_on}"
