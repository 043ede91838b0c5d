from __future__ import annotations

import builtins
import copy
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
import pytest

from muster import _errors
from muster._errors import (
    DeadlineError,
    HeadLostError,
    InvalidArgumentError,
    MethodNotFoundError,
    MusterError,
    NotFoundError,
    RemoteError,
    WorkerDiedError,
    from_wire,
    to_wire,
)


def raised(make: Callable[[], BaseException]) -> BaseException:
    """An exception as a worker catches it: raised by a method of the user's."""

    def method_of_the_user() -> None:
        raise make()

    try:
        method_of_the_user()
    except BaseException as error:
        return error
    raise AssertionError


def over_the_wire(error: BaseException, **where: Any) -> MusterError:
    where = {"worker": "actor-3-G3", "node": "node-0", "rank": 3, **where}
    wire = to_wire(error, **where)
    for value in wire.values():
        assert value is not None  # the head's decoder takes no nil
    body = msgpack.packb(wire, unicode_errors="surrogatepass", strict_types=True)
    return from_wire(msgpack.unpackb(body, unicode_errors="surrogatepass"))


def remote(make: Callable[[], BaseException], **where: Any) -> MusterError:
    return over_the_wire(raised(make), **where)


# --- users' exceptions ---------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class Slotted(Exception):
    __slots__ = ("__private", "empty", "extra")

    def __init__(self, extra: object) -> None:
        super().__init__("slotted")
        self.extra = extra
        self.__private = 5

    def private(self) -> int:
        return self.__private


class Shouting(ValueError):
    def __str__(self) -> str:
        return "SHOUT " + "".join(map(str, self.args))


class Quiet(Exception):
    """Never calls super().__init__."""

    def __init__(self, a: int, b: int) -> None:
        self.sum = a + b


class Strict(Exception):
    def __new__(cls, *, needed: int) -> Strict:
        return super().__new__(cls, needed)

    def __init__(self, *, needed: int) -> None:
        self.needed = needed


class Hooked(Exception):
    seen: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, required: int, **kwargs: Any) -> None:
        Hooked.seen.append(cls)


