"""A worker's life, from the order that makes it one to its last line.

The steps are in such an order that the environment is complete before user code
is imported, and that whatever fails after the connections stand is told to the
head before the process ends. How calls run is serial's, loop's and pool's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _context, _objects, _pickling, _values, _wire, _worker
from .._errors import EncodingError, MusterError, ProtocolError
from .._register import RESERVED_NAMES
from . import classes, interpreter, linux, mainmodule, title
from .board import Board, Refusal
from .calls import Host, Who, own_error, wire_error
from .control import Control, Runner
from .current import call as current
from .current import current_call
from .describe import Described
from .engines import Engines, run_ending
from .leaving import leave
from .line import Line
from .orders import Order
from .serial import Serial
from .wayback import WayBack

if TYPE_CHECKING:
    from .loop import Loop

#: How long a forked worker waits to become the agent's child.
_ADOPTION_SECONDS = 5.0


def main(order: Order) -> NoReturn:
    """Be the worker, to the end of the process."""
    code: object = 0
    try:
        _live(order)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)


def _live(order: Order) -> None:
    """Serve calls; returns, or raises SystemExit, when it is time to go."""
    setup, start = order.setup, order.worker
    who = Who(setup["cluster"], start["name"], setup["node"], start["rank"])
    _settle(order)
    board = Board(who.worker)
    board.listen()
    signal.signal(signal.SIGINT, _ignore)
    stacks = linux.open_stacks()
    faulthandler.register(linux.STACKS_SIGNAL, stacks, all_threads=True, chain=False)

    control_sock = _dial(setup["control_address"])
    control_stream = _wire.FrameStream(control_sock)
    mine = {"worker": start["number"], "token": start["token"]}
    _wire.hello(control_stream, _wire.ROLE_CONTROL, **mine, stacks_fd=stacks)
    control = Control(control_sock, control_stream, board, who)
    control.start()

    call_sock = _dial(setup["call_address"])
    call_stream = _wire.FrameStream(call_sock)
    ledger = _objects.use(_wire.hello(call_stream, _wire.ROLE_WORKER, **mine))
    buffers = _buffers(setup, ledger)
    board.calls = call_sock
    _detach_forks(board, control_sock, stacks)
    way = WayBack(call_stream, setup["call_address"], mine, board, ledger)
    # Calls that the object makes itself take a connection of their own.
    _context.set_worker(setup["call_address"], start["token"], start["number"], current_call)

    with contextlib.ExitStack() as farewell:  # from the moment that there is an object
        try:
            runner = _prepare(order, buffers, who, board, way, call_stream, control, farewell)
        except SystemExit:
            raise
        except BaseException as error:
            with contextlib.suppress(OSError):
                _notify(call_stream, "failed", {"error": _failure(error, who)})
            raise SystemExit(1) from None
        try:
            runner.run()
        except _wire.FrameError as error:  # not the end of the connection
            sys.stderr.write(f"{who.worker} ends, as its calls cannot be read any more: {error}\n")
            raise SystemExit(1) from None


def _settle(order: Order) -> None:
    """Become a process of its own: session, descriptors, parent, environment."""
    if order.gate >= 0:
        os.read(order.gate, 1)
        os.close(order.gate)
    deadline = time.monotonic() + _ADOPTION_SECONDS
    # The parent-death signal holds for the parent at this moment: set before the
    # worker is the agent's child, it would fire at the end of the process between.
    while os.getppid() != order.agent_pid:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.001)
    linux.die_with_parent()
    if os.getppid() != order.agent_pid:  # it ended in between: the signal will not come
        os._exit(1)
    linux.adopt_orphans()
    linux.may_be_traced_by(order.agent_pid)  # py-spy is started by the agent
    if os.getsid(0) != os.getpid():
        os.setsid()
    _redirect(order.log)
    title.set_title(f"muster worker {order.worker['name']}")
    interpreter.set_environment(order.env)
    interpreter.reseed()


def _redirect(log: int) -> None:
    """Read nothing, and write everything to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in {null, log} - {0, 1, 2}:
        os.close(fd)
    # A line reaches the log whole, and nothing printable makes print fail. New
    # objects, as the old ones may believe that they write to a file.
    for fd, name in ((1, "stdout"), (2, "stderr")):
        text = open(  # noqa: SIM115  (for good)
            fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    faulthandler.enable(2)  # a crash in C leaves the Python stack in the log


def _dial(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(address)
    return sock


def _prepare(
    order: Order,
    buffers: list[Any],
    who: Who,
    board: Board,
    way: WayBack,
    stream: _wire.FrameStream,
    control: Control,
    farewell: contextlib.ExitStack,
) -> Runner:
    """Make the object and say that it can be called; ``farewell`` gets what its end takes."""
    setup, start = order.setup, order.worker
    main = setup.get("main") or {}
    sys.argv[1:] = main.get("args") or ()
    script = mainmodule.install(main)
    _pickling.set_main_importable(bool(main.get("path") or main.get("module")))
    interpreter.preload(order.preload)
    cls = classes.find(setup["class"], script)
    described = Described(cls, RESERVED_NAMES)
    service = setup.get("kind") == "service"
    what = "the arguments of its constructor" if service else "its worker_config"
    config = _config(setup.get("config") or b"", buffers, who, what)
    limit = setup.get("max_concurrency") or 0

    loop: Any = None
    if described.coroutines:
        import asyncio

        # Made before the object, whose constructor may ask for it.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        _context.runs_calls_on_a_loop()

    _worker._identity = _identity(order, who)
    engines = _worker._engines = Engines()
    engines.on_loop, engines.threads = loop is not None, limit > 1
    farewell.callback(engines.end, loop)
    if service:
        obj = cls(*config[0], **config[1])
        farewell.callback(run_ending, getattr(obj, "destroy", None), who.worker, engines, loop)
    else:
        obj = classes.construct(cls, config)
    del config
    host = Host(obj, described, who, board, setup.get("pickle", ""), start["info"], engines)

    runner: Runner
    line: Line | Loop
    if loop is not None:
        from .loop import DEFAULT_LIMIT, Loop

        runner = line = Loop(host, way, stream, limit or DEFAULT_LIMIT, loop, _objects.ledger())
    else:
        line = Line(stream.sock, _objects.ledger(), way)
        if limit > 1:
            from .pool import Pool

            runner = Pool(host, line, stream, limit)
        else:
            runner = Serial(host, line, stream)
    control.runner = runner
    ready = {
        "pid": os.getpid(),
        "description": described.message(serial=runner.limit == 1),
        "info": host.info_if_changed(),
        "engines": engines.told(),
    }
    way.ready = lambda: ready | {"info": host.info_told(), "engines": engines.told()}
    with contextlib.suppress(OSError):  # the next head is told, then
        _notify(stream, "ready", ready)
    way.watch(line)
    engines.changed = lambda: line.tell(_wire.pack(["engines", {"engines": engines.told()}]))
    return runner


def _buffers(setup: dict[str, Any], ledger: _objects.Ledger | None) -> list[Any]:
    """The buffers of what the object is made with. From the head's welcome on, rights to those
    in stores are counted for this process."""
    told = setup.get("config_bufs") or ()
    found = [_wire.reference(data) if object else bytearray(data) for data, object in told]
    if ledger is not None:
        _objects.claim(found, ledger)
    return found


def _config(data: bytes, buffers: list[Any], who: Who, what: str) -> Any:
    """What the object is made with; buffers is empty then, as all else would keep them for good."""
    if not data:
        return None
    try:
        return _values.decode(data, buffers)
    except Exception as error:
        broken = isinstance(error, EncodingError | ProtocolError)
        if isinstance(error, MusterError) and not broken:  # as a node that is lost
            raise Refusal(error.code, f"{who.worker} could not get {what}: {error}") from error
        raise Refusal(
            "encoding",
            f"{who.worker} could not decode {what}: {type(error).__name__}: {error}",
        ) from error
    finally:
        buffers.clear()


def _identity(order: Order, who: Who) -> _worker.Identity:
    info = order.worker["info"]
    env = order.env
    return _worker.Identity(
        rank=who.rank,
        world_size=info["world_size"],
        cluster_name=who.cluster,
        worker_name=who.worker,
        master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
        master_port=int(env.get("MASTER_PORT") or 0),
        rank_info=_worker.RankInfo(**info),
        node=who.node,
    )


def _failure(error: BaseException, who: Who) -> dict[str, Any]:
    if isinstance(error, Refusal):
        message = f"{who.worker} on {who.node}: {error.message}"
        return own_error(error.code, message, who, error.__cause__)
    return wire_error(error, who)


def _notify(stream: _wire.FrameStream, verb: str, body: dict[str, Any]) -> None:
    _wire.send_frame(stream, _wire.KIND_NOTICE, 0, _wire.pack([verb, body]))


def _ignore(_number: int, _frame: Any) -> None:
    """Ctrl-C is the controller's. Not SIG_IGN, which programs started here would inherit."""


def _detach_forks(board: Board, control: socket.socket, stacks: int) -> None:
    """Keep processes that user code forks away from the worker's connections and signals."""
    ours = (board.on_cancel, board.on_end, _ignore)
    detached = False

    def detach() -> None:
        nonlocal detached
        if detached:  # in a child of a child, whose descriptors of these numbers are its own
            return
        detached = True
        control.close()
        if board.calls is not None:
            board.calls.close()
        board.detach()
        faulthandler.unregister(linux.STACKS_SIGNAL)
        os.close(stacks)
        for number, default in (
            (linux.CANCEL_SIGNAL, signal.SIG_DFL),
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            if signal.getsignal(number) in ours:
                signal.signal(number, default)
        current.set(0)

    os.register_at_fork(after_in_child=detach)
