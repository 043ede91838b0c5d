"""Whether anything was written to a private mapping: what the kernel knows of its pages.

To drop the pages of a mapping costs a page fault for each of them at the next
look. Most readers write nothing, and what they saw may stay mapped: it is the
segment's own memory. Linux tells them apart since 6.7 (PAGEMAP_SCAN); where it
does not, everything counts as written.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct

_SCAN = 0xC0606610  # PAGEMAP_SCAN: _IOWR('f', 16, struct pm_scan_arg)
_FILE, _PRESENT, _SWAPPED = 1 << 2, 1 << 3, 1 << 4  # PAGE_IS_
# size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any of, returned
_pack = struct.Struct("<12Q").pack
_SIZE = 96


class _Kernel:
    """The descriptor to ask by; -1 before it was opened, None where there is no answer."""

    pagemap: int | None = -1
    found = ctypes.create_string_buffer(24)  # one region, which nobody reads
    found_at = ctypes.addressof(found)


def written(address: int, length: int) -> bool:
    """Whether some page of private memory is not that of its file any more."""
    pagemap = _Kernel.pagemap
    if pagemap is None:
        return True
    if pagemap < 0:
        pagemap = _open()
        if pagemap is None:
            return True
    own = _PRESENT | _SWAPPED
    end = address + length
    asked = _pack(_SIZE, 0, address, end, 0, _Kernel.found_at, 1, 1, _FILE, _FILE, own, own)
    try:
        return fcntl.ioctl(pagemap, _SCAN, bytearray(asked)) != 0  # type: ignore[no-any-return, unused-ignore]
    except OSError:  # an older kernel, or one that does not want to be asked
        _Kernel.pagemap = None
        return True


def around(start: int, stop: int) -> tuple[int, int]:
    """The pages that memory lies in: where they begin, and how many bytes they have."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    return first, -(-stop // mmap.PAGESIZE) * mmap.PAGESIZE - first


def _open() -> int | None:
    try:
        _Kernel.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        _Kernel.pagemap = None
    return _Kernel.pagemap


def _forget() -> None:
    """It tells of the memory of the process that opened it, which a forked child is not."""
    _Kernel.pagemap = -1


os.register_at_fork(after_in_child=_forget)
