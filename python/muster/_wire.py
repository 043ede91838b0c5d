"""Frames: the Python side of docs/wire.md.

Owns how a frame lies in a byte stream, sending and receiving one, and the hello that opens a
connection. It never looks into a body (that is _values), and starts no thread. A small frame
costs one system call each way, and about a microsecond of Python.
"""

from __future__ import annotations

import os
import socket
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, starmap
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped, unused-ignore]

from ._errors import ProtocolError, TooLargeError, from_wire
from ._version import __version__
from ._waiting import joined

VERSION = 1
RELEASE = __version__
MAX_FRAME = 1 << 30  # bytes after the header
HELLO_LIMIT = 1 << 20  # the same, before a hello is accepted
MAX_BUFFERS = 0xFFFF

KIND_HELLO = 1
KIND_WELCOME = 2
KIND_REQUEST = 3
KIND_RESPONSE = 4
KIND_NOTICE = 5
KIND_CALL = 8
KIND_ANSWER = 9
KIND_LEG = 10
KIND_RESULT = 11
KIND_CANCEL = 12
KIND_WAIT = 13
KIND_EXPIRE = 14
KIND_OPEN = 16
KIND_CLOSE = 17
KIND_FANOUT = 18
KINDS = frozenset((1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18))

FLAG_ERROR = 1
FLAG_RANK = 2
FLAG_CAST = 4
FLAG_INFO = 8
FLAG_MUTE = 16
FLAG_AGAIN = 32
FLAG_WHOLE = 1  # of a Wait

ROLE_OWNER = "owner"
ROLE_CONTROLLER = "controller"
ROLE_EVENTS = "events"
ROLE_WORKER = "worker"
ROLE_AGENT = "agent"
ROLE_CONTROL = "control"
ROLE_STORE = "store"

HEADER = struct.Struct("<IBBHQII")  # length, kind, flags, nbuf, id, peer, ack
HEADER_SIZE = 24

FrameError = ProtocolError  # what a stream raises that cannot be trusted any more

_CHUNK = 64 << 10  # one recv
JOIN = 32 << 10  # up to here a frame is one piece, written by one system call
_OWN = 16 << 10  # a frame that is longer, and not here yet, gets memory of its own
_GROW = 1 << 20
_ZEROS = bytes(_GROW)
_IOV_MAX = 1024
_ALIGN = 16  # what malloc aligns to, and numpy is quickest with
_REFERENCE = struct.Struct("<QQQII")  # object, offset, length, flags, zero
_REFERS = 1 << 63  # in the table of buffers
_REFERENCE_ENTRY = _REFERS | _REFERENCE.size
_REFERENCE_TABLE = struct.pack("<Q", _REFERENCE_ENTRY)
_NEW = 1
_MAX_OFFSET = 1 << 64

# The number of a frame is the top byte of peer: 1 to 255, then 1 again; 0: it has none.
_NUMBER = 24
_NUMBERS = 255
_NUMBER_AT = 19  # in the header of a frame
_BEHIND = _NUMBERS // 2  # how far back a number is still one that came before
_PEER = (1 << _NUMBER) - 1
_BROKEN = 1 << 32  # in the place of the number of the last frame: no other comes after it
#: The number after each, both as they lie in peer; 0 stands before the first.
AFTER = {n << _NUMBER: (n % _NUMBERS + 1) << _NUMBER for n in range(_NUMBERS + 1)}
AFTER[_BROKEN] = _BROKEN

_pack_header = HEADER.pack
_unpack_header = HEADER.unpack_from
_references, _pack_reference = _REFERENCE.iter_unpack, _REFERENCE.pack
_new = tuple.__new__


class CutError(ProtocolError):
    """The connection ended where more had to come."""


class Reference(NamedTuple):
    """A buffer whose bytes stay where they are: a stretch of an object in a store."""

    object: int
    offset: int
    length: int
    new: bool = False  # flag _NEW: its maker names the object for the first time
    segment: int = 0  # where the object lies, if that is told


_only_references = frozenset((Reference,)).issuperset


class Frame(NamedTuple):
    """One frame; its memory is its own and writable where it is in bufs."""

    kind: int
    flags: int
    id: int
    peer: int
    ack: int
    body: Any
    bufs: Sequence[Any]  # memoryviews, and References


# --- bodies of messages ------------------------------------------------------------


