"""The figures of several hosts as text: a table, what was wanted, and remarks.

Pure: results in, text out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import far
from report import as_markdown, as_text, between, spread, times

BEGIN, END = "<!-- hosts: written by make bench-hosts -->", "<!-- end of hosts -->"
COMPARED = (
    "Medians over the rounds, p10-p90 in brackets. 'vs Ray': how many times better it is than "
    "Ray, which encrypts nothing. Muster's connections have TLS, those of 'plain' not."
)

Lines = Callable[[list[str], list[list[str]]], list[str]]


def _cell(found: far.Found, figure: far.Figure, system: str) -> str:
    of = found.get(figure.key, {}).get(system)
    if of is None:
        return "-"
    if figure.unit != "bytes":
        return spread(of, figure.unit)
    rate = (far.MIB << 20) / of["median"] / 1e9
    return f"{spread(of, 's')}, {rate:.2g} GB/s"


def _against(value: float | None) -> str:
    return "-" if value is None else times(value)


def rows(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of figures."""
    found: far.Found = results["metrics"]
    head = ["", *(far.TITLES[s] for s in far.SYSTEMS), "vs Ray", "plain vs Ray"]
    body = []
    for figure in far.FIGURES:
        if figure.key not in found:
            continue
        cells = [_cell(found, figure, system) for system in far.SYSTEMS]
        against = [_against(far.compare(found, figure, s)) for s in ("muster", "plain")]
        body.append([figure.label, *cells, *against])
    return head, body


def wanted(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of goals."""
    body = [
        [o.goal.what, times(o.value), f"at least {o.goal.wanted:g}x", "yes" if o.met else "NO"]
        for o in far.outcomes(results["metrics"])
    ]
    return ["against Ray", "found", "wanted", "met"], body


def remarks(results: dict[str, Any]) -> list[str]:
    """What a reader has to know beside the figures."""
    m = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    said = [
        f"Run of {results['made']}, {results['seconds']} s: {m['cpu']}, {m['cores']} cores for all "
        f"hosts, {m['memory'] / 2**30:.0f} GiB, Linux {m['kernel']}, Python {m['python']}; "
        f"{versions}.",
        COMPARED,
    ]
    rounds: dict[str, set[int]] = {}
    for run in results["runs"]:
        rounds.setdefault(run["case"], set()).add(run["round"])
    said.append(f"Rounds: {', '.join(f'{case} {len(r)}' for case, r in rounds.items())}.")
    busy = sum(not run["calm"] for run in results["runs"])
    if busy:
        said.append(
            f"Before {busy} of {len(results['runs'])} runs the machine was busy with other "
            "things: read with care."
        )
    for run in results["runs"]:
        if run["problem"]:
            title = far.TITLES[run["system"]]
            said.append(f"{title}, {run['case']}, round {run['round']}: {run['problem']}.")
    return [*said, *(f"{text}." for text in results["left_out"])]


def _all(results: dict[str, Any], lines: Lines) -> list[str]:
    return [*lines(*rows(results)), "", *lines(*wanted(results)), ""]


def text(results: dict[str, Any]) -> str:
    """For a terminal."""
    return "\n".join([*_all(results, as_text), *remarks(results)])


def markdown(results: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    said = [f"- {remark}" for remark in remarks(results)]
    said.append("- [hosts.json](hosts.json) has every run.")
    return "\n".join([*_all(results, as_markdown), *said])


def into_page(page: str, results: dict[str, Any]) -> str:
    """The page with the figures of several hosts between their two marks replaced."""
    return between(page, BEGIN, END, markdown(results))
