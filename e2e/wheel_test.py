"""The wheel in an empty venv, without the tree: as a user installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def clean_environment() -> dict[str, str]:
    """No path that leads back into the tree."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "MUSTER_DIR"
        or not name.startswith(("MUSTER_", "PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV"))
    }


@pytest.fixture(scope="module")
def wheel() -> Path:
    done = subprocess.run(
        ["make", "wheel"], cwd=ROOT, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of a venv that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=True)
    tools = folder / "venv/bin"
    subprocess.run(
        [tools / "python", "-m", "pip", "install", "--quiet", str(wheel)],
        cwd=folder,
        env=clean_environment(),
        check=True,
    )
    return tools


def test_wheel_says_what_it_is(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        binary = archive.getinfo("muster/_bin/muster")
        assert binary.external_attr >> 16 & 0o111, "the binary is not executable"
        assert archive.read("muster/_bin/muster").startswith(b"\x7fELF")
    assert "muster/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if "test" in name or "__pycache__" in name]


def test_same_tree_gives_same_bytes(wheel: Path) -> None:
    first = wheel.read_bytes()
    subprocess.run(
        ["make", "wheel"], cwd=ROOT, env=clean_environment(), check=True, capture_output=True
    )
    assert wheel.read_bytes() == first


@pytest.mark.parametrize("command", [["python"], ["muster", "run"]], ids=" ".join)
def test_example_runs_from_the_wheel(installed: Path, tmp_path: Path, command: list[str]) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text((ROOT / "examples/pipeline.py").read_text())
    done = subprocess.run(
        [installed / command[0], *command[1:], script.name],
        cwd=tmp_path,
        env=clean_environment() | {"MUSTER_VIRTUAL": "1x8"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 2 [2, 4, 6, 8, 10]\n"


def test_wheel_does_not_need_numpy(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "python", "-c", "import muster, sys; sys.exit('numpy' in sys.modules)"],
        cwd=tmp_path,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 0, f"import muster on {sys.version} without numpy"