def pack(message: object) -> bytes:
    """The body of a message: plain msgpack."""
    data: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return data


def unpack(body: Any) -> Any:
    """The message in a body, or ProtocolError."""
    try:
        return msgpack.unpackb(body, unicode_errors="surrogatepass", strict_map_key=False)
    except Exception as error:
        raise ProtocolError(f"the body of a frame is not msgpack: {error}") from None


# --- sending -----------------------------------------------------------------------


def pack_frame(
    kind: int,
    id: int,
    body: Any,
    bufs: Sequence[Any] = (),
    flags: int = 0,
    peer: int = 0,
    ack: int = 0,
) -> list[Any]:
    """The parts of a frame in order: one where it is small, large pieces uncopied."""
    size = len(body)
    if not bufs:
        if size <= JOIN:
            return [_pack_header(size, kind, flags, 0, id, peer, ack) + body]
        if size > MAX_FRAME:
            raise _too_large(size)
        return [_pack_header(size, kind, flags, 0, id, peer, ack), body]
    if len(bufs) > MAX_BUFFERS:
        raise TooLargeError(
            f"a message with {len(bufs)} buffers is over the limit of {MAX_BUFFERS}: "
            "put small arrays together first, or send it in parts"
        )
    views: list[Any]
    if _only_references(map(type, bufs)):
        views = [*starmap(_pack_reference, bufs)]
        table = _REFERENCE_TABLE * len(views)
        size += _REFERENCE.size * len(views)
    else:
        views = [_pack_reference(*b) if type(b) is Reference else memoryview(b) for b in bufs]
        sizes = [_REFERENCE_ENTRY if type(view) is bytes else view.nbytes for view in views]
        table = struct.pack(f"<{len(sizes)}Q", *sizes)
        size += _total(sizes)
    size += len(table)
    if size > MAX_FRAME:
        raise _too_large(size)
    head = _pack_header(size, kind, flags, len(views), id, peer, ack)
    if size <= JOIN:
        return [b"".join((head, table, body, *views))]
    start = [head + table + body] if len(body) <= JOIN else [head + table, body]
    return start + joined([view for view in views if type(view) is bytes or view.nbytes])


def send_frame(
    to: socket.socket | FrameStream,
    kind: int,
    id: int,
    body: Any,
    bufs: Sequence[Any] = (),
    flags: int = 0,
    peer: int = 0,
    ack: int = 0,
) -> None:
    """Send one frame on a blocking socket: all of it, or an error before anything is sent,
    or OSError when the connection is gone. Given a stream, it is numbered."""
    sock, number = (to.sock, AFTER[to.gave]) if isinstance(to, FrameStream) else (to, 0)
    parts = pack_frame(kind, id, body, bufs, flags, peer | number, ack)
    if isinstance(to, FrameStream):
        to.gave = number
    send_parts(sock, parts)


def send_parts(sock: socket.socket, parts: Sequence[Any]) -> None:
    """Send the bytes of all parts in order.

    An exception that a signal handler raises half way (Ctrl-C) is held back until the frame is
    out, so that the connection stays usable; a second one ends the connection.
    """
    if len(parts) == 1:
        sock.sendall(parts[0])
        return
    views = [memoryview(part).cast("B") for part in parts]
    ends = list(accumulate(map(len, views)))
    counts: list[int] = []  # filled by one C call, for the reason that FrameStream has
    held: BaseException | None = None
    while True:
        try:
            done = sum(counts)
            at = bisect_right(ends, done)
            if at == len(ends):
                break
            first = views[at][done - ends[at] :]  # counted from its end
            counts.extend(map(sock.sendmsg, ([first, *views[at + 1 : at + _IOV_MAX]],)))
        except OSError:
            raise
        except BaseException as error:
            if not counts:
                raise
            if held is not None:
                sock.shutdown(socket.SHUT_RDWR)
                raise
            held = error
    if held is not None:
        raise held


def buffer_size(buf: Any) -> int:
    """How many bytes of a frame a buffer takes, whatever stands for it."""
    try:
        return 8 + memoryview(buf).nbytes
    except TypeError:
        return 8 + _REFERENCE.size


def _too_large(size: int) -> TooLargeError:
    return TooLargeError(
        f"a message of {size} bytes is over the limit of {MAX_FRAME} (1 GiB): "
        "send it in parts, or pass a path instead"
    )


