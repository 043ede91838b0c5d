"""What a caller is told when a method raises, hangs, is not there or is called wrongly."""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import muster
from muster import Cluster, Dispatch, Execute, ResourceManager, Worker, WorkerConfig, register
from roles import Caller, Echo, Loop
from running import cluster, session
from things import Coded, Final, Mine, Slotted, Stubborn, Unpicklable, Unwelcome
from trouble import Trouble


@pytest.fixture(scope="module")
def rm() -> Iterator[ResourceManager]:
    with session("2x2"), ResourceManager(2, 2) as made:
        yield made


@pytest.fixture(scope="module")
def c(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Trouble, rm, name="trouble", device_mapping="0-3") as made:
        yield made


@pytest.fixture(scope="module")
def echo(rm: ResourceManager) -> Iterator[Cluster]:
    with cluster(Echo, rm, name="echo", device_mapping="0-3") as made:
        yield made


EXCEPTIONS: list[BaseException] = [
    ValueError("no such row"),
    KeyError("missing"),
    StopIteration(5),
    StopAsyncIteration(),
    AttributeError("x"),
    TypeError("y"),
    TimeoutError("in the method"),
    OSError(2, "No such file", "/a/b"),
    FileNotFoundError(2, "No such file", "/a/b"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ZeroDivisionError(),
    AssertionError(),
    MemoryError("too much"),
    RecursionError("too deep"),
    ImportError("no module", name="nomod"),
    NotImplementedError("later"),
    EOFError("end"),
    BrokenPipeError(32, "Broken pipe"),
    Exception("plain", 1, [2]),
    Mine("text ä\nsecond line"),
]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda e: type(e).__name__)
def test_exception_arrives_in_its_own_class(c: Cluster, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        c.fail(error, rank=2)
    got = caught.value
    assert isinstance(got, muster.MusterError)
    assert got.args == error.args
    for name, value in vars(error).items():
        assert getattr(got, name) == value
    if isinstance(error, OSError):
        assert (got.errno, got.filename) == (error.errno, error.filename)  # type: ignore[attr-defined]
    text = str(got)
    assert "trouble-2-G0" in text, "the worker"
    assert "node-1" in text, "its node"
    assert "in fail" in text and "trouble.py" in text, "the remote traceback"
    assert str(error) in text
    assert c.execute_all_sync("pid"), "and everything works on"


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "GeneratorExit"])
def test_what_is_no_exception_for_callers(c: Cluster, name: str) -> None:
    """Raised here as themselves they would end the script, or a generator of its."""
    with pytest.raises(muster.MusterError, match=name) as caught:
        c.execute_all_sync("fail_with", name)
    assert isinstance(caught.value, Exception)


def test_exceptions_with_an_init_of_their_own(c: Cluster) -> None:
    with pytest.raises(Coded, match="code 7") as caught:
        c.execute_all_sync("fail_with", "Coded", 7, hint="try again")
    assert (caught.value.code, caught.value.hint) == (7, "try again")
    with pytest.raises(Slotted, match="few with 3") as slotted:
        c.execute_all_sync("fail_with", "Slotted", "few", 3)
    assert slotted.value.extra == 3


def test_text_shown_when_nobody_catches_it(c: Cluster) -> None:
    with pytest.raises(KeyError) as caught:
        c.fail(KeyError("missing"), rank=1)
    shown = "".join(traceback.format_exception(caught.value))
    assert "'missing'" in shown and "trouble-1-G1" in shown and "in fail" in shown
    assert "\\n" not in shown, "lines, not one line with escapes"


def test_chained_causes(c: Cluster) -> None:
    with pytest.raises(RuntimeError, match="outer") as caught:
        c.execute_rank_zero_sync("chained")
    assert "KeyError: 'inner'" in str(caught.value)
    assert "direct cause" in str(caught.value)


@pytest.mark.parametrize("error", [Stubborn("kept"), Final("kept")], ids=["unpicklable", "final"])
def test_exceptions_that_cannot_be_rebuilt_are_still_told(c: Cluster, error: Exception) -> None:
    """One that cannot travel is a MusterError with the same text."""
    with pytest.raises(muster.MusterError, match="kept") as caught:
        c.execute_all_sync("fail_with", type(error).__name__, "kept")
    assert type(error).__name__ in str(caught.value)
    assert "in fail_with" in str(caught.value)


def test_errors_can_be_raised_again_and_pickled(c: Cluster) -> None:
    with pytest.raises(Coded) as caught:
        c.execute_all_sync("fail_with", "Coded", 7, hint="h")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, Coded) and (again.code, again.hint) == (7, "h")
    assert "in fail_with" in str(again)


def test_errors_pass_through_another_worker(rm: ResourceManager, c: Cluster) -> None:
    with cluster(Caller, rm, name="caller", world_size=1) as caller:
        with pytest.raises(Mine, match="deep down") as caught:
            caller.execute_all_sync("through", c, "fail", Mine("deep down"), 0)
        assert isinstance(caught.value, muster.MusterError)
        assert "trouble-0-G0" in str(caught.value) and "caller-0" in str(caught.value)


