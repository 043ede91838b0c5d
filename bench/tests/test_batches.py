"""The figures of batches: their sums, tables and picture, and that wrong rows are found out."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import batches
import footprint
import hops
import hops_report
import loads
import measures
import picture
import report

VALUES = {
    "muster": {
        "first.64.batch": 0.02,
        "first.1024.batch": 0.2,
        "first.1024.arrays": 0.25,
        "second.64.batch": 0.001,
        "second.1024.batch": 0.0012,
        "gather.1024.batch": 0.4,
        "ragged.first.batch": 0.05,
        "ragged.second.batch": 0.004,
        "growth.1024.batch": 0.01,
        "peak.1024.script": 2e9,
        "peak.1024.all": 4e9,
        "ragged.bytes": 46e6,
    },
    "ray": {
        "first.1024.arrays": 0.6,
        "first.1024.put": 0.5,
        "second.1024.resent": 0.6,
        "second.1024.refs": 0.012,
        "second.1024.put": 0.006,
        "second.1024.putting": 0.12,
        "ragged.first.lists": 0.1,
    },
    "floor": {"first.1024.copy": 0.16},
}


def results(values: dict[str, dict[str, float]]) -> dict[str, Any]:
    runs = [
        {"case": "batches 1024", "round": 1, "system": system, "values": found}
        for system, found in values.items()
    ]
    return {
        "made": "2026-01-01T00:00:00+00:00",
        "kind": "full",
        "seconds": 1,
        "machine": {"cpu": "c", "cores": 2, "memory": 2**34, "kernel": "6", "python": "3.11"},
        "versions": {"muster": "0.1.0", "ray": "2.60.0"},
        "heavy": "",
        "remark": "",
        "not_calm": [],
        "disturbed": 0,
        "problems": {},
        "missing": {"ray": {"batches 2048": "left out: too large"}},
        "metrics": measures.summaries(runs),
        "runs": runs,
    }


def test_goals_say_what_came_out_and_what_was_wanted() -> None:
    found = {g.what: g for g in hops.goals(results(VALUES)["metrics"])}
    arrays = found["first hop of 1 GiB, against Ray's array arguments"]
    assert arrays.value == pytest.approx(3.0) and arrays.met
    floor = found["first hop of 1 GiB, of the memcpy floor's speed"]
    assert floor.value == pytest.approx(80.0) and floor.met
    best = found["second hop of 1 GiB, against Ray's put once, sliced in the actor"]
    assert best.value == pytest.approx(100.0) and best.met
    before = found[
        "second hop of 1 GiB, against Ray's put once, sliced in the actor, put before the clock"
    ]
    assert before.value == pytest.approx(5.0) and not before.met
    grows = found["second hop of 1 GiB, as a multiple of 64 MiB's"]
    assert grows.value == pytest.approx(1.2) and grows.met
    assert found["growth of the script's memory, of the bytes that passed"].met
    assert hops.goals({}) == []


def test_text_has_every_table_and_the_reasons() -> None:
    text = hops_report.text(results(VALUES))
    for title, _, _ in hops_report.sections(results(VALUES)):
        assert title in text
    row = next(x for x in text.splitlines() if x.startswith("1 GiB") and "80%" in x)
    assert row.split()[-3:] == ["3.0x", "2.5x", "80%"]
    assert "Ray, batches 2048: left out: too large." in text
    assert hops_report.text(results({})) != ""


def test_page_keeps_both_books_apart() -> None:
    page = (
        f"a\n{report.BEGIN}\ncalls\n{report.END}\n"
        f"b\n{hops_report.BEGIN}\nold\n{hops_report.END}\nc\n"
    )
    once = hops_report.into_page(page, results(VALUES))
    assert "calls" in once and "old" not in once and once.endswith("\nc\n")
    assert hops_report.into_page(once, results(VALUES)) == once


@pytest.mark.parametrize("values", [VALUES, {"muster": VALUES["muster"]}, {}])
def test_picture_is_svg(values: dict[str, dict[str, float]]) -> None:
    root = ElementTree.fromstring(picture.draw_batches(results(values)))
    bars = [e for e in root.iter() if e.get("class") in measures.SYSTEMS and e.get("y") != "38"]
    assert all(float(bar.get("width", "0")) > 0 for bar in bars)
    assert bool(bars) == bool(values)


def test_only_the_timed_part_is_timed_and_only_after_the_warm_up() -> None:
    asked: list[int] = []

    def prepare(step: int) -> int:
        asked.append(step)
        return step

    checked: list[tuple[int, int]] = []
    way = batches.Way("w", prepare, lambda given: -given)
    times = batches.Loop(4, 60.0).run(way, lambda step, got: checked.append((step, got)))
    assert len(times) == 4 and asked == [1, 2, 3, 4, 5, 6]
    assert checked == [(step, -step) for step in asked]


def test_rows_of_another_step_or_worker_are_found_out() -> None:
    whole = loads.matrix(8, batches.WORKERS)
    shares = loads.shares(batches.marking(whole)(5), batches.WORKERS)
    check = batches._checks("8 MiB", len(shares[0]))
    seen = [loads.look(share) for share in shares]
    check(5, seen)
    with pytest.raises(AssertionError, match="8 MiB: the workers saw"):
        check(6, seen)
    with pytest.raises(AssertionError):
        check(5, seen[::-1])


def test_ragged_rows_are_the_same_for_the_same_seed() -> None:
    tokens, prompts = loads.ragged(64, 1)
    again, _ = loads.ragged(64, 1)
    assert all(np.array_equal(a, b) for a, b in zip(tokens, again, strict=True))
    assert max(map(len, tokens)) <= loads.LONGEST and min(map(len, tokens)) >= 1
    loads.mark_ragged(tokens, 3, 2)
    seen = loads.look_ragged(tokens, prompts)
    assert seen == (64, 194, -194, len(prompts[0]), len(prompts[-1]))


def test_the_peak_of_a_process_is_seen_and_forgotten() -> None:
    # In a process of its own: what other tests have left may be freed at any time.
    source = """
import footprint, numpy as np
before = footprint.begin_peak()
filled = np.ones(64 << 20, np.uint8)
seen = footprint.peak() - before
del filled
footprint.begin_peak()
print(seen, footprint.peak() - before)
"""
    env = os.environ | {"PYTHONPATH": os.path.dirname(footprint.__file__)}
    out = subprocess.run(
        [sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    seen, left = map(float, out.split())
    assert seen > 60e6
    assert left < 30e6


def test_watching_tells_the_script_from_its_children_and_counts_segments_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    first, second = os.memfd_create("segment"), -1
    try:
        os.posix_fallocate(first, 0, 16 << 20)
        second = os.dup(first)
        with footprint.Watch([child.pid]) as watch:
            filled = np.ones(32 << 20, np.uint8)
        peaks = watch.peaks()
    finally:
        os.close(first)
        if second >= 0:
            os.close(second)
        child.communicate(b"\n")
    assert peaks["script"] > filled.nbytes and peaks["all"] > filled.nbytes + (16 << 20)
    assert 16 << 20 <= peaks["shared"] < 32 << 20
    assert peaks["worker"] > 0
    assert {name.split()[0] for name in watch.processes()} >= {"script", "worker"}
