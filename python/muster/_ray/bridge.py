"""The bridge's process: it serves one head at a time, and waits a grace for the next.

Descriptor 3 is a socket that listens in the session's folder; its head dials it.
A line is a JSON object. Requests have ``id`` and ``op`` and are answered, in any
order, by ``id`` with ``ok`` or ``error`` (``code``, ``text``); lines with
``event`` tell of what happened by itself.

op       takes                             gives
hello    address, session, owner, grace    version, warning, address, agents, groups
nodes                                      the nodes that are alive
reserve  id, nodes, devices, ...           nodes with their devices; event "waiting" before
look     as reserve                        now, waits, text; nothing is held
release  id
launch   join, program                     pid, started
kill     node                              later: event "ended"
fit      node, runtime                     runtime
bye                                        the end
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from .joining import Refused, join, untested

_LISTENER = 3
#: Seconds for a new head to dial the first time, and for Ray to let go of us.
_FIRST_PATIENCE = 30.0
_LEAVE_PATIENCE = 5.0


class Bridge:
    """One tie to Ray and whoever listens at the moment."""

    def __init__(self, listener: socket.socket, log: str) -> None:
        self._listener = listener
        self._log = log
        self._writing = threading.Lock()
        self._conn: socket.socket | None = None
        self._joining = threading.Lock()
        self._ray: Any = None
        self._grace = 0.0
        self._owner = -1

    def run(self) -> int:
        """Serve heads until there is none any more."""
        patience = _FIRST_PATIENCE
        while (conn := self._next(patience)) is not None:
            with self._writing:
                self._conn = conn
            over = self._serve(conn)
            with self._writing:
                self._conn = None
            conn.close()
            if over or self._ray is None:
                break
            patience = self._grace
        self._leave()
        return 0

    def _next(self, seconds: float) -> socket.socket | None:
        """The next head's connection; None if none comes, or nobody is left to come for."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if self._owner >= 0:
            poll.register(self._owner, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)]
        if self._listener.fileno() not in ready or self._owner in ready:
            return None
        return self._listener.accept()[0]

    def _serve(self, conn: socket.socket) -> bool:
        """Answer one head until it hangs up; True if it asked for the end."""
        with conn.makefile("rb") as lines:
            try:
                for line in lines:
                    request = json.loads(line)
                    if request["op"] == "bye":
                        self._say({"id": request["id"], "ok": {}})
                        return True
                    threading.Thread(target=self._answer, args=(request,), daemon=True).start()
            except OSError:
                pass
        return False

    def _say(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._writing:
            if self._conn is not None:
                try:
                    self._conn.sendall(data)
                except OSError:
                    pass  # its end is seen by who reads

    def _answer(self, request: Mapping[str, Any]) -> None:
        number = request["id"]
        try:
            self._say(
                {"id": number, "ok": self._do(request["op"], request.get("args") or {}, number)}
            )
        except Refused as why:
            self._say({"id": number, "error": {"code": why.code, "text": str(why)}})
        except BaseException as error:
            traceback.print_exc()
            text = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
            self._say({"id": number, "error": {"code": "internal", "text": text}})

    def _do(self, op: str, args: Mapping[str, Any], number: int) -> Any:
        if op == "hello":
            return self._hello(args)
        if self._ray is None:
            raise Refused("the bridge has not joined Ray", "internal")
        if op == "nodes":
            from .groups import nodes

            return [node.told() for node in nodes(self._ray)]
        if op == "reserve":
            return self._groups.reserve(
                args, lambda text: self._say({"event": "waiting", "id": number, "text": text})
            )
        if op == "look":
            return self._groups.look(args)
        if op == "release":
            self._groups.release(int(args["id"]))
            return self._agents.unprepare()
        if op == "launch":
            return self._agents.launch(args["join"], args["program"])
        if op == "kill":
            return self._agents.kill(int(args["node"]))
        if op == "fit":
            return self._agents.fit(int(args["node"]), args["runtime"])
        raise Refused(f"the bridge knows no {op!r}", "internal")

    def _hello(self, args: Mapping[str, Any]) -> dict[str, Any]:
        with self._joining:
            if self._ray is None:
                self._join(args)
            import ray

            return {
                "version": ray.__version__,
                "warning": untested(ray.__version__),
                "address": ray.get_runtime_context().gcs_address,
                "pid": os.getpid(),
                "agents": self._agents.known(),
                "groups": self._groups.known(),
            }

    def _join(self, args: Mapping[str, Any]) -> None:
        self._grace = float(args.get("grace") or 0)
        if args.get("owner"):
            try:
                self._owner = os.pidfd_open(int(args["owner"]))
            except ProcessLookupError:
                raise Refused("the script that all this is for is gone", "cancelled") from None
        prefix = f"muster-{args['session']}"
        ray = join(str(args.get("address") or ""), prefix, self._log)
        from . import agents, groups, remote

        ray.cloudpickle.register_pickle_by_value(remote)
        self._agents = agents.Agents(ray, self._ended)
        self._groups = groups.Groups(ray, prefix, self._agents.prepare)
        self._ray = ray

    def _ended(self, node: int, why: str) -> None:
        self._say({"event": "ended", "node": node, "why": why})

    def _leave(self) -> None:
        """Let go of Ray, which ends actors and groups; not for ever."""
        if self._ray is not None:
            timer = threading.Timer(_LEAVE_PATIENCE, os._exit, (1,))
            timer.daemon = True
            timer.start()
            self._ray.shutdown()


def main() -> None:
    """Be the bridge, with a listener on descriptor 3; argument 1 is where stderr goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # Ray prints on stdout whatever it is told
    os.set_inheritable(_LISTENER, False)
    log = sys.argv[1] if len(sys.argv) > 1 else ""
    code = Bridge(socket.socket(fileno=_LISTENER), log).run()
    sys.stderr.flush()
    os._exit(code)  # whatever Ray's threads are doing
