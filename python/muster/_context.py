"""The process's tie to Muster: which head it talks to, from init to shutdown.

Owns the one piece of process-wide state there is. A controller has a session,
with an embedded head or one at an address; a worker has an identity, given by
its runtime, and dials the head when it first calls somebody.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any

from . import _errors, _looks, _objects, _wire
from ._client import Connection
from ._embedded import HeadProcess, find_binary
from ._environment import announce_main, describe_runtime, head_grace
from ._events import Events, write
from ._ways import Dial, Embedded, Hello

#: Seconds that an orderly end may take: workers get their grace, then are killed.
_END_PATIENCE = 60.0
_EXIT_PATIENCE = 10.0
_DRAIN_PATIENCE = 5.0


class Session:
    """A controller's connection to its head and what hangs on it."""

    def __init__(
        self,
        settings: dict[str, Any],
        connection: Connection,
        embedded: Embedded | None,
        welcome: dict[str, Any],
    ) -> None:
        self.settings = settings
        self.connection = connection
        self.embedded = embedded  # who has the head that we started
        self.welcome = welcome
        self.events: Events | None = None
        self.clusters: set[int] = set()

    @property
    def head(self) -> HeadProcess | None:
        """The head that this process started, as of now; None for one at an address."""
        return None if self.embedded is None else self.embedded.head

    def end(self) -> None:
        """Stop all that is ours, in order, and wait until it is gone."""
        stopping = self.connection.alive()
        try:
            if not stopping:
                return
            if self.embedded is not None:
                # Where it was killed just now, the one after it stops everything.
                self.connection.request("shutdown", {}, _END_PATIENCE)
            elif not self.connection.away():
                for number in sorted(self.clusters):
                    self.stop_cluster(number)
                self.connection.leave()
        except _errors.MusterError:
            pass  # it goes by way of the connection's end, below
        finally:
            self.connection.close(_after_shutdown)
            if self.connection.ledger is not None:
                self.connection.ledger.retire()
            self._wait_for_head(stopping)
            if self.embedded is not None:
                self.embedded.head.forget()

    def show(self, line: str) -> None:
        """Show people a line, unless they want to see nothing."""
        if self.events is not None:
            self.events.show(line)
        elif self.settings["log_to_stderr"]:
            write(line + "\n")

    def stop_cluster(self, number: int, drain: float = 0.0, name: str = "") -> None:
        """Stop a cluster; its processes are gone and its output is written on return.

        What it was asked before has up to ``drain`` seconds to be answered.
        """
        dials = 0 if self.events is None else self.events.dials
        stopped = self.connection.request("cluster.stop", stopping(number, drain, name))
        self.clusters.discard(number)
        if self.events is not None:
            self.events.wait_for(stopped.get("mark", 0), _DRAIN_PATIENCE, dials)

    def abort(self) -> None:
        """End from inside a signal handler: no lock is taken, so nothing can be sent."""
        self.connection.hang_up()
        if self.embedded is not None:  # which would take that for a cut connection
            self.embedded.head.terminate()
        self._wait_for_head()

    def _wait_for_head(self, stopping: bool = False) -> None:
        if self.embedded is not None:
            if not self.embedded.head.wait(_EXIT_PATIENCE):
                self.embedded.head.kill()
                self.embedded.head.wait(_EXIT_PATIENCE)
            elif stopping:
                self.embedded.clear_up(_EXIT_PATIENCE)
        if self.events is not None:
            self.events.join(_DRAIN_PATIENCE if self.embedded is not None else 0.2)


def stopping(number: int, drain: float, name: str = "") -> dict[str, Any]:
    """The request that stops a cluster; with its name, no other that has its number."""
    asked: dict[str, Any] = {"number": number, "name": name}
    return {**asked, "drain": drain} if drain > 0 else asked


