"""Copies of batches to a GPU, straight from shared memory.

A segment's read-only mapping is registered with CUDA when it is first copied
from, once, and until it goes: the copy then runs at the speed of the link, on a
stream of its own. What this process wrote to its views is not there: who asks
for such a column goes another way (`as_stored`). Nothing here imports torch, and without CUDA nothing happens.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from . import _columns, _layout
from ._columns import Bytes
from ._rows import Piece

READ_ONLY = 0x08  # cudaHostRegisterReadOnly
_TORCH_KINDS = "biufc"


class _Device:
    """What this process has told CUDA."""

    lock = threading.RLock()
    mappings: ClassVar[dict[int, bool]] = {}  # by address: whether CUDA took it
    streams: ClassVar[dict[Any, Any]] = {}  # by device


def _register(torch: Any, device: Any, address: int, length: int, owner: Any) -> bool:
    """Have CUDA know a mapping for as long as it is there; False where it will not."""
    with _Device.lock:
        known = _Device.mappings.get(address)
        if known is None:
            cudart = torch.cuda.cudart()
            known = int(cudart.cudaHostRegister(address, length, READ_ONLY)) == 0
            if not known:
                _clear_error(torch, device)
            _Device.mappings[address] = known

            def forget() -> None:
                with _Device.lock:
                    if _Device.mappings.pop(address, False):
                        cudart.cudaHostUnregister(address)

            owner.at_end(forget)
        return known


def _clear_error(torch: Any, device: Any) -> None:
    """CUDA keeps what it refused as its last error, for whoever asks next: that is this here."""
    try:
        torch.zeros(1, device=device)
    except Exception:  # the same again, and with that it is gone
        pass


def _stream(torch: Any, device: Any) -> Any:
    with _Device.lock:
        if device not in _Device.streams:
            _Device.streams[device] = torch.cuda.Stream(device)
        return _Device.streams[device]


class Copies:
    """The copies of one batch to one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._held: list[Any] = []  # what must stay until the copies are done
        self._made: list[Any] = []
        self._stream: Any = None
        if device.type == "cuda" and torch.cuda.is_available():
            if device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            self._stream = _stream(torch, self._device)

    def column(self, name: str, pieces: Sequence[Piece]) -> Any:
        """The column on the device: a tensor, or a list of tensors where it is ragged; None
        where it has to go another way."""
        some = [piece for piece in pieces if len(piece.rows)]
        if self._stream is None or not some:
            return None
        found = [self._shared(name, piece) for piece in some]
        if any(column is None for column in found):
            return None
        if len({_columns.signature(column) for column in found}) > 1:
            return None
        if all(isinstance(column, _columns.Fixed) for column in found):
            return self._copied([column.data for column in found], found[0].type)
        if len(found) > 1 or not isinstance(found[0], _columns.Ragged):
            return None
        return self._split(found[0])

    def _split(self, ragged: Any) -> list[Any]:
        lo, hi = int(ragged.offsets[0]), int(ragged.offsets[-1])
        whole = self._copied([ragged.values[lo:hi]], ragged.type)
        rows = list(whole.split(np.diff(ragged.offsets).tolist()))
        if ragged.valid is not None:
            for row in np.flatnonzero(~ragged.valid).tolist():
                rows[row] = None
        return rows

    def _shared(self, name: str, piece: Piece) -> Any:
        """The rows of a piece over the mapping that CUDA knows."""
        block, rows = piece
        if block.local or not isinstance(rows, range):
            return None
        place = block.source.device_address()
        if place is None:
            return None
        spec = block.header().columns[name]
        if spec.kind not in ("fixed", "ragged") or not _torch_has(spec.type):
            return None
        address, length, owner = place
        if not _register(self._torch, self._device, address, length, owner):
            return None
        self._held.append(owner)
        block.ensure(name, rows)
        return _layout.load(_at(address, block.source.nbytes), block.header(), name).take(rows)

    def _copied(self, arrays: list[Any], type: str) -> Any:
        torch = self._torch
        sources = [_columns.tensor_of(array, type) for array in arrays]
        rows = sum(map(len, sources))
        with torch.cuda.stream(self._stream):
            made = torch.empty(
                (rows, *sources[0].shape[1:]), dtype=sources[0].dtype, device=self._device
            )
            at = 0
            for source in sources:
                made[at : at + len(source)].copy_(source, non_blocking=True)
                at += len(source)
        self._held.append(sources)
        self._made.append(made)
        return made

    def finish(self) -> None:
        """Have the current stream wait for the copies, and hold the memory until they are done."""
        if not self._made:
            return
        torch = self._torch
        event = torch.cuda.Event()
        event.record(self._stream)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for made in self._made:
            made.record_stream(current)  # it was allocated on the other stream
        _hold(event, self._held)


def as_stored(read: Any, stored: str, pieces: Sequence[Piece]) -> bool:
    """Whether a column is for its holder what lies in the store: nothing was written to it.
    ``read`` is what the holder was given of it, None for nothing."""
    some = [piece for piece in pieces if len(piece.rows)]
    if any(not piece.block.local and piece.block.written(stored) for piece in some):
        return False
    if read is None:
        return True
    if len(some) != 1 or not isinstance(some[0].rows, range):
        return False  # gathered in memory of its own, of which nobody knows
    if isinstance(read, list) or read.dtype == object:
        block, rows = some[0]
        return not block.local and _are_rows(read, block.column(stored, rows, "off"))
    return True


def _are_rows(read: Any, column: Any) -> bool:
    """Whether rows that were given out are still those of the column: others may have been put
    into their list."""
    if not isinstance(column, _columns.Ragged) or column.lib == "list" or len(read) != len(column):
        return False
    for row, mine in zip(read, column.value(), strict=True):
        if row is mine is None:
            continue
        if type(row) is not type(mine) or row.dtype != mine.dtype or row.shape != mine.shape:
            return False
        if row.nbytes and _place(row) != _place(mine):
            return False
    return True


def _place(row: Any) -> tuple[int, Any]:
    if isinstance(row, np.ndarray):
        return row.__array_interface__["data"][0], row.strides
    return row.data_ptr(), row.stride()


def _torch_has(type: str) -> bool:
    if type.startswith("torch:"):
        return True
    dtype = _columns.dtype_of(type)
    return dtype.kind in _TORCH_KINDS and dtype.isnative and dtype.char not in "gG"


def _at(address: int, size: int) -> Bytes:
    """The memory at an address; whoever owns it has to be held beside."""
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    made: Bytes = np.frombuffer(memory, np.uint8)
    return made


# --- holding until a copy is done ----------------------------------------------------------


class _Waiting:
    lock = threading.Lock()
    queue: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    count = 0


def _hold(event: Any, held: Any) -> None:
    """Hold something until an event has happened; a thread waits for it."""
    with _Waiting.lock:
        _Waiting.queue.put((event, held))
        _Waiting.count += 1
        if _Waiting.count == 1:
            threading.Thread(target=_wait, name="muster-copies", daemon=True).start()


def _wait() -> None:
    while True:
        event, held = _Waiting.queue.get()
        try:
            event.synchronize()
        finally:
            del event, held
        with _Waiting.lock:
            _Waiting.count -= 1
            if not _Waiting.count:
                return
