"""Some rounds of chaos in every test run, of fixed seeds; `make chaos` plays others."""

from __future__ import annotations

import shutil

import pytest

from chaos import plan
from chaos.watch import ROOT, run_round

#: Between them every fault, policy and shape, in a minute; most have found something before.
SEEDS = (19, 303, 314, 409, 415, 626, 727, 803, 113038, 113042, 113043, 113046)


def play(seed: int) -> None:
    outcome = run_round(seed, ROOT / "build" / "chaos" / f"test-{seed}", seconds=60)
    assert not outcome.broken, outcome.report()
    shutil.rmtree(outcome.folder)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round(seed: int) -> None:
    play(seed)


def test_the_rounds_have_it_all() -> None:
    made = [plan.make(seed) for seed in SEEDS]
    faults = {(fault.act, fault.role) for p in made for fault in p.faults}
    assert faults == {kind for kind, weight in plan.WEIGHTS.items() if weight}
    assert {p.shape for p in made} == set(plan.SHAPES)
    assert {step.method for p in made for step in p.steps.values()} == set(plan.METHODS)
