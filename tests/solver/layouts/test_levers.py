"""Levers of step plans: never worse than without, all combinations on small steps, a bound for every plan, and refusals."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataflow_samples import RandomCosts, random_plans
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from lever_samples import DRAFTS, DividedRandomCosts, FewDividedLayouts, space, tailed

from solver import Cluster, Workload, random_split
from solver.layouts import StepGeneration, StepPlan, WithLevers, dpo, grpo, plan_step, ppo, remax
from solver.layouts.generation import PlannedGeneration
from solver.layouts.lever_bound import lever_bound_s
from solver.layouts.levers import Lever
from solver.layouts.parts_schedule import PartsSchedule
from solver.model.errors import PlanningError
from solver.model.step_levers import CALL_LEVERS
from solver.step.cut_timeline import CutTimeline

BOTH = ("overlap", "streaming")


def planned(graph: Any, seed: int, levers: Any) -> StepPlan:
    given_ = tailed(seed, prompts=4)
    costs = DividedRandomCosts(seed, 0.05)
    return plan_step(graph(), Cluster(1, 2, 1), costs, generation=WithLevers(given_, levers), work=4_000)


@settings(max_examples=1, deadline=None)
@given(st.sampled_from([grpo, ppo, remax]), st.integers(0, 1000))
def test_more_levers_are_never_worse_and_say_what_they_save(graph: Any, seed: int) -> None:
    plans = {levers: planned(graph, seed, levers) for levers in ((), BOTH, CALL_LEVERS)}
    periods = [plan.period_s for plan in plans.values()]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in itertools.pairwise(periods))
    for levers, plan in plans.items():
        assert plan.lower_bound_s <= plan.period_s
        assert tuple(lever.name for lever in plan.levers) == levers
        for lever in plan.levers:
            assert lever.saves_s >= 0
            assert lever.used or lever.saves_s == 0
    every = plans[CALL_LEVERS]
    assert len(every.explain().splitlines()) == len(CALL_LEVERS)
    assert all(line in repr(every) for line in every.explain().splitlines())


@pytest.mark.parametrize(
    ("seed", "above"),
    [(77, 0.0), pytest.param(0, 0.0, marks=pytest.mark.full), pytest.param(523, 0.09, marks=pytest.mark.full)],
)
def test_all_combinations_of_a_small_step(seed: int, above: float) -> None:
    given_, costs = tailed(seed, prompts=5), FewDividedLayouts(seed, 0.05)
    plan = plan_step(grpo(), Cluster(1, 2, 1), costs, generation=WithLevers(given_, BOTH), work=50_000)
    of = space(grpo(), 2, costs, given_)
    every = []
    for options in itertools.product(*(range(len(seconds)) for seconds in of.options.seconds)):
        for divided in itertools.chain.from_iterable(itertools.combinations((1, 2, 3), count) for count in range(4)):
            one = np.array(options), frozenset(divided)
            every.append((of.least_s(*one), len(every), one))
    best_s = np.inf
    for least_s, _, one in sorted(every, key=lambda tried: tried[:2]):
        if least_s >= best_s:
            break
        best_s = min(best_s, float(of.schedule(*one).steady().period_s[0]))
    assert plan.lower_bound_s <= best_s + 1e-9
    assert plan.period_s <= best_s * (1 + above + 1e-6)  # the search is no exact one; it misses the best plan for few seeds


def bounded(graph: Any, seed: int, count: int) -> None:
    """Every random plan, of any generation plan, takes at least the bound."""
    rng, given_ = np.random.default_rng(seed), tailed(seed)
    for variant in (given_, given_.drafted):
        of = space(graph(), 4, DividedRandomCosts(seed, 0.1), variant)
        divisible = of.calls_of(BOTH)
        bound_s = lever_bound_s(of, divisible)
        for plan in random_plans(of.options, count, rng):
            divided = frozenset(call for call in divisible if rng.random() < 0.6)
            assert of.least_s(plan, divided) >= bound_s - 1e-9
            schedule = of.schedule(plan, divided)
            assert schedule.steady().period_s[0] >= of.least_s(plan, divided) - 1e-9
            assert other_generation(of, plan, schedule, rng).steady().period_s[0] >= bound_s - 1e-9


def other_generation(of: Any, plan: np.ndarray, schedule: PartsSchedule, rng: np.random.Generator) -> PartsSchedule:
    """The same plan with responses dealt at random to a random number of actors."""
    options, complete_s = of.options, {}
    for call in of.slacks:
        layout, name = options.layouts[call][plan[call]], options.graph.calls[call].name
        problem = of.generation[name].generation.problem(layout.mesh.gpus, options.gpus_per_node, layout.strategy.tp)
        split = random_split(problem, actors=int(rng.integers(1, layout.strategy.dp + 1)), seed=int(rng.integers(99)))
        timed = CutTimeline(split, problem.workload, problem.latency, problem.admission).uncut
        complete_s[call] = of.shares.complete_s(name, timed.completion_s)
        release_s = np.zeros(options.gpus)
        for actor in split.actors:
            release_s[[layout.mesh.first + gpu for gpu in actor.gpu_ids]] = actor.predicted_s
        freed, seconds = options.freed_early[call], options.seconds[call].copy()
        every_s = freed.release_s.copy()
        every_s[plan[call]], seconds[plan[call]] = release_s, split.makespan_s
        took = tuple(seconds if at == call else one for at, one in enumerate(options.seconds))
        options = replace(options, seconds=took, freed_early={**options.freed_early, call: freed._replace(release_s=every_s)})
    return PartsSchedule(options, plan, schedule.divided, complete_s)


@settings(max_examples=1, deadline=None)
@given(st.sampled_from([grpo, ppo, remax]), st.integers(0, 1000))
def test_no_plan_is_below_the_bound(graph: Any, seed: int) -> None:
    bounded(graph, seed, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("graph", [grpo, ppo, remax])
def test_no_plan_of_many_is_below_the_bound(graph: Any) -> None:
    for seed in range(6):
        bounded(graph, seed, 14)  # 504 plans of three algorithms, each with two generation plans


def test_generation_takes_longer_where_that_frees_gpus() -> None:
    of = space(grpo(), 4, DividedRandomCosts(3, 0.0), tailed(3, prompts=16))
    slacks = of.slacks[0]
    assert set(slacks) > {1.0}
    fastest: dict[Any, PlannedGeneration] = {}
    for option, slack in enumerate(slacks):
        made, layout = of.planned(0, option), of.options.layouts[0][option]
        first = fastest.setdefault(layout, made)
        assert made.plan.makespan_s <= first.plan.makespan_s * slack * (1 + 1e-6)
        assert slack == 1.0 or made.plan.gpu_seconds < first.plan.gpu_seconds


def test_memory_holds_the_calls_that_take_turns_at_once() -> None:
    of = space(grpo(), 2, FewDividedLayouts(0, 0.0), tailed(0))
    for plan in random_plans(of.options, 20, np.random.default_rng(0)):
        whole = of.peak_bytes(plan, frozenset())
        assert whole == pytest.approx(of.options.peak_bytes(plan[None])[0])
        assert (of.peak_bytes(plan, frozenset({1, 2, 3})) >= whole - 1e-9).all()
    limit = float(whole.max())
    tight = plan_step(
        grpo(),
        Cluster(1, 2, 1),
        FewDividedLayouts(0, 0.0),
        generation=WithLevers(tailed(0), BOTH),
        memory_bytes=limit,
        work=5_000,
    )
    assert max(tight.peak_bytes) <= limit


def test_levers_are_in_json_and_explained() -> None:
    plan = planned(grpo, 2, "all")
    told = json.loads(plan.to_json())["levers"]
    assert [one["name"] for one in told] == list(CALL_LEVERS)
    assert "levers" not in json.loads(planned(grpo, 2, "none").to_json())
    line = str(Lever("streaming", True, "train_actor prompt by prompt", 1.5, 0.1))
    assert line == "streaming: train_actor prompt by prompt; expected to save 1.500 s per step (10.0%)"
    assert str(Lever("overlap", False, "off", 0.0, 0.0)) == "overlap: off, as no plan with it was found to be shorter"


def test_what_levers_lack_is_said_in_one_sentence() -> None:
    cluster, given_ = Cluster(1, 2, 1), tailed(0)
    many = DividedRandomCosts(0)
    many.mini_batches = 9
    wrong = DividedRandomCosts(0)
    wrong.updates = lambda call, layout: (0, -1.0)  # type: ignore[method-assign]
    other = tailed(0, prompts=4)
    passes = replace(given_, workload=Workload([9, 9], [0, 1], [8, 8], passes=[4, 4]))
    for named, graph, costs, levers, more in (
        ("'dpo' generate nothing", dpo, RandomCosts(0), "overlap", given_),
        ("no method updates", grpo, RandomCosts(0), "streaming", given_),
        ("9 mini-batches", grpo, many, "streaming", given_),
        ("updates of call 'train_actor'", grpo, wrong, "streaming", given_),
        ("has no drafts", grpo, RandomCosts(0), "drafts", replace(given_, drafts=None)),
        ("different prompts", remax, many, "overlap", {"sample": given_, "greedy": other}),
        ("has passes", grpo, RandomCosts(0), "overlap", replace(passes, drafts=None)),
        ("drafts already", grpo, RandomCosts(0), "drafts", passes),
        ("generation of 'generate' is 7", grpo, RandomCosts(0), "overlap", 7),
    ):
        with refused(PlanningError, named):
            plan_step(graph(), cluster, costs, generation=WithLevers(more, levers))
    for levers in ("fast", 7, ["streaming", 3]):
        with refused(PlanningError, "'all', 'none', or some of overlap, streaming, drafts are needed"):
            WithLevers(given_, levers)  # type: ignore[arg-type]
    with refused(PlanningError, "drafts of generation are 0.5"):
        StepGeneration(given_.workload, given_.latency, drafts=0.5)  # type: ignore[arg-type]
    assert given_.drafts is DRAFTS