def test_other_ranks_go_on(c: Cluster) -> None:
    before = c.execute_all_sync("count")
    with pytest.raises(Mine):
        c.execute_all_sync("count_or_fail", 1)
    assert c.execute_all_sync("count") == [n + (1 if r == 1 else 2) for r, n in enumerate(before)]


def test_sys_exit_in_a_coroutine_class_and_errors_there(rm: ResourceManager) -> None:
    with cluster(Loop, rm, name="loop", world_size=1) as loop:
        with pytest.raises(TypeError):
            loop.wait_for_it(1)
        assert loop.execute_all_sync("sync_one") == [0]


#: Seconds in which a rank is where it gets stuck, and the others have answered.
ENOUGH = 2


@pytest.mark.parametrize("form", ["bound", "execute", "handle", "rank_zero", "get"])
def test_deadline_tells_stacks(rm: ResourceManager, form: str) -> None:
    with cluster(Trouble, rm, name="late", world_size=2, grace=0.5) as late:
        forms: dict[str, Any] = {
            "bound": lambda: late.stuck_in_here(timeout=ENOUGH),
            "execute": lambda: late.execute_all_sync("stuck_in_here", timeout=ENOUGH),
            "handle": lambda: late.workers[0].call("stuck_in_here", timeout=ENOUGH),
            "rank_zero": lambda: late.execute_rank_zero_sync("stuck_in_here", timeout=ENOUGH),
            "get": lambda: muster.get(late.stuck_in_here(blocking=False), timeout=ENOUGH),
        }
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            forms[form]()
        assert time.monotonic() - began < 7.5 + ENOUGH
        text = str(caught.value)
        assert isinstance(caught.value, muster.MusterError)
        assert "stuck_in_here" in text and "trouble.py" in text
        assert "late-0" in text
        if form in ("bound", "execute", "get"):
            assert "late-1 on" not in text, "rank 1 has answered"
        assert late.workers[1].call("pid", timeout=30)


def test_queueing_counts(rm: ResourceManager) -> None:
    """A deadline runs from sending: a call behind a stuck one is late as well."""
    with cluster(Trouble, rm, name="queue", world_size=1, grace=0.5) as late:
        late.stuck_in_here(blocking=False)
        with pytest.raises(TimeoutError, match="stuck_in_here"):
            late.execute_all_sync("pid", timeout=ENOUGH)


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_at_all(c: Cluster, timeout: float) -> None:
    try:
        c.execute_all_sync("pid", timeout=timeout)
    except (TimeoutError, ValueError) as error:
        assert str(error)
    assert len(c.execute_all_sync("pid", timeout=30)) == 4


@pytest.mark.parametrize("timeout", [float("inf"), 1e30, 3600])
def test_all_the_time_there_is(c: Cluster, timeout: float) -> None:
    assert len(c.execute_all_sync("pid", timeout=timeout)) == 4
    ref = c.execute_rank_zero_async("pid", timeout=timeout)
    assert muster.wait([ref], timeout=timeout) == ([ref], [])
    assert list(muster.as_completed([ref], timeout=timeout)) == [ref]
    assert muster.get(c.execute_rank_zero_async("pid"), timeout=timeout)


@pytest.mark.parametrize("timeout", ["5", float("nan"), [1]])
def test_what_is_no_timeout(c: Cluster, timeout: Any) -> None:
    for attempt in (
        lambda: c.execute_all_sync("pid", timeout=timeout),
        lambda: c.workers[0].count.remote(timeout=timeout),
        lambda: list(muster.as_completed([c.stuck_in_here(7, blocking=False)], timeout=timeout)),
    ):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            attempt()


def test_what_is_no_resource_manager() -> None:
    with pytest.raises(TypeError, match="resource_manager"):
        Cluster("c", Trouble, 5, WorkerConfig(world_size=1))  # type: ignore[arg-type]


def test_unknown_method_names_the_nearest(c: Cluster) -> None:
    for attempt in (
        lambda: c.execute_all_sync("stuck_in_her"),
        lambda: c.execute_rank_zero_async("stuck_in_her"),
        lambda: c.stuck_in_her(),
        lambda: c.workers[0].call("stuck_in_her"),
        lambda: c.workers[0].stuck_in_her.remote(),
    ):
        with pytest.raises(AttributeError, match="stuck_in_here") as caught:
            attempt()
        assert isinstance(caught.value, muster.MusterError)


@pytest.mark.parametrize("name", ["_private", "__init__", "calls", "rank", "", "a b", "fail.x"])
def test_what_is_no_public_method(echo: Cluster, name: str) -> None:
    with pytest.raises(AttributeError):
        echo.execute_all_sync(name)


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "'a'"),
        ((1, 2, 3), {}, "too many|3"),
        ((1,), {"d": 1}, "'d'"),
        ((1,), {"a": 1}, "'a'"),
        ((1, 2), {"b": 3}, "'b'"),
    ],
)
def test_wrong_signature_before_anything_is_sent(
    echo: Cluster, args: Any, kwargs: Any, named: str
) -> None:
    before = echo.execute_all_sync("counted")
    for form in (
        echo.execute_all_sync,
        echo.execute_all_async,
        echo.execute_rank_zero_sync,
        echo.execute_rank_zero_async,
        echo.workers[1].call,
    ):
        with pytest.raises(TypeError, match=named) as caught:
            form("count", *args, **kwargs)
        assert isinstance(caught.value, muster.MusterError)
    assert echo.execute_all_sync("counted") == before, "nothing ran"


