"""The results as text: a table of figures and ratios, for terminals and for docs.

Pure: results in, text out.
"""

from __future__ import annotations

from typing import Any

from measures import SYSTEMS, TITLES, Metric, metrics

BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"


def parted(value: float, unit: str) -> tuple[str, str]:
    """A value as people read it, three digits at most, and its unit: 45.0 and " us"."""
    if unit == "/s":
        return (_short(value / 1000), "k/s") if value >= 1000 else (f"{value:.0f}", "/s")
    if value == 0:
        return "0", ""
    scales = [(1.0, " s"), (1e-3, " ms"), (1e-6, " us")]
    if unit == "B":
        scales = [(1e9, " GB"), (1e6, " MB"), (1e3, " kB")]
    per, name = next((s for s in scales if value >= s[0]), scales[-1])
    return _short(value / per), name


def figure(value: float, unit: str) -> str:
    """The same in one: 45.0 us, 1.2 ms, 75.1k/s, 2.1 MB."""
    return "".join(parted(value, unit))


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def times(value: float) -> str:
    """A ratio: 31x, 2.4x, 0.8x."""
    return (
        f"{value:.0f}x" if value >= 9.95 else f"{value:.1f}x" if value >= 0.1 else f"{value:.2f}x"
    )


def spread(found: dict[str, float], unit: str) -> str:
    """The median, with p10 to p90 where they can be told from it."""
    (low, a), (middle, b), (high, c) = (
        parted(found[share], unit) for share in ("p10", "median", "p90")
    )
    if (low, a) == (middle, b) == (high, c):
        return middle + b
    if a == b == c:
        return f"{middle}{b} ({low}-{high})"
    return f"{middle}{b} ({low}{a}-{high}{c})"


def _cell(results: dict[str, Any], metric: Metric, system: str) -> str:
    found = results["metrics"].get(metric.key, {}).get(system)
    if found is None:
        return "-"
    if found["median"] == 0 and metric.unit == "B":
        return "in the script"
    return spread(found, metric.unit)


def rows(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table: figures, then how Muster compares."""
    systems = [s for s in SYSTEMS if any(s in by for by in results["metrics"].values())]
    others = [s for s in systems if s not in {"muster", "floor"}]
    head = ["", *(TITLES[s] for s in systems)]
    against_floor = "muster" in systems and "floor" in systems
    if "muster" in systems:
        head += [f"vs {TITLES[s]}" for s in others]
    if against_floor:
        head.append("of the floor")
    body = []
    for metric in metrics(results["heavy"]):
        if metric.key not in results["metrics"]:
            continue
        row = [metric.label, *(_cell(results, metric, s) for s in systems)]
        compared = results["ratios"].get(metric.key, {})
        if "muster" in systems:
            row += [times(compared[s]) if s in compared else "-" for s in others]
        if against_floor:
            # Turned round: how many times the floor's cost Muster has.
            row.append(times(1 / compared["floor"]) if "floor" in compared else "-")
        body.append(row)
    return head, body


def remarks(results: dict[str, Any]) -> list[str]:
    """What a reader has to know beside the figures."""
    compared = (
        "Medians over the rounds, p10-p90 in brackets. "
        "'vs': how many times better Muster is; 'of the floor': how many times its cost."
    )
    return circumstances(results, compared)


def circumstances(results: dict[str, Any], compared: str) -> list[str]:
    """Where and how the figures were made; compared says how they are to be read."""
    m = results["machine"]
    versions = ", ".join(f"{TITLES[s]} {v}" for s, v in results["versions"].items())
    said = [
        f"{results['kind']} run of {results['made']}, {results['seconds']} s: {m['cpu']}, "
        f"{m['cores']} cores, {m['memory'] / 2**30:.0f} GiB, Linux {m['kernel']}, "
        f"Python {m['python']}; {versions}.",
        compared,
    ]
    rounds: dict[str, set[int]] = {}
    for run in results["runs"]:
        rounds.setdefault(run["case"], set()).add(run["round"])
    said.append(f"Rounds: {', '.join(f'{case} {len(r)}' for case, r in rounds.items())}.")
    if results["not_calm"]:
        busy = ", ".join(str(r) for r in results["not_calm"])
        said.append(f"The machine was busy with other things before round {busy}: read with care.")
    if results["disturbed"]:
        said.append(
            f"During {results['disturbed']} of {len(results['runs'])} runs others used more "
            "than 15 % of the CPU time."
        )
    if results["remark"]:
        said.append(results["remark"][0].upper() + results["remark"][1:] + ".")
    for system, why in results["problems"].items():
        said.append(f"{TITLES[system]}: {why}.")
    for system, by_case in results["missing"].items():
        for case, why in by_case.items():
            said.append(f"{TITLES[system]}, {case}: {why}.")
    return said


def table(results: dict[str, Any]) -> str:
    """The table for a terminal."""
    return "\n".join([*as_text(*rows(results)), "", *remarks(results)])


def as_text(head: list[str], body: list[list[str]]) -> list[str]:
    """The lines of a table, in columns."""
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines = []
    for row in [head, *body]:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    return lines


def markdown(results: dict[str, Any]) -> str:
    """The same for docs/benchmarks.md."""
    shown = as_markdown(*rows(results))
    return "\n".join([*shown, "", *(f"- {remark}" for remark in remarks(results))])


def as_markdown(head: list[str], body: list[list[str]]) -> list[str]:
    """The lines of a table, for a page."""
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *body]
    return ["| " + " | ".join(line) + " |" for line in lines]


def into_page(page: str, results: dict[str, Any]) -> str:
    """The page with the results between its two marks replaced."""
    return between(page, BEGIN, END, markdown(results))


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with what is between two marks replaced."""
    before, rest = page.split(begin, 1)
    _, after = rest.split(end, 1)
    return f"{before}{begin}\n{text}\n{end}{after}"
