"""Runs what the documents show, so that they stay true.

In README.md and docs/*.md a fenced block says by its first line what becomes of
it (words after the language are not rendered):

    ```bash               run in the root of the tree; must exit 0
    ```bash fails         run; must not exit 0
    ```bash show          shown only, for what a test cannot run
    ```python             run as a script of its own with build/venv's Python
    ```python fails       the same; must not exit 0
    ```python file=PATH   shown; must be that file of the tree, to the letter
    ```text output        what the block before printed: every line occurs in
                          this order, a line of ... stands for any others and
                          ... within a line for any text
    ```text, none, …      shown only
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {"bash", "python", "text", "go", "toml", ""}
WORDS = {"fails", "show", "output"}


@dataclass
class Block:
    """One fenced block of a document, and the output it is said to give."""

    path: Path
    line: int
    language: str
    words: list[str]
    text: str
    output: list[Block] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    def file(self) -> str | None:
        return next((w[len("file=") :] for w in self.words if w.startswith("file=")), None)

    def runs(self) -> bool:
        return self.language in {"bash", "python"} and not self.file() and "show" not in self.words


def blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    pattern = re.compile(r"^```([a-z]*)([^\n`]*)\n(.*?)^```$", re.M | re.S)
    text = path.read_text()
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        block = Block(path, line, match[1], match[2].split(), match[3])
        if "output" in block.words and found:
            found[-1].output.append(block)
        else:
            found.append(block)
    return found


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    python = ROOT / "build/venv/bin"
    env = dict(os.environ, PATH=f"{python}:{os.environ['PATH']}", NO_COLOR="1")
    if block.language == "bash":
        command, cwd = ["bash", "-euo", "pipefail", "-c", block.text], ROOT
    else:
        script = folder / "script.py"
        script.write_text(block.text)
        command, cwd = [str(python / "python"), str(script)], folder
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


def missing(expected: str, printed: str) -> str | None:
    """The first expected line that does not occur, in order; None if all do."""
    # Unbuffered, a line and its end are two writes, and what is told on stderr may come between.
    printed = re.sub(r"(?<!\n)(?=muster: cluster )", "\n", printed)
    lines = iter(line.strip() for line in printed.splitlines())
    for raw in expected.splitlines():
        wanted = raw.strip()
        if not wanted or wanted == "...":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("...")))
        if not any(pattern.fullmatch(line) for line in lines):
            return raw
    return None


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_fence_is_understood(block: Block) -> None:
    strange = {w for w in block.words if not w.startswith("file=")} - WORDS
    assert block.language in LANGUAGES, f"{block}: a language the docs test does not know"
    assert not strange, f"{block}: words the docs test does not know: {strange}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.file()], ids=str)
def test_shown_file_is_the_file(block: Block) -> None:
    name = block.file()
    assert name is not None
    assert block.text == (ROOT / name).read_text(), f"{block} is not {name} as it stands"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.runs()], ids=str)
def test_shown_command_works(block: Block, tmp_path: Path) -> None:
    done = run(block, tmp_path)
    if "fails" in block.words:
        assert done.returncode != 0, f"{block} was to fail:\n{done.stdout}"
    else:
        assert done.returncode == 0, f"{block} exited with {done.returncode}:\n{done.stdout}"
    for output in block.output:
        line = missing(output.text, done.stdout)
        assert line is None, f"{output}: {line!r} was not printed; this was:\n{done.stdout}"