# --- receiving -----------------------------------------------------------------------


def numbered(number: int, parts: Sequence[Any]) -> list[Any]:
    """The parts of a frame that was packed before, with a number that a stream gave."""
    first, *rest = parts
    byte = bytes((number >> _NUMBER,))
    return [b"".join((first[:_NUMBER_AT], byte, first[_NUMBER_AT + 1 :])), *rest]


def number_before(parts: Sequence[Any]) -> int:
    """The number that comes before that of a frame."""
    return int((parts[0][_NUMBER_AT] - 2) % _NUMBERS + 1) << _NUMBER


class FrameStream:
    """The receiving half of a connection, for one thread at a time.

    Frames are numbered on each connection: one that comes twice is dropped here, and
    where one is missing the stream is ended. The numbers of those that are sent are
    given here too, to whoever sends, in the order of sending.

    ``limit`` is the most that a frame may claim after its header. What an exception of a signal
    handler interrupts can be called again: no byte is lost, because bytes are received and kept
    by one C call (``extend`` over ``map``), between whose parts no handler runs.
    """

    __slots__ = (
        "_big",
        "_data",
        "_got",
        "_had",
        "_have",
        "_need",
        "_pos",
        "_start",
        "dry",
        "gave",
        "limit",
        "sock",
    )

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME) -> None:
        self.sock = sock
        self.limit = limit
        self._data = b""  # received; what is before _pos has been taken
        self._pos = 0
        self.dry = True  # there is nothing of which no frame was made yet; False: there may be
        self._got: list[Any] = []  # received, not in _data or _have yet
        self._big: bytearray | None = None  # a large frame on its way
        self._start = 0  # where that frame starts in _big
        self._have = 0  # where its bytes end so far
        self._need = 0  # where they end at last
        self._had = 0  # the number of the last frame, as it lies in peer
        self.gave = 0  # the same of the last that was sent

    def number(self) -> int:
        """The number of the next frame to send, for its peer."""
        number = self.gave = AFTER[self.gave]
        return number

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self.sock.fileno()

    def read(self) -> Frame:
        """The next frame, waiting for it. EOFError at the end of the stream."""
        while (frame := self.next()) is None:
            self.fill()
        return frame

    def next(self) -> Frame | None:
        """The next frame if all of it has been received."""
        if self._got:
            self._settle()
        if self._big is not None:
            return self._next_big() if self._have == self._need else None
        data, pos = self._data, self._pos
        there = len(data) - pos
        if there < HEADER_SIZE:
            return None
        length, kind, flags, nbuf, id, peer, ack = _unpack_header(data, pos)
        if length > self.limit or kind not in KINDS or 8 * nbuf > length:
            raise self._malformed(length, kind, nbuf)
        start = pos + HEADER_SIZE
        end = start + length
        if there < HEADER_SIZE + length:
            if length > _OWN:
                self._begin_big(length, nbuf)
            return None
        had = self._had
        if peer:
            if peer == AFTER[had]:
                had, peer = peer, 0
            else:
                place = self._place(peer)
                if place is not None:
                    return self._drop(place, end)
                had, peer = peer & ~_PEER or had, peer & _PEER
        if nbuf == 0:
            frame = _new(Frame, (kind, flags, id, peer, ack, data[start:end], ()))
        else:
            body, at = start + 8 * nbuf, end - _REFERENCE.size * nbuf
            if body <= at and data[start:body] == _REFERENCE_TABLE * nbuf:  # nothing to write to
                bufs = []
                for obj, offset, size, new, segment in _references(data[at:end]):
                    if not obj or offset + size >= _MAX_OFFSET:
                        reference(_REFERENCE.pack(obj, offset, size, new, segment))  # raises
                    bufs.append(_new(Reference, (obj, offset, size, new & _NEW == _NEW, segment)))
                frame = _new(Frame, (kind, flags, id, peer, ack, data[body:at], bufs))
            else:
                frame = _split(bytearray(data[pos:end]), 0)
        # Without a call between them: who is interrupted reads it again, and it is the next.
        self._had = had
        self._pos = end
        self.dry = there == HEADER_SIZE + length
        return frame

    def _place(self, peer: int) -> bool | None:
        """Whether a frame came before; None where it is the one to take."""
        number, had = peer >> _NUMBER, self._had >> _NUMBER
        if self._had == _BROKEN:
            return False
        if not number or not had or number == had % _NUMBERS + 1:
            return None
        return (had - number) % _NUMBERS <= _BEHIND

    def _drop(self, before: bool, end: int) -> Frame | None:
        """Pass by a frame that came before; where some are missing, end the stream."""
        if before:
            self._pos = end
            return self.next()
        try:
            self.sock.shutdown(socket.SHUT_RDWR)  # what is still there to be read is dropped, too
        except OSError:
            pass
        self._had = _BROKEN
        self._data, self._pos = b"", 0
        return None

    def fill(self, flags: int = 0) -> None:
        """Receive once. EOFError at the end of the stream, CutError where that is in the
        middle of a frame; with MSG_DONTWAIT also BlockingIOError."""
        if self._got:
            self._settle()
        self.dry = False
        big = self._big
        try:
            if big is None:
                self._got.extend(map(self.sock.recv, (_CHUNK,), (flags,)))
            elif self._have < self._need:
                if self._have == len(big):
                    self._grow(big)
                with memoryview(big) as view, view[self._have : self._need] as rest:
                    self._got.extend(map(self.sock.recv_into, (rest,), (0,), (flags,)))
        except ConnectionError as error:
            raise self._ended(f" ({error.strerror or error})") from None
        taken = self._pos == len(self._data)
        got = self._got  # from here on no call, as in _settle
        if got and got[0] and taken and self._big is None and self._had != _BROKEN:
            self._data, self._pos, self._got = got[0], 0, []
        elif got:
            self._settle()

    def _settle(self) -> None:
        """Account for what one receive brought; stores without a call between them, as a
        signal handler may run after each call."""
        got = self._got[0]
        if not got:
            self._got = []
            raise self._ended("")
        if self._had == _BROKEN:
            pass  # what comes behind a frame that is missing is of no use
        elif self._big is not None:
            self._have += got
        else:
            if self._pos < len(self._data):
                got = self._data[self._pos :] + got
            self._data, self._pos = got, 0
        self._got = []

    # A large frame lies in one bytearray behind so much padding that its first
    # buffer is aligned. That grows with what arrived, never by what is claimed.

    def _begin_big(self, length: int, nbuf: int) -> None:
        have = memoryview(self._data)[self._pos :]
        pad = 0
        table = HEADER_SIZE + 8 * nbuf
        if nbuf and len(have) >= table:
            sizes = struct.unpack_from(f"<{nbuf}Q", have, HEADER_SIZE)
            pad = -(HEADER_SIZE + length - _total(sizes)) % _ALIGN
        big = bytearray(min(pad + HEADER_SIZE + length, max(_GROW, pad + len(have))))
        big[pad : pad + len(have)] = have
        end = pad + len(have)
        self._start, self._have, self._need = pad, end, pad + HEADER_SIZE + length
        self._data, self._pos = b"", 0
        self._big = big

    def _grow(self, big: bytearray) -> None:
        more = min(self._need - len(big), len(big))
        while more > 0:
            big += _ZEROS if more >= _GROW else _ZEROS[:more]
            more -= _GROW

    def _next_big(self) -> Frame | None:
        big, start = self._big, self._start
        assert big is not None
        peer = big[start + _NUMBER_AT] << _NUMBER
        place = self._place(peer)
        if place is not None:
            self._big = None
            return self._drop(place, self._pos)
        frame = _split(big, start)
        self._had = peer or self._had
        self._big = None
        return frame

    def _malformed(self, length: int, kind: int, nbuf: int) -> ProtocolError:
        if length > self.limit:
            return ProtocolError(
                f"a frame claims {length} bytes, the limit here is {self.limit}: "
                "is the other end Muster?"
            )
        if kind not in KINDS:
            return ProtocolError(f"a frame of unknown kind {kind}")
        return ProtocolError(f"a frame of {length} bytes cannot hold a table of {nbuf} buffers")

    def _ended(self, why: str) -> Exception:
        """What the end of the stream means here."""
        if self._big is not None:
            missing, size = self._need - self._have, self._need - self._start
        else:
            there = len(self._data) - self._pos
            if there == 0:
                return EOFError("the connection ended" + why)
            size = HEADER_SIZE
            if there >= HEADER_SIZE:
                size += int.from_bytes(self._data[self._pos : self._pos + 4], "little")
            missing = size - there
        return CutError(
            f"the connection ended in the middle of a frame{why}: {missing} of {size} bytes missing"
        )


