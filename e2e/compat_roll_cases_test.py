"""`muster.compat.roll` does what ROLL does: each case of `roll_cases.py`, held against what it
comes to on ROLL, and that is looked up anew where ROLL is installed."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

import roll_case_roles
import roll_cases  # noqa: F401  (for its cases)
from running import HERE, run

CASES = roll_case_roles.CASES


@dataclass
class Outcome:
    """On ROLL; and, where it is another, here, and which row of the page says so."""

    roll: str
    here: str = ""
    since: str = ""


def outcomes() -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    name = ""
    for line in (HERE / "roll_cases.txt").read_text().splitlines():
        key, _, value = line.partition(" = ")
        if not value or line.startswith("#"):
            continue
        if key.startswith(" "):
            setattr(found[name], key.strip(), value)
        else:
            name = key
            found[name] = Outcome(value)
    return found


EXPECTED = outcomes()


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    end = roll_case_roles.start()
    yield
    end()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", CASES)
def test_on_muster(name: str) -> None:
    expected = EXPECTED[name]
    assert roll_case_roles.told(CASES[name]) == (expected.here or expected.roll)


@pytest.mark.timeout(280)
@pytest.mark.skipif(
    find_spec("roll") is None or find_spec("ray") is None,
    reason="needs roll: ROLL and Ray are not both installed, so their outcomes are those on file",
)
@pytest.mark.parametrize("part", range(9))
def test_on_roll(tmp_path: Path, part: int) -> None:
    names = list(CASES)[part::9]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:  # for sockets' sake
        done = run(
            sys.executable,
            HERE / "roll_cases.py",
            *names,
            cwd=tmp_path,
            virtual=None,
            timeout=250,
            ROLL_CASES="roll",
            RAY_TMPDIR=short,
            RAY_AUTH_MODE="disabled",  # or it writes a token into the user's home
            PYTHONPATH=":".join(sys.path),
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    lines = [line.partition(" = ") for line in done.stdout.splitlines()]
    found = {name: value for name, _, value in lines if name in CASES}
    assert found == {name: EXPECTED[name].roll for name in names}


def test_every_case_is_on_file() -> None:
    assert list(EXPECTED) == list(CASES)


def test_every_difference_is_on_the_page(repository: Path) -> None:
    page = (repository / "docs" / "migrating-from-roll.md").read_text()
    rows = set(re.findall(r"^\| (.+?) \|", page.partition("## What is different")[2], re.M))
    for name, outcome in EXPECTED.items():
        assert bool(outcome.here) == bool(outcome.since), name
        assert not outcome.since or outcome.since in rows, f"{name}: {outcome.since}"
