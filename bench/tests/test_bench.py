"""The harness: its sums, its picture, and that no driver can stall or outlive it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import hops
import machine
import measures
import picture
import probe
import report

BENCH = Path(__file__).resolve().parent.parent


def results(runs: list[dict[str, Any]], heavy: str = "torch") -> dict[str, Any]:
    found = measures.summaries(runs)
    return {
        "made": "2026-01-01T00:00:00+00:00",
        "kind": "full",
        "seconds": 1,
        "machine": {
            "cpu": "a <b> & c",
            "cores": 2,
            "memory": 2**34,
            "kernel": "6",
            "python": "3.11",
        },
        "versions": {"muster": "0.1.0", "ray": "2.60.0"},
        "heavy": heavy,
        "remark": "",
        "not_calm": [2],
        "disturbed": 1,
        "problems": {"monarch": "not installed: no wheel"},
        "missing": {"ray": {"fan 256": "left out: too large"}},
        "metrics": found,
        "ratios": measures.ratios(measures.metrics(heavy), found),
        "runs": runs,
    }


def run_of(system: str, **values: float) -> dict[str, Any]:
    named = {k.replace("_", "."): v for k, v in values.items()}
    return {"case": "calls", "round": 1, "system": system, "values": named}


RUNS = [
    run_of("muster", call_p50=40e-6, pipelined=60000.0, memory_16_worker=2e6),
    run_of("muster", call_p50=50e-6, pipelined=80000.0),
    run_of("ray", call_p50=1.35e-3, pipelined=2000.0, memory_16_worker=80e6),
    run_of("floor", call_p50=22.5e-6, memory_16_system=0.0),
]


def test_summary_is_median_and_spread() -> None:
    assert measures.summary([3.0, 1.0, 2.0]) == {"median": 2.0, "p10": 1.2, "p90": 2.8, "n": 3}
    assert measures.summary([5.0])["p90"] == 5.0
    assert probe.percentile([1.0, 2.0], 0.5) == 1.5


def test_ratios_say_how_many_times_better() -> None:
    table = results(RUNS)["ratios"]
    assert table["call.p50"]["ray"] == pytest.approx(30.0)
    assert table["pipelined"]["ray"] == pytest.approx(35.0)
    assert table["call.p50"]["floor"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (45e-6, "s", "45.0 us"),
        (1.25e-3, "s", "1.2 ms"),
        (33.0, "s", "33.0 s"),
        (2e-7, "s", "0.2 us"),
        (75100.0, "/s", "75.1k/s"),
        (812.0, "/s", "812/s"),
        (2.1e6, "B", "2.1 MB"),
        (0.0, "B", "0"),
    ],
)
def test_figures_read_well(value: float, unit: str, said: str) -> None:
    assert report.figure(value, unit) == said


def test_table_has_figures_ratios_and_reasons() -> None:
    text = report.table(results(RUNS))
    line = next(x for x in text.splitlines() if x.startswith("one small call, p50"))
    assert line.split()[-2:] == ["30x", "2.0x"]
    assert "45.0 us (41.0-49.0)" in line
    assert "Monarch: not installed: no wheel." in text
    assert "Ray, fan 256: left out: too large." in text
    assert "before round 2" in text and "Rounds: calls 1." in text


def test_page_keeps_what_is_around_the_results() -> None:
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.into_page(page, results(RUNS))
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert report.into_page(once, results(RUNS)) == once


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1], []], ids=["all", "one system", "none"])
def test_picture_is_svg(runs: list[dict[str, Any]]) -> None:
    root = ElementTree.fromstring(picture.draw(results(runs)))
    assert root.tag.endswith("svg")
    bars = [e for e in root.iter() if e.get("class") in measures.SYSTEMS and e.get("y") != "38"]
    assert all(float(bar.get("width", "0")) > 0 for bar in bars)


def test_what_does_not_fit_is_left_out_and_why() -> None:
    case = measures.Case("fan 256", "fan", 1, 1.0, {"workers": [256]})
    found = measures.summaries(RUNS)
    assert "256 workers of 80 MB need 20 GB" in measures.too_large(case, "ray", found, 21e9)
    assert measures.too_large(case, "ray", found, 64e9) == ""
    assert measures.too_large(case, "muster", found, 21e9) == ""
    assert "of 80 MB" in measures.too_large(case, "monarch", {}, 1e9)


def test_calm_is_waited_for_but_not_for_ever() -> None:
    looks = iter([0.9, 0.5, 0.05])
    times = iter([0.0, 1.0, 2.0, 3.0])
    calm = machine.wait_calm(10.0, look=lambda _: next(looks), clock=lambda: next(times))
    assert calm["calm"] and calm["waited"] == 3.0
    times = iter([0.0, 1.0, 2.0])
    busy = machine.wait_calm(2.0, look=lambda _: 0.9, clock=lambda: next(times))
    assert not busy["calm"] and busy["busy"] == 0.9


def test_a_failing_thread_is_raised() -> None:
    def fail() -> object:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        probe.rate_of_threads([lambda: 1, fail], 0.01)
    assert probe.rate_of_threads([lambda: 1] * 2, 0.01) > 0


@pytest.mark.parametrize("quick", [True, False])
def test_cases_have_a_script_for_each_of_their_systems(quick: bool) -> None:
    cases = measures.cases(quick, ["torch"]) + hops.cases(quick)
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        for system in case.systems:
            assert (BENCH / "drivers" / f"{system}_{case.script}.py").exists()


def test_a_case_that_needs_more_memory_than_is_free_is_left_out() -> None:
    case = next(c for c in hops.cases(quick=False) if c.name == "batches 2048")
    assert "it may need 15 GB, 10 GB are free" in measures.too_large(case, "ray", {}, 10e9)
    assert measures.too_large(case, "ray", {}, 40e9) == ""


# What a driver may do wrong, and what has to become of it.
DRIVERS = {
    "good": 'import sys; print(\'noise\'); print(\'{"metric": "up", "value": 2.0}\')',
    "failing": 'import sys; print(\'{"metric": "up", "value": 2.0}\', flush=True); sys.exit(\'bad day\')',
    "telling": """
        import sys
        print('{"failure": "ValueError: 30 s"}')
        sys.exit("in the end")
    """,
    "hanging": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()",
    "leaving": """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import os, signal; os.setsid(); signal.pause()"])
    """,
}

RUN = """
    import json, sys
    from pathlib import Path
    import installs, machine, measures, run
    folder = Path(sys.argv[1])
    python = {sys.argv[2]: installs.Installed(Path(sys.executable))}
    machine.adopt_orphans()
    harness = run.Harness(python, folder, None, folder, drivers=folder, grace=0.2)
    case = measures.Case("calls", "calls", 1, float(sys.argv[3]))
    record = harness.run(sys.argv[2], case, folder / "log")
    print(json.dumps({**record, "still": list(machine.descendants())}))
