"""What workers print, as AReaL keeps it: ``{role}.log`` and ``merged.log`` in one folder.

The lines come from the head, as those on the terminal do, from every node.
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any

from ... import _context, _errors, _events
from .guard import Logs

#: A worker's name: its cluster's, its rank, its devices.
_WORKER = re.compile(r"(.+)-\d+(?:-G[0-9x_.]*)?\Z")
_DRAIN_SECONDS = 2.0


class RoleLogs(_events.Events):
    """Reads the head's lines and writes those of one scheduler's roles."""

    def __init__(self, folder: str, session: _context.Session) -> None:
        self._folder = folder
        self._roles: dict[str, Logs] = {}  # by cluster
        self._guard = threading.Lock()
        self._session = session
        welcome = session.welcome
        super().__init__(welcome["address"], welcome["token"], logs=False, progress=False)

    def follow(self, cluster: str, role: str) -> None:
        """Write down what the workers of a cluster print, from now on."""
        logs = Logs(self._folder, role)
        with self._guard:
            self._roles[cluster] = logs

    def drain(self) -> None:
        """Wait until everything that was printed by now is written."""
        dials = self.dials
        with contextlib.suppress(_errors.MusterError):
            # Of a cluster that is not there nothing is stopped, and its mark comes at once.
            answer = self._session.connection.request(
                "cluster.stop", {"number": 0xFFFFFFFF, "name": ""}
            )
            self.wait_for(answer.get("mark", 0), _DRAIN_SECONDS, dials)

    def close(self) -> None:
        """Let go of the connection."""
        self.join(0.0)

    def _notice(self, verb: str, message: dict[str, Any]) -> None:
        if verb == "log":
            lines: dict[str, list[str]] = {}
            for line in message["lines"]:
                found = _WORKER.match(line["worker"])
                if found is not None:
                    lines.setdefault(found.group(1), []).append(line["text"])
            for cluster, texts in lines.items():
                with self._guard:
                    logs = self._roles.get(cluster)
                if logs is not None:
                    logs.write(texts)
        elif verb == "mark":
            self._reached(message["mark"])


def open_logs(folder: str) -> RoleLogs | None:
    """Follow the session of this process; None where it has none of its own (in a worker)."""
    _context.connection("MusterScheduler()")
    session = _context.session()
    return None if session is None else RoleLogs(folder, session)
