"""Futures of calls, and the ways to wait for them.

Owns `Ref`, `get`, `wait` and `as_completed`. A ref holds the bytes of its
answer until somebody asks for the value; the connection that delivers them is
`_client`'s. Nothing here is bound to an event loop or a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from math import isnan
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import _errors, _values, _wire

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ._client import Connection

PENDING = 0
ARRIVED = 1  # the answer's bytes are here
DECODED = 2
FAILED = 3

_ERROR = _wire.FLAG_ERROR
_FOR_EVER = 10.0 * 365 * 86400  # what clocks and sockets take; longer is no limit


class Ref:
    """The future result of a call.

    ``muster.get(ref)`` waits for it and returns the value, or raises what the
    call raised, as often as it is asked. In a coroutine, ``await ref`` does the
    same, on any event loop. A ref that nobody asks stays silent about errors.

    As an argument of a call it stands for its value; inside one, as in a list,
    it arrives as a ref, which whoever got it can ask in the same ways.
    """

    __slots__ = (
        "__weakref__",
        "_answer",
        "_connection",
        "_failure",
        "_finish",
        "_id",
        "_ident",  # what it is called where its call is not known: see _sharing
        "_rank",
        "_state",
        "_value",
        "_watchers",
    )

    #: Whether its answer is what a call returned, so that the head can cut it.
    as_made = True

    _connection: Connection
    _ident: str

    def __init__(
        self,
        connection: Connection,
        call: int,
        rank: int = -1,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._connection = connection
        self._id = call
        self._rank = rank
        self._finish = finish
        self._state = PENDING
        self._answer: tuple[int, Any, Any] | None = None
        self._value: Any = None
        self._failure: Callable[[], BaseException] | None = None
        self._watchers: list[Callable[[], None]] | None = None

    def done(self) -> bool:
        """Whether the answer is here; it never waits."""
        if self._state == PENDING:
            self._connection.poll()
        return self._state != PENDING

    def cancel(self, kill: bool = False) -> bool:
        """Ask for the call to be stopped; False when it was already answered.

        The ref then fails with `CallCancelledError`, unless the call ends first.
        Refs of one ``execute_all_async`` belong to one call: it stops as a whole.
        Nothing interrupts C code: of ranks that are still in it after 5 seconds
        the error says so, and where they are. With ``kill`` their processes are
        then killed.
        """
        if self.done():
            return False
        self._connection.cancel(self._id, kill)
        return True

    def future(self) -> Future[Any]:
        """The same as a future of the standard library, for code that wants one."""
        from ._futures import of

        return of(self)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._state == PENDING:
            yield from self._connection.arrival(self)
        return self._result()

    def __repr__(self) -> str:
        states = {PENDING: "pending", FAILED: "failed"}
        state = states.get(self._state, "done")
        if self._state == ARRIVED and self._answer is not None and self._answer[0] & _ERROR:
            state = "failed"
        rank = f", rank {self._rank}" if self._rank >= 0 else ""
        return f"<muster.Ref call {self._id}{rank}, {state}>"

    def __reduce__(self) -> Any:
        from ._sharing import received, share

        return received, share(self)

    # What follows is for the connection and the functions below.

    def deliver(self, flags: int, rank: int, body: Any, buffers: Any) -> bool:
        """Take an answer; True says that no more are to come. A second one is ignored."""
        if self._state == PENDING:
            self._answer = (flags, body, buffers)
            self._state = ARRIVED
            if self._watchers:
                self._announce()
        return True

    def fail(self, failure: Callable[[], BaseException]) -> None:
        """End without an answer; ``failure`` makes the exception, afresh for each raise."""
        if self._state == PENDING:
            self._failure = failure
            self._state = FAILED
            self._announce()

    def follow(self, other: Ref) -> None:
        """Be answered as another ref is, whose value nobody asks for."""

        def settle() -> None:
            answer, failure = other._answer, other._failure
            if answer is not None:
                self.deliver(answer[0], self._rank, answer[1], answer[2])
            elif failure is not None:
                self.fail(failure)
            elif other._state == DECODED:  # somebody was quicker to take its value
                self._take_value(other._value)

        other.watch(settle)

    def _take_value(self, value: Any) -> None:
        """Be answered with what a ref has that was decoded."""
        try:
            found = value if self._finish is None else self._finish(value)
        except Exception as error:
            wrong = error
            self.fail(lambda: wrong)
            return
        if self._state == PENDING:
            self._value = found
            self._state = DECODED
            self._announce()

    def _announce(self) -> None:
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have ``watcher`` called when the ref is done: maybe twice, from any thread."""
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(watcher)
        if self._state != PENDING:
            watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        if self._watchers is not None and watcher in self._watchers:
            self._watchers.remove(watcher)

    def failed(self) -> bool:
        answer = self._answer
        return self._state == FAILED or (answer is not None and bool(answer[0] & _ERROR))

    def _passed(self, whole: bool) -> Any:
        """What an argument is that stands for it; only when done. ``whole``: it is not cut."""
        return self._result()

    def _result(self) -> Any:
        """The value, or the call's exception; only when done."""
        if self._state == DECODED:
            return self._value
        if self._state == FAILED and self._failure is not None:
            raise self._failure()
        assert self._answer is not None
        flags, body, buffers = self._answer
        if flags & _ERROR:
            error = _wire.unpack(body)
            self._failure = lambda: _errors.from_wire(error)
            self._state = FAILED
            self._answer = None
            raise self._failure()
        value = _values.decode(body, buffers)
        if self._finish is not None:
            value = self._finish(value)
        self._value = value
        self._state = DECODED
        self._answer = None
        return value


