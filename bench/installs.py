"""Where each system comes from: its own venv under build/, filled from PyPI once.

Muster's is build/venv, which `make venv` makes. What is heavy to import lies in
a folder of its own that the heavy cases of all systems have in PYTHONPATH, so
that gigabytes are fetched once and all import the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = {"ray": ["ray==2.60.0", "numpy"], "monarch": ["torchmonarch==0.7.0"]}
TORCH = ["torch"]
#: Instead of torch: large enough to be felt, small enough for any disk.
STAND_IN = ["numpy", "scipy", "pandas", "pyarrow"]
TORCH_NEEDS = 15e9
INSTALL_LIMIT = 1800.0


@dataclass(frozen=True)
class Installed:
    """A Python to run a driver with, or why there is none."""

    python: Path
    version: str = ""
    problem: str = ""


def _pip(python: Path, arguments: list[str], ready: Path, wanted: list[str]) -> str:
    """Installs once, as told by the file ready; returns what went wrong."""
    stamp = "\n".join(wanted) + "\n"
    if ready.exists() and ready.read_text() == stamp:
        return ""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *arguments, *wanted],
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pip install {' '.join(wanted)} took more than {INSTALL_LIMIT:g} s"
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        return f"pip install {' '.join(wanted)}: {lines[-1].strip()}"
    ready.write_text(stamp)
    return ""


def _version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def venv(build: Path, system: str, say: Callable[[str], None]) -> Installed:
    """The venv of Ray or Monarch, made and filled if it is not there."""
    folder = build / f"bench-{system}"
    python = folder / "bin" / "python"
    wanted = REQUIREMENTS[system]
    if not (folder / ".ready").exists():
        say(f"installing {' '.join(wanted)} into {folder}, once")
    if not python.exists():
        made = subprocess.run(
            [sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            return Installed(python, problem=f"python -m venv failed: {made.stdout.strip()}")
    problem = _pip(python, [], folder / ".ready", wanted)
    return Installed(python, _version(python, wanted[0].split("==")[0]), problem)


def muster(build: Path) -> Installed:
    """The venv that `make venv` has made."""
    python = build / "venv" / "bin" / "python"
    if not python.exists():
        return Installed(python, problem="build/venv is not there: run `make venv`")
    return Installed(python, _version(python, "muster"))


def heavy(build: Path, torch: bool, say: Callable[[str], None]) -> tuple[Path, list[str], str]:
    """The folder with something heavy, the modules to import from it, and a remark."""
    remark = ""
    if torch and not (build / "bench-torch" / ".ready").exists():
        free = shutil.disk_usage(build).free
        if free < TORCH_NEEDS:
            torch = False
            remark = (
                f"torch needs {TORCH_NEEDS / 1e9:.0f} GB while it is installed and "
                f"{free / 1e9:.0f} GB are free: numpy, scipy, pandas and pyarrow stand in for it"
            )
    wanted = TORCH if torch else STAND_IN
    folder = build / ("bench-torch" if torch else "bench-standin")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".ready").exists():
        size = ", about 5 GB" if torch else ""
        say(f"installing {' '.join(wanted)} into {folder}, once{size}")
    # --target only adds: without --upgrade it leaves a half-made folder as it is.
    arguments = ["--target", str(folder), "--upgrade", "--no-cache-dir"]
    problem = _pip(Path(sys.executable), arguments, folder / ".ready", wanted)
    if problem and torch:
        say(f"{problem}; numpy, scipy, pandas and pyarrow stand in for it")
        return heavy(build, False, say)
    return folder, [] if problem else wanted, problem or remark