def _split(data: bytearray, pos: int) -> Frame:
    """The frame that lies in data from pos to the end, without copying."""
    length, kind, flags, nbuf, id, peer, ack = _unpack_header(data, pos)
    peer &= _PEER
    start = pos + HEADER_SIZE
    end = start + length
    whole = memoryview(data)
    if nbuf == 0:
        return _new(Frame, (kind, flags, id, peer, ack, whole[start:end], ()))
    sizes = struct.unpack_from(f"<{nbuf}Q", data, start)
    start += 8 * nbuf
    at = end - _total(sizes)
    if at < start:
        raise ProtocolError(
            f"the buffers of a frame are longer than the frame ({length} bytes): "
            f"{_total(sizes)} bytes in {nbuf} buffers"
        )
    body = whole[start:at]
    bufs: list[Any] = []
    for entry in sizes:
        part = whole[at : at + (entry & ~_REFERS)]
        bufs.append(reference(part) if entry & _REFERS else part)
        at += len(part)
    return _new(Frame, (kind, flags, id, peer, ack, body, bufs))


def _total(sizes: Sequence[int]) -> int:
    """How many bytes the buffers of a table have in the frame."""
    return sum(size & ~_REFERS for size in sizes)


def reference(data: bytes | memoryview) -> Reference:
    """The reference in 32 bytes."""
    if len(data) != _REFERENCE.size:
        raise ProtocolError(f"a reference of {len(data)} bytes instead of {_REFERENCE.size}")
    obj, offset, length, flags, segment = _REFERENCE.unpack(data)
    if not obj:
        raise ProtocolError("a reference that names no object")
    if offset + length >= _MAX_OFFSET:
        raise ProtocolError(f"a reference to {length} bytes from {offset} on, which no object has")
    return _new(Reference, (obj, offset, length, flags & _NEW == _NEW, segment))