def parts_of(ref: Ref, count: int) -> list[Ref]:
    """A ref for each of the values that a call returns together, in the place of its own."""

    def at(index: int) -> Callable[[Any], Any]:
        def taken(values: Any) -> Any:
            told = f"{len(values)} values" if hasattr(values, "__len__") else f"{values!r:.60}"
            if told != f"{count} values":
                raise _errors.InvalidArgumentError(
                    f"the call returned {told}, where {count} values are to come of it"
                )
            return next(islice(values, index, None))

        return taken

    found = [Ref(ref._connection, ref._id, finish=at(i)) for i in range(count)]
    for part in found:
        part.follow(ref)
    return found


class SplitCall:
    """One call whose ranks are answered one by one, each into a ref of its own."""

    __slots__ = ("_left", "refs")

    def __init__(self, connection: Connection, call: int, ranks: Sequence[int]) -> None:
        self.refs = [Ref(connection, call, rank) for rank in ranks]
        self._left = {ref._rank: ref for ref in self.refs}

    def deliver(self, flags: int, rank: int, body: Any, buffers: Any) -> bool:
        if flags & 2:  # flag Rank: for one rank alone
            ref = self._left.get(rank)
            if ref is not None:
                ref.deliver(flags, rank, body, buffers)
                self._left.pop(rank, None)
            return not self._left
        for ref in self._left.values():
            ref.deliver(flags, rank, body, buffers)
        return True

    def fail(self, failure: Callable[[], BaseException]) -> None:
        for ref in tuple(self._left.values()):
            ref.fail(failure)


