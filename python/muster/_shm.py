"""Shared memory: segments mapped by address, and copying with more than one thread.

A segment is a descriptor from a store. It is mapped up to three times: shared
and writable by who fills it, private and writable for views, shared and read
only for devices. Mappings are made when they are first needed, and kept: new
ones cost a page fault every 4 KiB. Nothing here knows what lies in a segment,
or who may use it when.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from . import _stream
from ._errors import LimitError

#: Fewer bytes than these are copied by one thread: starting another takes longer.
PARALLEL = 8 << 20
#: How many threads go past the caches, where that can be had (`_stream`), and how many bytes there
#: are to a job then, as looking at each takes its time.
_MOST_STREAMS, _STREAM_JOB = 16, 256 << 10
#: How many copy as the C library does. On 16 cores six take three quarters of the time of four for
#: 1 GiB; eight are slower again, as it goes past the caches in larger pieces alone.
_MOST_THREADS = 6

_NONE, _READ, _WRITE = 0, 1, 2  # PROT_
_SHARED, _PRIVATE, _ANONYMOUS, _NORESERVE = 1, 2, 0x20, 0x4000  # MAP_
_DONTNEED, _POPULATE_WRITE = 4, 23  # MADV_
#: Huge pages, and from how many bytes on the store tries to have them.
_HUGE, _HUGE_FROM = 2 << 20, 16 << 20
#: What travels between nodes as one, as the store has it.
CHUNK = 4 << 20
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _madvise = _libc.mmap, _libc.munmap, _libc.madvise
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_making = threading.RLock()  # a mapping of which there is to be one


class _NoSpace(LimitError, MemoryError):
    """Memory is there, and this process may not have it: as for an object of its own."""


class Mapping:
    """Memory at an address, until it is closed."""

    __slots__ = ("_endings", "address", "length")

    def __init__(self, fd: int, length: int, protection: int, flags: int) -> None:
        address = _mmap(_free_for(length), length, protection, flags, fd, 0)
        if address is None or address == _FAILED:
            why = os.strerror(ctypes.get_errno())
            raise _NoSpace(
                f"cannot map {length} bytes of shared memory ({why}): the limits of address "
                "space (ulimit -v) and of mappings (vm.max_map_count) may be too low"
            )
        self.address: int = address
        self.length = length
        self._endings: list[Callable[[], None]] = []

    def at_end(self, ending: Callable[[], None]) -> None:
        """Have ``ending`` called before the memory goes, as what registered it with a device."""
        self._endings.append(ending)

    def close(self) -> None:
        """Unmap it. Nothing may use the memory any more."""
        address, self.address = self.address, 0
        if address:
            while self._endings:
                self._endings.pop()()
            _munmap(address, self.length)


def _free_for(length: int) -> int | None:
    """Where memory may be mapped so that huge pages are seen as such: the first read of 1 GiB
    takes 512 page faults instead of 16,384, and 112 ms instead of 136. A hint, as somebody else
    may be quicker to take it. None: anywhere."""
    if length < _HUGE_FROM:
        return None
    room = length + _HUGE
    free = _mmap(None, room, _NONE, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
    if free is None or free == _FAILED:
        return None
    _munmap(free, room)
    return int(-(-free // _HUGE) * _HUGE)


def view(address: int, length: int, owner: object) -> memoryview:
    """Memory as bytes; whatever is made over them keeps ``owner`` alive."""
    return memoryview(array_at(address, length, owner)).cast("B")[:length]


def array_at(address: int, length: int, owner: object) -> Any:
    """What is under a view: it lives as long as that, and keeps ``owner``. It may be longer."""
    # One type for each power of two, as making one takes longer than all the rest.
    array = array_type(length.bit_length()).from_address(address)
    array.owner = owner
    return array


@lru_cache(maxsize=64)
def array_type(bits: int) -> Any:
    """What `array_at` makes of as many bytes as have so many bits in their number."""
    return ctypes.c_char * (1 << bits)


def make_room(fd: int) -> None:
    """Raise the soft limit of open files where descriptors of segments take up half of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if fd < soft // 2 or soft in (hard, resource.RLIM_INFINITY):
        return
    more = max(2 * soft, 4 * fd)
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (more if hard == resource.RLIM_INFINITY else min(more, hard), hard),
        )
    except (OSError, ValueError):
        pass  # then it ends where it ends