# --- hello -------------------------------------------------------------------------------


def hello(
    peer: socket.socket | FrameStream, role: str, token: str = "", **extra: Any
) -> dict[str, Any]:
    """Introduce this process on a new connection; the Welcome, or why there is none.

    AuthError for a wrong token, ProtocolError for a wrong version or a stranger. Given a socket,
    not a byte beyond the Welcome is read from it.
    """
    message: dict[str, Any] = {"magic": "muster", "version": VERSION, "release": RELEASE}
    message |= {"role": role, "token": token, "pid": os.getpid()}
    try:
        send_frame(peer, KIND_HELLO, 0, pack(message | extra))
    except BrokenPipeError:
        pass  # refused unheard: why is there to be read
    try:
        frame = peer.read() if isinstance(peer, FrameStream) else _read_one(peer)
    except EOFError:
        raise CutError(
            f"the connection ended before the {role} was welcomed: is the other end Muster "
            f"{RELEASE}, and still running?"
        ) from None
    if frame.kind != KIND_WELCOME:
        raise ProtocolError(f"expected Welcome, got a frame of kind {frame.kind}")
    welcome = unpack(frame.body)
    if not isinstance(welcome, dict):
        raise ProtocolError(f"a Welcome is a map, got {type(welcome).__name__}")
    if frame.flags & FLAG_ERROR:
        raise from_wire(welcome)
    if welcome.get("version") != VERSION:
        raise ProtocolError(
            f"the other end speaks version {welcome.get('version')} of the protocol (release "
            f"{welcome.get('release')}), this is version {VERSION} (release {RELEASE}): "
            "install the same release of Muster on both sides"
        )
    return welcome


def _read_one(sock: socket.socket) -> Frame:
    """One frame, and nothing behind it, as the descriptors of the next may be needed."""
    data = b""
    stream = FrameStream(sock, HELLO_LIMIT)
    size = HEADER_SIZE
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError("the connection ended")
        data += more
        if len(data) == HEADER_SIZE:
            length, kind, _, nbuf, *_ = _unpack_header(data)
            if length > HELLO_LIMIT or kind not in KINDS or 8 * nbuf > length:
                raise stream._malformed(length, kind, nbuf)
            size += length
    return _split(bytearray(data), 0)
