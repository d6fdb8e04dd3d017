"""The choice among plans of a step: levers are used only where they help on held-out scenarios, and limits may be missed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Objective, PlanningError
from solver.model.step_levers import CONSOLIDATION, LEVERS, SHARED_PREFILL, STREAMING, lever_bits, levers_of_bits
from solver.step.choose import FOLDING_MARGIN, StepTable, choose, dearer_by, kept, share_text

STREAMED = np.array([0, lever_bits([STREAMING])])
seeds = st.integers(0, 2**32 - 1)


def test_a_lever_that_helps_on_some_scenarios_only_is_not_used() -> None:
    costs = np.ones((2, 8))
    lucky = np.array([[1.0] * 8, [0.2, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1]])
    choice = choose(StepTable(STREAMED, lucky, costs), Objective(1.0))
    assert choice.best == 0
    assert STREAMING in choice.refused
    sure = np.array([[1.0] * 8, [0.9, 0.92] * 4])
    choice = choose(StepTable(STREAMED, sure, costs), Objective(1.0))
    assert choice.best == 1
    assert choice.saves[STREAMING] == pytest.approx(0.09, abs=0.01)
    assert choice.without[STREAMING] == 0
    assert choose(StepTable(STREAMED, sure, costs), Objective(1.0), np.array([True, False])).best == 0


def test_a_deadline_relative_to_another_plan_compares_two_plans_where_both_are_slow() -> None:
    """The second half of the scenarios is slow. An absolute limit is broken there by every plan."""
    other_s = np.array([1.0, 9.0] * 4)
    table = StepTable(STREAMED, np.array([other_s, 0.99 * other_s]), np.array([[1.0] * 8, [0.8] * 8]))
    assert choose(table, Objective(deadline_s=1.0), relative_to=other_s).best == 1
    missed = choose(table, Objective(deadline_s=0.5), relative_to=other_s)
    assert missed.best == 1
    assert missed.saves[STREAMING] == pytest.approx(0.01), "of time, as both plans miss the deadline"


def test_a_relative_deadline_counts_in_each_half_of_the_scenarios_and_not_in_the_mean_alone() -> None:
    """A plan that is slower where steps are short, and faster where they are long, keeps the limit in the mean of all only."""
    other_s = np.array([1.0, 9.0] * 4)
    table = StepTable(STREAMED, np.array([other_s, [1.5, 8.5] * 4]), np.array([[1.0] * 8, [0.9] * 8]))
    choice = choose(table, Objective(deadline_s=1.0), relative_to=other_s)
    assert choice.best == 0
    assert STREAMING in choice.refused


def test_without_a_plan_that_keeps_the_limit_the_nearest_miss_is_best() -> None:
    table = StepTable(
        np.zeros(3, np.int64), np.array([[4.0] * 4, [3.0] * 4, [5.0] * 4]), np.array([[0.9] * 4, [1.0] * 4, [0.8] * 4])
    )
    assert choose(table, Objective(deadline_s=2.0)).best == 1
    assert choose(table, Objective(deadline_s=4.5)).best == 0


def test_what_a_lever_saves_under_a_limit_has_no_penalty_in_it() -> None:
    """Without streaming the step takes 4 s and 10 GPU-seconds, with it 3 s and 9."""
    table = StepTable(STREAMED, np.array([[4.0] * 4, [3.0] * 4]), np.array([[10.0] * 4, [9.0] * 4]))

    def saves(objective: Objective, relative_to: np.ndarray | None = None) -> float:
        return choose(table, objective, relative_to=relative_to).saves[STREAMING]

    assert saves(Objective(deadline_s=5.0)) == pytest.approx(0.1), "of cost"
    assert saves(Objective(budget_gpu_s=11.0)) == pytest.approx(0.25), "of time"
    assert math.isnan(saves(Objective(deadline_s=3.5))), "only the plan without it misses the limit"
    assert math.isnan(saves(Objective(budget_gpu_s=9.5)))
    assert math.isnan(saves(Objective(deadline_s=0.5), np.array([7.0] * 4)))
    assert saves(Objective(deadline_s=1e-3)) == pytest.approx(0.25), "both miss it: of time"
    assert saves(Objective(budget_gpu_s=1e-3)) == pytest.approx(0.1), "of cost"
    assert share_text(saves(Objective(deadline_s=3.5))) == "not within the limit without it"


def test_without_a_plan_that_uses_no_lever_nothing_says_what_one_saves() -> None:
    table = StepTable(STREAMED, np.array([[4.0] * 4, [3.0] * 4]), np.ones((2, 4)))
    with refused(PlanningError, "one without any is needed"):
        choose(table, Objective(1.0), np.array([False, True]))


def test_of_plans_that_cost_the_same_but_for_rounding_the_faster_is_chosen() -> None:
    times_s, gpu_s = np.array([[3.0] * 4, [2.0] * 4, [1.0] * 4]), np.array([[7.0] * 4, [7.0 + 1e-12] * 4, [7.1] * 4])
    table = StepTable(np.zeros(3, np.int64), times_s, gpu_s)
    assert choose(table, Objective(deadline_s=4.0)).best == 1
    swapped = StepTable(np.zeros(3, np.int64), gpu_s, times_s)
    assert choose(swapped, Objective(budget_gpu_s=4.0)).best == 1, "the cheaper of two that are as fast"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.3]))
def test_a_lever_that_stays_is_better_on_held_out_scenarios(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    sets = [frozenset[str](), *(frozenset(rng.choice(LEVERS, rng.integers(1, 4), replace=False).tolist()) for _ in range(12))]
    level = rng.uniform(0.8, 1.1, len(sets))[:, None]
    times_s, gpu_s = (level * np.exp(noise * rng.standard_normal((len(sets), 8))) for _ in range(2))
    choice = choose(StepTable(np.array([lever_bits(one) for one in sets]), times_s, gpu_s), Objective(0.7))
    values = Objective(0.7).values(times_s, gpu_s)
    assert values[choice.best].mean() <= values[0].mean() + 1e-12
    assert set(choice.saves) == set(choice.without) == sets[choice.best]
    for lever in sets[choice.best]:
        assert lever not in sets[choice.without[lever]]
        with_s, without_s = [], []
        for half in (0, 1):  # chosen on one half, compared on the other, among what was not refused
            seen, held_out = np.arange(8)[half::2], np.arange(8)[1 - half :: 2]
            left = [i for i, levers in enumerate(sets) if not levers & set(choice.refused)]
            for found, among in ((with_s, left), (without_s, [i for i in left if lever not in sets[i]])):
                best = min(among, key=lambda i: values[i, seen].mean())
                found.extend(values[best, held_out])
        assert np.mean(without_s) > np.mean(with_s)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_the_cheapest_within_every_time_is_kept_of_all_plans_and_without_each_lever(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sets = [frozenset(rng.choice(LEVERS, rng.integers(0, 4), replace=False).tolist()) for _ in range(300)]
    totals = rng.lognormal(0, 0.3, (300, 2))
    numbers = kept(np.array([lever_bits(one) for one in sets]), totals)
    margin = np.array([1 + FOLDING_MARGIN * (CONSOLIDATION in one) for one in sets])
    times_s, gpu_s = (totals * margin[:, None]).T
    groups = [[True] * 300, *([lever not in one for one in sets] for lever in LEVERS)]
    groups += [[one == levers for one in sets] for levers in (frozenset(), frozenset([SHARED_PREFILL]))]
    for group in map(np.array, groups):
        if not group.any():
            continue
        for factor in (1.0, 1.02**7, 1.02**59, 9.0):
            within = group & (times_s <= times_s[group].min() * factor)
            own = within[numbers]
            assert gpu_s[numbers][own].min() == gpu_s[within].min()
    assert len(numbers) < 300


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_how_much_dearer_a_plan_is_than_the_cheapest_that_is_as_fast(seed: int) -> None:
    totals = np.random.default_rng(seed).integers(1, 9, (40, 2)).astype(float)
    cheapest = np.array([totals[totals[:, 0] <= time_s, 1].min() for time_s in totals[:, 0]])
    assert dearer_by(totals) == pytest.approx(totals[:, 1] / cheapest - 1)


@given(st.sets(st.sampled_from(LEVERS)))
def test_a_set_of_levers_is_one_number(levers: set[str]) -> None:
    assert levers_of_bits(lever_bits(levers)) == levers