class WorkerContext:
    """What the runtime told this process when it became a worker."""

    def __init__(
        self, address: str, token: str, number: int, current_call: Callable[[], int]
    ) -> None:
        self.address = address
        self.token = token
        self.number = number
        self.current_call = current_call
        self.loop_thread = 0
        self.connection: Connection | None = None


class _Process:
    """All of this process's state."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.worker: WorkerContext | None = None
        self.forked = False
        self.hooks_installed = False


_process = _Process()


def init(
    address: str | None = None,
    virtual: str | None = None,
    *,
    backend: str | None = None,
    log_to_stderr: bool | None = None,
    progress: bool | None = None,
    timeout: float = 60.0,
) -> None:
    """Connect this process to a head; start one if no ``address`` is given.

    Whatever needs a head calls this by itself, so a script calls it only to
    choose: ``virtual="4x8"`` gives 4 nodes of 8 virtual GPUs on this machine
    (``"4x8+relay"`` also sends calls through the nodes' agents, ``"4x8+net"`` has
    them join over TCP as between machines); ``address`` names the socket, or its folder, of a head that runs
    already. Both default to the environment: MUSTER_VIRTUAL, MUSTER_ADDRESS.

    ``backend="ray"`` (or MUSTER_BACKEND=ray) takes nodes from a Ray cluster; ``address``
    is then that of its GCS, and by default RAY_ADDRESS or the Ray of this machine.

    ``log_to_stderr`` has the workers' output shown here, each line with its
    worker's name (the default); ``progress`` has starts shown (by default where
    output is). ``timeout`` is in seconds. A second call that asks for nothing
    else does nothing; one that asks for something else is an error.
    """
    _refuse_if_misplaced("muster.init()")
    given: dict[str, Any] = {
        "address": address,
        "virtual": virtual,
        "backend": backend,
        "log_to_stderr": log_to_stderr,
        "progress": progress,
    }
    with _process.lock:
        if _process.worker is not None:
            if address is not None or virtual is not None:
                raise _errors.MusterError(
                    "a worker already belongs to a head; muster.init() takes no address and no "
                    "virtual there"
                )
        elif _process.session is not None:
            _check_same(given, _process.session.settings)
        else:
            _process.session = _open_session(_settings(given), timeout)
            _install_hooks()


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, with the environment and the defaults filled in."""
    address, virtual = given["address"] or "", given["virtual"] or ""
    backend = given["backend"] or ""
    if backend not in ("", "local", "ray"):
        raise ValueError(f"backend={backend!r}; nodes come from 'local' (this machine) or 'ray'")
    if address and virtual and backend != "ray":
        raise ValueError(
            "virtual says what an embedded head pretends to have; the head at an address has "
            "its own nodes. Give one of the two"
        )
    if not virtual and not backend:
        address = address or os.environ.get("MUSTER_ADDRESS", "")
    if not address or backend == "ray":
        virtual = virtual or os.environ.get("MUSTER_VIRTUAL", "")
    if not address:
        backend = backend or os.environ.get("MUSTER_BACKEND", "")
    logs = given["log_to_stderr"] is not False
    progress = logs if given["progress"] is None else bool(given["progress"])
    return {
        "address": os.fspath(address),  # of a head; with backend="ray", of Ray
        "virtual": virtual,
        "backend": backend or "local",
        "log_to_stderr": logs,
        "progress": progress,
    }


def _check_same(given: dict[str, Any], before: dict[str, Any]) -> None:
    changed = [key for key, value in given.items() if value not in (None, before[key])]
    if changed:
        said = ", ".join(f"{key}={given[key]!r} (was {before[key]!r})" for key in changed)
        raise _errors.MusterError(
            f"muster.init() was called before with other arguments: {said}. "
            "Call muster.shutdown() first, or call it once"
        )


