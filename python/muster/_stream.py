"""Copying past the caches, for what another process reads next.

A plain store fetches the line that it is about to overwrite, so that a third of
a copy's traffic is of no use. The C library's memcpy has stores that do not, but
takes them from some 100 MiB on alone, by the size of the caches, and the pieces
of a batch that threads share are smaller: on 16 cores 1 GiB takes 27 ms by the C
library with six threads, which have large pieces, 25 to 30 with sixteen, and 18
with sixteen this way; 256 MiB take 10.3, 7.3 and 5.4.

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
from collections.abc import Callable
from functools import lru_cache

from . import _errors

Copy = Callable[[int, int, int], None]
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_X86_64 = bytes.fromhex(
    "4889f948f7d983e13f4839d1480f47ca4829caf3a44889d181e2ff3f000048c1e90e0f8415010000"
    "b8400000000f10060f104e100f1056200f105e300f10a6001000000f10ae101000000f10b6201000"
    "000f10be30100000440f108600200000440f108e10200000440f109620200000440f109e30200000"
    "440f10a600300000440f10ae10300000440f10b620300000440f10be30300000660fe707660fe74f"
    "10660fe75720660fe75f30660fe7a700100000660fe7af10100000660fe7b720100000660fe7bf30"
    "10000066440fe7870020000066440fe78f1020000066440fe7972020000066440fe79f3020000066"
    "440fe7a70030000066440fe7af1030000066440fe7b72030000066440fe7bf303000004883c64048"
    "83c740ffc80f850affffff4881c6003000004881c70030000048ffc90f85eefeffff0faef889d1f3"
    "a4c3"
)


@lru_cache(maxsize=1)
def copier() -> Copy | None:
    """What copies so, by the addresses of target and source and the bytes of either, which do
    not overlap; None where nothing does. It runs without the GIL."""
    if platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        return None
    try:
        return _mapped(_X86_64)
    except (OSError, _errors.LimitError):  # no memory of which code may be run
        return None


def _mapped(code: bytes) -> Copy:
    """The code as a function. It lies in a file of its own, so that no memory is ever both
    writable and executable, and stays mapped for as long as the process lives."""
    from . import _shm

    fd = os.memfd_create("muster-stream", os.MFD_CLOEXEC)
    try:
        os.write(fd, code)
        text = _shm.Mapping(fd, len(code), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_SHARED)
    finally:
        os.close(fd)
    made: Copy = _FUNCTION(text.address)
    return made
