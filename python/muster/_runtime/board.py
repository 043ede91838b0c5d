"""What the threads of a worker agree on about calls: cancels, taint, the end.

A call number, seen from the thread that runs calls and the thread that cancels
them:

=========  ==============================  ===================================
state      means                           cancel does
=========  ==============================  ===================================
queued     above ``last``                  marks it; it is refused when it comes
running    ``current``                     raises `Interrupted` in it, once
done       at most ``last``, not running   nothing
=========  ==============================  ===================================

It rests on the head sending calls in the order of their numbers. Running a call
takes no lock: the runner writes ``current`` and ``last``, then reads
``attention``; a cancel writes ``attention``, then reads ``last`` and ``current``.
Whichever comes second sees the other.

The injected exception is raised by a signal's handler, which runs on the main
thread itself and looks at ``current`` there: it can neither miss the call nor
hit the next one.

A handler of Python's runs when the interpreter looks for signals. One that comes
between such a look and a system call that waits is not seen until that returns.
So C code also writes each signal to a pipe, and `control` repeats it until its
handler has run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import CodeType, FrameType

from . import linux


class Interrupted(BaseException):
    """Raised inside a method whose call was cancelled.

    Not an Exception, so that ``except Exception`` in the method lets it pass.
    """


class Refusal(Exception):
    """A call that is answered with an error of ours instead of being run."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Board:
    """The state above, for one worker."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        #: The call that the main thread is inside of, else 0.
        self.current = 0
        #: The highest call begun so far.
        self.last = 0
        #: Whether `admit` has something to look at.
        self.attention = False
        #: Code of the runners: an injection that lands there hit no user code.
        self.own_code: set[CodeType] = {Board.admit.__code__}
        self.lock = threading.Lock()
        self._cancelled: set[int] = set()
        self._tainted = 0
        self._injected = 0
        self._pending = 0
        #: The exit code once the worker is to end, which user code may have caught.
        self.leaving: object = None
        #: What the main thread waits on for calls.
        self.calls: socket.socket | None = None
        #: Has a main thread that waits for more than calls look at ``leaving``.
        self.wake: Callable[[], None] = _nothing
        #: Where the numbers of signals come out that the process has got.
        self.signals = -1
        self._noted = -1  # where they go in
        self._ending = False  # the main thread was told to leave
        self._left = False  # and has heard it
        self._main = threading.main_thread().ident or 0

    def listen(self) -> None:
        """Handle the signals of cancel and end; on the main thread only."""
        self.signals, self._noted = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._noted, warn_on_full_buffer=False)
        signal.signal(linux.CANCEL_SIGNAL, self.on_cancel)
        signal.signal(signal.SIGTERM, self.on_end)

    def detach(self) -> None:
        """In a forked child: its signals are its own."""
        signal.set_wakeup_fd(-1)
        os.close(self.signals)
        os.close(self._noted)

    def admit(self, call: int) -> None:
        """Raise Refusal where a call that is about to begin must not run."""
        if self.leaving is not None:
            raise SystemExit(self.leaving)
        with self.lock:
            cancelled = call in self._cancelled
            self._cancelled.discard(call)
            self.attention = bool(self._cancelled) or self._tainted != 0
            tainted = self._tainted
        if cancelled:
            raise Refusal("cancelled", f"the call was cancelled before {self.worker} began it")
        if tainted:
            raise Refusal(
                "tainted",
                f"{self.worker} had an exception raised inside call {tainted} to cancel it, so the "
                "state of its object is not known: shut it down and make it again, or end it by its "
                "handle's kill_process() where on_failure has it restarted; where the object is good "
                "for more, clear_taint() of that handle (in Go: Cluster.Clear) has it go on",
            )

    def mark(self, call: int) -> bool:
        """Mark a call as cancelled; return whether that is in time to refuse it."""
        with self.lock:
            self._cancelled.add(call)
            self.attention = True
            return call > self.last

    def unmark(self, call: int) -> None:
        """Forget the mark of a call that is running or done."""
        with self.lock:
            self._cancelled.discard(call)
            self.attention = bool(self._cancelled) or self._tainted != 0

    def taint(self, call: int) -> None:
        """Refuse calls from now on: user code was left at an unknown point."""
        self._tainted = call
        self.attention = True

    def clear(self) -> None:
        """Take calls again."""
        with self.lock:
            self._tainted = 0
            self.attention = bool(self._cancelled)

    def interrupt_main(self, call: int) -> bool:
        """Interrupt the call if the main thread is inside it."""
        if self.current != call:
            return False
        if self._injected != call:  # once: a second could land after the first was caught
            self._injected = self._pending = call
            signal.pthread_kill(self._main, linux.CANCEL_SIGNAL)
        return True

    def end(self, code: object) -> None:
        """Have the main thread leave as if it had called sys.exit; from any thread.

        A signal alone can be missed: it does not end a receive that the main thread
        is about to enter, having just looked for signals, and an exception that is
        raised inside a finalizer is dropped. So there is also nothing to wait for.
        """
        if self.leaving is None:
            self.leaving = code
        self._ending = True
        self._tell_to_leave()

    def _tell_to_leave(self) -> None:
        signal.pthread_kill(self._main, signal.SIGTERM)
        if self.calls is not None:
            with contextlib.suppress(OSError):
                self.calls.shutdown(socket.SHUT_RD)
        self.wake()

    # --- signals, as the control thread sees them -----------------------------

    def note_signals(self) -> None:
        """Take in which signals have come."""
        with contextlib.suppress(BlockingIOError):
            if signal.SIGTERM in os.read(self.signals, 4096) and not self._ending and self._ends():
                self.end(0)

    def unheard(self) -> bool:
        """Whether the main thread was sent a signal whose handler has not run."""
        if self._pending != 0 and self._pending == self.current:
            return True
        return self._ending and not self._left and self._ends()

    def repeat_signals(self) -> None:
        """Send again what is unheard: handlers do nothing where they have run meanwhile."""
        if self._pending != 0 and self._pending == self.current:
            signal.pthread_kill(self._main, linux.CANCEL_SIGNAL)
        if self._ending and not self._left and self._ends():
            self._tell_to_leave()

    def _ends(self) -> bool:
        """Whether SIGTERM means the end, and not what user code has made of it."""
        return signal.getsignal(signal.SIGTERM) == self.on_end

    def on_end(self, _number: int, _frame: FrameType | None) -> None:
        if self.leaving is None:
            self.leaving = 0
        self.attention = True
        if not self._left:  # a second one would cut short what the first one set off
            self._left = True
            raise SystemExit(self.leaving)

    def on_cancel(self, _number: int, frame: FrameType | None) -> None:
        call = self.current
        if call == 0 or call != self._pending:
            return
        self._pending = 0
        if frame is None or frame.f_code not in self.own_code:
            self.taint(call)
        raise Interrupted


def _nothing() -> None:
    pass
