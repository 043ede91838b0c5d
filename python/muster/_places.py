"""Where ranks were in their code, as an error tells it: who is where, then each place once.

The head has grouped them; the words are those of spec/stacks.go. This module
does no I/O and knows no exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: How many places are shown, so that they fit on one screen.
_MOST = 16
#: Characters of a list of ranks.
_MOST_RANKS = 60


def describe(groups: Sequence[Mapping[str, Any]], stacks: Sequence[Mapping[str, Any]]) -> str:
    """The text below an error's message; it begins with a blank line, or is empty."""
    text = ""
    if len(groups) > 1 or (groups and len(groups[0]["ranks"]) > 1):
        text += "\n\n  " + "\n  ".join(_lines(groups))
    for stack, others in _shown(groups, stacks):
        where = f"{stack.get('worker', '?')} on {stack.get('node', '?')} had not answered"
        if others:
            where += f", like {others} more at this place"
        text += f"\n\n{where}:\n{str(stack.get('text', '')).rstrip()}"
    return text


def _lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [_line(group) for group in groups[:_MOST]]
    if rest := groups[_MOST:]:
        ranks = sum(len(group["ranks"]) for group in rest)
        lines.append(f"… and {ranks} more ranks at {len(rest)} other places")
    return lines


def _line(group: Mapping[str, Any]) -> str:
    ranks, place = group["ranks"], str(group["place"])
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"
    if group.get("answered"):
        who += " (answered)"
    return f"{who} {place}" if place.startswith("in ") else f"{who}: {place}"


def _shown(
    groups: Sequence[Mapping[str, Any]], stacks: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], int]]:
    """One stack for each group, preferably one with frames of C code, and how many are like it."""
    if not groups:
        return [(stack, 0) for stack in stacks]
    shown = []
    for group in groups[:_MOST]:
        ranks = set(group["ranks"])
        mine = [stack for stack in stacks if stack.get("rank") in ranks]
        if mine and not group.get("answered"):
            mine.sort(key=lambda stack: not stack.get("native"))
            shown.append((mine[0], len(ranks) - 1))
    return shown


def spans(ranks: Sequence[int]) -> str:
    """Sorted ranks the short way: 0-6,9; cut to what fits a line."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    text = ",".join("-".join(map(str, part)) for part in parts)
    return text if len(text) <= _MOST_RANKS else text[:_MOST_RANKS] + "…"
