"""One meaning of a time weight: whatever chooses among plans chooses the one with the least ``Objective.key``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import solver
from rlhfless.cli.options import WEIGHT_OF_RUN
from rlhfless.executor import Executor
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle
from rlhfless.report.simulated import best_policies
from rlhfless.report.study import GIVEN_BACK
from rlhfless.run import Run
from rlhfless.run.loading import load
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rules import Fold
from rlhfless.simulate.whole_steps.lever_tables import lever_savings
from rlhfless.training.config.scheduling import PlannerConfig
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, PlanningProblem, Workload, evaluate
from solver.bounds.bound import Curve
from solver.bounds.headroom import summed_bounds
from solver.model.objective import TIME_WEIGHT
from solver.prefix_sharing.deduplicate import deduplicate
from solver.step.choose import StepTable, best_of, choose
from solver.step.choose_learner import choose_learner
from solver.step.cut import choose_cut
from solver.step.work import TokenWork

WEIGHTS = [0.0, 0.3, 0.7, 1.0]
LATENCY = LatencyModel(
    "tests", 1, base_s=0.01, per_response_s=1e-3, prefill_per_token_s=1e-4, start_s=0.2, transfer_base_s=1e-3, max_batch=16
)


def problem_of(objective: Objective, scenarios: int = 4) -> PlanningProblem:
    """A step of 12 prompts with 4 samples each, on up to 8 actors, beside a learner that is paid for, too."""
    draw = np.random.default_rng(7)
    lengths = np.clip(draw.lognormal(4.0, 0.8, (12, 4)), 1, 600).astype(int)
    around = np.clip(lengths.ravel() * draw.lognormal(0, 0.5, (scenarios, 48)), 1, 600).astype(int) if scenarios else None
    one = Workload.grid(np.full(12, 40), lengths, max_response_tokens=600)
    work = Workload(one.prompt_tokens, one.prompt_of, one.response_tokens, max_response_tokens=600, scenarios=around)
    return PlanningProblem(work, Cluster(1, 8, 1), LATENCY, objective, NonGenerationPhases(0.5, 1.0, 2))


def key_of(plan: solver.Plan, problem: PlanningProblem) -> tuple[float, float]:
    """What a plan has by the objective, computed here from its times in every scenario."""
    took, phases = evaluate(plan, problem), problem.phases
    time_s = np.asarray(took.makespans_s) + phases.prepare_s + phases.learn_s
    return problem.objective.key(time_s, np.asarray(took.gpu_seconds_of) + phases.learner_gpus * time_s)


OBJECTIVES = [
    *map(Objective, WEIGHTS), Objective(0.7, cvar_alpha=0.5), Objective(deadline_s=4.5), Objective(deadline_s=0.1),
    Objective(budget_gpu_s=20.0), Objective(budget_gpu_s=60.0),
]  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_the_random_split_and_round_robin_have_the_number_of_actors_of_the_least_key(objective: Objective) -> None:
    problem = problem_of(objective)
    splits: list[tuple[solver.Plan, Callable[[int], solver.Plan]]] = [
        (solver.random_split(problem), lambda n: solver.random_split(problem, actors=n)),
        (Spread().plan(problem, PlanningOptions()), lambda n: Spread(actors=n).plan(problem, PlanningOptions())),
    ]
    for chosen, of_count in splits:
        assert key_of(chosen, problem) == pytest.approx(min(key_of(of_count(n), problem) for n in range(1, 9)), rel=1e-9)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_cut_and_a_learner_are_those_of_the_least_key(weight: float) -> None:
    objective = Objective(weight)
    problem = replace(problem_of(objective, scenarios=0), phases=NonGenerationPhases())
    plan = solver.random_split(problem, actors=4)
    cut = choose_cut(plan, problem, TokenWork(1e-4, 4e-4), followed=None)
    followed = [one for one in cut.candidates if not math.isnan(one.value)]
    assert len(followed) > 3
    least = min(objective.key(one.time_s, one.gpu_seconds) for one in followed)
    assert objective.key(cut.time_s, cut.gpu_seconds) == pytest.approx(least)
    learner = choose_learner(plan, problem, TokenWork(1e-4, 4e-4))
    least = min(objective.key(one.time_s, one.gpu_seconds) for one in learner.candidates)
    assert objective.key(learner.chosen.time_s, learner.chosen.gpu_seconds) == pytest.approx(least)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_prefill_is_shared_where_the_key_falls(objective: Objective) -> None:
    problem = problem_of(objective)
    plan = solver.random_split(problem, actors=4)
    shared = replace(plan, actors=tuple(replace(actor, shares_prompts=True) for actor in plan.actors))
    found = deduplicate(plan, problem, prefill_actor=False)
    keys = key_of(plan, problem), key_of(shared, problem)
    assert (found.how == "none") == (keys[0] < keys[1])
    assert key_of(found.plan, problem) == pytest.approx(min(keys))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_whole_step_has_the_least_mean_of_products_and_not_of_logarithms(weight: float) -> None:
    """The second plan is far better where the step is short, and somewhat worse where it is long."""
    times_s = np.array([[1.0, 40.0, 40.0], [0.4, 41.0, 41.0], [0.9, 60.0, 60.0]])
    gpu_s = np.array([[8.0, 300.0, 300.0], [7.0, 302.0, 301.0], [8.5, 310.0, 310.0]])
    table = StepTable(np.zeros(3, np.int64), times_s, gpu_s)
    best = best_of(table, Objective(weight))
    keys = [Objective(weight).key(times, costs) for times, costs in zip(times_s, gpu_s, strict=True)]
    assert best == choose(table, Objective(weight)).best == keys.index(min(keys)) == 0
    logs = weight * np.log(times_s) + (1 - weight) * np.log(gpu_s)
    assert logs.mean(axis=1).argmin() == 1, "the mean of logarithms would be another meaning"


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_report_names_the_schedule_of_the_least_key(weight: float) -> None:
    draw = np.random.default_rng(3)
    table = pd.DataFrame({"policy": GIVEN_BACK, "time_s": draw.uniform(5, 50, 7), "gpu_seconds": draw.uniform(50, 900, 7)})
    dominating = pd.DataFrame({"policy": ["oracle"], "time_s": [1.0], "gpu_seconds": [1.0]})
    best, *equal = best_policies(pd.concat([table, dominating]), Objective(weight))
    assert not equal
    keys = [Objective(weight).key(row.time_s, row.gpu_seconds) for row in table.itertuples()]
    assert best == GIVEN_BACK[keys.index(min(keys))]


def test_of_equal_schedules_the_simplest_is_named_and_the_others_are_known() -> None:
    """Equal but for rounding, in whichever order the rows stand."""
    time_s = [3.0, 2.0 * (1 + 1e-14), 2.0, 2.0 * (1 - 1e-14), 3.0, 3.0, 3.0]
    table = pd.DataFrame({"policy": GIVEN_BACK, "time_s": time_s, "gpu_seconds": 8.0})
    for rows in (table, table.iloc[::-1]):
        assert best_policies(rows, Objective(0.5)) == GIVEN_BACK[1:4]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_summed_bound_is_below_every_point_that_the_curve_allows(weight: float) -> None:
    times_s, objective = np.geomspace(1.0, 20.0, 50), Objective(weight)
    gpu_s = 10 + 90 / times_s
    found = summed_bounds([Curve(1.0, 14.5, times_s, gpu_s)], weight)
    values = objective.product(times_s, gpu_s)
    assert found.value <= values.min() * (1 + 1e-9)
    assert objective.key(found.time_s, found.gpu_s)[1] == pytest.approx(values.min())


@pytest.mark.parametrize("weight", [0.3, 0.7])
def test_folding_counts_a_second_at_what_leaves_the_value_as_it_is(weight: float) -> None:
    problem = problem_of(Objective(weight))
    plan = Fold().plan(problem, PlanningOptions())
    time_s, gpu_s, little = plan.makespan_s, plan.gpu_seconds, 1e-6
    traded = problem.objective.value(time_s + little, gpu_s - little * plan.rule.nu)  # type: ignore[union-attr]
    assert traded == pytest.approx(problem.objective.value(time_s, gpu_s), rel=1e-11)


@pytest.fixture(scope="module")
def run() -> Run:
    rows = pd.DataFrame({"step": 0, "prompt_id": range(32), "sample": 0, "response_tokens": range(100, 420, 10)})
    return load(rows, gpus=8, profile="l40s-qwen2.5-3b-tp2", verbose=False)


@pytest.mark.parametrize("limit", [{}, {"deadline_s": 1.0}, {"deadline_s": 14.0}, {"budget_usd": 0.02}, {"budget_usd": 1e-6}])
def test_capacities_are_ranked_by_the_key(run: Run, limit: dict[str, float]) -> None:
    """Those beyond a limit come last, the nearest miss first."""
    objective = Objective(run.objective.time_weight, **limit)
    able = run.search(gpu_kinds=["l40s", "h100"], gpus=[4, 8], **limit).means()
    assert len(able) > 2
    keys = [objective.key(row.time_s, row.cost_usd) for row in able.itertuples()]
    assert keys == sorted(keys)
    if limit:
        assert able["within_limit"].tolist() == [missed == 0 for missed, _ in keys]


def test_where_nobody_states_a_time_weight_it_is_the_same_everywhere() -> None:
    assert {Objective().time_weight, PlannerConfig().time_weight, Lifecycle().time_weight} == {TIME_WEIGHT}
    for plan in (Executor.plan, Executor.problem, lever_savings):
        assert inspect.signature(plan).parameters["time_weight"].default == TIME_WEIGHT
    log = pd.DataFrame({"step": 0, "prompt_id": [0, 1], "sample": 0, "response_tokens": [10, 20]})
    assert load(log, gpus=2, verbose=False).objective == Objective()
    assert WEIGHT_OF_RUN.endswith(f"else {TIME_WEIGHT}]")
