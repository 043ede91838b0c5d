"""Making calls: from a method's name and arguments to a ref.

Owns what happens between a user's line and the connection: checks, marks,
futures as arguments, and the route, whose constant part is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any

from . import _errors, _objects, _values, _wire
from ._client import Connection
from ._marks import Mark
from ._methods import TIMED, Method, check_per_rank, engine_method, unknown_method
from ._refs import PENDING, Ref, seconds
from ._unanswered import Due, Hold, MovedOn

# How a route picks ranks, docs/wire.md.
AS_REGISTERED, EVERY_RANK, ONE_RANK = 0, 1, 2
_SPLIT, _WAITING, _MARKED, _KEEP, _WHOLE, _APART, _OWN_ROWS = 1, 2, 4, 8, 16, 32, 64

#: Seconds beyond a call's own deadline after which the head itself counts as stuck.
_HEAD_LATE = 30.0

_ALL = -1
_UNFINISHED = -1  # in place of flags: a route without deadline, parent and flags
_MARKS, _REFS = 1, 2
_PLAIN = frozenset((int, float, bool, str, bytes, list, dict, tuple, type(None)))


class Group:
    """A live cluster as calls need it: its number, size and methods."""

    __slots__ = (
        "_routes",
        "class_name",
        "connection",
        "engines",
        "methods",
        "name",
        "number",
        "own_rows",
        "pickle",
        "workers",
        "world",
    )

    def __init__(self, connection: Connection, info: Mapping[str, Any], pickle: str = "on") -> None:
        description = info["description"]
        self.connection = connection
        self.number: int = info["number"]
        self.name: str = info["name"]
        self.workers = [worker["name"] for worker in info["workers"]]
        self.world = len(self.workers)
        self.class_name = str(description["class"]).removeprefix("__muster_main__.")
        self.methods = {m["name"]: Method(m, self.class_name) for m in description["methods"]}
        self.engines: bool = description.get("engines", False)
        self.pickle = pickle
        #: Arguments that are cut by rows may have different numbers of them.
        self.own_rows = False
        self._routes: dict[tuple[str, int, int, int], bytes] = {}

    def method(self, name: str) -> Method:
        """A public method by name, or the error that names the nearest."""
        found = self.methods.get(name)
        if found is None:
            if not isinstance(name, str):
                raise TypeError(f"a method is called by its name, not by {name!r}")
            if self.engines and "/" in name:
                found = self.methods[name] = engine_method(name)
                return found
            raise unknown_method(self.class_name, name, self.methods)
        return found

    def run(
        self,
        method: Method,
        how: int,
        rank: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call and wait for the answer."""
        if timeout is not None:
            timeout = seconds(timeout)
        flags = _WAITING
        if timeout is None and self.connection.loop_thread and self.connection.stalls():
            flags |= _WHOLE
        ref = self._send(method, how, rank, args, kwargs, timeout, flags, finish)
        if timeout is None:
            self.connection.wait_one(ref)
        elif not self.connection.wait_one(ref, monotonic() + timeout + _HEAD_LATE):
            raise _errors.DeadlineError(
                f"{method.where} had {timeout:g} s; {_HEAD_LATE:g} s after that the head has "
                "still not said anything"
            )
        return ref._result()

    def start(
        self,
        method: Method,
        how: int,
        rank: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        finish: Callable[[Any], Any] | None = None,
    ) -> Ref:
        """Call, and return a ref of the answer."""
        return self._send(method, how, rank, args, kwargs, timeout, _KEEP, finish)

    def start_each(
        self,
        method: Method,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        how: int = EVERY_RANK,
        apart: bool = False,
    ) -> list[Ref]:
        """Call every rank, and return one ref per rank: of what it returned.

        Where a rank is dead it fails for all of them, or with ``apart`` for that one alone.
        """
        flags = _SPLIT | _KEEP | (_APART if apart else 0)
        while True:
            with self.connection.holding_acks() as hold:
                route, payload, buffers, due = self._encode(
                    method, how, _ALL, args, kwargs, timeout, flags, hold=hold
                )
                ranks = range(self.world)
                try:
                    return self.connection.split_call(route, payload, buffers, ranks, hold, due)
                except MovedOn:
                    continue

    def _send(
        self,
        method: Method,
        how: int,
        rank: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        flags: int,
        finish: Callable[[Any], Any] | None,
    ) -> Ref:
        special = _special(args, kwargs)
        while special & _REFS:
            with self.connection.holding_acks() as hold:
                route, payload, buffers, due = self._encode(
                    method, how, rank, args, kwargs, timeout, flags, hold=hold
                )
                try:
                    return self.connection.call(route, payload, buffers, finish, hold, due)
                except MovedOn:
                    continue
        route, payload, buffers, due = self._encode(
            method, how, rank, args, kwargs, timeout, flags, special != 0
        )
        return self.connection.call(route, payload, buffers, finish, None, due)

    def _encode(
        self,
        method: Method,
        how: int,
        rank: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        flags: int,
        special: bool = True,
        hold: Hold | None = None,
    ) -> tuple[bytes, bytes, list[Any], Due | None]:
        if timeout is not None:
            method.check_timeout(args)
        method.check(args, kwargs)
        if timeout is not None and "/" in method.name:
            kwargs = {**kwargs, TIMED: True}
        if how == AS_REGISTERED and method.cut:
            method.check_cut(args, kwargs, self.world, self.own_rows)
            if self.own_rows:
                flags |= _OWN_ROWS
        if special and _special(args, kwargs):
            check_per_rank(method.where, args, kwargs, self.world)
            whole = how != AS_REGISTERED or not method.spreads
            args = [self._argument(arg, hold, whole) for arg in args]
            kwargs = {name: self._argument(arg, hold, whole) for name, arg in kwargs.items()}
            flags |= _MARKED
        buffers: list[Any] = []
        payload = _values.encode_payload(args, kwargs, buffers, self.pickle)
        if buffers and not _objects.are_stored(map(type, buffers)):
            _objects.stow(buffers, f"arguments of {method.name}")
        current = self.connection.current_call
        parent = 0 if current is None else current()
        if timeout is None and not parent:
            key = (method.name, how, rank, flags)
            route = self._routes.get(key) or self._route(key, bytes((0, 0, flags)))
            return route, payload, buffers, None
        key = (method.name, how, rank, _UNFINISHED)
        route = self._routes.get(key) or self._route(key, b"")
        limit = seconds(timeout)
        due = None if limit is None else Due(monotonic() + limit, len(route))
        time = milliseconds(timeout).to_bytes(8, "big")
        route += b"\xcf%b%b%c" % (time, _wire.pack(parent), flags)
        return route, payload, buffers, due

    def _route(self, key: tuple[str, int, int, int], end: bytes) -> bytes:
        """A route, or as much of it as is the same for every call of a method."""
        name, how, rank, _ = key
        ranks = None if rank == _ALL else [rank]
        parts = map(_wire.pack, (self.number, name, how, ranks))
        route = self._routes[key] = b"\x97" + b"".join(parts) + end
        return route

    def _argument(self, arg: Any, hold: Hold | None, whole: bool) -> Any:
        """A ref as an argument: the head waits for it, unless its value is here already."""
        if not isinstance(arg, Ref):
            return arg
        if arg._state == PENDING and whole and arg._finish is not None:
            from ._sharing import taken  # which makes calls itself

            arg = taken(arg)
        ours = arg._connection is self.connection and arg._finish is None
        ours = ours and (whole or arg.as_made)
        if arg._state == PENDING and ours and hold is not None:
            hold.want(arg._id)
            if arg._state == PENDING:  # still, and what answers it is kept
                return _values.FutureMark(arg._id, arg._rank)
        if arg._state == PENDING:
            arg._connection.wait_one(arg)
        return arg._passed(whole)


def _special(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Whether there are marks and refs among arguments. A look at the types says so."""
    found = 0
    if not kwargs and _PLAIN.issuperset(map(type, args)):
        return found
    for kind in {*map(type, args), *map(type, kwargs.values())}:
        if issubclass(kind, Ref):
            found |= _REFS
        elif issubclass(kind, Mark):
            found |= _MARKS
    return found


def milliseconds(timeout: float | None) -> int:
    """A user's timeout as the wire has it, where 0 means none."""
    limit = seconds(timeout)
    return 0 if limit is None else max(1, ceil(limit * 1000))
