"""ReaL's chains: Metropolis' rule, stationary distribution, seeds, plans that are timed together, and no start that fits."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_step_colocated import Costs

from rlhfless.scheduling import published
from rlhfless.scheduling.published import (
    Known,
    LayoutProblem,
    MarkovSearch,
    MetropolisChain,
    StepChains,
    accepted,
    real_plan,
)
from solver import Cluster
from solver.layouts import dpo, grpo, plan_step, ppo
from solver.layouts.costs import CallOptions
from solver.layouts.times import periods_s, step_times
from solver.model.errors import PlanningError

CLUSTER = Cluster(1, 2, 1)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 10))
def test_moves_there_and_back_are_in_balance(one: float, other: float, temperature: float) -> None:
    uniform = (np.arange(2000) + 0.5) / 2000
    there = sum(accepted(one, other, temperature, u) for u in uniform) / 2000
    back = sum(accepted(other, one, temperature, u) for u in uniform) / 2000
    assert max(there, back) == 1
    ratio = math.exp((one - other) / temperature)
    assert there / max(back, 1e-9) == pytest.approx(ratio, rel=0.05) or min(there, back) < 0.01


def test_a_long_chain_visits_plans_as_boltzmann_says() -> None:
    options = CallOptions.of(dpo(), 2, 2, Costs(1))
    plans = np.array(list(itertools.product(*(range(len(seconds)) for seconds in options.seconds))))
    energies = periods_s(options, plans, "fifo")
    temperature = 0.3 * float(energies.mean())
    known = Known({})
    known.add(plans, energies, np.ones(len(plans), bool))
    chain, states = MetropolisChain(options, plans[0], temperature, seed=5), 40_000
    visits: Counter[tuple[int, ...]] = Counter()
    for state in range(states):
        chain.walk(known, state + 1)
        visits[chain.plan] += 1
    expected = np.exp(-energies / temperature)
    expected /= expected.sum()
    found = np.array([visits[tuple(plan)] for plan in plans.tolist()]) / states
    assert np.abs(found - expected).max() < 0.01
    assert known.states == states


def test_the_chain_is_the_same_however_many_plans_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for ahead in (1, 7, 64):
        monkeypatch.setattr(published, "AHEAD", ahead)
        one = StepChains(LayoutProblem(CallOptions.of(grpo(), 4, 4, Costs(2))), MarkovSearch(states=300))
        one.run()
        found.append([(chain.plan, chain.states) for chain in one.chains])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("order", ["fifo", "longest path"])
def test_the_same_search_gives_the_same_plan_and_seeds_differ(order: Any) -> None:
    searches = [MarkovSearch(states=200, seeds=seeds) for seeds in ((0,), (0,), (1,))]
    plans = [real_plan(LayoutProblem.of(ppo(), Cluster(1, 4, 1), Costs(4), order=order), search) for search in searches]
    assert plans[0] == plans[1]
    problem, ends = LayoutProblem(CallOptions.of(ppo(), 4, 4, Costs(4)), order=order), []
    for search in searches[1:]:
        chains = StepChains(problem, search)
        chains.run()
        ends.append([chain.plan for chain in chains.chains])
    assert ends[0] != ends[1]
    assert [period_s for _, period_s in plans[0].history][-1] == plans[0].period_s
    assert plans[0].order == order


def test_a_long_search_of_a_small_space_finds_the_best_of_its_objective() -> None:
    graph, costs = dpo(), Costs(6)
    options = CallOptions.of(graph, 2, 2, costs)
    plans = np.array(list(itertools.product(*(range(len(seconds)) for seconds in options.seconds))))
    by_period = real_plan(LayoutProblem.of(graph, CLUSTER, costs), MarkovSearch(states=3000, temperatures=(0.1,)))
    assert by_period.period_s == pytest.approx(float(periods_s(options, plans, "fifo").min()))
    by_first = real_plan(
        LayoutProblem.of(graph, CLUSTER, costs), MarkovSearch(states=3000, temperatures=(0.1,), objective="first steps")
    )
    assert by_first.first_steps_s == pytest.approx(float(step_times(options, plans, "fifo").step_end_s[:, 4].min()))
    assert plan_step(graph, CLUSTER, costs).lower_bound_s <= by_period.period_s


def test_without_a_plan_that_fits_it_is_infeasible_and_does_not_crash() -> None:
    tight = real_plan(LayoutProblem.of(grpo(), CLUSTER, Costs(1), memory_bytes=0.5), MarkovSearch(states=300))
    assert tight.status == "infeasible"
    assert max(tight.peak_bytes) > 0.5
    assert not tight.history
    lean = real_plan(
        LayoutProblem.of(grpo(), CLUSTER, Costs(1), memory_bytes=9.0), MarkovSearch(states=2000, temperatures=(0.3,))
    )
    assert lean.status == "given"
    assert max(lean.peak_bytes) <= 9.0


def test_a_search_ends_when_its_cpu_seconds_are_used_up() -> None:
    plan = real_plan(LayoutProblem.of(ppo(), CLUSTER, Costs(1)), MarkovSearch(states=10**9, cpu_s=0.1))
    assert plan.status == "given"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"states": 0}, "states is 0; a whole number of 1 or more is needed"),
        ({"temperatures": ()}, "temperatures is (); a tuple of one or more numbers above 0 is needed"),
        ({"temperatures": (0.0,)}, "temperatures is"),
        ({"temperatures": 0.1}, "temperatures is 0.1"),
        ({"seeds": (-1,)}, "seeds is (-1,); a tuple of one or more whole numbers of 0 or more is needed"),
        ({"seeds": (0.5,)}, "seeds is"),
        ({"objective": "makespan"}, "objective is 'makespan'; 'period' or 'first steps' is needed"),
        ({"cpu_s": 0}, "cpu_s is 0; a number above 0 is needed"),
    ],
)
def test_searches_that_make_no_sense_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanningError) as refused:
        MarkovSearch(**arguments)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_search_is_refused() -> None:
    with pytest.raises(PlanningError, match="search is 5; a MarkovSearch is needed"):
        real_plan(LayoutProblem.of(dpo(), CLUSTER, Costs(0)), 5)  # type: ignore[arg-type]
