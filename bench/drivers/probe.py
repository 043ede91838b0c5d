"""What is measured, written once for every system.

A driver describes its system by the few verbs of `System` and calls `main`;
the loops, clocks and percentiles are here, so that no system is measured by
other means than another. Results leave as JSON lines on the process's standard
output, in seconds, calls per second and bytes; whatever a system prints itself
goes to standard error. It imports little, because its imports count as part of
every script that is timed.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

#: What every small call carries there and back.
TOKEN = 7
#: How long workers that were told to stop may take to be gone.
STOP_LIMIT = 60.0


class System(Protocol):
    """The verbs of one system, each as its own documentation recommends for speed."""

    def up(self) -> None:
        """Start the system itself, without workers."""

    def start(self, workers: int, heavy: str, callers: int) -> Any:
        """Start workers that have imported the modules in heavy; it need not wait for them.

        callers is how many threads will call at once.
        """

    def caller(self, group: Any) -> Callable[[], object]:
        """A function that calls the first worker with TOKEN and waits; one per thread."""

    def pipeline(self, group: Any, calls: int) -> list[object]:
        """Send calls to the first worker before waiting for any."""

    def broadcast(self, group: Any) -> list[object]:
        """Call all workers with TOKEN and gather what they return."""

    def pids(self, group: Any) -> list[int]:
        """The process of each worker."""

    def stop(self, group: Any) -> None:
        """Have the workers end; it need not wait for them."""

    def down(self) -> None:
        """Stop the system itself."""


def private_output() -> int:
    """Keeps standard output for results: systems print what they like."""
    sys.stdout.flush()
    private = os.dup(1)
    os.dup2(2, 1)
    return private


class Results:
    """Where measured values go, a line each, at once, so that a later failure keeps them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def value(self, metric: str, value: float) -> None:
        self._line({"metric": metric, "value": value})

    def moment(self, name: str) -> None:
        """Marks now, on the clock that all processes share."""
        self._line({"moment": name, "at": time.monotonic()})

    def parts(self, name: str, parts: dict[str, float]) -> None:
        self._line({"parts": name, "values": parts})

    def failure(self, why: BaseException) -> None:
        self._line({"failure": f"{type(why).__name__}: {why}"[:500]})

    def account(self) -> None:
        """Tells the CPU time of the script and all below it, for what nobody collects."""
        tick = os.sysconf("SC_CLK_TCK")
        pids = [os.getpid(), *descendants(os.getpid())]
        self._line({"cpu": {pid: _ticks(pid) / tick for pid in pids}})

    def _line(self, record: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(record).encode() + b"\n")


def percentile(values: Iterable[float], share: float) -> float:
    """The value that the given share of values does not exceed, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def sample(
    action: Callable[[], object], most: int, seconds: float, least: int = 5, warm: float = 0.2
) -> list[float]:
    """Times action over and over: most times, or for seconds, but least times at least.

    The first part, warm of the seconds, is not counted.
    """
    clock = time.perf_counter
    end = clock() + seconds * warm
    action()
    while clock() < end:
        action()
    times: list[float] = []
    end = clock() + seconds * (1 - warm)
    before = clock()
    while len(times) < least or (len(times) < most and before < end):
        action()
        after = clock()
        times.append(after - before)
        before = after
    return times


def rate_of_threads(callers: list[Callable[[], object]], seconds: float) -> float:
    """Calls per second of one thread per caller, all calling for that long."""
    counts = [0] * len(callers)
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(callers) + 1)
    end = [0.0]

    def work(i: int) -> None:
        call, clock, count = callers[i], time.perf_counter, 0
        try:
            call()
            barrier.wait()
            barrier.wait()
            while clock() < end[0]:
                call()
                count += 1
        except BaseException as e:
            failures.append(e)
            barrier.abort()
        counts[i] = count

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(callers))]
    for thread in threads:
        thread.start()
    try:
        barrier.wait()
        began = time.perf_counter()
        end[0] = began + seconds
        barrier.wait()
    except threading.BrokenBarrierError:
        pass  # the failure of a thread is raised below
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - began)


def wait_gone(descriptors: list[int], limit: float = STOP_LIMIT) -> None:
    """Waits until the processes behind these pidfds have ended, and closes them."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left, end = set(descriptors), time.monotonic() + limit
    while left:
        ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError(f"{len(left)} workers were still there {limit:g} s after the stop")
        for descriptor, _ in ready:
            poll.unregister(descriptor)
            left.discard(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)


def _watch(pids: list[int]) -> list[int]:
    return [os.pidfd_open(pid) for pid in pids]


def _pss(pid: int) -> float:
    """The process's share of memory in bytes: what it has alone and its part of the rest."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                if line.startswith("Pss:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass  # it has just ended
    return 0.0


def name_of(pid: int) -> str:
    """What the process is: Muster's say it in their command line, others by their name."""
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as f:
            words = f.read().replace("\0", " ").split()
        if words and words[0] == "muster":
            return " ".join(words[:2])
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return "gone"


