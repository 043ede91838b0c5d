"""AReaL's worker server as a program of its own: ``python -m muster.compat.areal.rpc_server``.

It takes the arguments of AReaL's and speaks its protocol. Engines are made and
called on the main thread; SIGTERM has it end in order: engines are destroyed,
forks ended, exit code 0.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

from ... import _worker
from ._areal import announce
from ._host import Host
from .guard import GuardState, cleanup_forked_children


def parser() -> argparse.ArgumentParser:
    """The arguments that AReaL's servers take."""
    made = argparse.ArgumentParser(
        prog="python -m muster.compat.areal.rpc_server", description="A worker that hosts engines."
    )
    made.add_argument("--host", default="0.0.0.0", help="the address to listen on")
    made.add_argument("--port", type=int, default=0, help="0: any that is free")
    for name in ("--experiment-name", "--trial-name", "--role"):
        made.add_argument(name, required=True)
    made.add_argument("--worker-index", type=int, default=-1)
    made.add_argument("--name-resolve-type", default="nfs")
    made.add_argument("--nfs-record-root", default="/tmp/areal/name_resolve")
    made.add_argument("--etcd3-addr", default="localhost:2379")
    made.add_argument("--fileroot")
    return made


#: How often the main thread leaves the kernel: a signal that comes right before it waits is heard
#: when the wait is over.
_LOOKS = 0.5


class Server(Host):
    """A host whose engines are the main thread's, which runs what others leave for it."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self.state = GuardState(**state, host=self)
        self._work: queue.SimpleQueue[tuple[str, dict[str, Any], Future[Any]]]
        self._work = queue.SimpleQueue()

    def ask(self, name: str, /, **given: Any) -> Any:
        """Have a method run, and wait for it; from any other thread."""
        done: Future[Any] = Future()
        self._work.put((name, given, done))
        return done.result()

    def run(self) -> NoReturn:
        """Run what comes, until SystemExit."""
        while True:
            try:
                name, given, done = self._work.get(timeout=_LOOKS)
            except queue.Empty:
                continue
            try:
                done.set_result(getattr(self, name)(**given))
            except Exception as error:
                done.set_exception(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    said = vars(parser().parse_known_args(arguments)[0])  # AReaL's lets others be, too
    said["worker_index"] = int(os.environ.get("SLURM_PROCID", said["worker_index"]))
    if said["worker_index"] < 0:
        parser().error("--worker-index is not given, and SLURM_PROCID is not set")
    bind, port = said.pop("host"), said.pop("port")
    server = Server(said)
    signal.signal(signal.SIGTERM, _leave)
    try:
        server.serve(bind, port, _own_address() if bind in ("0.0.0.0", "::") else bind)
    except (OSError, OverflowError) as error:
        who = f"{said['role']}/{said['worker_index']}"
        sys.stderr.write(f"{who} cannot listen on {bind}, port {port}: {error}\n")
        return 1
    state, code = server.state, 0
    try:
        server.warm()
        announce(state, state.node_addr)
        sys.stderr.write(f"{state.role}/{state.worker_index} serves on {state.node_addr}\n")
        server.run()
    except KeyboardInterrupt:
        pass
    except SystemExit as end:  # ours, or an engine's
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        _worker._here().end(None)
        cleanup_forked_children(state)
        if (tracer := sys.modules.get("areal.utils.perf_tracer")) is not None:
            tracer.save(force=True)
    return code


def _leave(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut short the first
    raise SystemExit(0)


def _own_address() -> str:
    """The address that this machine is reached at."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of engines have nothing to say in this any more
