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
from typing import Any

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


class EngineThread:
    """The main thread, which runs what others leave for it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._work: queue.SimpleQueue[tuple[str, dict[str, Any], Future[Any]]]
        self._work = queue.SimpleQueue()

    def ask(self, name: str, /, **given: Any) -> Any:
        """Have a method of the host run, and wait for it; from any other thread."""
        done: Future[Any] = Future()
        self._work.put((name, given, done))
        return done.result()

    def serve(self) -> None:
        """Run what comes, until SystemExit."""
        while True:
            try:
                name, given, done = self._work.get(timeout=_LOOKS)
            except queue.Empty:
                continue
            try:
                done.set_result(getattr(self._host, name)(**given))
            except Exception as error:
                done.set_exception(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    given, _ = parser().parse_known_args(arguments)  # AReaL's lets others be, too
    index = int(os.environ.get("SLURM_PROCID", given.worker_index))
    if index < 0:
        parser().error("--worker-index is not given, and SLURM_PROCID is not set")
    said = {**vars(given), "worker_index": index}
    bind, port = said.pop("host"), said.pop("port")
    host = Host()
    thread = EngineThread(host)
    host.state, host.ask = GuardState(**said, host=host), thread.ask
    signal.signal(signal.SIGTERM, _leave)
    try:
        host.serve(bind, port, _own_address() if bind in ("0.0.0.0", "::") else bind)
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"{given.role}/{index} cannot listen on {bind}, port {port}: {error}\n")
        return 1
    code = 0
    try:
        host.warm()
        announce(host.state, host.state.node_addr)
        sys.stderr.write(f"{given.role}/{index} serves on {host.state.node_addr}\n")
        thread.serve()
    except KeyboardInterrupt:
        pass
    except SystemExit as end:  # ours, or an engine's
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        for name in reversed(list(host.engines())):
            try:
                host.destroy_engine(name)
            except Exception as error:
                sys.stderr.write(f"engine {name!r} could not be destroyed: {error}\n")
        cleanup_forked_children(host.state)
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
