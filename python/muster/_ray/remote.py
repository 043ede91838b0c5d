"""What runs on Ray's nodes: one actor per node, which keeps that node's agent.

It travels by value, so it imports nothing but the standard library: the node may
not have Muster yet. The actor holds the write end of its warden's stdin, and the
warden leaves when that ends, however the actor went.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from typing import Any

#: Seconds that a warden may take to clear up after its agent was killed.
_KILL_BOUND = 2.0
_TAIL = 4096
#: What a shipped program is called, in the folder of its sha.
PROGRAM = "program"
#: What Ray sets for its own workers; an agent is none of them.
_OURS = ("OMP_NUM_THREADS",)
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


def probe() -> list[str]:
    """The ids of the devices that this task was given; it takes a whole bundle's."""
    import ray

    ids = ray.get_runtime_context().get_accelerator_ids()
    return [str(one) for one in ids.get("GPU", [])]


def surroundings() -> dict[str, Any]:
    """What a process of Ray's finds around it."""
    return {
        "python": sys.executable,
        "path": list(sys.path),
        "dir": os.getcwd(),
        "env": dict(os.environ),
    }


class Environment:
    """A process in an environment that Ray has set up, which stays while it does."""

    def about(self) -> dict[str, Any]:
        """What it finds around it."""
        return surroundings()


class Agent:
    """The keeper of one node's agent. Several methods run at a time."""

    def __init__(self) -> None:
        self._process = 0
        self._leash = -1
        self._ended = threading.Event()
        self._status = 0
        self._log = ""
        self._lock = threading.Lock()

    # --- what is there, and what is shipped ---

    def about(self) -> dict[str, Any]:
        """What the node can run code with."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return {"python": sys.executable, "version": version}

    def program(self, path: str, sha: str) -> str:
        """Where the program of that sha is; empty if it has to be shipped."""
        for place in (path, os.path.join(_cache(), sha, PROGRAM)):
            if os.access(place, os.X_OK) and os.path.isfile(place) and _sha(place) == sha:
                return place
        return ""

    def lacking(self, paths: list[str]) -> list[str]:
        """Those of the paths that are not there."""
        return [path for path in paths if not os.path.exists(path)]

    def same(self, path: str, sha: str) -> bool:
        """Whether a file is there with that content."""
        return os.path.isfile(path) and _sha(path) == sha

    def has(self, sha: str) -> str:
        """Where content of that sha was unpacked; empty if it was not."""
        place = os.path.join(_cache(), sha)
        return place if os.path.isdir(place) else ""

    def take(self, sha: str, parts: list[bytes], program: bool) -> str:
        """Keep shipped content: a program, or a zip to unpack.

        It appears under its sha at once and whole, or not at all.
        """
        data = b"".join(parts)
        if hashlib.sha256(data).hexdigest() != sha:
            raise ValueError(f"what arrived is not what was sent ({len(data)} bytes, sha {sha})")
        place = os.path.join(_cache(), sha)
        if os.path.isdir(place):
            return place
        os.makedirs(_cache(), mode=0o700, exist_ok=True)
        making = tempfile.mkdtemp(prefix=".making-", dir=_cache())
        try:
            if program:
                path = os.path.join(making, PROGRAM)
                with open(path, "wb") as file:
                    file.write(data)
                os.chmod(path, 0o755)
            else:
                with zipfile.ZipFile(io.BytesIO(data)) as packed:
                    packed.extractall(making)
            try:
                os.rename(making, place)
            except OSError:
                if not os.path.isdir(place):
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return place

    # --- the agent ---

    def start(self, program: str, join: dict[str, Any]) -> dict[str, int]:
        """Start the warden, told where to join; says which process it is."""
        with self._lock:
            if self._process:
                return {"pid": self._process, "started": _started(self._process)}
            folder = tempfile.mkdtemp(prefix="muster-", dir=_short())
            told = dict(join, dir=folder, owner=0, leash=os.getpid())
            self._log = _log_path(told)
            told["log_dir"] = os.path.dirname(self._log)
            begun = threading.Event()
            failed: list[BaseException] = []
            # A parent's death is told when the thread that forked ends: this one
            # stays as long as its child does.
            threading.Thread(
                target=self._keep, args=(program, told, begun, failed), daemon=True
            ).start()
            begun.wait()
            if failed:
                shutil.rmtree(folder, ignore_errors=True)
                raise failed[0]
            return {"pid": self._process, "started": _started(self._process)}

    def _keep(
        self,
        program: str,
        join: dict[str, Any],
        begun: threading.Event,
        failed: list[BaseException],
    ) -> None:
        try:
            self._spawn(program, join)
        except BaseException as error:
            failed.append(error)
            return
        finally:
            begun.set()
        _, status = os.waitpid(self._process, 0)
        self._status = os.waitstatus_to_exitcode(status)
        self._ended.set()

    def _spawn(self, program: str, join: dict[str, Any]) -> None:
        leash, self._leash = os.pipe()  # not inherited: the write end is ours alone
        told, tell = os.pipe()
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Copied to high numbers first, so that none is overwritten before its turn.
        high = [_lift(fd) for fd in (leash, log, log, told)]
        for fd in (leash, log, told):
            os.close(fd)
        try:
            self._process = os.posix_spawn(
                program,
                ["muster", "warden"],
                {**_environment(), "MUSTER_OF": _mark(join)},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(high)],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
            )
        finally:
            for fd in high:
                os.close(fd)
        with os.fdopen(tell, "wb") as pipe:
            pipe.write(json.dumps(join).encode())

    def wait(self) -> dict[str, Any]:
        """Wait for the warden's end, and say how it was."""
        self._ended.wait()
        why = ""
        if self._status != 0:
            code = self._status
            why = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
            why += _last_line(self._log)
        return {"code": self._status, "why": why}

    def kill(self) -> None:
        """End the agent at once; its warden clears what is left, or goes too."""
        if not self._process or self._ended.is_set():
            return
        _signal(self._process, signal.SIGCONT)
        for child in _children(self._process):
            _signal(child, signal.SIGKILL)
        if not self._ended.wait(_KILL_BOUND):
            _signal(self._process, signal.SIGKILL)


