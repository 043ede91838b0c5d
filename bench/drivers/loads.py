"""What is carried: rows of a matrix and ragged rows with texts, marked so that a loss shows.

Every step of a measurement has its own marks, in the first and the last element
of each worker's share. Who looks reports them, so that a worker that was shown
the rows of another step, or of another worker, is found out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 1024  # float32: rows of 4 KiB
LONGEST = 8192  # tokens of a row

Matrix = NDArray[np.float32]
#: Rows, first element, last element.
Seen = tuple[int, float, float]
#: Rows, first token, last token, letters of the first and of the last text.
SeenRagged = tuple[int, int, int, int, int]


def rows_of(mib: int) -> int:
    """How many rows that many MiB are."""
    return (mib << 20) // (WIDTH * 4)


def matrix(mib: int, workers: int) -> Matrix:
    """A matrix of that many MiB, whose rows divide among the workers without rest."""
    rows = rows_of(mib)
    if rows % workers:
        raise ValueError(f"{rows} rows do not divide among {workers} workers")
    return np.ones((rows, WIDTH), np.float32)


def shares(whole: Matrix, workers: int) -> list[Matrix]:
    """Equal blocks of rows, one for each worker: views."""
    rows = len(whole) // workers
    return [whole[k * rows : (k + 1) * rows] for k in range(workers)]


def mark(share: Matrix, step: int, rank: int) -> None:
    """Put the marks of a step into one worker's share."""
    share[0, 0] = step * 64 + rank
    share[-1, -1] = -share[0, 0]


def marked(rows: int, step: int, rank: int) -> Seen:
    """What looking at such a share gives."""
    return rows, float(step * 64 + rank), -float(step * 64 + rank)


def look(share: Matrix) -> Seen:
    """What every worker does with its share."""
    return len(share), float(share[0, 0]), float(share[-1, -1])


def ragged(rows: int, seed: int) -> tuple[list[NDArray[np.int64]], list[str]]:
    """Tokens with lengths of a long tail, and a prompt beside each."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(6.8, 1.0, rows), 1, LONGEST).astype(int)
    words = np.clip(rng.lognormal(3.5, 0.8, rows), 1, 1000).astype(int)
    tokens = [rng.integers(0, 150_000, length) for length in lengths]
    return tokens, [f"Question {i}: " + "why so " * n for i, n in enumerate(words)]


def mark_ragged(tokens: list[NDArray[np.int64]], step: int, rank: int) -> None:
    """Put the marks of a step into one worker's rows."""
    tokens[-1][-1] = -step * 64 - rank
    tokens[0][0] = step * 64 + rank


def look_ragged(tokens: list[Any], prompts: list[str]) -> SeenRagged:
    """What every worker does with its rows."""
    first, last = int(tokens[0][0]), int(tokens[-1][-1])
    return len(tokens), first, last, len(prompts[0]), len(prompts[-1])
