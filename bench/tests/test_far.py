"""Several hosts: the sums, the tables, and the marks that show a loss."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import far
import far_report
import measures
import nodes

BENCH = Path(__file__).resolve().parent.parent


def run_of(system: str, case: str = "calls", problem: str = "", **values: float) -> dict[str, Any]:
    named = {key.replace("_", "."): value for key, value in values.items()}
    return {
        "round": 1,
        "case": case,
        "system": system,
        "calm": system != "ray",
        "values": named,
        "problem": problem,
    }


RUNS = [
    run_of("muster", call_p50=100e-6, pipelined=50000.0, fan_48=1e-3, ready_24=2.0),
    run_of("muster", "bytes", one_again=1.0),
    run_of("plain", "bytes", one_again=0.5),
    run_of("ray", call_p50=1e-3, pipelined=2000.0, fan_48=10e-3, ready_24=8.0, one_again=2.0),
    run_of("floor", "bytes", "exit code 1: no route", call_p50=30e-6),
]


def results(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = measures.summaries(runs)
    return {
        "made": "2026-01-01T00:00:00+00:00",
        "seconds": 1,
        "machine": {"cpu": "c", "cores": 2, "memory": 2**34, "kernel": "6", "python": "3.11"},
        "versions": {"Muster": "0.1.0", "Ray": "2.60.0"},
        "left_out": ["no time was left for fan in round 3"],
        "goals": far.as_json(found),
        "metrics": found,
        "runs": runs,
    }


def test_goals_are_ratios_to_ray() -> None:
    found: dict[str, Any] = {
        o.goal.what: (o.value, o.met) for o in far.outcomes(results(RUNS)["metrics"])
    }
    assert found == {
        "a small call to another host": (pytest.approx(10.0), True),
        "a broadcast to 48 workers on 3 hosts": (pytest.approx(10.0), False),
        "1 GiB from host to host, with TLS": (pytest.approx(2.0), True),
        "1 GiB from host to host, transport plain": (pytest.approx(4.0), True),
        "24 workers on 3 hosts ready, once Ray is up": (pytest.approx(4.0), True),
    }
    assert far.outcomes(results(RUNS[:3])["metrics"]) == []


def test_tables_have_figures_ratios_and_reasons() -> None:
    text = far_report.text(results(RUNS))
    line = next(x for x in text.splitlines() if x.startswith("1 GiB from host to host "))
    assert line.split()[-2:] == ["2.0x", "4.0x"]
    assert "1.0 s, 1.1 GB/s" in line
    goal = next(x for x in text.splitlines() if x.startswith("a broadcast"))
    assert goal.split()[-5:] == ["10x", "at", "least", "12x", "NO"]
    assert "floor, bytes, round 1: exit code 1: no route." in text
    assert "Before 1 of 5 runs the machine was busy" in text
    assert "no time was left for fan in round 3." in text


def test_page_keeps_what_is_around_the_results() -> None:
    page = f"before\n{far_report.BEGIN}\nold\n{far_report.END}\nafter\n"
    once = far_report.into_page(page, results(RUNS))
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert far_report.into_page(once, results([])) != once
    real = (BENCH.parent / "docs" / "benchmarks.md").read_text()
    assert real.count(far_report.BEGIN) == real.count(far_report.END) == 1


def test_every_case_has_a_script_and_every_goal_a_figure() -> None:
    keys = {figure.key for figure in far.FIGURES}
    assert all(goal.key in keys for goal in far.GOALS)
    for case in far.cases():
        for system in case.systems:
            name = "muster" if system == "plain" else system
            assert (BENCH / "drivers" / f"{name}_nodes.py").exists()


class Here:
    """Two workers in this process, and a taker that can be given other rows."""

    def __init__(self, stale: bool) -> None:
        self.rows, self.stale, self.last = nodes.Rows(), stale, None

    def up(self) -> None: ...

    def carry(self) -> None: ...

    def make(self, carriers: Any, rows: int, step: int) -> Any:
        made = self.rows.marked(rows, step)
        if self.stale and step > 1:
            made[nodes.MARKED, 0] = step - 1
        return made

    def take(self, carriers: Any, made: Any) -> Any:
        return nodes.look(made)

    def take_all(self, carriers: Any, made: Any) -> Any:
        return [nodes.look(made)] * nodes.HOSTS

    def down(self) -> None: ...


class Told:
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def value(self, metric: str, value: float) -> None:
        self.values[metric] = value

    def parts(self, name: str, parts: dict[str, float]) -> None: ...


def test_bytes_of_another_step_are_found_out() -> None:
    told: Any = Told()
    case: Any = nodes._CASES["bytes"]
    case(Here(False), told, {"mib": 2, "most": 3, "seconds": 0.0})
    assert set(told.values) == {"one.first", "one.again", "all.first", "all.again"}
    with pytest.raises(AssertionError, match="the takers saw"):
        case(Here(True), told, {"mib": 2, "most": 3, "seconds": 0.0})


def test_lines_of_a_script_become_values() -> None:
    began = time.monotonic()
    lines = ["noise", '{"metric": "a", "value": 2}', f'{{"moment": "b", "at": {began + 3}}}']
    record = measures.record(lines, began)
    assert record["values"] == {"a": 2, "b": pytest.approx(3)}
