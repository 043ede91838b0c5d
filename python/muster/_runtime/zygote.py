"""The warm process that workers are forked from.

Its only conversation is with the agent, over descriptor 3: ``load`` once, then
``fork`` for each worker. It imports and forks; it never computes, opens a device
or starts a thread. It ends with that connection.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import struct
import sys
import warnings
from typing import Any

from .. import _HOMES, _errors, _wire
from . import interpreter, title
from .board import Refusal
from .orders import Order, OrderSocket

_PID = struct.Struct("<i")


def main() -> None:
    """Serve the agent; in a forked child: be a worker."""
    title.set_title("muster zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's
    # Python 3.12 warns of fork beside native threads. The ones of an import are
    # harmless, and preloads that do more are found out by not_fork_safe.
    warnings.filterwarnings("ignore", ".*fork\\(\\) may lead to deadlocks", DeprecationWarning)
    order = Zygote(OrderSocket(fileno=3)).serve()
    if order is not None:
        # Below no frame of the zygote but this one: a worker's exit is plain.
        from . import worker

        worker.main(order)


class Zygote:
    """The requests of an agent, one after the other."""

    def __init__(self, sock: OrderSocket) -> None:
        self._sock = sock
        self._stream = _wire.FrameStream(sock)

    def serve(self) -> Order | None:
        """Answer until the agent is gone; in a forked child: return its order."""
        while True:
            try:
                frame = self._stream.read()
            except EOFError:
                return None
            verb, body = _wire.unpack(frame.body)
            try:
                if verb == "load":
                    self._respond(frame.id, load(body["runtime"], warm=True))
                elif verb == "fork":
                    order = self._fork(frame.id, body)
                    if order is not None:
                        return order
                else:
                    raise Refusal("protocol", f"a zygote does not know the request {verb!r}")
            except Refusal as refusal:
                self._refuse(frame.id, refusal)

    def _respond(self, request: int, answer: dict[str, Any], flags: int = 0) -> None:
        _wire.send_frame(self._sock, _wire.KIND_RESPONSE, request, _wire.pack(answer), flags=flags)

    def _refuse(self, request: int, refusal: Refusal) -> None:
        self._respond(request, refusal_map(refusal), _wire.FLAG_ERROR)

    def _fork(self, request: int, body: dict[str, Any]) -> Order | None:
        """Fork twice, so that the worker falls to the agent; only the child returns an order."""
        name = body["worker"]["name"]
        log = self._sock.take_descriptor()
        if log is None:
            raise Refusal("protocol", f"the order to fork {name} came without its log's descriptor")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # else each worker would write what is buffered here
        try:
            report, tell = os.pipe()
            gate, hold = os.pipe()
            middle = os.fork()
        except OSError as error:
            os.close(log)
            raise _limit(name, error) from error
        if middle == 0:
            _middle(tell)
            for fd in (report, tell, hold):
                os.close(fd)
            self._sock.close()
            return Order(body, log, gate=gate)
        os.close(tell)
        os.close(gate)
        os.close(log)
        told = os.read(report, _PID.size)
        os.close(report)
        os.waitpid(middle, 0)
        pid = _PID.unpack(told)[0] if len(told) == _PID.size else -errno.ENOMEM
        try:
            if pid < 0:
                raise _limit(name, OSError(-pid, os.strerror(-pid)))
            self._respond(request, {"pid": pid})
        finally:
            # The worker waits for this: now its parent is the agent.
            os.close(hold)
        return None


def _middle(tell: int) -> None:
    """Fork once more and end, having told the pid; only the worker returns."""
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    if pid != 0:
        os.write(tell, _PID.pack(pid))
        os._exit(0)


def _limit(name: str, error: OSError) -> Refusal:
    return Refusal(
        "limit",
        f"the process of {name} cannot be made: {error.strerror}. The limit of processes "
        "(ulimit -u, the container's pids.max), of open files or of memory is reached",
    )


def load(runtime: dict[str, Any], warm: bool) -> dict[str, Any]:
    """Adopt a Runtime; where it is to be forked from, import all that workers need."""
    interpreter.adopt(runtime)
    why = ""
    if warm:
        _warm_up()
        why = interpreter.preload(runtime.get("preload") or ())
        # Objects of the zygote are then never visited by the workers' collectors,
        # so the pages they lie on stay shared.
        gc.collect()
        gc.freeze()
    return {"fork_safe": not why, "why": why, "pid": os.getpid()}


def _warm_up() -> None:
    """Import all of Muster that a worker may come to need."""
    from . import loop, pool, serial, worker  # noqa: F401

    for home in set(_HOMES.values()):
        importlib.import_module(f"muster.{home}")


def refusal_map(refusal: Refusal) -> dict[str, Any]:
    """Return the Error map of a refusal that concerns no worker in particular."""
    error: dict[str, Any] = {
        "code": refusal.code,
        "message": refusal.message,
        "rank": -1,
        "exit_code": 0,
    }
    if refusal.__cause__ is not None:
        error["traceback"] = _errors.to_wire(refusal.__cause__, pickle="off")["traceback"]
    return error
