"""A seed is a plan, always the same one, and one that can be played."""

from __future__ import annotations

import numpy as np

from chaos import plan
from chaos.plan import BATCHES, LISTS, Step, Team


def test_a_seed_is_a_plan() -> None:
    for seed in range(50):
        assert plan.make(seed) == plan.make(seed)
    assert len({str(plan.make(seed).describe()) for seed in range(50)}) == 50


def test_plans_can_be_played() -> None:
    for seed in range(200):
        made = plan.make(seed)
        teams = {team.name: i for i, team in enumerate(made.teams)}
        devices = made.nodes * made.gpus
        nodes = {device // made.gpus for device in made.teams[0].devices}
        assert nodes == set(range(made.nodes)), "the first team is on every node"
        assert all(max(team.devices) < devices for team in made.teams)
        for lane in made.lanes:
            seen: dict[str, Step] = {}
            for step in lane.steps:
                assert step.team in teams
                if step.inner:
                    assert teams[step.inner] > teams[step.team], "nobody waits for itself"
                if step.source:
                    source = seen[step.source]
                    family = LISTS if step.method in LISTS else BATCHES
                    assert source.method in family and source.method != "weigh"
                    assert source.how == "ref" or not step.future
                assert step.rank < made.team(step.team).world
                seen[step.call] = step
        kills = [f for f in made.faults if (f.act, f.role) == ("kill", "head")]
        assert len(kills) <= plan.MOST_HEADS
        total = sum(len(lane.steps) for lane in made.lanes)
        assert all(0 < fault.after < total for fault in made.faults)


def test_every_fault_and_method_comes() -> None:
    made = [plan.make(seed) for seed in range(200)]
    faults = {(f.act, f.role) for p in made for f in p.faults}
    assert faults == {kind for kind, weight in plan.WEIGHTS.items() if weight}
    assert {s.method for p in made for s in p.steps.values()} == set(plan.METHODS)


def test_what_is_right_follows_from_the_plan() -> None:
    first = Step("1", "t", "rows", size=5)
    second = Step("2", "t", "rows", source="1", half=True)
    team = Team("t", "sync", (0, 1, 2, 3), tp=2)
    made = plan.Plan(0, "1x4", 1, 4, (team,), (), (), {"1": first, "2": second})
    rows = plan.first_rows(first)
    assert plan.answered(made, first).tolist() == [plan.grown(int(r)) for r in rows]
    twice = [plan.grown(plan.grown(int(r))) for r in rows[2:]]
    assert plan.answered(made, second).tolist() == twice
    assert plan.digest(twice) == plan.digest(np.array(twice))
    assert [part.tolist() for part in plan.parts(rows, team)] == [
        rows[:3].tolist(),
        rows[:3].tolist(),
        rows[3:].tolist(),
        rows[3:].tolist(),
    ]