def shutdown() -> None:
    """Stop every cluster of this process, and the head it started; wait until all is gone.

    When it returns, no process is left and all output of the workers has been
    written. It may be called any number of times, and runs by itself at exit;
    afterwards `init` can start anew.
    """
    if _process.forked:
        return
    with _process.lock:
        session, _process.session = _process.session, None
        if session is not None:
            _objects.use(None)
            try:
                session.end()
            finally:
                _restore_terminate()
        worker = _process.worker
        if worker is not None and worker.connection is not None:
            worker.connection.leave()
            worker.connection.close(_after_shutdown)
            worker.connection = None


def set_worker(address: str, token: str, number: int, current_call: Callable[[], int]) -> None:
    """Make this process a worker in the SDK's eyes. Called by the runtime, once."""
    _process.worker = WorkerContext(address, token, number, current_call)
    _process.session = None
    _process.forked = False
    _install_fork_hook()


def runs_calls_on_a_loop() -> None:
    """In a worker: its calls run on an event loop, on the thread that says so."""
    if _process.worker is not None:
        _process.worker.loop_thread = threading.get_ident()


def connection(what: str = "a call of Muster") -> Connection:
    """The connection to the head, made if there is none yet; ``what`` needs it."""
    session = _process.session
    if session is not None:
        return session.connection
    _refuse_if_misplaced(what)
    if _process.worker is not None:
        return _worker_connection(_process.worker)
    init()
    assert _process.session is not None
    return _process.session.connection


def take_in() -> None:
    """In a worker: take in what has arrived for the calls that it made itself."""
    worker = _process.worker
    if worker is not None and worker.connection is not None:
        worker.connection.poll()


def waiting() -> AbstractContextManager[None]:
    """Around a request that starts something: its progress may be shown live."""
    session = _process.session
    if session is None or session.events is None:
        return nullcontext()
    return session.events.waiting()


def session() -> Session | None:
    """The controller's session; None in workers and before init."""
    return _process.session


def in_worker() -> bool:
    """Whether this process is a worker."""
    return _process.worker is not None


def address() -> str:
    """Where the head of this process is reached; "" before there is one."""
    if _process.session is not None:
        return str(_process.session.welcome.get("address", ""))
    return "" if _process.worker is None else _process.worker.address


def _refuse_if_misplaced(what: str) -> None:
    if _process.forked:
        raise _forked()
    mainmodule = sys.modules.get("muster._runtime.mainmodule")
    if mainmodule is not None and mainmodule.importing():
        raise _errors.StartupError(mainmodule.guard_text(what))


# --- opening -----------------------------------------------------------------


def _open_session(settings: dict[str, Any], timeout: float) -> Session:
    announce_main()
    runtime = describe_runtime()
    joins = settings["address"] and settings["backend"] != "ray"
    session = (_join if joins else _embed)(settings, runtime, timeout)
    session.connection.comeback.say = session.show
    session.connection.comeback.begin()
    try:
        if settings["log_to_stderr"] or settings["progress"]:
            session.events = Events(
                session.welcome["address"],
                session.welcome["token"],
                logs=settings["log_to_stderr"],
                progress=settings["progress"],
            )
    except BaseException:
        session.end()
        raise
    return session


def _embed(settings: dict[str, Any], runtime: dict[str, Any], timeout: float) -> Session:
    hello = Hello(_wire.ROLE_OWNER, "", virtual=settings["virtual"], runtime=runtime)
    options = ["--backend", settings["backend"]]
    if settings["backend"] == "ray":  # what starts the bridge to it
        options += ["--ray-address", settings["address"]]
        options += ["--python", runtime["python"], "--package", runtime["package"]]
    embedded = Embedded(find_binary(), hello, options)
    try:
        stream, welcome = embedded.welcome(timeout)
    except BaseException as error:
        head = embedded.head
        text = head.how_ended() if isinstance(error, (OSError, _errors.ProtocolError)) else ""
        if not head.wait(_EXIT_PATIENCE):
            head.kill()
            head.wait(_EXIT_PATIENCE)
        if isinstance(error, TimeoutError):
            raise _errors.DeadlineError(
                f"the head did not answer within {timeout:g} s of its start. {text}"
            ) from None
        if text:
            raise _errors.HeadLostError(f"the head did not start: {error}. {text}") from None
        raise
    connection = Connection(stream, embedded)
    _keep_ledger(connection, welcome)
    return Session(settings, connection, embedded, welcome)


