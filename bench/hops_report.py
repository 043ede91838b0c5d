"""The figures of batches as text: tables by size, what was wanted, and remarks.

Pure: results in, text out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hops
from report import as_markdown, as_text, between, circumstances, figure, spread, times

BEGIN, END = "<!-- batches: written by make bench -->", "<!-- end of batches -->"
COMPARED = (
    "Medians over the rounds, p10-p90 in brackets. 'vs': how many times longer it takes than "
    "Muster's batch; 'of the floor's speed': how much of the floor's bytes a second Muster's "
    "batch has."
)

Lines = Callable[[list[str], list[list[str]]], list[str]]
Section = tuple[str, list[str], list[list[str]]]


def sections(results: dict[str, Any]) -> list[Section]:
    """Title, head and body of every table that has figures."""
    found: hops.Found = results["metrics"]
    parts = [_by_size(found, table) for table in hops.TABLES]
    parts += [_ragged(found), _memory(found), _growth(found)]
    parts += [
        ("What was wanted", *_goals(found, strict=False)),
        ("The same, read as strictly as can be", *_goals(found, strict=True)),
    ]
    return [part for part in parts if part[2]]


def _cell(found: hops.Found, key: str, system: str, unit: str) -> str:
    of = found.get(key, {}).get(system)
    return "-" if of is None else spread(of, unit)


def _by_size(found: hops.Found, table: hops.Table) -> Section:
    head = ["", *(way.title for way in table.ways), *(a.title for a in table.against)]
    body = []
    for label, key in table.keys(found):
        row = [label, *(_cell(found, f"{key}.{way.name}", way.system, "s") for way in table.ways)]
        for against in table.against:
            value = hops.compare(found, key, against)
            row.append("-" if value is None else _said(value, against.share))
        body.append(row)
    return table.title, head, body


def _said(value: float, share: bool) -> str:
    return f"{value:.0%}" if share else times(value)


def _ragged(found: hops.Found) -> Section:
    body = []
    for label, cells, better in hops.ragged_rows(found):
        row = [label, *(_cell(found, key, system, "s") for key, system in cells)]
        body.append([*row, "-" if better is None else times(better)])
    size = next((s["median"] for s in found.get("ragged.bytes", {}).values()), 0.0)
    title = f"4,096 ragged rows of up to 8,192 tokens with texts, {figure(size, 'B')} in all"
    return title, ["", "Muster", "Ray, lists", "floor", "vs Ray"], body


def _memory(found: hops.Found) -> Section:
    body = []
    for mib in hops.memory_sizes(found):
        for role, label in hops.ROLES:
            key = f"peak.{mib}.{role}"
            cells = [_cell(found, key, system, "B") for system in ("muster", "ray")]
            body.append([f"{hops.said(mib)}: {label}", *cells])
    return "The most memory at a time (PSS), both hops by the best way", ["", "Muster", "Ray"], body


def _growth(found: hops.Found) -> Section:
    body = []
    for mib in hops.SIZES:
        ways = [("muster", "batch"), ("ray", "refs"), ("ray", "resent"), ("ray", "put")]
        values = [hops.median(found, f"growth.{mib}.{way}", system) for system, way in ways]
        if any(value is not None for value in values):
            cells = ["-" if value is None else f"{value:.1%}" for value in values]
            body.append([hops.said(mib), *cells])
    title = "Growth of the script's resident memory, as a share of the bytes passed between groups"
    return title, ["", "Muster", "Ray, references", "Ray, sent again", "Ray, put before"], body


def _goals(found: hops.Found, strict: bool) -> tuple[list[str], list[list[str]]]:
    body = []
    for goal in hops.goals(found):
        if goal.strict != strict:
            continue
        bound = "at most" if goal.most else "at least"
        wanted = f"{bound} {goal.wanted:g}{goal.unit}"
        value = times(goal.value) if goal.unit == "x" else f"{goal.value:.1f}%"
        body.append([goal.what, value, wanted, "yes" if goal.met else "NO"])
    return ["", "found", "wanted", "met"], body


def _all(results: dict[str, Any], lines: Lines, title: str) -> list[str]:
    shown = []
    for name, head, body in sections(results):
        shown += [title.format(name), "", *lines(head, body), ""]
    return shown


def text(results: dict[str, Any]) -> str:
    """For a terminal."""
    return "\n".join([*_all(results, as_text, "{}"), *circumstances(results, COMPARED)])


def markdown(results: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    picture = "![bars on a logarithmic scale; the tables below have the same figures](batches.svg)"
    remarks = [f"- {remark}" for remark in circumstances(results, COMPARED)]
    remarks.append("- [batches.json](batches.json) has every run.")
    return "\n".join([picture, "", *_all(results, as_markdown, "**{}**"), *remarks])


def into_page(page: str, results: dict[str, Any]) -> str:
    """The page with the figures of batches between their two marks replaced."""
    return between(page, BEGIN, END, markdown(results))
