"""The few calls to the kernel and to CPython that the standard library lacks.

Each function does one thing and keeps no state. It never decides anything.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

#: Dumps every thread's stack into the memory file that the agent reads.
STACKS_SIGNAL = signal.SIGRTMIN + 10
#: Asks the main thread to leave the call that it is running.
CANCEL_SIGNAL = signal.SIGRTMIN + 11

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)
_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_async_exc.restype = ctypes.c_int


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def may_be_traced_by(pid: int) -> None:
    """Let a process and those below it look into this one, where only parents may (Yama)."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # else it is allowed, or not there


def set_thread_name(name: str) -> None:
    """Set the name in /proc/PID/comm, which keeps 15 bytes."""
    text = ctypes.create_string_buffer(name.encode("utf-8", "replace")[:15])
    _libc.prctl(_PR_SET_NAME, text, 0, 0, 0)


def write_memory(address: int, data: bytes) -> None:
    """Overwrite this process's memory; the caller knows what lies there."""
    ctypes.memmove(address, data, len(data))


def raise_in_thread(thread: int, exception: type[BaseException]) -> None:
    """Have an exception raised in a thread at its next bytecode."""
    _set_async_exc(thread, exception)


def forget_raise_in_thread(thread: int) -> None:
    """Take back an exception that the thread has not seen yet."""
    _set_async_exc(thread, ctypes.py_object())


def open_stacks() -> int:
    """Return a memory file whose writers append, however often it is truncated."""
    fd = os.memfd_create("muster-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd
