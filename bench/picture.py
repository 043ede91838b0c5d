"""The results as one picture: bars on a logarithmic scale, an SVG written by hand.

Pure: results in, text out. Colours come from the reader's light or dark scheme;
bars have their value in words, so that it can be read without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import hops
from measures import SYSTEMS, TITLES
from report import figure, times

WIDTH, LEFT, RIGHT = 860, 240, 140
BAR, GAP, BETWEEN, TOP = 11, 2, 13, 62

STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .small { font-size: 10.5px; fill: #59636e }
  .label { text-anchor: end } .grid { stroke: #d1d9e0; stroke-width: 1 }
  .whisker { stroke: #1f2328; stroke-width: 1; opacity: .55 } .paper { fill: #ffffff }
  .muster { fill: #0969da } .ray { fill: #bf8700 } .monarch { fill: #8250df } .floor { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .paper { fill: #0d1117 }
    .whisker { stroke: #f0f6fc } .muster { fill: #4493f8 } .ray { fill: #d29922 }
    .monarch { fill: #ab7df8 } .floor { fill: #6e7681 }
  }
"""

#: What is drawn: key, label, unit of the axis. A rate is drawn as the time that
#: its calls take, so that one axis serves and shorter is always better.
TIMES = [
    ("call.p50", "one small call", 0.0),
    ("pipelined", "1,000 calls in flight", 1000.0),
    ("threads.16", "1,000 calls from 16 threads", 1000.0),
    ("fan.16", "broadcast + gather, 16 workers", 0.0),
    ("fan.64", "broadcast + gather, 64 workers", 0.0),
    ("fan.256", "broadcast + gather, 256 workers", 0.0),
    ("up", "the system itself up", 0.0),
    ("start.16", "16 workers ready", 0.0),
    ("start.64", "64 workers ready", 0.0),
    ("heavy.start.16", "16 workers ready, with HEAVY", 0.0),
    ("script.first", "python script.py to first result", 0.0),
]
FLOOR = "floor (bare sockets, same hops)"
BATCH_FLOOR = "floor (memcpy, same threads)"
MEMORY = [
    ("memory.16.worker", "per worker, of 16", 0.0),
    ("heavy.memory.16.worker", "per worker, of 16, with HEAVY", 0.0),
    ("memory.16.system", "the system besides", 0.0),
]


class Bar(NamedTuple):
    """A bar: the system that gives its colour, p10, median and p90, and its value in words."""

    system: str
    value: tuple[float, float, float]
    said: str


Group = tuple[str, list[Bar]]


def draw(results: dict[str, Any]) -> str:
    """The whole picture."""
    parts: list[str] = []
    times, memory = _values(results, TIMES, "s"), _values(results, MEMORY, "B")
    y = _panel(parts, "time, shorter is better", times, "s", TOP)
    y = _panel(parts, "memory (PSS), shorter is better", memory, "B", y + 34)
    return _page(results, parts, y, FLOOR)


def draw_batches(results: dict[str, Any]) -> str:
    """The picture of batches: a panel for each hop, a group of bars for each size."""
    parts: list[str] = []
    y = TOP - 22
    for table in hops.TABLES:
        groups = _ways(results["metrics"], table)
        if groups:
            parts.append(_text(16, y + 36, f"{table.title}; shorter is better", ""))
            y = _panel(parts, "", groups, "s", y + 42)
    return _page(results, parts, y, BATCH_FLOOR)


def _ways(found: hops.Found, table: hops.Table) -> list[Group]:
    groups = []
    for label, key in table.keys(found):
        bars = []
        ours = hops.median(found, f"{key}.{table.ways[0].name}", table.ways[0].system)
        for way in table.ways:
            s = found.get(f"{key}.{way.name}", {}).get(way.system)
            if s is None:
                continue
            said = f"{figure(s['median'], 's')} {way.title.split(', ')[-1]}"
            if way.system == "ray" and ours:
                said += f", {times(s['median'] / ours)}"  # of Muster's first way
            bars.append(Bar(way.system, (s["p10"], s["median"], s["p90"]), said))
        groups.append((label, bars))
    return groups


def _page(results: dict[str, Any], parts: list[str], y: int, floor: str) -> str:
    """The panels with what is above and below them."""
    machine = results["machine"]
    foot = (
        f"{results['kind']} run of {results['made'][:10]} on {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GiB; logarithmic; medians, lines p10-p90; "
        "more in docs/benchmarks.md"
    )
    parts.append(_text(16, y + 18, foot, "small"))
    height = y + 32
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(_headline(results))}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
            *_legend(results, floor),
            *parts,
            "</svg>\n",
        ]
    )


