"""Programs beside a worker's object: a server, say, that is not Python's or has to be alone.

A program leads a group of its own, and what it has started ends with it. When the
process that started it ends in order, it is ended; when that is killed, what is
left of it is its agent's to end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

#: Seconds between SIGTERM and SIGKILL.
GRACE = 3.0
_running: set[Program] = set()


class Program(subprocess.Popen[bytes]):
    """A program that runs beside this process, and ends with it: a `subprocess.Popen`.

    It has this process's environment, with ``env`` on top, and finds the modules that this one
    finds, if it is Python's. It prints where this process prints; with ``lines`` that is called
    for each line instead, on a thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        lines: Callable[[str], None] | None = None,
    ) -> None:
        for program in list(_running):
            program.poll()  # those that have ended, and that nobody has asked
        self._reaping = threading.RLock()  # until it is reaped, its number is no other's
        super().__init__(
            list(command),
            env=_environment(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=None if lines is None else subprocess.PIPE,
            stderr=None if lines is None else subprocess.STDOUT,
            start_new_session=True,
        )
        if not _running:
            atexit.unregister(_end_all)
            atexit.register(_end_all, os.getpid())  # not at the end of a fork of this process
        _running.add(self)
        self._reader: threading.Thread | None = None
        if lines is not None:
            self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
            self._reader.start()

    def _read(self, told: Callable[[str], None]) -> None:
        assert self.stdout is not None
        for raw in self.stdout:
            told(raw.decode("utf-8", "backslashreplace").rstrip("\n"))

    def poll(self) -> int | None:
        """The exit code, if it has ended; what it has left running is killed then."""
        with self._reaping:
            if self.returncode is None and not self._sweep():
                return None
            _running.discard(self)
            return super().poll()

    def _sweep(self) -> bool:
        """Whether it has ended; who is left of its group gets SIGKILL, while it has its number."""
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return False
        except ChildProcessError:
            return True  # another process's, or reaped by somebody else
        self._signal(signal.SIGKILL)
        return True

    def _signal(self, number: int) -> None:
        """Send its group a signal, unless that may be another's by now."""
        with self._reaping, contextlib.suppress(ProcessLookupError, PermissionError):
            if self.returncode is None:
                os.killpg(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and for its last lines; the exit code, -9 for SIGKILL."""
        if self.poll() is None:
            _gone(self.pid, timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        if self._reader is not None:
            self._reader.join(1.0)
        return code

    def end(self, grace: float = GRACE) -> int:
        """End it and what it started: SIGTERM, and SIGKILL for who is left when it has ended, or
        after the grace."""
        if grace > 0:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.wait(grace)
        self._signal(signal.SIGKILL)
        return self.wait()

    def lead(self) -> None:
        """Have this process end when the program does, and as it did: its exit code, or its
        signal, is what is told of this worker."""
        threading.Thread(target=lambda: _leave_as(self.wait()), name="lead", daemon=True).start()


def end_group(pid: int, grace: float) -> None:
    """End a child that leads a group, and the group. Without a grace it is SIGKILL at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if grace > 0:
            os.killpg(pid, signal.SIGTERM)
            _gone(pid, grace)
        os.killpg(pid, signal.SIGKILL)


def end_with(pid: int) -> None:
    """Have this process end, in order, when another one of this machine does."""
    main = threading.main_thread().ident
    assert main is not None

    def follow() -> None:
        _gone(pid, None)
        while True:  # one that comes right before the main thread waits is not seen by it
            signal.pthread_kill(main, signal.SIGTERM)
            threading.Event().wait(0.1)

    threading.Thread(target=follow, name="end-with", daemon=True).start()


def _gone(pid: int, timeout: float | None) -> None:
    """Wait for a process's end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()  # which takes handles of any number
        poller.register(handle, select.POLLIN)
        poller.poll(None if timeout is None else timeout * 1000)
    finally:
        os.close(handle)


def _end_all(owner: int) -> None:
    """At the end of this process: all at the same time."""
    if os.getpid() != owner:
        return
    deadline = monotonic() + GRACE
    programs = list(_running)
    for program in programs:
        program._signal(signal.SIGTERM)
    for program in programs:
        _gone(program.pid, max(0.0, deadline - monotonic()))
        program.end(0.0)


def _leave_as(code: int) -> None:
    """End this process as another one ended: with its exit code, or by its signal."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        import ctypes

        if -code != signal.SIGKILL:
            ctypes.CDLL(None).signal(-code, 0)  # from any thread, which Python's own refuses
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        signal.pthread_kill(threading.get_ident(), -code)  # of which it dies before this returns
    os._exit(code & 0xFF)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    made = {**os.environ, **env}
    paths = [*made.get("PYTHONPATH", "").split(os.pathsep), os.getcwd(), *sys.path]
    own = _own_folders()
    kept = (path for path in paths if path and os.path.realpath(path) not in own)
    made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(kept))
    return made


def _own_folders() -> set[str]:
    """Where this Python has its standard library, which others have elsewhere."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    found |= {os.path.join(path, "lib-dynload") for path in found}
    home = os.path.dirname(sysconfig.get_path("stdlib"))
    found.add(os.path.join(home, f"python{sys.version_info[0]}{sys.version_info[1]}.zip"))
    return {os.path.realpath(path) for path in found}
