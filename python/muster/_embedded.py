"""The embedded head: finding the binary, starting it, and telling how it ended.

The head is a child of the script, in a session of its own so that Ctrl-C in a
terminal does not reach it. Descriptor 3 is its end of a socket pair; when ours
closes, it stops everything and exits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
from collections.abc import Sequence
from time import monotonic

from . import _errors

#: Seconds within which a head whose connection just ended must have exited, so
#: that the error can say how.
_EXIT_NOTICE = 0.5
_LAST_LINES = 20


def find_binary() -> str:
    """The muster program: $MUSTER_BINARY, the one in this package, or the one on PATH."""
    named = os.environ.get("MUSTER_BINARY", "")
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return named
        raise _errors.MusterError(f"MUSTER_BINARY is {named!r}, which is not a program")
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "muster")
    if os.access(packaged, os.X_OK):
        return packaged
    found = shutil.which("muster")
    if found is not None and not _is_script(found):
        return found
    raise _errors.MusterError(
        "the muster program is not there: this installation lacks it "
        f"({packaged}), and PATH has none. Install Muster's wheel, which brings it, or build it "
        "with `make build` and set MUSTER_BINARY to where it is"
    )


def _is_script(path: str) -> bool:
    """Whether it is a console script of Python's, which would only start us again."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


class HeadProcess:
    """A head that this process started. Methods may be called from any thread."""

    def __init__(self, pid: int, errors: int) -> None:
        self.pid = pid
        self._errors = errors  # a memory file that collects the head's stderr
        self._status: int | None = None  # as of waitpid; -1 when somebody else reaped it

    @classmethod
    def start(cls, binary: str, *more: str) -> tuple[HeadProcess, socket.socket]:
        """Start ``muster head --embedded``; returns it and our end of its socket pair."""
        try:
            return cls._start(binary, more)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise _errors.MusterError(f"cannot start {binary}: {error.strerror}") from error
            raise _errors.LimitError(
                f"no open files are left to start the head with ({error.strerror}): raise the "
                "limit (ulimit -n), or close some"
            ) from error

    @classmethod
    def _start(cls, binary: str, more: Sequence[str]) -> tuple[HeadProcess, socket.socket]:
        ours, theirs = socket.socketpair()
        errors = os.memfd_create("muster-head-errors")
        nothing = os.open(os.devnull, os.O_RDWR)
        # High numbers, so that no descriptor is overwritten before it was copied.
        lifted = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (nothing, errors, theirs.fileno())
        ]
        os.close(nothing)
        theirs.close()
        try:
            pid = os.posix_spawn(
                binary,
                ["muster", "head", "--embedded", *more],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, target)
                    for source, target in zip((lifted[0], *lifted), range(4), strict=True)
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM],
            )
        except OSError:
            ours.close()
            os.close(errors)
            raise
        finally:
            for descriptor in lifted:
                os.close(descriptor)
        return cls(pid, errors), ours

    def wait(self, seconds: float) -> bool:
        """Wait for the head's exit; False when it has not come by then."""
        if self._reap():
            return True
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return self._reap()
        except OSError:
            return self._wait_without_descriptor(seconds)
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            poller.poll(max(0.0, seconds) * 1000)
        finally:
            os.close(descriptor)
        return self._reap()

    def _wait_without_descriptor(self, seconds: float) -> bool:
        deadline = monotonic() + seconds
        while not self._reap():
            if monotonic() >= deadline:
                return False
            select.select((), (), (), 0.01)
        return True

    def _reap(self) -> bool:
        if self._status is None:
            try:
                # Looked at before it is taken, as another thread may look at the same moment.
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                if self._status is None:
                    self._status = -1
            else:
                if found is not None:
                    code, exited = found.si_status, found.si_code == os.CLD_EXITED
                    self._status = code << 8 if exited else code
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(self.pid, os.WNOHANG)
        return self._status is not None

    def terminate(self) -> None:
        """Have the head end in order, with all below it."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the head at once; the agents below it notice and clear their nodes."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self._reap():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def orderly(self) -> bool:
        """Whether it has ended, because that was its time."""
        return self._reap() and self._status == 0

    def manner(self) -> str:
        """How it ended, as the first half of a sentence; only when it has."""
        who = f"the head (process {self.pid})"
        if self._status is None or self._status == -1:
            return f"{who} ended"
        code = os.waitstatus_to_exitcode(self._status)
        if code >= 0:
            return f"{who} ended with exit code {code}"
        return f"{who} was killed by {_signal_name(-code)}"

    def how_ended(self) -> str:
        """Say for people how the head ended and what to do about it."""
        if not self.wait(_EXIT_NOTICE):
            how = f"the head (process {self.pid}) closed its connection but still runs"
        elif self._status == -1:
            how = f"the head (process {self.pid}) ended; its exit status went to somebody else"
        else:
            assert self._status is not None
            code = os.waitstatus_to_exitcode(self._status)
            ending = f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
            how = f"the head (process {self.pid}) ended: {ending}"
        text = (
            f"{how}. All its workers stop, and calls under way are lost. Call muster.shutdown() "
            "and then muster.init() to start anew"
        )
        if last := self.last_words():
            text += "\n\nlast lines of the head:\n  " + "\n  ".join(last)
        return text

    def last_words(self) -> list[str]:
        """The last lines of the head's stderr."""
        try:
            size = os.fstat(self._errors).st_size
            data = os.pread(self._errors, 64 << 10, max(0, size - (64 << 10)))
        except OSError:
            return []
        return data.decode(errors="backslashreplace").splitlines()[-_LAST_LINES:]

    def forget(self) -> None:
        """Release what is held for a head that is gone."""
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