"""


# In a process of its own: the harness ends everything below itself.
def harness(folder: Path, kind: str, limit: float) -> dict[str, Any]:
    (folder / f"{kind}_driver.py").write_text(textwrap.dedent(DRIVERS[kind]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(folder), kind, str(limit)],
        cwd=BENCH,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["still"] == []
    return record


def test_values_are_taken_from_among_noise(tmp_path: Path) -> None:
    record = harness(tmp_path, "good", 30)
    assert record["values"] == {"up": 2.0}
    assert record["problem"] == "" and record["left_behind"] == []


def test_a_failing_driver_keeps_what_it_measured(tmp_path: Path) -> None:
    record = harness(tmp_path, "failing", 30)
    assert record["values"] == {"up": 2.0}
    assert record["problem"] == "exit code 1: bad day"
    record = harness(tmp_path, "telling", 30)
    assert record["problem"] == "exit code 1: ValueError: 30 s"


def test_a_hanging_driver_is_ended_at_its_limit(tmp_path: Path) -> None:
    record = harness(tmp_path, "hanging", 0.5)
    assert record["problem"] == "stopped after 0.5 s"
    assert record["seconds"] < 10


def test_what_a_driver_leaves_is_ended_and_named(tmp_path: Path) -> None:
    record = harness(tmp_path, "leaving", 30)
    assert len(record["left_behind"]) == 1 and record["problem"] == ""