def _ticks(pid: int) -> int:
    """User and system time of a process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            stat = f.read()
    except OSError:
        return 0  # it has just ended
    return sum(int(x) for x in stat[stat.rindex(")") + 2 :].split()[11:13])


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    stat = f.read()
            except OSError:
                continue
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _memory(results: Results, name: str, workers: list[int]) -> None:
    """Memory per worker, and of all that the system runs besides script and workers."""
    mine = set(workers)
    results.value(f"{name}.worker", sum(_pss(pid) for pid in workers) / len(workers))
    rest: dict[str, float] = {}
    for pid in descendants(os.getpid()):
        if pid not in mine:
            rest[name_of(pid)] = rest.get(name_of(pid), 0.0) + _pss(pid)
    results.value(f"{name}.system", sum(rest.values()))
    results.parts(f"{name}.system", rest)


def _check(got: object, wanted: object) -> None:
    if got != wanted:
        raise AssertionError(f"the workers returned {got!r}, not {wanted!r}")


def _up(system: System, results: Results) -> None:
    began = time.perf_counter()
    system.up()
    results.value("up", time.perf_counter() - began)


def _calls(system: System, results: Results, p: dict[str, Any]) -> None:
    """One worker: single calls, calls in flight, calls from several threads."""
    _up(system, results)
    group = system.start(1, "", 1)
    call = system.caller(group)
    _check(call(), TOKEN)
    times = sample(call, p["calls"], p["seconds"])
    results.value("call.p50", percentile(times, 0.50))
    results.value("call.p99", percentile(times, 0.99))
    flight = p["flight"]
    _check(system.pipeline(group, flight), [TOKEN] * flight)
    times = sample(lambda: system.pipeline(group, flight), p["batches"], p["seconds"])
    results.value("pipelined", flight / percentile(times, 0.50))
    results.account()
    system.stop(group)
    group = system.start(1, "", max(p["threads"]))
    for threads in p["threads"]:
        callers = [system.caller(group) for _ in range(threads)]
        rate = rate_of_threads(callers, p["thread_seconds"])
        results.value(f"threads.{threads}", rate)
    results.account()
    system.stop(group)
    began = time.perf_counter()
    system.down()
    results.value("down", time.perf_counter() - began)


def _started(system: System, workers: int, heavy: str) -> tuple[Any, float]:
    """Starts workers; they are ready when all of them have answered once."""
    began = time.perf_counter()
    group = system.start(workers, heavy, 1)
    answers = system.broadcast(group)
    took = time.perf_counter() - began
    _check(answers, [TOKEN] * workers)
    return group, took


def _stopped(system: System, results: Results, group: Any) -> float:
    results.account()
    watched = _watch(system.pids(group))
    began = time.perf_counter()
    system.stop(group)
    wait_gone(watched)
    return time.perf_counter() - began


def _fan(system: System, results: Results, p: dict[str, Any]) -> None:
    """Groups of several sizes: start, broadcast and gather, memory, stop."""
    _up(system, results)
    for workers in p["workers"]:
        group, took = _started(system, workers, "")
        results.value(f"start.{workers}", took)
        times = sample(lambda g=group: system.broadcast(g), p["calls"], p["seconds"])  # type: ignore[misc]
        results.value(f"fan.{workers}", percentile(times, 0.50))
        _memory(results, f"memory.{workers}", system.pids(group))
        results.value(f"stop.{workers}", _stopped(system, results, group))
    system.down()


def _heavy(system: System, results: Results, p: dict[str, Any]) -> None:
    """Groups whose workers import something large, started twice where asked."""
    workers = p["workers"]
    system.up()
    group, took = _started(system, workers, p["heavy"])
    results.value(f"heavy.start.{workers}", took)
    _memory(results, f"heavy.memory.{workers}", system.pids(group))
    results.value(f"heavy.stop.{workers}", _stopped(system, results, group))
    if p["again"]:
        group, took = _started(system, workers, p["heavy"])
        results.value(f"heavy.again.{workers}", took)
        results.account()
        system.stop(group)
    system.down()


def _first(system: System, results: Results, p: dict[str, Any]) -> None:
    """The smallest whole script: its first result, and its end."""
    system.up()
    group = system.start(1, "", 1)
    answer = system.caller(group)()
    results.moment("script.first")
    _check(answer, TOKEN)
    system.stop(group)
    system.down()


_CASES: dict[str, Callable[[System, Results, dict[str, Any]], None]] = {
    "calls": _calls,
    "fan": _fan,
    "heavy": _heavy,
    "first": _first,
}


def main(system: System) -> None:
    """Runs the case that the command line names: DRIVER CASE PARAMETERS-AS-JSON."""
    results = Results(private_output())
    try:
        _CASES[sys.argv[1]](system, results, json.loads(sys.argv[2]))
    except BaseException as e:
        results.failure(e)
        raise