class Segment:
    """A segment of a store as this process has it; its descriptor is the segment's own.

    `lend`, `wipe` and `take_back` may be called from any thread at any time, a
    finalizer too. Who calls `writable` has the segment for itself.
    """

    __slots__ = ("_closed", "_device", "_fd", "_idle", "_populated", "_writing", "length")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.length = os.fstat(fd).st_size
        self._idle: list[Mapping] = []  # private ones that nobody looks at
        self._writing: Mapping | None = None
        self._populated = 0
        self._device: Mapping | None = None
        self._closed = False

    def writable(self, size: int) -> Mapping:
        """The shared memory itself, for who fills its first ``size`` bytes."""
        if self._writing is None:
            self._writing = Mapping(self._fd, self.length, _READ | _WRITE, _SHARED)
        if size > self._populated:
            # All page faults in one go, a tenth of what they take one by one. Before
            # Linux 5.14 there is no such thing, and they are taken one by one.
            _madvise(self._writing.address, size, _POPULATE_WRITE)
            self._populated = size
        return self._writing

    def readable(self) -> Mapping:
        """The shared memory itself, read only."""
        with _making:
            if self._device is None:
                self._device = Mapping(self._fd, self.length, _READ, _SHARED)
            return self._device

    def lend(self) -> Mapping:
        """A private mapping of one's own: what is written to it, nobody else sees."""
        try:
            return self._idle.pop()
        except IndexError:
            return Mapping(self._fd, self.length, _READ | _WRITE, _PRIVATE)

    def wipe(self, mapping: Mapping) -> None:
        """Forget what was written to a private mapping, and what it shows."""
        _madvise(mapping.address, mapping.length, _DONTNEED)

    def take_back(self, mapping: Mapping) -> None:
        """Take a private mapping to which nothing is written any more, for the next who looks."""
        if self._idle or self._closed:
            mapping.close()
        else:
            self._idle.append(mapping)

    def close(self) -> None:
        """Let go of it: all mappings but those that are lent, which follow when they are back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        for mapping in (self._writing, self._device):
            if mapping is not None:
                mapping.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: close the descriptor; what is mapped may still be looked at."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# --- copying -------------------------------------------------------------------------------

Job = tuple[Any, Any]


def copy_all(jobs: Sequence[Job]) -> None:
    """Copy each source into its target; both are arrays of bytes, or views, of equally many.
    Where there is much to copy, threads share it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:  # then nobody has large arrays either
        for target, source in jobs:
            target[:] = source
        return
    arrays = [(_bytes(numpy, target), _bytes(numpy, source)) for target, source in jobs]
    for target, source in arrays:
        if target.nbytes != source.nbytes:
            raise ValueError(f"{source.nbytes} bytes do not fit into {target.nbytes}")
    total = sum(target.nbytes for target, _ in arrays)
    if total < PARALLEL:
        _copy(numpy, arrays)
    elif total < len(arrays) * _STREAM_JOB or not _streamed(arrays):
        _copy_together(numpy, _shares(arrays, total, _threads(_MOST_THREADS)))


def _threads(most: int) -> int:
    """How many copy. The ranks of a node mostly give results at the same time, so each has its
    part of the cores."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    cores = len(os.sched_getaffinity(0)) // max(1, int(ranks) if ranks.isdecimal() else 1)
    return max(1, min(cores, most))


def _streamed(jobs: Sequence[Job]) -> bool:
    """Copy past the caches; False where that cannot be."""
    stream = _stream.copier()
    if stream is None or not all(
        target.flags.carray and source.flags.c_contiguous for target, source in jobs
    ):
        return False
    addresses = [(target.ctypes.data, source.ctypes.data, target.nbytes) for target, source in jobs]
    stream.copy(addresses, _threads(_MOST_STREAMS))
    return True


def _bytes(numpy: Any, buffer: Any) -> Any:
    if type(buffer) is numpy.ndarray:
        return buffer
    return numpy.frombuffer(buffer, numpy.uint8)


def _shares(jobs: Sequence[Job], total: int, threads: int) -> list[list[Job]]:
    """The same copies, split among threads."""
    shares: list[list[Job]] = []
    share: list[Job] = []
    room = -(-total // threads)
    for target, source in jobs:
        at, size = 0, target.nbytes
        while at < size:
            end = min(size, at + room)
            share.append((target[at:end], source[at:end]))
            room -= end - at
            at = end
            if not room:
                shares.append(share)
                share, room = [], -(-total // threads)
    if share or not shares:
        shares.append(share)
    return shares


def _copy(numpy: Any, jobs: Sequence[Job]) -> None:
    for target, source in jobs:
        numpy.copyto(target, source)  # lets other threads run meanwhile


def _copy_together(numpy: Any, shares: list[list[Job]]) -> None:
    """Copy the shares at once. However it ends, no thread writes to a target afterwards."""
    crew = _Crew(shares)
    try:
        try:
            for _ in range(len(shares) - 1):
                start_new_thread(crew.work, (numpy,))
        except RuntimeError:
            pass  # no threads are left: it is done by this one
        _copy_rest(numpy, crew)
    finally:
        crew.dismiss()
    if crew.errors:
        error = crew.errors[0]
        crew.errors.clear()
        try:
            raise error
        finally:
            del error  # whose traceback has this frame


# Loops stand in functions of their own, outside of try and with, as in _client.


def _copy_rest(numpy: Any, crew: _Crew) -> None:
    while (share := crew.take()) is not None:  # what no thread has taken yet
        _copy(numpy, share)


class _Crew:
    """The threads that help with a copy."""

    def __init__(self, shares: list[list[Job]]) -> None:
        self._shares = shares
        self._taking = allocate_lock()
        self._copying: list[Any] = []  # a lock for each that took a share, until it is done
        self.errors: list[BaseException] = []

    def take(self) -> list[Job] | None:
        """A share that nobody has taken, for who waits for all the others."""
        with self._taking:
            return self._shares.pop() if self._shares else None

    def work(self, numpy: Any) -> None:
        """Copy one share, if there is one left."""
        copying = allocate_lock()
        with copying:
            with self._taking:
                if not self._shares:
                    return
                share = self._shares.pop()
                self._copying.append(copying)
            try:
                _copy(numpy, share)
            except BaseException as error:
                self.errors.append(error)

    def dismiss(self) -> None:
        """Have nobody begin any more and wait for all; what a signal handler raises meanwhile
        is kept for later."""
        while not self._dismissed():
            pass

    def _dismissed(self) -> bool:
        try:
            with self._taking:
                self._shares.clear()
            self._wait()
            return True
        except BaseException as error:
            self.errors.append(error)
            return False

    def _wait(self) -> None:
        for copying in self._copying:
            with copying:
                pass