class Reduced(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("reduced")
        self.pair = (a, b)

    def __reduce__(self) -> Any:
        return Reduced, self.pair


class Multi(KeyError, OSError):
    pass


class Computed(Exception):
    @property
    def code(self) -> int:
        return 404

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("read only")


class OfMuster(MusterError):
    def __init__(self, a: int) -> None:
        super().__init__(f"a is {a}")
        self.a = a


MAKERS: list[Callable[[], BaseException]] = [
    lambda: ValueError("bad value"),
    lambda: ValueError(),
    lambda: ValueError(1, "two", (3,)),
    lambda: KeyError("key"),
    lambda: FileNotFoundError(2, "No such file", "/a", None, "/b"),
    lambda: OSError(28, "No space left on device"),
    lambda: OSError("just text"),
    lambda: ConnectionResetError(104, "reset"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
    lambda: UnicodeEncodeError("ascii", "é", 0, 1, "not ascii"),
    lambda: StopIteration(5),
    lambda: StopAsyncIteration(),
    lambda: ImportError("no", name="n", path="/p"),
    lambda: SyntaxError("bad", ("f.py", 1, 2, "text")),
    lambda: AttributeError("x", name="n"),
    lambda: TimeoutError("slow"),
    lambda: MemoryError(),
    lambda: RecursionError("deep"),
    lambda: ZeroDivisionError("division by zero"),
    lambda: json.JSONDecodeError("bad", "doc", 0),
    lambda: subprocess.CalledProcessError(3, ["cmd"], b"out", b"err"),
    lambda: Odd(7, detail="d"),
    lambda: Slotted({"k": (1,)}),
    lambda: Shouting("a", 1),
    lambda: Quiet(1, 2),
    lambda: Strict(needed=4),
    lambda: Reduced(1, 2),
    lambda: Hooked("hooked"),
    lambda: Multi("m"),
    lambda: Computed("c"),
    lambda: OfMuster(3),
    lambda: Exception("a\udc80 surrogate"),
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda m: type(m()).__name__)
def test_a_users_exception_keeps_class_text_and_attributes(
    make: Callable[[], BaseException],
) -> None:
    first = raised(make)
    error = over_the_wire(first)
    assert isinstance(error, type(first)) and isinstance(error, (RemoteError, MusterError))
    assert type(error).__name__ == type(first).__name__
    assert error.args == first.args
    text = str(error)
    if not isinstance(first, MusterError):
        assert text.startswith(str(first))
    for part in ("actor-3-G3", "node-0", "rank 3", "method_of_the_user", "Traceback"):
        assert part in text
    for name, value in vars(first).items():
        assert getattr(error, name) == value
    for name in ("errno", "filename", "filename2", "reason", "object", "value", "msg", "lineno"):
        if hasattr(first, name):
            assert getattr(error, name) == getattr(first, name)
    # It can be raised, caught by either class, copied and pickled.
    with pytest.raises(type(first)):
        raise error
    for clone in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(clone) is type(error) and str(clone) == text and clone.args == error.args


def test_slots_and_computed_attributes() -> None:
    slotted: Any = remote(lambda: Slotted({"k": (1,)}))
    assert slotted.extra == {"k": (1,)} and slotted.private() == 5
    assert not hasattr(slotted, "empty")
    computed: Any = remote(lambda: Computed("c"))
    assert computed.code == 404 and "node-0" in str(computed)


def test_attributes_of_the_users_win_over_ours() -> None:
    error: Any = remote(lambda: Odd(7, detail="d"))
    assert error.code == 7 and error.detail == "d"
    assert (error.rank, error.worker, error.node) == (3, "actor-3-G3", "node-0")
    assert "method_of_the_user" in error.traceback
    plain: Any = remote(lambda: ValueError("x"))
    assert plain.code == "user" and plain.exit_code == 0 and plain.logs == ()


class Messaged(Exception):
    traceback = "mine"

    def __init__(self, message: str) -> None:
        self.message = message
        self.logs = {"a": 1}
        self.node = None


def test_common_names_for_attributes_stay_the_users() -> None:
    first: Any = remote(lambda: Messaged("m"))
    second: Any = over_the_wire(first)
    for error in (first, second):
        assert Messaged in type(error).__mro__ and (error.message, error.logs) == ("m", {"a": 1})
        assert error.node is None and error.traceback == "mine"
        assert "node-0" in str(error) and "method_of_the_user" in str(error)


def test_one_class_for_one_class_and_no_hooks() -> None:
    a, b = remote(lambda: ValueError("x")), remote(lambda: ValueError("y"))
    assert type(a) is type(b) and type(a).__module__ == "builtins"
    before = len(Hooked.seen)
    assert isinstance(remote(lambda: Hooked("x")), Hooked)
    assert len(Hooked.seen) == before


def test_causes_are_in_the_text() -> None:
    def make() -> BaseException:
        try:
            raise KeyError("the root")
        except KeyError as root:
            end = TypeError("the end")
            end.__cause__ = root
            return end

    text = str(remote(make))
    assert "the root" in text and "the end" in text and "direct cause" in text


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def unrebuildable() -> Exception:
    return Broken("gone")


class Broken(Exception):
    def __reduce__(self) -> Any:
        return _fail, ("no way back",)


def _fail(why: str) -> None:
    raise RuntimeError(why)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_what_cannot_travel_is_a_remote_error_that_names_the_class() -> None:
    for make, parts in (
        (Unpicklable, ("Unpicklable", "holds a lock")),
        (unrebuildable, ("Broken", "gone", "no way back")),
        (lambda: SystemExit(3), ("SystemExit",)),
        (lambda: KeyboardInterrupt(), ("KeyboardInterrupt",)),
    ):
        error = remote(make)
        assert type(error) is RemoteError and error.code == "user"
        for part in (*parts, "actor-3-G3", "node-0", "method_of_the_user"):
            assert part in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "Mute" in str(remote(Mute)) and isinstance(remote(Mute), Mute)
    off = from_wire(to_wire(raised(lambda: ValueError("x")), worker="w", pickle="off"))
    assert type(off) is RemoteError and "ValueError: x" in str(off)


def test_a_class_without_a_name_travels_by_value() -> None:
    class Local(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a)
            self.b = b

    error: Any = remote(lambda: Local(1, 2))
    assert isinstance(error, Local) and error.b == 2


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs groups: exception groups are of Python 3.11"
)
def test_exception_groups_and_notes() -> None:
    group: Any = getattr(builtins, "ExceptionGroup")  # noqa: B009

    def make() -> BaseException:
        made = group("several", [ValueError("a"), Odd(1, detail="d")])
        made.add_note("a note")
        assert isinstance(made, BaseException)
        return made

    error: Any = remote(make)
    assert isinstance(error, group) and isinstance(error, RemoteError)
    several: Any = error
    assert [type(e) for e in several.exceptions] == [ValueError, Odd]
    assert several.exceptions[1].detail == "d" and several.__notes__ == ["a note"]
    assert str(error).startswith("several (2 sub-exceptions)")
    assert "several" in str(pickle.loads(pickle.dumps(error)))


# --- a second hop --------------------------------------------------------------------------


def test_an_error_that_passes_through_a_worker_keeps_its_class_and_origin() -> None:
    first: Any = remote(lambda: Odd(7, detail="d"), worker="b-1", node="node-1", rank=1)

    def method_between() -> None:
        raise first

    try:
        method_between()
    except MusterError as caught:
        second: Any = over_the_wire(caught, worker="a-0", node="node-0", rank=0)
    assert {Odd, RemoteError} <= set(type(second).__mro__) and second.detail == "d"
    assert type(second) is type(first) and second.code == 7
    assert (second.worker, second.node, second.rank) == ("b-1", "node-1", 1)
    text = str(second)
    for part in ("code 7", "b-1", "node-1", "method_of_the_user", "passed on by worker a-0"):
        assert part in text
    assert "method_between" in text and text.count("code 7\n") == 2  # once alone, once in the trace
    third: Any = over_the_wire(raised(lambda: second), worker="c-0", node="node-2", rank=0)
    assert isinstance(third, Odd) and "passed on by worker c-0" in str(third)
    assert vars(third).keys() == vars(second).keys()


def test_an_error_raised_from_a_remote_one_shows_it() -> None:
    first = remote(lambda: ValueError("deep inside"), worker="b-1")

    def make() -> BaseException:
        error = RuntimeError("outside")
        error.__cause__ = first
        return error

    text = str(remote(make, worker="a-0"))
    assert "outside" in text and "deep inside" in text and "b-1" in text and "a-0" in text


def test_an_error_of_ours_keeps_its_class() -> None:
    died = WorkerDiedError(
        "b-1 died", worker="b-1", node="node-1", rank=1, exit_code=17, logs=["last line"]
    )
    error = over_the_wire(raised(lambda: died), worker="a-0", node="node-0", rank=0)
    assert type(error) is WorkerDiedError and error.exit_code == 17 and error.worker == "b-1"
    assert error.logs == ["last line"] and "passed on by worker a-0" in str(error)
    slow = DeadlineError("slow", stacks=[{"rank": 1, "worker": "w", "node": "n", "text": "File"}])
    error = over_the_wire(raised(lambda: slow))
    assert type(error) is DeadlineError and isinstance(error, TimeoutError)
    assert "w on n had not answered:\nFile" in str(error)
    invalid = over_the_wire(raised(lambda: InvalidArgumentError("no")))
    assert type(invalid) is InvalidArgumentError and isinstance(invalid, ValueError)


def test_an_unrebuildable_error_stays_remote_over_two_hops() -> None:
    first = remote(Unpicklable, worker="b-1")
    second = over_the_wire(raised(lambda: first), worker="a-0")
    assert type(second) is RemoteError and "Unpicklable" in str(second) and "b-1" in str(second)


# --- codes --------------------------------------------------------------------------------

CODES = """
    user worker_died node_lost head_lost timeout cancelled deadlock tainted invalid taken type not_found
    placement resources import startup layout encoding too_large protocol auth limit
    store_full released internal
""".split()  # noqa: SIM905


def test_every_code_has_a_class_and_every_class_travels() -> None:
    assert set(_errors._CLASSES) == set(CODES)
    for code in CODES:
        wire = {"code": code, "message": "what happened", "rank": 2, "exit_code": 0, "worker": "w"}
        error = from_wire(wire)
        assert error.code == code and error.rank == 2 and error.worker == "w"
        assert str(error).startswith("what happened") and error.message == "what happened"
        clone = pickle.loads(pickle.dumps(error))
        assert type(clone) is type(error) and str(clone) == str(error) and clone.rank == 2
        again = to_wire(error)
        assert (again["code"], again["message"], again["worker"]) == (code, "what happened", "w")
    unknown = from_wire({"code": "from_the_future", "message": "m"})
    assert type(unknown) is MusterError and unknown.code == "from_the_future"
    assert str(from_wire({})) == ""


def test_classes_are_what_python_people_expect() -> None:
    expected = {
        "head_lost": ConnectionError,
        "timeout": TimeoutError,
        "invalid": ValueError,
        "taken": ValueError,
        "type": TypeError,
        "not_found": LookupError,
        "placement": ValueError,
        "import": ImportError,
        "layout": ValueError,
        "encoding": TypeError,
        "too_large": ValueError,
        "auth": PermissionError,
        "limit": OSError,
        "store_full": MemoryError,
        "released": ValueError,
    }
    for code, cls in expected.items():
        assert isinstance(from_wire({"code": code, "message": "m"}), cls)
    missing = from_wire({"code": "not_found", "message": "no method x", "method": "x"})
    assert type(missing) is MethodNotFoundError and isinstance(missing, AttributeError)
    assert isinstance(missing, NotFoundError)
    assert str(HeadLostError("the head ended")) == "the head ended"
    with pytest.raises(TypeError, match="unexpected keyword 'nod'"):
        MusterError("x", nod="n")


def test_the_text_tells_all() -> None:
    error = from_wire(
        {
            "code": "worker_died",
            "message": "worker w-0 was killed by SIGKILL",
            "worker": "w-0",
            "logs": ["one", "two"],
            "signal": "SIGKILL",
            "traceback": "Traceback: here\n",
        }
    )
    assert str(error) == (
        "worker w-0 was killed by SIGKILL\n\nTraceback: here\n\nlast lines of w-0:\n  one\n  two"
    )
    assert error.message == "worker w-0 was killed by SIGKILL"


def test_garbage_instead_of_an_exception() -> None:
    for value in (b"\xc1", b"\xc0", b"\xc7\x08\x21" + bytes(8), b"\xc7\x08\x10" + bytes(8)):
        error = from_wire({"code": "user", "message": "ValueError: x", "exception": value})
        assert type(error) is RemoteError and "ValueError: x" in str(error)


class Theirs(Exception):
    """An error of another system's, which has what it needs in its attributes."""

    def __init__(self, text: str, cause: object) -> None:
        super().__init__(text, cause)
        self.cause = cause


def as_theirs(error: MusterError) -> Exception:
    cause = _errors.original(error) if isinstance(error, _errors.RemoteError) else None
    return _errors.also(error, Theirs("told", cause), (as_theirs, (error,)))


def test_an_error_that_is_of_another_class_too() -> None:
    try:
        raise KeyError("k")
    except KeyError as raised:
        came = from_wire(to_wire(raised, worker="w", node="n"))
    both: Any = as_theirs(came)
    for one in (both, pickle.loads(pickle.dumps(both))):
        assert all(isinstance(one, kind) for kind in (Theirs, KeyError, MusterError))
        assert type(one.cause) is KeyError and one.node == "n" and _errors.is_joint(one)
    # Who passes it on sends what was raised first.
    again: Any = from_wire(to_wire(both, worker="v"))
    assert again.worker == "w" and isinstance(again, KeyError) and not isinstance(again, Theirs)
    died: Any = as_theirs(from_wire({"code": "worker_died", "message": "m", "exit_code": 3}))
    assert died.exit_code == 3 and died.cause is None and isinstance(died, Theirs)