def _headline(results: dict[str, Any]) -> str:
    names = [TITLES[s] for s in _systems(results)]
    return f"{', '.join(names)}, measured in one run on one machine"


def _systems(results: dict[str, Any]) -> list[str]:
    return [s for s in SYSTEMS if any(s in by for by in results["metrics"].values())]


def _legend(results: dict[str, Any], floor: str) -> list[str]:
    lines, x = [_text(16, 26, _headline(results), "title")], 16
    for system in _systems(results):
        name = f"{TITLES[system]} {results['versions'].get(system, '')}".strip()
        if system == "floor":
            name = floor
        lines.append(f'<rect class="{system}" x="{x}" y="38" width="11" height="11" rx="2"/>')
        lines.append(_text(x + 16, 48, name, ""))
        x += 34 + 7 * len(name)
    return lines


def _values(
    results: dict[str, Any], wanted: list[tuple[str, str, float]], unit: str
) -> list[Group]:
    """Label and bars, without what nobody measured."""
    found = []
    for key, label, calls in wanted:
        by_system = {}
        for system, s in results["metrics"].get(key, {}).items():
            low, middle, high = s["p10"], s["median"], s["p90"]
            if middle <= 0:
                continue
            if calls:
                low, middle, high = calls / high, calls / middle, calls / low
            by_system[system] = (low, middle, high)
        if by_system:
            medians = {s: v[1] for s, v in by_system.items()}
            order = [s for s in SYSTEMS if s in by_system]
            bars = [Bar(s, by_system[s], _said(s, medians, unit)) for s in order]
            found.append((label.replace("HEAVY", results["heavy"]), bars))
    return found


def _panel(
    parts: list[str],
    title: str,
    groups: list[Group],
    unit: str,
    top: int,
) -> int:
    """One axis with its bars; returns where it ends."""
    if not groups:
        return top
    everything = [v for _, its in groups for bar in its for v in bar.value]
    first = math.floor(math.log10(min(everything)) - 0.15)
    last = math.ceil(math.log10(max(everything)))

    def x(value: float) -> float:
        share = (math.log10(value) - first) / (last - first)
        return round(LEFT + max(0.0, share) * (WIDTH - LEFT - RIGHT), 1)

    bars: list[str] = []
    y = top + 30
    for label, its in groups:
        tall = len(its) * (BAR + GAP)
        bars.append(_text(LEFT - 10, y + tall // 2 + 3, label, "label"))
        for bar in its:
            bars += _bar(bar, x, y)
            y += BAR + GAP
        y += BETWEEN
    bottom = y - BETWEEN + 4
    parts.append(_text(16, top + 14, title, "small"))
    for power in range(first, last + 1):
        at = x(10.0**power)
        parts.append(f'<line class="grid" x1="{at}" y1="{top + 20}" x2="{at}" y2="{bottom}"/>')
        name = escape(figure(10.0**power * 1.0000001, unit).replace(".0 ", " "))
        parts.append(
            f'<text class="small" x="{at}" y="{top + 14}" text-anchor="middle">{name}</text>'
        )
    parts += bars
    return bottom


def _said(system: str, medians: dict[str, float], unit: str) -> str:
    """The bar's value, and what matters of its ratios."""
    said = figure(medians[system], unit)
    if system == "muster" and "floor" in medians:
        return f"{said}, {times(medians['muster'] / medians['floor'])} the floor"
    if system not in {"muster", "floor"} and "muster" in medians:
        return f"{said}, {times(medians[system] / medians['muster'])} Muster"
    return said


def _bar(bar: Bar, x: Callable[[float], float], y: int) -> list[str]:
    system, (low, middle, high), said = bar
    width = round(x(middle) - LEFT, 1)
    lines = [f'<rect class="{system}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="1.5"/>']
    if x(high) - x(low) >= 1:
        centre = y + BAR / 2
        lines.append(
            f'<line class="whisker" x1="{x(low)}" y1="{centre}" x2="{x(high)}" y2="{centre}"/>'
        )
    lines.append(_text(max(x(high), x(middle)) + 5, y + BAR - 1.5, said, "small"))
    return lines


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'