def seconds(timeout: float | None) -> float | None:
    """A user's timeout, checked; None for one that never comes."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout is {timeout!r}; it is a number of seconds, or None")
    number = float(timeout)
    if isnan(number):
        raise ValueError("timeout is not a number; it is in seconds, or None for no limit")
    return number if number < _FOR_EVER else None


def _deadline(timeout: float | None) -> float | None:
    limit = seconds(timeout)
    return None if limit is None else monotonic() + limit


def get(refs: Any, timeout: float | None = None) -> Any:
    """Wait for a ref, or a list (or tuple) of refs, and return the value or values.

    What a call raised is raised here; with several refs, as soon as one of them
    failed. After ``timeout`` seconds it raises `DeadlineError`, a TimeoutError,
    with the stacks of the ranks that have not answered; calls given up on in
    this way are over, and their refs keep that error.
    """
    if isinstance(refs, Ref):
        if refs._state == PENDING:
            _settle([refs], _deadline(timeout), timeout)
        return refs._result()
    several = _refs_of(refs, "get")
    if any(ref._state == PENDING for ref in several):
        each = list(dict.fromkeys(several))
        _settle(each, _deadline(timeout), timeout)
    for ref in several:
        if ref.failed():
            ref._result()  # raises
    values = [ref._result() for ref in several]
    return tuple(values) if isinstance(refs, tuple) else values


def wait(
    refs: Iterable[Ref], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Ref], list[Ref]]:
    """Wait until ``num_returns`` of the refs are done; returns (done, pending).

    Both lists keep the order given. ``done`` has exactly ``num_returns`` refs, or
    fewer when ``timeout`` seconds passed first. Failed refs count as done; the
    error comes out of `get`.
    """
    several = _refs_of(refs, "wait")
    if len({id(ref) for ref in several}) != len(several):
        raise ValueError("wait() got the same ref twice; pass each once")
    if isinstance(num_returns, bool) or not 0 < num_returns <= len(several):
        raise ValueError(
            f"num_returns is {num_returns}, with {len(several)} refs; it goes from 1 to that"
        )
    deadline = _deadline(timeout)
    _gather(several, num_returns, deadline, stop_at_failure=False)
    done = [ref for ref in several if ref._state != PENDING][:num_returns]
    chosen = {id(ref) for ref in done}
    return done, [ref for ref in several if id(ref) not in chosen]


def as_completed(refs: Iterable[Ref], timeout: float | None = None) -> Iterator[Ref]:
    """Yield the refs as they get done, failed ones included.

    When ``timeout`` seconds, counted from the first step, were not enough,
    `DeadlineError` is raised; the calls run on.
    """
    left = dict.fromkeys(_refs_of(refs, "as_completed"))
    return _completions(list(left), timeout)


def _completions(left: list[Ref], timeout: float | None) -> Iterator[Ref]:
    deadline = _deadline(timeout)
    while left:
        _gather(left, 1, deadline, stop_at_failure=False)
        done = [ref for ref in left if ref._state != PENDING]
        if not done:
            raise _errors.DeadlineError(
                f"{len(left)} of the refs were not done after {timeout:g} s: {left[:3]}"
            )
        left = [ref for ref in left if ref._state == PENDING]
        yield from done


def _refs_of(refs: Any, who: str) -> list[Ref]:
    if isinstance(refs, (str, bytes)) or not hasattr(refs, "__iter__"):
        raise TypeError(f"{who}() takes refs, not {type(refs).__name__}: {refs!r}")
    several = list(refs)
    for ref in several:
        if not isinstance(ref, Ref):
            raise TypeError(
                f"{who}() takes refs, and one entry is {type(ref).__name__}: {ref!r}; refs come "
                "from execute_..._async, blocking=False and .remote()"
            )
    return several


class _Tally:
    """Counts how many of some refs are done, without looking at all of them each time."""

    __slots__ = ("_seen", "_stop_at_failure", "_target", "enough", "left")

    def __init__(self, refs: list[Ref], target: int, stop_at_failure: bool) -> None:
        self.left = [ref for ref in refs if ref._state == PENDING]
        self._target = target - (len(refs) - len(self.left))
        self._stop_at_failure = stop_at_failure
        self._seen: set[int] = set()
        failed = stop_at_failure and any(ref.failed() for ref in refs)
        self.enough = self._target <= 0 or failed

    def watchers(self) -> list[tuple[Ref, Callable[[], None]]]:
        return [(ref, self._watcher(at, ref)) for at, ref in enumerate(self.left)]

    def _watcher(self, at: int, ref: Ref) -> Callable[[], None]:
        def note() -> None:
            self._seen.add(at)
            if len(self._seen) >= self._target or (self._stop_at_failure and ref.failed()):
                self.enough = True

        return note


def _gather(refs: list[Ref], target: int, deadline: float | None, *, stop_at_failure: bool) -> bool:
    """Wait until ``target`` of the refs are done; False when the deadline passed first."""
    for connection in {ref._connection for ref in refs if ref._state == PENDING}:
        connection.poll()
    tally = _Tally(refs, target, stop_at_failure)
    if tally.enough:
        return True
    # All that are pending are of one connection: the end of a session fails its refs.
    connection = tally.left[0]._connection
    connection.tidy()  # what they wait for may be among what was left to be sent
    connection.tell_waiting(tally.left, deadline is None and target == len(refs))
    watchers = tally.watchers()
    for ref, watcher in watchers:
        ref.watch(watcher)
    try:
        return connection.wait(lambda: tally.enough, tally.left, deadline)
    finally:
        connection.tidy()
        for ref, watcher in watchers:
            ref.unwatch(watcher)


def _settle(refs: list[Ref], deadline: float | None, timeout: float | None) -> None:
    """Wait for all refs or one failure; at the deadline, end the calls that are left."""
    if len(refs) == 1:
        connection = refs[0]._connection
        connection.tell_waiting(refs, deadline is None)
        settled = connection.wait_one(refs[0], deadline)
        connection.tidy()
    else:
        settled = _gather(refs, len(refs), deadline, stop_at_failure=True)
    if settled:
        return
    late = [ref for ref in refs if ref._state == PENDING]
    for connection, call in {(ref._connection, ref._id) for ref in late}:
        connection.expire(call)
    patience = monotonic() + EXPIRE_PATIENCE
    if not _gather(late, len(late), patience, stop_at_failure=True):
        raise _errors.DeadlineError(
            f"no answer within {timeout:g} s to {late[0]!r}, nor any word on it from the head "
            f"in another {EXPIRE_PATIENCE:g} s"
        )


#: Seconds that the head has to answer Expire; it collects stacks meanwhile.
EXPIRE_PATIENCE = 10.0
