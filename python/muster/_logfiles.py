"""What workers print, in files that a script names: one for each name, and one for all.

Each worker's output is kept by its agent, on its node (`WorkerHandle.log_file`).
This is for who wants it together on the script's machine: the lines come from the
head, as those on the terminal do, from every node.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from . import _context, _errors, _events

#: A worker's name: its cluster's, its rank, its devices.
_WORKER = re.compile(r"(.+)-\d+(?:-G[0-9x_.]*)?\Z")
_DRAIN_SECONDS = 2.0


class LogFiles:
    """Writes what workers print to ``{name}.log`` in a folder, and to its ``merged.log`` with
    ``[name]`` before each line.

    ``follow`` says which cluster's lines are whose, before the cluster is made; several clusters
    may go by one name. A worker that makes one follows nothing: the head tells its script alone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        _context.connection("LogFiles()")
        session = _context.session()
        self._lines = None if session is None else _Lines(self.folder, session)

    def follow(self, cluster: str, name: str | None = None) -> None:
        """Write down what the workers of a cluster print, from now on."""
        if self._lines is not None:
            self._lines.names[cluster] = name or cluster

    def drain(self) -> None:
        """Wait until everything that has come to the head by now is written."""
        if self._lines is not None:
            self._lines.drain()

    def close(self) -> None:
        """Write no more."""
        if self._lines is not None:
            self._lines.join(0.0)
            self._lines = None


def append(folder: str, name: str, lines: Sequence[str]) -> bool:
    """Add whole lines to the file of a name and the merged one, each in one write, so that those
    of several writers do not mix. False where that failed, which is told."""
    try:
        for file, prefix in ((f"{name}.log", ""), ("merged.log", f"[{name}] ")):
            path = os.path.join(folder, file)
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as out:
                out.write("".join(f"{prefix}{line}\n" for line in lines))
    except OSError as error:  # a full disk is no reason to end
        sys.stderr.write(f"muster: what {name} prints is kept no longer: {error}\n")
        return False
    return True


class _Lines(_events.Events):
    """The head's lines."""

    def __init__(self, folder: str, session: _context.Session) -> None:
        self._folder, self._session = folder, session
        self.names: dict[str, str] = {}  # by cluster
        welcome = session.welcome
        super().__init__(welcome["address"], welcome["token"], logs=False, progress=False)

    def drain(self) -> None:
        dials = self.dials
        with contextlib.suppress(_errors.MusterError):
            # Of a cluster that is not there nothing is stopped, and its mark comes at once.
            answer = self._session.connection.request(
                "cluster.stop", {"number": 0xFFFFFFFF, "name": ""}
            )
            self.wait_for(answer.get("mark", 0), _DRAIN_SECONDS, dials)

    def _notice(self, verb: str, message: dict[str, Any]) -> None:
        if verb == "mark":
            self._reached(message["mark"])
        if verb != "log":
            return
        found: dict[str, list[str]] = {}
        for line in message["lines"]:
            worker = _WORKER.match(line["worker"])
            name = worker and self.names.get(worker.group(1))
            if name:
                found.setdefault(name, []).append(line["text"])
        for name, lines in found.items():
            if not append(self._folder, name, lines):
                self.names = {c: n for c, n in self.names.items() if n != name}
