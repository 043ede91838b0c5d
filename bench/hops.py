"""The figures of batches: which there are, how they compare, and what was wanted of them.

Pure: values in, tables out. The cases themselves are in drivers/batches.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from measures import Case

SYSTEMS = ("muster", "ray", "floor")
SIZES = (64, 256, 1024, 2048)
#: Memory that a case may need at a time, as a multiple of its batch: the script's
#: matrix, the workers' own, and up to four copies in stores that recycle lazily.
COPIES = 6
#: And what the processes themselves need.
BESIDES = 2e9

Found = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Way:
    """One way of one system; its figure is that of the key PREFIX.name."""

    system: str
    name: str
    title: str


@dataclass(frozen=True)
class Against:
    """A column that compares: of two ways, how many times the first the second takes."""

    title: str
    ours: str
    theirs: tuple[str, str]
    share: bool = False  # theirs / ours as a percentage: how much of the floor's speed is left


@dataclass(frozen=True)
class Table:
    """Figures of one kind, by size."""

    prefix: str
    title: str
    ways: tuple[Way, ...]
    against: tuple[Against, ...]

    def keys(self, found: Found) -> list[tuple[str, str]]:
        """Label and key of each row that somebody measured."""
        rows = [(said(mib), f"{self.prefix}.{mib}") for mib in SIZES]
        return [
            (label, key)
            for label, key in rows
            if any(way.system in found.get(f"{key}.{way.name}", {}) for way in self.ways)
        ]


FIRST = Table(
    "first",
    "First hop: the script's matrix to 8 workers",
    (
        Way("muster", "batch", "Muster, batch"),
        Way("muster", "arrays", "Muster, arrays"),
        Way("ray", "arrays", "Ray, arrays"),
        Way("ray", "put", "Ray, put once"),
        Way("floor", "copy", "floor"),
    ),
    (
        Against("vs Ray, arrays", "batch", ("ray", "arrays")),
        Against("vs Ray, put once", "batch", ("ray", "put")),
        Against("of the floor's speed", "batch", ("floor", "copy"), share=True),
    ),
)
SECOND = Table(
    "second",
    "Second hop: what 8 workers made, to 8 others",
    (
        Way("muster", "batch", "Muster"),
        Way("muster", "again", "Muster, once more"),
        Way("ray", "gathered", "Ray, gathered"),
        Way("ray", "resent", "Ray, sent again"),
        Way("ray", "putting", "Ray, put once"),
        Way("ray", "refs", "Ray, references"),
        Way("ray", "put", "Ray, put before"),
    ),
    (
        Against("vs gathered", "batch", ("ray", "gathered")),
        Against("vs sent again", "batch", ("ray", "resent")),
        Against("vs put once", "batch", ("ray", "putting")),
        Against("vs references", "batch", ("ray", "refs")),
        Against("vs put before", "batch", ("ray", "put")),
    ),
)
GATHER = Table(
    "gather",
    "Gather: what 8 workers made, as one matrix of the script",
    (
        Way("muster", "batch", "Muster"),
        Way("ray", "get", "Ray"),
        Way("floor", "copy", "floor"),
    ),
    (
        Against("vs Ray", "batch", ("ray", "get")),
        Against("of the floor's speed", "batch", ("floor", "copy"), share=True),
    ),
)
TABLES = (FIRST, SECOND, GATHER)

#: Ragged rows have one size: label, prefix and ways of each row.
RAGGED = (
    ("first hop", "ragged.first", "batch", ("ray", "lists"), ("floor", "copy")),
    ("second hop, sent again", "ragged.second", "batch", ("ray", "resent"), None),
    ("second hop, references", "ragged.second", "batch", ("ray", "refs"), None),
)

#: Memory: role and label. The script's growth is by way.
ROLES = (
    ("script", "the script"),
    ("worker", "the largest worker"),
    ("system", "the system besides"),
    ("shared", "shared memory of all"),
    ("all", "everything, shared memory once"),
)


def said(mib: int) -> str:
    """A size as people read it."""
    return f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB"


def cases(quick: bool) -> list[Case]:
    """What is run, in order, each round."""
    sizes = SIZES[:2] if quick else SIZES
    rounds = 1 if quick else 3
    found = []
    for mib in sizes:
        parameters = {"mib": mib, "most": 15, "seconds": 2.0 if quick else 4.0, "passes": 8}
        needs = COPIES * (mib << 20) + BESIDES
        found.append(
            Case(f"batches {mib}", "hops", rounds, 300, parameters, "batches", SYSTEMS, needs)
        )
    ragged = {"most": 9, "seconds": 2.0 if quick else 4.0}
    found.append(Case("batches ragged", "ragged", rounds, 200, ragged, "batches", SYSTEMS, BESIDES))
    return found


def median(found: Found, key: str, system: str) -> float | None:
    """The figure, where there is one."""
    of = found.get(key, {}).get(system)
    return None if of is None else of["median"]


def compare(found: Found, prefix: str, against: Against) -> float | None:
    """How many times what ours takes theirs takes; above 1 where ours is faster."""
    ours = median(found, f"{prefix}.{against.ours}", "muster")
    theirs = median(found, f"{prefix}.{against.theirs[1]}", against.theirs[0])
    return None if not ours or not theirs else theirs / ours


@dataclass(frozen=True)
class Goal:
    """One thing that was wanted: what, how much came out, and how much it had to be."""

    what: str
    value: float
    wanted: float
    unit: str  # "x" or "%"
    most: bool = False  # wanted at most, not at least
    strict: bool = False  # by the strictest reading of what was wanted

    @property
    def met(self) -> bool:
        return self.value <= self.wanted if self.most else self.value >= self.wanted


def goals(found: Found) -> list[Goal]:
    """Every goal whose figures are there. At 1 GiB, or the largest size below it.

    They compare as the measurements did by which they were set: rows that were passed on
    before with rows sent as arguments, a put that counts, and what pipelines do. The
    strictest readings stand beside these.
    """
    sizes = [m for m in SIZES if f"first.{m}.batch" in found and m <= 1024]
    if not sizes:
        return []
    mib = sizes[-1]
    first, second = f"first.{mib}", f"second.{mib}"
    wanted: list[Goal] = []

    def want(what: str, value: float | None, bound: float, unit: str, **kind: bool) -> None:
        if value is not None:
            wanted.append(Goal(what, value, bound, unit, **kind))

    hop = f"first hop of {said(mib)}"
    arrays = compare(found, first, Against("", "batch", ("ray", "arrays")))
    want(f"{hop}, against Ray's array arguments", arrays, 2.5, "x")
    floor = compare(found, first, Against("", "batch", ("floor", "copy")))
    want(f"{hop}, of the memcpy floor's speed", None if floor is None else floor * 100, 60, "%")
    hop = f"second hop of {said(mib)}"

    def times(ours: str, theirs: str) -> float | None:
        return compare(found, second, Against("", ours, ("ray", theirs)))

    pipelines = f"{hop}, against gathering and sending through Ray, as pipelines do"
    want(pipelines, times("batch", "gathered"), 100, "x")
    again = f"the same {said(mib)} once more, against eight results sent again through Ray"
    want(again, times("again", "resent"), 100, "x")
    put = f"{hop}, against Ray's put once, sliced in the actor"
    want(put, times("batch", "putting"), 8, "x")
    resent = f"{hop}, against Ray's eight results sent again as they came"
    want(resent, times("batch", "resent"), 100, "x", strict=True)
    want(f"{put}, put before the clock", times("batch", "put"), 8, "x", strict=True)
    refs = f"{hop}, against Ray's references passed on"
    want(refs, times("batch", "refs"), 8, "x", strict=True)
    there = [m for m in SIZES if median(found, f"second.{m}.batch", "muster")]
    if len(there) > 1:
        small, large = (
            found[f"second.{m}.batch"]["muster"]["median"] for m in (there[0], there[-1])
        )
        want(
            f"second hop of {said(there[-1])}, as a multiple of {said(there[0])}'s",
            large / small,
            1.5,
            "x",
            most=True,
        )
    grown = [median(found, f"growth.{m}.batch", "muster") for m in there]
    shares = [g for g in grown if g is not None]
    if shares:
        want(
            "growth of the script's memory, of the bytes that passed",
            max(shares) * 100,
            5,
            "%",
            most=True,
        )
    return wanted


def ragged_rows(found: Found) -> list[tuple[str, list[tuple[str, str]], float | None]]:
    """Label, (key, system) of each figure (empty where there is none), how many times better."""
    rows = []
    for label, prefix, ours, theirs, floor in RAGGED:
        cells = [
            (f"{prefix}.{ours}", "muster"),
            (f"{prefix}.{theirs[1]}", theirs[0]),
            (f"{prefix}.{floor[1]}", floor[0]) if floor else ("", ""),
        ]
        if any(median(found, *cell) is not None for cell in cells):
            rows.append((label, cells, compare(found, prefix, Against("", ours, theirs))))
    return rows


def memory_sizes(found: Found) -> Sequence[int]:
    """The sizes whose memory was measured."""
    return [mib for mib in SIZES if f"peak.{mib}.all" in found]


def as_json(found: Found) -> list[dict[str, Any]]:
    """The goals for the file of results."""
    return [
        {
            "what": g.what,
            "value": g.value,
            "wanted": g.wanted,
            "unit": g.unit,
            "met": g.met,
            "strict": g.strict,
        }
        for g in goals(found)
    ]