def _lift(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _environment() -> dict[str, str]:
    """The environment of the node without what Ray has put into that of its worker."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and name not in _OURS and name not in _DEVICES
    }
    try:  # as Ray itself was started with them
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            before = file.read().split(b"\0")
    except OSError:
        before = []
    for entry in before:
        name, _, value = entry.decode(errors="surrogateescape").partition("=")
        if name in _DEVICES or name in _OURS:
            env[name] = value
    return env


def _mark(join: dict[str, Any]) -> str:
    """What tells whose a process is when its warden is gone, as session.MarkOf has it."""
    with open("/proc/self/cgroup", "rb") as file:
        group = hashlib.sha256(file.read()).hexdigest()[:16]
    return f"{join['dir']}#{join['node']}#{group}"


def _short() -> str:
    """A folder for sockets, whose paths have a limit."""
    for place in (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp"):
        if place and len(place) < 40 and os.access(place, os.W_OK):
            return place
    return tempfile.gettempdir()


def _log_path(join: dict[str, Any]) -> str:
    """Where warden and agent complain to: as on the head's machine, if that can be."""
    for folder in (join.get("log_dir") or "", os.path.join(_cache(), "logs")):
        if not folder:
            continue
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return os.path.join(folder, f"agent-{join['node']}.log")
    return os.path.join(join["dir"], f"agent-{join['node']}.log")


def _cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        os.makedirs(base, exist_ok=True)
    except OSError:
        pass
    if not os.access(base, os.W_OK):
        base = os.path.join(tempfile.gettempdir(), f"muster-cache-{os.getuid()}")
        os.makedirs(base, mode=0o700, exist_ok=True)
    return os.path.join(base, "muster")


def _sha(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _started(pid: int) -> int:
    """When a process began, in ticks since boot; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[19])


def _children(pid: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                text = file.read()
        except OSError:
            continue
        if int(text[text.rindex(b")") + 2 :].split()[1]) == pid:
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1]})" if lines else ""
