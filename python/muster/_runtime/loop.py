"""Calls of a class with ``async def`` methods, on the main thread's event loop.

The connection is a reader of the loop. Calls begin in the order in which they
come; coroutines then run side by side, sync methods inline. A reply never blocks
the loop: what the socket does not take waits in an outbox. While there is no
connection the loop runs on, and replies wait to be told to the next head.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import threading
import types
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from .. import _objects, _wire
from .board import Interrupted
from .calls import Host, Reply
from .current import call as current
from .kept import ORIGIN, RESULT, Leg, Stock, lasting, origin_of
from .wayback import WayBack

#: How many calls run at once where the user does not say.
DEFAULT_LIMIT = 1000
#: How long coroutines may take to end after they were cancelled at exit.
_EXIT_SECONDS = 5.0
#: Of how many tasks it is told where they wait.
_SHOWN_TASKS = 20


class Loop:
    """Runs up to ``limit`` calls at once on an event loop."""

    def __init__(
        self,
        host: Host,
        way: WayBack,
        stream: _wire.FrameStream,
        limit: int,
        loop: asyncio.AbstractEventLoop,
        ledger: _objects.Ledger | None,
    ) -> None:
        self.limit = limit
        self._way = way
        self._ledger = ledger
        self._releasing = False  # it will be looked at what was given back
        self._host = host
        self._sock = stream.sock
        self._stream = stream
        self._loop = loop
        self._backlog: deque[tuple[_wire.Frame, Leg]] = deque()
        self._resumed = threading.Event()
        self._active = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._asked: set[int] = set()  # calls whose task was cancelled by us
        self._muted: set[int] = set()  # calls whose value nobody wants
        self._outbox: deque[memoryview] = deque()
        self._exit: SystemExit | None = None
        self._closing = False
        host.board.own_code.add(Loop._inline.__code__)

    def run(self) -> None:
        """Serve calls until it is time to leave."""
        if self._ledger is not None:
            self._ledger.send = self._release_soon
            self._release_soon()
        self._loop.add_reader(self._sock, self._readable)
        self._loop.call_soon(self._begin)  # frames that came with the welcome
        self._host.board.wake = self._wake
        try:
            self._loop.run_forever()
        finally:
            self._host.check_process()
            self._close()
        if self._exit is not None:
            raise self._exit

    def _wake(self) -> None:
        """From the control thread: have the loop see that it is to end, which without a head
        nothing else may tell it. What the handler of a signal raised may have been dropped."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the worker with it
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self._host.board.leaving is not None and not self._closing:
            raise SystemExit(self._host.board.leaving)

    def cancel(self, call: int) -> str:
        """Cancel a call, from the control thread; return what became of it."""
        board = self._host.board
        if board.mark(call):
            return "queued"
        board.unmark(call)
        if board.interrupt_main(call):
            return "interrupted"
        task = self._tasks.get(call)
        if task is None:
            return "done"
        self._asked.add(call)
        self._loop.call_soon_threadsafe(task.cancel)
        return "loop"

    def tasks(self) -> str:
        """Say where coroutines wait, from the control thread: threads' stacks do not tell."""
        try:
            tasks = asyncio.all_tasks(self._loop)
        except RuntimeError:  # they come and go too fast to be listed
            return ""
        parts = []
        for task in sorted(tasks, key=lambda task: task.get_name()):
            frames = [frame for frame in _frames(task.get_coro()) if frame.f_code not in _OURS]
            lines = [
                f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in '
                f"{frame.f_code.co_name}\n"
                for frame in reversed(frames)
            ]
            parts.append(f"task {task.get_name()} (most recent call first):\n" + "".join(lines))
        shown, more = parts[:_SHOWN_TASKS], len(parts) - _SHOWN_TASKS
        return "".join(shown) + (f"and {more} more tasks\n" if more > 0 else "")

    # --- legs in -------------------------------------------------------------

    def _readable(self) -> None:
        try:
            self._stream.fill(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (EOFError, _wire.CutError):
            self._loop.remove_reader(self._sock)  # until there is another
        self._begin()

    def _begin(self) -> None:
        """Begin calls, oldest first, as far as the limit lets them."""
        if self._host.board.leaving is not None:
            raise SystemExit(self._host.board.leaving)
        while (frame := self._stream.next()) is not None:
            self._take(frame)
        while self._backlog and self._active < self.limit:
            frame, leg = self._backlog.popleft()
            self._active += 1
            call = frame[2]
            if frame[1] & _wire.FLAG_MUTE:
                self._muted.add(call)
            try:
                name, method, args, kwargs, leg[ORIGIN] = self._host.unpack(frame[5], frame[6])
            except Exception as error:
                leg[ORIGIN] = origin_of(frame[5])
                self._end(leg, self._host.failure("a method", error))
                continue
            # Both are queued on the loop, so that a sync call does not overtake
            # the first step of a coroutine that came before it.
            if name in self._host.coroutines:
                self._tasks[call] = self._loop.create_task(
                    self._coroutine(leg, name, functools.partial(method, *args, **kwargs)),
                    name=f"call {call} {name}",
                )
            else:
                self._loop.call_soon(self._inline, leg, name, method, args, kwargs)

    def _take(self, frame: _wire.Frame) -> None:
        kept = self._way.kept
        if frame[0] != _wire.KIND_LEG:
            self._host.other(frame, kept)
            return
        if frame[4]:
            kept.drop(frame[4])
        leg = self._way.receive(frame, self._stream)
        if leg is not None:
            self._backlog.append((frame, leg))

    async def _coroutine(self, leg: Leg, name: str, start: Callable[[], Awaitable[Any]]) -> None:
        call, board = leg[1], self._host.board
        value: Any = None
        error: BaseException | None = None
        current.set(call)
        try:
            board.last = max(board.last, call)
            if board.attention:
                board.admit(call)
            value = await start()
        except SystemExit as end:
            self._leave(end)
            return
        except asyncio.CancelledError as caught:
            if self._closing and call not in self._asked:
                return  # with the process, whose end is what its caller is to hear of
            error = Interrupted() if call in self._asked else caught
        except BaseException as caught:
            error = caught
        finally:
            self._tasks.pop(call, None)
            self._asked.discard(call)
        reply = self._reply(call, name, value, error)
        value = error = None  # an error holds this frame, which would hold it and the arguments
        self._end(leg, reply)

    def _inline(
        self, leg: Leg, name: str, method: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        call, board = leg[1], self._host.board
        value: Any = None
        error: BaseException | None = None
        current.set(call)
        try:
            try:
                # As in serial: a cancel may raise until current is 0 again.
                board.current = call
                board.last = call
                if board.attention:
                    board.admit(call)
                value = method(*args, **kwargs)
                board.current = 0
            except BaseException as caught:
                board.current = 0
                error = caught
        except Interrupted as caught:
            board.current = 0
            error = caught
        if isinstance(error, SystemExit):
            self._leave(error)
            return
        if error is None and inspect.isawaitable(value):
            # A sync method that hands out its coroutine, as some decorators make.
            awaitable = value
            self._tasks[call] = self._loop.create_task(
                self._coroutine(leg, name, lambda: awaitable), name=f"call {call} {name}"
            )
            return
        reply = self._reply(call, name, value, error)
        value = error = args = kwargs = None
        self._end(leg, reply)

    def tell(self, notice: bytes) -> None:
        """Send a notice, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the worker with it
            self._loop.call_soon_threadsafe(self._tell, notice)

    def _tell(self, notice: bytes) -> None:
        stream = self._way.stream
        if stream is not None:
            self._send(_wire.pack_frame(_wire.KIND_NOTICE, 0, notice, peer=stream.number()))

    # --- replies out ---------------------------------------------------------

    def _reply(self, call: int, name: str, value: Any, error: BaseException | None) -> Reply:
        if error is None:
            return self._host.result(name, None if call in self._muted else value)
        return self._host.failure(name, error)

    def _end(self, leg: Leg, reply: Reply) -> None:
        self._active -= 1
        self._muted.discard(leg[1])
        flags, body, bufs = reply
        ledger = self._ledger
        if ledger is not None:
            if ledger.looks.fresh or ledger.looks.held:
                ledger.looks.let_go()
            if ledger.fresh or ledger.read:
                ledger.settle(leg[1])
        named = _objects.name(bufs, self._ledger, self, []) if bufs else ()
        stream = self._way.stream
        number = 0 if stream is None else stream.number()
        parts = lasting(_wire.pack_frame(_wire.KIND_RESULT, leg[1], body, named, flags, number))
        bufs.clear()  # rights that only they had are given back with the reply
        leg[RESULT] = parts
        if stream is not None:
            self._send([*parts, *self._released(stream)])
        if self._backlog:
            self._loop.call_soon(self._begin)

    def _released(self, stream: _wire.FrameStream) -> list[bytes]:
        """The notice of what was given back, if anything was."""
        ledger = self._ledger
        if ledger is None or not ledger.given_back:
            return []
        count = len(ledger.given_back)
        frame = ledger.release(count, 0, stream.number())
        del ledger.given_back[:count]
        return [frame]

    def _release_soon(self) -> None:
        """From a finalizer, in any thread: have the loop say what was given back."""
        if not self._releasing:
            self._releasing = True
            try:
                self._loop.call_soon_threadsafe(self._release)
            except RuntimeError:
                pass  # the loop has ended, and the worker with it

    def _release(self) -> None:
        self._releasing = False
        stream = self._way.stream
        if stream is not None and (parts := self._released(stream)):
            self._send(parts)

    def _send(self, parts: list[Any]) -> None:
        views = deque(memoryview(part).cast("B") for part in parts)
        if not self._outbox and self._push(views):
            return
        if not self._outbox:
            self._loop.add_writer(self._sock, self._writable)
        self._outbox.extend(views)

    def _push(self, views: deque[memoryview]) -> bool:
        """Write as much as the socket takes; return whether that was all."""
        while views:
            try:
                sent = self._sock.sendmsg(list(views)[:64], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:  # the head is gone: the reader sees that too
                self._host.check_process()
                views.clear()
                return True
            while views and sent >= views[0].nbytes:
                sent -= views.popleft().nbytes
            if sent:
                views[0] = views[0][sent:]
        return True

    def _writable(self) -> None:
        if self._push(self._outbox):
            self._loop.remove_writer(self._sock)

    # --- another head --------------------------------------------------------

    def rejoin(self, stream: _wire.FrameStream) -> None:
        """From the thread of the way back: tell another head all that there is, and have the
        loop go on over its connection."""
        parts, stock = self._way.told(stream)
        _wire.send_parts(stream.sock, parts)
        self._resumed.clear()
        try:
            self._loop.call_soon_threadsafe(self._resume, stream, stock)
        except RuntimeError:
            return  # the loop has ended, and the worker with it
        self._resumed.wait()

    def _resume(self, stream: _wire.FrameStream, stock: Stock) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._outbox.clear()
        self._stream, self._sock = stream, stream.sock
        self._way.resume(stream, stock)
        self._loop.add_reader(self._sock, self._readable)
        for leg in self._way.kept.legs:  # what came in since the head was told
            if leg[RESULT] is not None and leg[0] not in stock.repeated:
                self._send(_wire.numbered(stream.number(), leg[RESULT]))
        self._resumed.set()
        self._release()

    # --- the end -------------------------------------------------------------

    def _leave(self, end: SystemExit) -> None:
        """End the worker; not by raising it here, which a task would keep and complain of."""
        if self._exit is None:
            self._exit = end
        self._loop.stop()

    def _close(self) -> None:
        """Let coroutines run their ``finally`` blocks, for a while."""
        self._closing = True
        self._loop.remove_reader(self._sock)
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=_EXIT_SECONDS))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())


_OURS = {Loop._coroutine.__code__}


def _frames(coroutine: Any) -> list[types.FrameType]:
    """What a suspended coroutine is in, outermost first."""
    found: list[types.FrameType] = []
    while coroutine is not None:
        prefix = next((p for p in ("cr", "gi", "ag") if hasattr(coroutine, f"{p}_frame")), None)
        if prefix is None:
            break  # a future, or an awaitable without frames
        frame = getattr(coroutine, f"{prefix}_frame")
        if frame is not None:
            found.append(frame)
        inner = "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await"
        coroutine = getattr(coroutine, inner)
    return found
