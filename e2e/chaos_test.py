"""Some rounds of chaos in every test run: fixed seeds, and one that nobody has seen."""

from __future__ import annotations

import random

import pytest

from chaos.watch import ROOT, run_round

#: Picked for what they hit: between them every fault, policy and shape but the largest.
SEEDS = (1, 8, 12, 13, 19)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round(seed: int) -> None:
    outcome = run_round(seed, ROOT / "build" / "chaos" / f"test-{seed}", seconds=80)
    assert not outcome.broken, outcome.report()


def test_a_fresh_round() -> None:
    seed = random.SystemRandom().randrange(10**6, 10**9)
    print(f"seed {seed}")
    outcome = run_round(seed, ROOT / "build" / "chaos" / f"test-{seed}", seconds=80)
    assert not outcome.broken, outcome.report()
