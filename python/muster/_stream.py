"""Copying past the caches, by threads that never take the GIL.

A plain store fetches the line that it is about to overwrite, so that a third of
a copy's traffic is of no use to what another process reads next. The C library's
memcpy has stores that do not, but takes them from some 100 MiB on alone, by the
size of the caches, and the pieces of a batch that threads share are smaller. And
threads of Python's hand the GIL to each other before they begin and when they
end, which with sixteen takes a millisecond or two. On 16 cores 1 GiB takes 15 ms
this way and 25 by six threads of Python's, 256 MiB 2.8 and 10, 64 MiB 0.8 and 2.

There is no C in this package, and whoever installs it need not have a compiler,
so the loop lies here as machine code: `_stream.s` is its source, and a test
assembles that. On other processors, and where code may not be mapped, there is
no such copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from . import _errors

#: What a thread takes off the table at a time.
PIECE = 2 << 20

_X86_64 = bytes.fromhex(
    "534889fbb801000000f0480fc103483b4308731b488d0440488d44c310488b38488b7008488b5010"
    "e806000000ebd531c05bc34889f948f7d983e13f4839d1480f47ca4829caf3a44889d181e2ff3f00"
    "0048c1e90e0f8415010000b8400000000f10060f104e100f1056200f105e300f10a6001000000f10"
    "ae101000000f10b6201000000f10be30100000440f108600200000440f108e10200000440f109620"
    "200000440f109e30200000440f10a600300000440f10ae10300000440f10b620300000440f10be30"
    "300000660fe707660fe74f10660fe75720660fe75f30660fe7a700100000660fe7af10100000660f"
    "e7b720100000660fe7bf3010000066440fe7870020000066440fe78f1020000066440fe797202000"
    "0066440fe79f3020000066440fe7a70030000066440fe7af1030000066440fe7b72030000066440f"
    "e7bf303000004883c6404883c740ffc80f850affffff4881c6003000004881c70030000048ffc90f"
    "85eefeffff0faef889d1f3a4c3"
)
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

_libc = ctypes.CDLL(None)
_create, _join = _libc.pthread_create, _libc.pthread_join
_create.argtypes = (ctypes.c_void_p,) * 4
_join.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class Copier:
    """The machine code, mapped for as long as the process lives."""

    def __init__(self, code: bytes) -> None:
        from . import _shm

        # In a file of its own, so that no memory is ever both writable and executable.
        fd = os.memfd_create("stream", os.MFD_CLOEXEC)
        try:
            os.write(fd, code)
            text = _shm.Mapping(fd, len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_SHARED)
        finally:
            os.close(fd)
        self._address = text.address
        self._work: Any = _FUNCTION(text.address)

    def copy(self, jobs: Sequence[tuple[int, int, int]], threads: int) -> None:
        """Copy what addresses of a target, of a source and their bytes say, with as many threads
        as can be had. However it ends, no thread writes to a target afterwards."""
        pieces = [
            number
            for target, source, size in jobs
            for at in range(0, size, PIECE)
            for number in (target + at, source + at, min(PIECE, size - at))
        ]
        count = len(pieces) // 3
        table = (ctypes.c_uint64 * (2 + len(pieces)))(0, count, *pieces)
        crew = _Crew(table, min(threads, count) - 1)
        try:
            crew.begin(self._address)
            self._work(ctypes.addressof(table))
        finally:
            crew.dismiss()
        if crew.errors:
            error = crew.errors[0]
            crew.errors.clear()
            try:
                raise error
            finally:
                del error  # whose traceback has this frame


class _Crew:
    """The threads that help with a copy. An exception that a signal handler throws in between
    comes neither between the making of a thread and its being known, nor between its end and
    that: both are steps of C code."""

    def __init__(self, table: Any, helpers: int) -> None:
        self._table = table
        self._threads = (ctypes.c_ulong * max(0, helpers))()
        self._made: list[int] = []  # 0 for each that there is
        self._ended: list[int] = []
        self.errors: list[BaseException] = []

    def begin(self, work: int) -> None:
        """Have them work, as many as there may be."""
        first, size = ctypes.addressof(self._threads), ctypes.sizeof(ctypes.c_ulong)
        places = range(first, first + len(self._threads) * size, size)
        table = ctypes.addressof(self._table)
        self._made.extend(map(_create, places, repeat(None), repeat(work), repeat(table)))

    def dismiss(self) -> None:
        """Have nobody begin another piece and wait for all; what a signal handler raises
        meanwhile is kept for later."""
        while not self._dismissed():
            pass

    def _dismissed(self) -> bool:
        try:
            self._table[0] = self._table[1]
            if not self._ended:
                made = zip(self._threads, self._made, strict=False)  # others may have a number, too
                threads = [thread for thread, failed in made if not failed]
                self._ended.extend(map(_join, threads, repeat(None)))
            return True
        except BaseException as error:
            self.errors.append(error)
            return False


@lru_cache(maxsize=1)
def copier() -> Copier | None:
    """What copies so; None where nothing does."""
    if platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    try:
        return Copier(_X86_64)
    except (OSError, _errors.LimitError):  # no memory of which code may be run
        return None
