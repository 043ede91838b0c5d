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
from typing import Any, NamedTuple

from .. import _HOMES, _errors, _wire
from . import interpreter, title
from .board import Refusal
from .orders import Order, OrderSocket

_TITLE = "muster zygote"
_PID = struct.Struct("<i")
#: How many workers one process between forks: a second fork for each would cost
#: more than the rest of it, and the first of them waits for the last.
_BATCH = 8


def main() -> None:
    """Serve the agent; in a forked child: be a worker."""
    title.set_title(_TITLE)
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
    """The requests of an agent, in their order."""

    def __init__(self, sock: OrderSocket) -> None:
        self._sock = sock
        self._stream = _wire.FrameStream(sock)

    def serve(self) -> Order | None:
        """Answer until the agent is gone; in a forked child: return its order."""
        while True:
            try:
                frame: _wire.Frame | None = self._stream.read()
            except EOFError:
                return None
            births: list[Birth] = []
            while frame is not None:
                verb, body = _wire.unpack(frame.body)
                try:
                    if verb == "fork":
                        births.append(self._birth(frame.id, body))
                    elif verb == "load":
                        self._respond(frame.id, load(body["runtime"], warm=True))
                    else:
                        raise Refusal("protocol", f"a zygote does not know the request {verb!r}")
                except Refusal as refusal:
                    self._refuse(frame.id, refusal)
                frame = self._stream.next() if len(births) < _BATCH else None
            if births and (order := self._fork(births)) is not None:
                return order

    def _respond(self, request: int, answer: dict[str, Any], flags: int = 0) -> None:
        _wire.send_frame(self._sock, _wire.KIND_RESPONSE, request, _wire.pack(answer), flags=flags)

    def _refuse(self, request: int, refusal: Refusal) -> None:
        self._respond(request, refusal_map(refusal), _wire.FLAG_ERROR)

    def _birth(self, request: int, body: dict[str, Any]) -> Birth:
        log = self._sock.take_descriptor()
        if log is None:
            name = body["worker"]["name"]
            raise Refusal("protocol", f"the order to fork {name} came without its log's descriptor")
        return Birth(request, body, log)

    def _fork(self, births: list[Birth]) -> Order | None:
        """Fork workers by way of a process between; only a worker returns an order.

        The process between forks them all and ends, so that they fall to the
        agent. Each waits at the gate until that has happened.
        """
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # else each worker would write what is buffered here
        pids = [-errno.EAGAIN] * len(births)
        pipes: list[int] = []
        try:
            pipes += os.pipe()
            pipes += os.pipe()
            middle = os.fork()
        except OSError as error:
            pids = [-(error.errno or errno.EAGAIN)] * len(births)
            middle = -1
        if middle == 0:
            mine = _middle(births, pipes[1])
            for birth in births:
                if birth is not mine:
                    os.close(birth.log)
            for fd in (pipes[0], pipes[1], pipes[3]):
                os.close(fd)
            self._sock.close()
            return Order(mine.body, mine.log, gate=pipes[2])
        if middle > 0:
            os.close(pipes.pop(1))
            told = _read_all(pipes[0])
            os.waitpid(middle, 0)
            pids[: len(told) // _PID.size] = [pid for (pid,) in _PID.iter_unpack(told)]
        for birth, pid in zip(births, pids, strict=True):
            os.close(birth.log)
            if pid > 0:
                self._respond(birth.request, {"pid": pid})
            else:
                self._refuse(birth.request, _limit(birth.body["worker"]["name"], -pid))
        for fd in pipes:  # and with them the gate: the workers' parent is the agent now
            os.close(fd)
        return None


class Birth(NamedTuple):
    """A worker that is asked for."""

    request: int
    body: dict[str, Any]
    log: int


def _middle(births: list[Birth], tell: int) -> Birth:
    """Fork every worker, tell the pids, and end; only the workers return, with their own."""
    for birth in births:
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or errno.EAGAIN)
        if pid == 0:
            return birth
        os.write(tell, _PID.pack(pid))
    os._exit(0)


def _read_all(fd: int) -> bytes:
    data = b""
    while more := os.read(fd, 4096):
        data += more
    return data


def _limit(name: str, number: int) -> Refusal:
    return Refusal(
        "limit",
        f"the process of {name} cannot be made: {os.strerror(number)}. The limit of processes "
        "(ulimit -u, the container's pids.max), of open files or of memory is reached",
    )


def load(runtime: dict[str, Any], warm: bool) -> dict[str, Any]:
    """Adopt a Runtime; where it is to be forked from, import all that workers need."""
    interpreter.adopt(runtime)
    why = ""
    if warm:
        _warm_up()
        why = interpreter.preload(runtime.get("preload") or (), _importing)
        title.set_title(_TITLE)
        # Objects of the zygote are then never visited by the workers' collectors,
        # so the pages they lie on stay shared.
        gc.collect()
        gc.freeze()
    return {"fork_safe": not why, "why": why, "pid": os.getpid()}


def _importing(module: str) -> None:
    """Show what is imported: the agent tells it to whoever waits for it in vain."""
    title.set_title(f"{_TITLE}: importing {module}")


def _warm_up() -> None:
    """Import all of Muster that a worker may come to need."""
    from . import loop, pool, serial, worker  # noqa: F401

    for home in set(_HOMES.values()):
        try:
            importlib.import_module(f"muster.{home}")
        except ImportError as error:
            # Batches need numpy, which need not be there; who uses one is told so.
            if not isinstance(error.__cause__, ModuleNotFoundError):
                raise


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