def test_right_signatures_pass(echo: Cluster) -> None:
    first = echo.workers[3].call("counted")
    calls: list[tuple[Any, Any]] = [((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((1,), {"c": 3})]
    for args, kwargs in calls:
        echo.workers[3].call("count", *args, **kwargs)
    assert echo.workers[3].call("counted") == first + 4


def with_parameter(name: str) -> type:
    space: dict[str, Any] = {"Worker": Worker, "register": register, "Dispatch": Dispatch}
    exec(
        f"class Bad(Worker):\n @register(Dispatch.ONE_TO_ALL)\n def go(self, {name}=None): ...",
        space,
    )
    made: type = space["Bad"]
    return made


def with_method(name: str) -> type:
    return type("Bad", (Worker,), {name: register(Dispatch.ONE_TO_ALL)(lambda self: None)})


RESERVED = [with_parameter("timeout"), with_parameter("blocking")] + [
    with_method(name)
    for name in (
        *("workers", "shutdown", "execute_all_sync", "world_size", "dp_size", "rank2worker"),
        *("initialized", "cluster_name", "master_port", "worker_rank_info", "placement_groups"),
    )
]


@pytest.mark.parametrize("cls", RESERVED, ids=lambda cls: next(iter(vars(cls)), "?"))
def test_reserved_names_are_refused_at_cluster(rm: ResourceManager, cls: type) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Cluster("bad", cls, rm, WorkerConfig(world_size=1))
    assert isinstance(caught.value, muster.MusterError)
    assert "Bad" in str(caught.value)


class Unregistered(Worker):
    def go(self, timeout: float) -> float:
        return timeout


def test_unregistered_methods_may_have_such_parameters(rm: ResourceManager) -> None:
    with cluster(Unregistered, rm, name="free", world_size=1) as free:
        assert free.execute_all_sync("go", 5) == [5]


def test_unknown_execute_mode() -> None:
    with pytest.raises((ValueError, TypeError)):
        register(Dispatch.ONE_TO_ALL, execute_mode="SOME")
    register(Dispatch.ONE_TO_ALL, execute_mode=Execute.ALL)


UNSENDABLE: list[Any] = [
    threading.Lock(),
    Unpicklable(),
    {"a": [threading.Lock()]},
    (i for i in range(3)),
    open("/dev/null"),  # noqa: SIM115
]


@pytest.mark.parametrize("value", UNSENDABLE, ids=lambda v: type(v).__name__)
def test_arguments_that_cannot_be_sent(c: Cluster, value: Any) -> None:
    before = c.execute_all_sync("count")
    for attempt in (
        lambda: c.execute_all_sync("take", value),
        lambda: c.execute_all_sync("take", value=[value]),
        lambda: c.execute_all_async("take", muster.PerRank([1, 2, 3, value])),
        lambda: c.workers[0].call("take", value),
    ):
        with pytest.raises(TypeError) as caught:
            attempt()
        assert isinstance(caught.value, muster.MusterError)
        assert "value" in str(caught.value) or "argument" in str(caught.value)
    assert c.execute_all_sync("count") == [n + 1 for n in before], "nothing was sent"


def test_where_in_the_argument_is_told(c: Cluster) -> None:
    with pytest.raises(TypeError, match=r"layers.*1.*lock"):
        c.execute_all_sync("take", {"layers": [1, threading.Lock()]})


def test_results_that_cannot_be_sent(c: Cluster) -> None:
    with pytest.raises(TypeError, match="trouble-0-G0") as caught:
        c.execute_rank_zero_sync("lock")
    assert isinstance(caught.value, muster.MusterError)
    assert "lock" in str(caught.value)
    assert len(c.execute_all_sync("pid")) == 4


def test_values_that_cannot_be_made_again(c: Cluster) -> None:
    with pytest.raises(Exception, match="not here") as caught:
        c.execute_all_sync("take", Unwelcome())
    assert isinstance(caught.value, muster.MusterError)
    with pytest.raises(Exception, match="not here"):
        c.execute_rank_zero_sync("unwelcome")
    assert len(c.execute_all_sync("pid")) == 4


def test_a_memory_limit_reached(c: Cluster) -> None:
    with pytest.raises(MemoryError) as caught:
        c.execute_rank_zero_sync("use_memory", 64 << 20, 1 << 30)
    assert isinstance(caught.value, muster.MusterError)
    assert "use_memory" in str(caught.value)
    assert c.execute_rank_zero_sync("use_memory", 64 << 20, 1 << 20) == 1 << 20
