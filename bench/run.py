"""make bench: Muster, Ray, Monarch and the floor, in one run on one machine.

Owns the order of things: install, wait for calm, run each case for each system
in turn, over and over, then report. A driver that fails, hangs or cannot be
installed costs its own figures and nothing else. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hops
import hops_report
import installs
import machine
import measures
import picture
import report

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
OUT = BUILD / "bench"
DOCS = ROOT / "docs"
#: What these set holds for this shell, not for a user's: with them, each start
#: of Python would compile its modules anew.
DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "MUSTER_VIRTUAL")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Harness:
    """What every run of a driver needs."""

    pythons: dict[str, installs.Installed]
    floor: Path
    heavy_folder: Path | None
    scratch: Path
    drivers: Path = ROOT / "bench" / "drivers"
    #: How long a driver's processes may take to be gone after it, by themselves.
    grace: float = 10.0

    def environment(self, case: measures.Case) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in DROPPED}
        env |= {
            "TMPDIR": str(self.scratch),
            "BENCH_TMP": str(self.scratch / "ray"),
            "BENCH_FLOOR": str(self.floor),
            "MUSTER_DIR": str(self.scratch),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if case.heavy and self.heavy_folder is not None:
            env["PYTHONPATH"] = str(self.heavy_folder)
        return env

    def run(self, system: str, case: measures.Case, log: Path) -> dict[str, Any]:
        """One driver, from its start to the last of its processes."""
        command = [
            str(self.pythons[system].python),
            str(self.drivers / f"{system}_{case.script}.py"),
            case.driver,
            json.dumps(case.parameters),
        ]
        others = machine.Others()
        with log.open("wb") as errors:
            began = time.monotonic()
            process = subprocess.Popen(
                command,
                cwd=self.scratch,
                env=self.environment(case),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            lines, in_time = _lines(process, began + case.limit)
            took = time.monotonic() - began
        if not in_time:
            _end_group(process)
        code = process.wait()  # before clear, which collects every dead child
        left = machine.clear(self.grace if in_time else 0.0)
        record = measures.record(lines, began)
        told = record.pop("cpu")
        # Who tells nothing is too short a script to be held up by telling.
        share = others.share(sum(told.values())) if told else 0.0
        failure = record.pop("failure")
        if case.driver == "first" and in_time and code == 0:
            record["values"]["script.whole"] = took
        problem = ""
        if not in_time:
            problem = f"stopped after {case.limit:g} s"
        elif code != 0:
            problem = f"exit code {code}: {failure or _last_line(log)}"
        return {
            **record,
            "seconds": round(took, 2),
            "others": round(share, 3),
            "left_behind": left,
            "problem": problem,
        }


def _lines(process: subprocess.Popen[bytes], deadline: float) -> tuple[list[bytes], bool]:
    """What the driver prints until it ends; False when it had to be given up.

    The pipe may stay open in what the driver left behind, so its end is told by
    the process, not by the pipe.
    """
    assert process.stdout is not None
    ended = os.pidfd_open(process.pid)
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        over = False
        while not over and time.monotonic() < deadline:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            over = any(key.fd == ended for key, _ in ready)
            try:
                while chunk := os.read(output, 65536):
                    data += chunk
                if output in selector.get_map():
                    selector.unregister(output)
            except BlockingIOError:
                pass  # all read for now
    os.close(ended)
    return data.splitlines(), over


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _last_line(log: Path) -> str:
    lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"


def measure(
    harness: Harness, cases: list[measures.Case], systems: list[str], calm_limit: float
) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """All rounds; returns the runs, and per system what is missing of which case and why."""
    runs: list[dict[str, Any]] = []
    missing: dict[str, dict[str, str]] = {s: {} for s in systems}
    logs = OUT / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    rounds = max(case.rounds for case in cases)
    for number in range(rounds):
        calm = machine.wait_calm(calm_limit)
        state = "calm" if calm["calm"] else f"NOT CALM, {calm['busy']:.0%} busy"
        load = calm["loadavg"][0]
        say(f"round {number + 1} of {rounds}: {state}, load {load:.2f}, waited {calm['waited']} s")
        for case in [c for c in cases if number < c.rounds]:
            # Whoever comes first meets a cooler machine: take turns at that too.
            turn = number % len(systems)
            for system in systems[turn:] + systems[:turn]:
                if system not in case.systems or case.name in missing[system]:
                    continue
                why = measures.too_large(
                    case, system, measures.summaries(runs), machine.available_memory()
                )
                if why:
                    missing[system][case.name] = why
                    say(f"  {case.name:<14} {measures.TITLES[system]:<8} {why}")
                    continue
                before = machine.busy(0.3)
                log = logs / f"{number + 1}-{case.name.replace(' ', '-')}-{system}.log"
                run = harness.run(system, case, log)
                runs.append(
                    {
                        "round": number + 1,
                        "case": case.name,
                        "script": case.script,
                        "system": system,
                        "busy_before": round(before, 3),
                        "round_load": calm,
                        **run,
                    }
                )
                remark = run["problem"] or "ok"
                if run["others"] > machine.DISTURBED:
                    remark += f"; disturbed, others used {run['others']:.0%} of the CPU"
                if run["left_behind"]:
                    remark += f"; left behind and killed: {', '.join(run['left_behind'])}"
                say(
                    f"  {case.name:<14} {measures.TITLES[system]:<8} {run['seconds']:6.1f} s  {remark}"
                )
                if run["problem"]:
                    # It would most likely fail or hang again, and cost its limit each time.
                    missing[system][case.name] = run["problem"]
    return runs, missing


def install(systems: list[str]) -> tuple[dict[str, installs.Installed], dict[str, str]]:
    """A Python for each system; those without one, with the reason."""
    found: dict[str, installs.Installed] = {}
    for system in systems:
        if system in installs.REQUIREMENTS:
            found[system] = installs.venv(BUILD, system, say)
        elif system == "muster":
            found[system] = installs.muster(BUILD)
        else:
            found[system] = installs.Installed(Path(sys.executable))
    problems = {s: f"not installed: {i.problem}" for s, i in found.items() if i.problem}
    for system, problem in problems.items():
        say(f"{measures.TITLES[system]}: {problem}")
    return found, problems


def build_floor() -> Path:
    """The relay, built anew: it takes a moment and is then surely this tree's.

    A machine without Go takes the one that was brought along.
    """
    binary = OUT / "floor"
    if shutil.which("go") is None and binary.exists():
        return binary
    subprocess.run(["go", "build", "-o", str(binary), "./bench/floor"], cwd=ROOT, check=True)
    return binary


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="two minutes: few rounds, no 256")
    parser.add_argument("--publish", action="store_true", help="also write docs/benchmarks.*")
    parser.add_argument("--no-torch", action="store_true", help="a smaller heavy import, not torch")
    parser.add_argument("--systems", default=",".join(measures.SYSTEMS), help="by commas")
    parser.add_argument("--cases", default="", help="only these, by commas: calls,fan,batches,…")
    parser.add_argument("--rounds", type=int, default=0, help="at most that many of each case")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="before each step of batches, seconds"
    )
    parser.add_argument("--calm", type=float, default=60.0, help="longest wait for calm, seconds")
    parser.add_argument("--redraw", action="store_true", help="only draw the last results again")
    options = parser.parse_args()
    if options.pause and options.publish:
        parser.error("what is published has no --pause")
    unknown = set(options.systems.split(",")) - set(measures.SYSTEMS)
    if unknown:
        parser.error(
            f"no such system: {', '.join(unknown)}; there are {', '.join(measures.SYSTEMS)}"
        )
    return options


def write(results: dict[str, Any], publish: bool) -> None:
    """The book of calls: in build/bench, and in docs if asked; the table on standard output."""
    drawing = picture.draw(results)
    _write("benchmarks", results, drawing, report.into_page if publish else None)
    print(report.table(results))  # last: a reader that hangs up must not cost the files


def write_batches(results: dict[str, Any], publish: bool) -> None:
    """The book of batches, the same way."""
    drawing = picture.draw_batches(results)
    _write("batches", results, drawing, hops_report.into_page if publish else None)
    print(hops_report.text(results))


def _write(
    name: str,
    results: dict[str, Any],
    drawing: str,
    into_page: Callable[[str, dict[str, Any]], str] | None,
) -> None:
    text = json.dumps(results, indent=1) + "\n"
    files = {OUT / f"{name}.json": text, OUT / f"{name}.svg": drawing}
    if into_page is not None:
        page = DOCS / "benchmarks.md"
        files |= {DOCS / f"{name}.json": text, DOCS / f"{name}.svg": drawing}
        files[page] = into_page(page.read_text(), results)
    for path, content in files.items():
        path.write_text(content)
        say(f"wrote {path.relative_to(ROOT)}")


def chosen(options: argparse.Namespace, modules: list[str]) -> list[measures.Case]:
    """The cases that the command line asks for: by name, or all whose name begins with that."""
    cases = measures.cases(options.quick, modules) + hops.cases(options.quick)
    if options.cases:
        names = {c.name for c in cases}
        wanted = options.cases.split(",")
        cases = [
            c
            for c in cases
            if c.name in wanted
            or any(w not in names and c.name.startswith(w + " ") for w in wanted)
        ]
    if options.pause:
        paused = {"pause": options.pause}
        cases = [
            replace(c, parameters=c.parameters | paused) if c.script == "batches" else c
            for c in cases
        ]
    if options.rounds:
        cases = [replace(c, rounds=min(c.rounds, options.rounds)) for c in cases]
    return cases


def bench(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Everything, as one book of results for each kind of script: driver, batches."""
    systems = [s for s in measures.SYSTEMS if s in options.systems.split(",")]
    began = time.monotonic()
    pythons, problems = install(systems)
    folder: Path | None = None
    modules: list[str] = []
    remark = ""
    if not options.quick and ("heavy" in options.cases or not options.cases):
        folder, modules, remark = installs.heavy(BUILD, not options.no_torch, say)
    cases = chosen(options, modules)
    # Sockets need a short path, which neither build/ nor TMPDIR may have.
    scratch = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    machine.adopt_orphans()
    try:
        harness = Harness(pythons, build_floor(), folder, scratch)
        there = [s for s in systems if s not in problems]
        runs, missing = measure(harness, cases, there, options.calm)
    finally:
        machine.clear(0.0)
        shutil.rmtree(scratch, ignore_errors=True)
    heavy = "+".join(modules)
    books = {}
    for script in dict.fromkeys(case.script for case in cases):
        its = [r for r in runs if r["script"] == script]
        names = {case.name for case in cases if case.script == script}
        found = measures.summaries(its)
        lacking = {s: {n: why for n, why in m.items() if n in names} for s, m in missing.items()}
        books[script] = {
            "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "kind": "quick" if options.quick else "full",
            "seconds": round(time.monotonic() - began),
            "machine": machine.describe(),
            "versions": {s: i.version for s, i in pythons.items() if i.version},
            "heavy": heavy,
            "remark": remark,
            "not_calm": sorted({r["round"] for r in its if not r["round_load"]["calm"]}),
            "disturbed": sum(r["others"] > machine.DISTURBED for r in its),
            "problems": problems,
            "missing": {s: m for s, m in lacking.items() if m},
            "metrics": found,
            "ratios": measures.ratios(measures.metrics(heavy), found),
            "runs": its,
        }
    if "batches" in books:
        batches = books["batches"]
        idle = f"Before what is timed, nobody does anything for {options.pause:g} s"
        remark = idle if options.pause else ""
        batches |= {"heavy": "", "remark": remark, "goals": hops.as_json(batches["metrics"])}
        for key in ("versions", "problems"):
            batches[key] = {s: v for s, v in batches[key].items() if s in hops.SYSTEMS}
        del batches["ratios"]
    return books


WRITERS = {"driver": ("benchmarks", write), "batches": ("batches", write_batches)}


def main() -> None:
    options = arguments()
    OUT.mkdir(parents=True, exist_ok=True)
    if options.redraw:
        for name, writer in WRITERS.values():
            if (OUT / f"{name}.json").exists():
                writer(json.loads((OUT / f"{name}.json").read_text()), options.publish)
        return
    with (OUT / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another benchmark runs in this tree: two at once would measure each other")
        for script, results in bench(options).items():
            WRITERS[script][1](results, options.publish)


if __name__ == "__main__":
    # SIGTERM ends it the way Ctrl-C does: through the finally that clears up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    main()
