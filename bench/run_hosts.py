"""make bench-hosts: Muster over several hosts beside plain Ray actors, in one run.

Three hosts out of network namespaces (e2e/hosts), a Ray node on each, for all of the
run; in every round each case is run for each system in turn, by a script on the first
host. A run that fails or hangs costs its own figures and nothing else. The hosts go
with this process, however it ends. Needs root, and Ray in the Python that runs it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import far
import far_report
import machine
import measures

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "e2e"))

from hosts import Hosts, Ray, Running, Unavailable  # noqa: E402

OUT = ROOT / "build" / "bench"
DOCS = ROOT / "docs"
DRIVERS = ROOT / "bench" / "drivers"
HOSTS = 3
#: Stand-ins for GPUs that each host has.
PER_HOST = 8
#: Of each Ray node: room for two of what is carried, so that nothing is spilled.
OBJECT_STORE = 2_500_000_000
#: How long what a run started may take to be gone after it, by itself.
GRACE = 15.0
#: For the end of everything.
RESERVE = 20.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """Hosts with Ray on them, and scripts that are measured there."""

    def __init__(self, hosts: Hosts, ray: Ray, logs: Path, deadline: float) -> None:
        self._hosts, self._ray, self._logs, self._deadline = hosts, ray, logs, deadline
        self._before = set(self._names())

    def run(self, system: str, case: far.Case, number: int) -> dict[str, Any]:
        """One script, from its start until nothing of it is left."""
        calm = machine.wait_calm(3.0, look=lambda _: machine.busy(0.5))
        limit = min(case.limit, self._deadline - time.monotonic())
        log = self._logs / f"{number}-{case.name}-{system}.log"
        with log.open("w") as errors:
            began = time.monotonic()
            lines, code = (self._floor if system == "floor" else self._script)(
                system, case, limit, errors
            )
            took = time.monotonic() - began
        record = measures.record(lines, began)
        left = self._left()
        problem = ""
        if code is None:
            problem = f"stopped after {limit:.0f} s"
        elif code != 0:
            problem = f"exit code {code}: {record['failure'] or 'see its log'}"
        return {
            "round": number,
            "case": case.name,
            "system": system,
            "calm": calm["calm"],
            "busy": calm["busy"],
            "seconds": round(took, 2),
            "values": record["values"],
            "parts": record["parts"],
            "left_behind": left,
            "problem": problem,
        }

    def _environment(self, system: str) -> dict[str, str]:
        env = {
            **self._ray.env,
            # This tree's package, wherever the interpreter's own one comes from.
            "PYTHONPATH": str(ROOT / "python"),
            "PYTHONDONTWRITEBYTECODE": "",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if system in ("muster", "plain"):
            env |= {"MUSTER_BACKEND": "ray", "MUSTER_VIRTUAL": f"1x{PER_HOST}"}
        if system == "plain":
            env["MUSTER_TRANSPORT"] = "plain"
        return env

    def _script(
        self, system: str, case: far.Case, limit: float, errors: Any
    ) -> tuple[list[str], int | None]:
        name = "muster" if system == "plain" else system
        words = [str(DRIVERS / f"{name}_nodes.py"), case.name, json.dumps(case.parameters)]
        command = [str(self._ray.python), *words]
        running = self._hosts.popen(0, command, env=self._environment(system), stderr=errors)
        return _finish(running, limit)

    def _floor(
        self, system: str, case: far.Case, limit: float, errors: Any
    ) -> tuple[list[str], int | None]:
        """Plain TCP from the second host: calls to the first, bytes to the third."""
        script, env = str(DRIVERS / "floor_nodes.py"), self._environment(system)
        address = self._hosts[1].address
        serving = [str(self._ray.python), script, "serve", address]
        server = self._hosts.popen(1, serving, env=env, stderr=errors)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            given = json.dumps({**case.parameters, "address": address, "port": port})
            at = 2 if case.name == "bytes" else 0
            command = [str(self._ray.python), script, case.name, given]
            return _finish(self._hosts.popen(at, command, env=env, stderr=errors), limit)
        finally:
            server.kill()
            server.wait()

    def _names(self) -> list[str]:
        """Muster's processes, and those that work for Ray."""
        return [
            f"host{host}: {line[:80]}"
            for host in range(HOSTS)
            for line in self._hosts.processes(host).values()
            if line.startswith(("muster", "ray::")) and not line.startswith("ray::IDLE")
        ]

    def _left(self) -> list[str]:
        """What a run has left after a while: what was not there before the first."""
        end = time.monotonic() + GRACE
        while left := [name for name in self._names() if name not in self._before]:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return left


