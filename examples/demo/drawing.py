"""Draws in a terminal: plain ANSI where there is one, plain text where not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


class Screen:
    """Standard output, with colours if it is a terminal that wants them."""

    def __init__(self) -> None:
        self.colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.width = min(shutil.get_terminal_size((100, 24)).columns, 110)

    def paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def title(self, text: str) -> None:
        line = "─" * max(0, self.width - len(text) - 4)
        self.say()
        self.say(self.paint("1;36", f"── {text} {line}"))

    def panel(self, text: str) -> None:
        """An error as the user would see it, with a bar at its side."""
        for line in text.splitlines():
            self.say(f"{self.paint('31', '  │')} {line}".rstrip())

    def bar(self, share: float, width: int = 20) -> str:
        """A share of 1 as a bar, in eighths."""
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        full, rest = divmod(eighths, 8)
        text = "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")
        return self.paint("32", text.ljust(width, "·"))

    def sparkline(self, values: Sequence[float], top: float) -> str:
        steps = len(BLOCKS) - 1
        return self.paint(
            "32", "".join(BLOCKS[min(steps, max(0, round(v / top * steps)))] for v in values)
        )
