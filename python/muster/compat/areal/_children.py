"""Processes that a worker starts beside itself: forks, and the command that is its server.

They end with the worker: at its end they are asked to (SIGTERM) and made to
(SIGKILL), and when the worker is killed, Muster's agent ends what it left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

#: Seconds that a child has between SIGTERM and SIGKILL; a worker itself has 3.
PATIENCE = 2.0


class Logs:
    """A role's log and the merged one, with the role before each line."""

    def __init__(self, folder: str | None, role: str) -> None:
        self._role = role
        self._files: list[tuple[str, str]] = []  # path, prefix
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._files = [
                (os.path.join(folder, f"{role}.log"), ""),
                (os.path.join(folder, "merged.log"), f"[{role}] "),
            ]

    def write(self, lines: Sequence[str]) -> None:
        """Append whole lines; each file gets them in one write, so that writers do not mix."""
        for path, prefix in self._files:
            text = "".join(f"{prefix}{line}\n" for line in lines)
            try:
                with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
            except OSError as error:  # a full disk is no reason to end
                sys.stderr.write(f"cannot write {path}: {error}\n")
                self._files = []
                return


class Child:
    """One process, whose output goes to its role's log and to ours."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], logs: Logs | None = None
    ) -> None:
        self._logs = logs
        self.process = subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if logs is not None else None,
            stderr=subprocess.STDOUT if logs is not None else None,
            start_new_session=True,  # ended as a group, with what it started
        )
        self._pump: threading.Thread | None = None
        if logs is not None:
            self._pump = threading.Thread(target=self._copy, name="fork-output", daemon=True)
            self._pump.start()

    def _copy(self) -> None:
        assert self.process.stdout is not None and self._logs is not None
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "backslashreplace").rstrip("\n")
            sys.stdout.write(line + "\n")
            self._logs.write([line])

    def end(self) -> None:
        """End it and everything it started; returns when it is gone."""
        self._signal(signal.SIGTERM)
        deadline = monotonic() + PATIENCE
        try:
            self.process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)  # also those of the group that are still there
        self.process.wait()
        if self._pump is not None:
            self._pump.join(1.0)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


class Children:
    """The forks of one worker, by role and index."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forks: dict[tuple[str, int], Child] = {}

    def __len__(self) -> int:
        return len(self._forks)

    def start(
        self, role: str, index: int, command: Sequence[str], env: Mapping[str, str], logs: Logs
    ) -> Child:
        """Start a fork; one that had its place is ended first."""
        self.end(role, index)
        child = Child(command, env, logs)
        with self._lock:
            self._forks[role, index] = child
        return child

    def end(self, role: str, index: int) -> int | None:
        """End a fork; its pid, or None where there is none."""
        with self._lock:
            child = self._forks.pop((role, index), None)
        if child is None:
            return None
        child.end()
        return child.process.pid

    def end_all(self) -> None:
        """End every fork, side by side."""
        with self._lock:
            forks, self._forks = list(self._forks.values()), {}
        threads = [threading.Thread(target=fork.end) for fork in forks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def leave_as(code: int) -> None:
    """End this process as another one ended: with its exit code, or by its signal."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code < 0:
        import ctypes

        if -code != signal.SIGKILL:
            ctypes.CDLL(None).signal(-code, 0)  # from any thread, which Python's own refuses
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
