"""A skip for want of what has to be there is a failure, of a test and of a whole file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WANTED = 'pytest.importorskip("nowhere_to_be_found")'
SKIPS = {
    "a test": f"def test_it():\n    {WANTED}\n",
    "a file": f"{WANTED}\n\n\ndef test_it():\n    pass\n",
    "a file, in words": (
        'pytest.skip("needs nowhere_to_be_found: it is about that", allow_module_level=True)\n'
    ),
}


def run(folder: Path, repository: Path, require: str, *options: str) -> tuple[int, str]:
    """Pytest over a folder, with the tree's conftest; its exit status, and what it said."""
    environ = {**os.environ, "MUSTER_REQUIRE": require, "PYTHONPATH": str(repository)}
    environ.pop("PYTEST_ADDOPTS", None)
    if not (environ.get("MUSTER_SKIPPED") or "").startswith(str(folder)):
        environ.pop("MUSTER_SKIPPED", None)  # of the run that this is a part of
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-rs", *options, str(folder)],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("skip", SKIPS)
def test_what_is_required_may_not_be_skipped_for(
    skip: str, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\n\n" + SKIPS[skip])
    (tmp_path / "test_two.py").write_text("def test_passes():\n    pass\n")
    for require in ("", "numpy"):
        status, said = run(tmp_path, repository, require)
        assert status == 0 and "1 passed, 1 skipped" in said, said
    for options in ((), ("-n", "1")):
        status, said = run(tmp_path, repository, "numpy,nowhere_to_be_found", *options)
        assert status != 0, said
        assert "skipped, but may not be: MUSTER_REQUIRE=nowhere_to_be_found,numpy" in said


def test_what_was_skipped_is_noted(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, skip in enumerate(SKIPS.values()):
        (tmp_path / f"test_{number}.py").write_text("import pytest\n\n" + skip)
    noted = tmp_path / "skipped"
    monkeypatch.setenv("MUSTER_SKIPPED", str(noted))
    for options in ((), ("-n", "2")):
        status, said = run(tmp_path, repository, "", *options)
        # 5: nothing is left to run where whole files are skipped.
        assert status in (0, 5), said
        lines = noted.read_text().splitlines()
        noted.unlink()
        assert sorted(set(lines)) == [
            "nowhere_to_be_found test_0.py::test_it",
            "nowhere_to_be_found test_1.py",
            "nowhere_to_be_found test_2.py",
        ]


def test_a_file_that_does_not_say_what_it_needs(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        'import pytest\n\npytest.skip("not today", allow_module_level=True)\n'
    )
    status, said = run(tmp_path, repository, "numpy")
    assert status != 0 and "not today" in said and "skipped, but may not be" in said, said


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.14"])
def test_every_python_has_a_torch_to_test_with(version: str, repository: Path) -> None:
    """Of the rest, Python 3.10 gets what there is for it."""
    requirements = pytest.importorskip("packaging.requirements", reason="needs packaging: it reads")
    lines = (repository / "python/requirements-torch.txt").read_text().splitlines()
    found = [requirements.Requirement(line) for line in lines if not line.startswith("#")]
    there = {"python_version": version}
    names = [one.name for one in found if one.marker is None or one.marker.evaluate(there)]
    frames = [] if version == "3.10" else ["polars", "duckdb", "pandas", "datasets"]
    assert names == ["torch", "tensordict", *frames]
