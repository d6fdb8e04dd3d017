"""Few responses in slots against every plan: values near the optimum, and no deadline refused that some plan meets."""

from __future__ import annotations

import numpy as np
import pytest
from slot_brute_force import SlotInstance

import solver

MEAN_GAP, WORST_GAP = 0.02, 0.10
NEAREST = 1 + 1e-6  # times the least makespan of all plans


def gap_to_optimum(rng: np.random.Generator) -> float:
    """By how much the plan of a random instance with prompts that stay together is worse than the best of all plans."""
    call_s = float(rng.choice([0.0, 4e-3]))
    instance = SlotInstance.random(rng, int(rng.integers(4, 8 if call_s else 10)), int(rng.integers(2, 5)), call_s=call_s)
    objective = solver.Objective(float(rng.choice([0.0, 0.3, 0.7, 1.0])))
    plan = solver.plan(instance.problem(objective))
    norms = plan.reference.norms("gpu_s")
    optimum = min(objective.value(makespan_s, actor_s, norms) for makespan_s, actor_s in instance.plans())
    assert plan.lower_bound <= optimum * (1 + 1e-9)
    return plan.value / optimum - 1


def meet_feasible_deadline(rng: np.random.Generator) -> None:
    """Plan a random instance under a deadline a little above the least makespan of all plans; a refusal fails the test."""
    call_s = float(rng.choice([0.0, 0.0, 0.0, 4e-3]))
    responses = int(rng.integers(7, 9 if call_s else 10))
    prompts = int(rng.integers(3, 7)) if rng.random() < 0.5 else None
    instance = SlotInstance.random(rng, responses, prompts, call_s=call_s)
    deadline = solver.Objective(deadline_s=instance.shortest_s * NEAREST)
    plan = solver.plan(instance.problem(deadline))
    assert instance.shortest_s * (1 - 1e-9) <= plan.makespan_s <= instance.shortest_s * NEAREST


def check_gaps(instances: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gaps = [gap_to_optimum(rng) for _ in range(instances)]
    assert np.mean(gaps) < MEAN_GAP
    assert -1e-9 < min(gaps) <= max(gaps) < WORST_GAP


def test_a_few_plans_are_near_the_optimum():
    check_gaps(20, seed=1)


@pytest.mark.parametrize("instances", [pytest.param(150, marks=pytest.mark.full), pytest.param(500, marks=pytest.mark.nightly)])
def test_many_plans_are_near_the_optimum(instances):
    check_gaps(instances, seed=0)


def test_a_few_feasible_deadlines_are_met():
    rng = np.random.default_rng(1)
    for _ in range(20):
        meet_feasible_deadline(rng)


@pytest.mark.parametrize(
    "instances", [pytest.param(300, marks=pytest.mark.full), pytest.param(1000, marks=pytest.mark.nightly)]
)
def test_many_feasible_deadlines_are_met(instances):
    rng = np.random.default_rng(0)
    for _ in range(instances):
        meet_feasible_deadline(rng)
