"""What the three ways to run calls share: a leg in, a method found, a reply out.

Owns the hosted object and the connection that calls come by. It decides nothing
about order or concurrency, and never swallows what ends the process.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .. import _errors, _objects, _values, _wire
from .._methods import TIMED
from .._worker import Worker
from .board import Board, Interrupted, Refusal
from .describe import Described
from .engines import Engines
from .kept import Kept

#: One reply: flags of the frame, its body, its out-of-band buffers.
Reply = tuple[int, bytes, list[Any]]

#: Errors that say more than that arguments cannot be decoded.
_OF_STORES = (
    _errors.StoreFullError,
    _errors.NodeLostError,
    _errors.LimitError,
    _errors.ReleasedError,
)

#: Room for rank info in front of a result.
_SLACK = 4096

_INFO_FIELDS = (
    "world_size",
    "tp_size",
    "dp_size",
    "pp_size",
    "cp_size",
    "rank",
    "tp_rank",
    "dp_rank",
    "pp_rank",
    "cp_rank",
)


@dataclass(frozen=True)
class Who:
    """Which worker this is, for errors."""

    cluster: str
    worker: str
    node: str
    rank: int


class Host:
    """The user's object, its public methods, and how answers about it are made."""

    def __init__(
        self,
        obj: Any,
        described: Described,
        who: Who,
        board: Board,
        pickle: str,
        info: Any,
        engines: Engines | None = None,
    ) -> None:
        self.obj = obj
        self.engines = engines or Engines()
        self.names = described.names
        self.coroutines = described.coroutines
        self.who = who
        self.board = board
        self.pickle = pickle or "on"
        self.pid = os.getpid()
        self._class = described.cls.__qualname__
        self._has_info = isinstance(obj, Worker)
        self._info_seen: Any = self  # what was found to be no rank info
        self._info_given: dict[str, Any] = dict(info)
        self._info_told = self._info_given

    def unpack(self, body: Any, bufs: Any) -> tuple[str, Callable[..., Any], Any, Any, int]:
        """Return name, method, args, kwargs and origin of a leg; raise Refusal where it has
        none."""
        try:
            name, _parent, origin, (args, kwargs) = _values.decode(body, bufs)
        except Exception as error:
            name = _method_name(body)
            raise Refusal(
                error.code if isinstance(error, _OF_STORES) else "encoding",
                f"{self.who.worker} could not decode the arguments of {name}: "
                f"{type(error).__name__}: {error}",
            ) from error
        if name not in self.names:
            method = self.engines.method(name)
            if method is None:
                raise Refusal("not_found", self._no_such(name))
            if kwargs.pop(TIMED, False):
                self.engines.check_timeout(name, args)
            return name, method, args, kwargs, origin
        return name, getattr(self.obj, name), args, kwargs, origin

    def other(self, frame: _wire.Frame, kept: Kept) -> None:
        """Take a frame that is no leg."""
        if frame.kind == _wire.KIND_NOTICE:
            kept.notice(frame.body)
        elif frame.kind == _wire.KIND_CLOSE and frame.body != b"\xc0":
            message = _wire.unpack(frame.body).get("message", "")
            sys.stderr.write(f"{self.who.worker} ends: its head hung up: {message}\n")
            raise SystemExit(1)

    def _no_such(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{self._class} has no public method {name!r}{hint}"

    def result(self, name: str, value: Any) -> Reply:
        """Encode what a method returned, or the reason why that cannot be sent."""
        bufs: list[Any] = []
        try:
            body = _values.encode(value, bufs, self.pickle)
        except Exception as error:
            message = f"the result of {name} on {self.who.worker} cannot be encoded: {error}"
            code = error.code if isinstance(error, _OF_STORES) else "encoding"
            return self.error(code, name, message)
        if len(body) > _wire.MAX_FRAME // 2 or bufs:
            try:
                _objects.stow(bufs, f"result of {name}")
            except Exception as error:
                where = f"the result of {name} on {self.who.worker}"
                code = error.code if isinstance(error, _errors.MusterError) else "internal"
                return self.error(code, name, f"{where} found no place in a store: {error}")
            size = len(body) + sum(_wire.buffer_size(buf) for buf in bufs)
            if size > _wire.MAX_FRAME - _SLACK or len(bufs) > _wire.MAX_BUFFERS:
                return self.error("too_large", name, self._too_large(name, size, len(bufs)))
        if not self._has_info:
            return 0, body, bufs
        try:
            info = self.obj.rank_info
            # One dict comparison: the object may have been replaced or changed in place.
            if info.__dict__ == self._info_told:
                return 0, body, bufs
        except Exception:
            info = None
        return self._with_info(name, info, body, bufs)

    def _too_large(self, name: str, size: int, bufs: int) -> str:
        if bufs > _wire.MAX_BUFFERS:
            return (
                f"the result of {name} on {self.who.worker} has {bufs} buffers, over the limit of "
                f"{_wire.MAX_BUFFERS}: put small arrays together first"
            )
        return (
            f"the result of {name} on {self.who.worker} has {size} bytes, over the limit of "
            f"{_wire.MAX_FRAME} for one result: return less at a time"
        )

    def _with_info(self, name: str, info: Any, body: bytes, bufs: list[Any]) -> Reply:
        try:
            fresh = {field: int(getattr(info, field)) for field in _INFO_FIELDS}
        except (AttributeError, TypeError, ValueError) as error:
            if info is self._info_seen:  # the call that set it has failed; once is enough
                return 0, body, bufs
            self._info_seen = info
            message = (
                f"{name} on {self.who.worker} left a rank_info that is no RankInfo: {error}. "
                f"Assign a muster.RankInfo with all of {', '.join(_INFO_FIELDS)}"
            )
            return self.error("layout", name, message)
        if fresh == self._info_told:
            return 0, body, bufs
        self._info_told = fresh
        return _wire.FLAG_INFO, b"\x92" + _wire.pack(fresh) + body, bufs

    def info_if_changed(self) -> dict[str, int] | None:
        """Return the object's rank_info where it is not what the worker was told."""
        if not self._has_info:
            return None
        flags, body, _ = self._with_info("__init__", self.obj.rank_info, b"\xc0", [])
        if flags & _wire.FLAG_ERROR:
            raise Refusal("layout", str(_wire.unpack(body)["message"]))
        return dict(self._info_told) if flags & _wire.FLAG_INFO else None

    def info_told(self) -> dict[str, Any] | None:
        """The rank info that the head was told, if it ever was."""
        return None if self._info_told == self._info_given else dict(self._info_told)

    def failure(self, name: str, error: BaseException) -> Reply:
        """Encode what a method raised."""
        if isinstance(error, Refusal):
            return self.error(error.code, name, error.message, error.__cause__)
        if isinstance(error, Interrupted):
            return self.error("cancelled", name, f"{name} was cancelled on {self.who.worker}")
        return self._error_map(name, wire_error(error, self.who, name, self.pickle))

    def error(
        self, code: str, name: str, message: str, cause: BaseException | None = None
    ) -> Reply:
        """Encode an error of our own."""
        return self._error_map(name, own_error(code, message, self.who, cause))

    def _error_map(self, name: str, error: dict[str, Any]) -> Reply:
        error.setdefault("method", name)
        return _wire.FLAG_ERROR, _wire.pack(error), []

    def check_process(self) -> None:
        """Leave at once in a child that user code forked and let return from its method."""
        if os.getpid() != self.pid:
            sys.stderr.write(
                f"a process forked inside a method of {self.who.worker} returned from the method; "
                "only the worker itself may: end such a process with os._exit\n"
            )
            sys.stderr.flush()
            os._exit(1)


def wire_error(
    error: BaseException, who: Who, method: str = "", pickle: str = "on"
) -> dict[str, Any]:
    """Return the Error map of an exception of the user's."""
    return _errors.to_wire(
        error,
        worker=who.worker,
        node=who.node,
        rank=who.rank,
        cluster=who.cluster,
        method=method,
        pickle=pickle,
    )


def own_error(
    code: str, message: str, who: Who, cause: BaseException | None = None
) -> dict[str, Any]:
    """Return the Error map of an error that Muster itself found."""
    error: dict[str, Any] = {
        "code": code,
        "message": message,
        "cluster": who.cluster,
        "worker": who.worker,
        "node": who.node,
        "rank": who.rank,
        "exit_code": 0,
    }
    if cause is not None and cause.__traceback__ is not None:
        error["traceback"] = "".join(traceback.format_exception(cause))
    return error


def _method_name(body: Any) -> str:
    """Return the method's name from a leg whose arguments cannot be decoded."""
    unpacker = msgpack.Unpacker(unicode_errors="surrogatepass")
    try:
        unpacker.feed(bytes(memoryview(body)[:4096]))
        unpacker.read_array_header()
        return str(unpacker.unpack())
    except Exception:
        return "a method"
