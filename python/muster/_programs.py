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
        """The exit code, if it has ended."""
        code = super().poll()
        if code is not None:
            _running.discard(self)
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and for its last lines; the exit code, -9 for SIGKILL."""
        code = super().wait(timeout)
        _running.discard(self)
        if self._reader is not None:
            self._reader.join(1.0)
        return code

    def end(self, grace: float = GRACE) -> int:
        """End it and what it started: SIGTERM, and SIGKILL for who is left after the grace."""
        if self.poll() is None:
            end_group(self.pid, grace)
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
        select.select([handle], [], [], timeout)
    finally:
        os.close(handle)


def _end_all(owner: int) -> None:
    """At the end of this process: all at the same time."""
    if os.getpid() != owner:
        return
    deadline = monotonic() + GRACE
    for program in list(_running):
        with contextlib.suppress(OSError):
            os.killpg(program.pid, signal.SIGTERM)
    for program in list(_running):
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
    made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return made