def _keep_ledger(connection: Connection, welcome: dict[str, Any]) -> None:
    """Have what this process does with objects go by a connection."""
    connection.session = str(welcome.get("session", ""))
    ledger = connection.ledger = _objects.use(welcome)
    if ledger is not None:
        ledger.send = connection.flush


def _join(settings: dict[str, Any], runtime: dict[str, Any], timeout: float) -> Session:
    address = settings["address"]
    path = os.path.join(address, "head.sock") if os.path.isdir(address) else address
    token_path = os.path.join(os.path.dirname(path), "token")
    try:
        with open(token_path, encoding="utf-8") as file:
            token = file.read().strip()
    except OSError as error:
        raise _errors.MusterError(
            f"no head at {address!r}: its token {token_path} cannot be read ({error.strerror})"
        ) from error
    hello = Hello(_wire.ROLE_CONTROLLER, token, worker=0, runtime=runtime)
    way = Dial(path, hello)
    try:
        stream, welcome = way.once(timeout)
    except _errors.MusterError:
        raise
    except OSError as error:
        raise _errors.HeadLostError(
            f"no head answers at {path}: {error.strerror or error}. Is it still running?"
        ) from error
    connection = Connection(stream, way)
    _keep_ledger(connection, welcome)
    return Session(settings, connection, None, welcome | {"address": path, "token": token})


def _worker_connection(worker: WorkerContext) -> Connection:
    live = worker.connection
    if live is not None:
        return live
    with _process.lock:
        if worker.connection is None:
            hello = Hello(_wire.ROLE_CONTROLLER, worker.token, worker=worker.number)
            way = Dial(worker.address, hello, quiet=True)
            stream, welcome = way.dial(monotonic() + head_grace())  # it may be away just now
            dialled = Connection(stream, way, worker.current_call)
            dialled.session = str(welcome.get("session", ""))
            dialled.ledger = _objects.ledger()  # its rights go by the runtime's connection
            dialled.loop_thread = worker.loop_thread
            dialled.comeback.begin()
            worker.connection = dialled
        return worker.connection


# --- hooks -------------------------------------------------------------------


def _install_hooks() -> None:
    _take_terminate()
    if not _process.hooks_installed:
        atexit.register(shutdown)
    _install_fork_hook()


def _install_fork_hook() -> None:
    if not _process.hooks_installed:
        _process.hooks_installed = True
        before, after = _looks.before_fork, _looks.after_fork
        os.register_at_fork(before=before, after_in_parent=after, after_in_child=_after_fork)


def _after_fork() -> None:
    """In a child: the parent's connections are not ours to use, nor its head to stop."""
    session, worker = _process.session, _process.worker
    _process.lock = threading.RLock()
    _objects.abandon()
    if session is None and worker is None:
        return
    _process.forked = True
    _process.session = None
    if session is not None:
        session.connection.abandon(_forked)
        if session.events is not None:
            session.events.abandon()
    if worker is not None and worker.connection is not None:
        worker.connection.abandon(_forked)
        worker.connection = None


def _forked() -> BaseException:
    return _errors.MusterError(
        "this process was forked from one that uses Muster, and cannot use its connection. Make "
        'calls in the parent, or start children with the "spawn" method of multiprocessing'
    )


def _after_shutdown() -> BaseException:
    return _errors.HeadLostError(
        "muster.shutdown() was called: clusters and refs of before are gone. "
        "Call muster.init() and make new ones"
    )


def _take_terminate() -> None:
    """Have SIGTERM end things in order, where nobody else wants it."""
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _terminate)


def _restore_terminate() -> None:
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is _terminate
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: object) -> None:
    session = _process.session
    try:
        if session is not None and not _process.forked:
            session.abort()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