def _finish(running: Running, limit: float) -> tuple[list[str], int | None]:
    """What a script printed, and its exit code; None when it took too long."""
    try:
        out, _ = running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        running.kill()
        out, _ = running.communicate()
        return out.splitlines(), None
    return out.splitlines(), running.wait()


def measure(
    bench: Bench, cases: Sequence[far.Case], systems: Sequence[str], rounds: int, deadline: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """All rounds that there is time for; the runs, and what there was none for."""
    runs: list[dict[str, Any]] = []
    left_out: list[str] = []
    failed: set[tuple[str, str]] = set()
    for number in range(1, rounds + 1):
        turn = (number - 1) % len(systems)
        for case in cases:
            # Whoever comes first meets a cooler machine: take turns at that too.
            for system in [*systems[turn:], *systems[:turn]]:
                if system not in case.systems or (case.name, system) in failed:
                    continue
                if time.monotonic() > deadline - RESERVE:
                    left_out.append(f"no time was left for {case.name} in round {number}")
                    break
                run = bench.run(system, case, number)
                runs.append(run)
                remark = run["problem"] or "ok"
                if not run["calm"]:
                    remark += f"; the machine was {run['busy']:.0%} busy"
                if run["left_behind"]:
                    remark += f"; left behind: {', '.join(run['left_behind'])}"
                title = far.TITLES[system]
                say(
                    f"  round {number}  {case.name:<6} {title:<14} {run['seconds']:6.1f} s  {remark}"
                )
                if run["problem"]:
                    failed.add((case.name, system))  # it would cost its limit each time
    return runs, left_out


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--publish", action="store_true", help="also write docs/hosts.json, …")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=11.0, help="stop by then (default 11)")
    parser.add_argument("--systems", default=",".join(far.SYSTEMS), help="by commas")
    parser.add_argument("--cases", default="", help="only these, by commas: start,calls,fan,bytes")
    options = parser.parse_args()
    known = {case.name for case in far.cases()}
    for given, there in ((options.systems, set(far.SYSTEMS)), (options.cases, known | {""})):
        if unknown := set(given.split(",")) - there:
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(sorted(there))}")
    return options


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one book of results."""
    began = time.monotonic()
    deadline = began + options.minutes * 60
    systems = [s for s in far.SYSTEMS if s in options.systems.split(",")]
    wanted = options.cases.split(",") if options.cases else []
    cases = [case for case in far.cases() if not wanted or case.name in wanted]
    logs = OUT / "hosts-logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with Hosts(HOSTS) as hosts:
        # On a busy machine Ray's nodes may take longer than it waits by itself.
        patience = {"RAY_raylet_start_wait_time_s": "80"}
        ray = hosts.ray_up(cpus=PER_HOST, gpus=PER_HOST, memory=OBJECT_STORE, env=patience)
        say(f"Ray is up on {HOSTS} hosts after {time.monotonic() - began:.0f} s")
        runs, left_out = measure(
            Bench(hosts, ray, logs, deadline), cases, systems, options.rounds, deadline
        )
    found = measures.summaries(runs)
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "machine": machine.describe(),
        "versions": {"Muster": _muster_version(), "Ray": version("ray")},
        "left_out": list(dict.fromkeys(left_out)),
        "goals": far.as_json(found),
        "metrics": found,
        "runs": runs,
    }


def _muster_version() -> str:
    words = (ROOT / "python" / "muster" / "_version.py").read_text().split('"')
    return next(word for word in words if word[:1].isdigit())


def write(results: dict[str, Any], publish: bool) -> None:
    """The book in build/bench, and in docs if asked; the tables on standard output."""
    text = json.dumps(results, indent=1) + "\n"
    files = {OUT / "hosts.json": text}
    if publish:
        page = DOCS / "benchmarks.md"
        files |= {DOCS / "hosts.json": text, page: far_report.into_page(page.read_text(), results)}
    for path, content in files.items():
        path.write_text(content)
        say(f"wrote {path.relative_to(ROOT)}")
    print(far_report.text(results))


def main() -> int:
    options = arguments()
    # As an exception, so that the hosts are taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.umask(0o022)
    try:
        results = bench(options)
    except (Unavailable, OSError) as e:
        say(f"nothing was measured: {e}")
        return 1
    write(results, options.publish)
    return 1 if any(run["problem"] for run in results["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
