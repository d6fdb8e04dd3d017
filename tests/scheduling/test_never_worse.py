"""Planning that has to earn its place: better on scenarios left out."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from planning_inputs import planning_inputs

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling import solver as solver_policy
from rlhfless.scheduling.assignments import Random, assign_round_robin
from rlhfless.scheduling.calibration import STRESS, UNSTATED_SD, calibrated, stressed, with_scenarios
from rlhfless.scheduling.solver import LEAST_SCENARIOS, Solver, plan_values
from solver import Cluster, LatencyModel, Objective, Plan, PlanningError, Workload
from solver.lengths.forecast import LengthForecast
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate

LATENCY = LatencyModel(
    "x", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=5e-3,
    transfer_per_kv_token_s=1e-6, start_s=0.1, max_batch=256,
)  # fmt: skip
HEAVY = replace(LATENCY, per_response_s=2e-4, per_kv_token_s=1e-7)  # several actors are best for 256 responses
CLUSTER = Cluster(2, 8, 2)


def steps(noise: float, seed: int = 0, limit: int = 4000) -> tuple[Workload, Workload]:
    """The truth, and a forecast whose scenarios are as far from their means as the truth is."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(6.0, 0.9, (64, 1))
    drawn = np.clip(np.exp(mean + rng.normal(0, noise, (9, 64, 4))), 1, limit).astype(int)
    truth = Workload.grid(rng.integers(0, 60, 64), drawn[0], max_response_tokens=limit)
    return truth, Workload(truth.prompt_tokens, truth.prompt_of, drawn[1:].reshape(8, -1), max_response_tokens=limit)


def given(work: Workload, **changes: object) -> tuple[PlanningProblem, PlanningOptions]:
    return planning_inputs(work, **{"cluster": CLUSTER, "latency": LATENCY, **changes})  # type: ignore[arg-type]


def log_value(plan: Plan, truth: Workload) -> float:
    taken = evaluate(plan, PlanningProblem(truth, CLUSTER, LATENCY))
    return float(np.log(taken.makespan_s) * 0.7 + np.log(taken.gpu_seconds) * 0.3)


def responses(plan: Plan) -> list[tuple[int, ...]]:
    return [a.responses for a in plan.actors]


@pytest.mark.parametrize("seed", range(4))
def test_grouping_earns_its_place_where_predictions_are_good(seed):
    truth, forecast = steps(0.05, seed)
    asked = given(forecast, seed=seed)
    assert log_value(Solver().plan(*asked), truth) < log_value(Random().plan(*asked), truth) - 0.02


@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_is_a_fallback_or_better_on_held_out_scenarios(seed, noise):
    _, forecast = steps(noise, seed)
    problem, options = given(forecast, seed=seed)
    plan = Solver().plan(problem, options)
    assert plan.policy == "solver"
    if plan.notes["chosen"] != solver_policy.ASSIGNED:
        return
    held_out = with_scenarios(problem, forecast.scenarios[1::2])
    for fallback in (Random(), make_policy("fold")):
        values = plan_values(fallback.plan(problem, options), held_out)
        assert plan_values(plan, held_out).mean() < values.mean()


@pytest.mark.parametrize("time_weight", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_by_its_own_estimate_it_is_never_worse_than_the_random_split_and_folding(seed, time_weight):
    """On the calibrated scenarios, whatever they are worth: sharp forecasts and vague ones, with known errors and without."""
    noise, error_sd = (0.05, 0.3, 0.8)[seed % 3], (None, 0.2)[seed % 2]
    _, forecast = steps(noise, seed)
    problem, options = given(forecast, seed=seed, objective=Objective(time_weight), latency=(LATENCY, HEAVY)[seed // 3])
    lengths = LengthForecast(forecast.response_tokens, forecast.scenarios, error_sd=error_sd)
    options = replace(options, forecast=lengths)
    known = calibrated(problem, options)
    own = plan_values(Solver().plan(problem, options), known).mean()
    for other in ("random", "fold", "spread"):
        assert own <= plan_values(make_policy(other).plan(problem, options), known).mean() * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", ["tail", "deadline", "budget", "three scenarios"])
def test_where_plans_are_not_compared_on_halves_it_is_never_worse_either(case, seed):
    """For tails of the scenarios, limits and few scenarios: on the scenarios given, by what the objective ranks."""
    _, forecast = steps((0.3, 0.8, 1.0)[seed], seed)
    if case == "three scenarios":
        forecast = replace(forecast, scenarios=forecast.scenarios[:3])
    problem, options = given(forecast, seed=seed, latency=HEAVY)
    others = [make_policy(name).plan(problem, options) for name in ("random", "fold")]
    time_s, cost = solver_policy.step_of(others[1], problem)
    objective = {
        "tail": Objective(0.7, cvar_alpha=0.25), "deadline": Objective(deadline_s=1.02 * float(time_s.mean())),
        "budget": Objective(budget_gpu_s=1.02 * float(cost.mean())), "three scenarios": Objective(0.7),
    }[case]  # fmt: skip
    limited = replace(problem, objective=objective)
    own = objective.key(*solver_policy.step_of(Solver().plan(limited, options), limited))
    for policy in ("random", "fold"):
        other = objective.key(*solver_policy.step_of(make_policy(policy).plan(limited, options), limited))
        assert own <= (other[0], other[1] * (1 + 1e-9)), policy


@pytest.mark.parametrize(("least", "most"), [(1, 2), (7, 8)])
def test_bounds_on_the_number_of_actors_hold_for_whatever_runs(least, most):
    for noise in (0.05, 1.0):
        _, forecast = steps(noise)
        plan = Solver().plan(*given(forecast, latency=HEAVY, min_actors=least, max_actors=most))
        assert least <= len(plan.actors) <= most


def executed_log_value(plan: Plan, truth: Workload) -> float:
    requests = [
        Request(i, int(truth.prompt_tokens[owner]), truth.max_response_tokens, target_tokens=int(tokens), prompt=int(owner))
        for i, (owner, tokens) in enumerate(zip(truth.prompt_of, truth.response_tokens, strict=True))
    ]
    record = run_step(plan, requests, SimulatedEngine, HEAVY, CLUSTER, run="r", step=0)
    gpu_s = sum(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]) for row in record.allocations)
    return float(0.7 * np.log(record.makespan_s) + 0.3 * np.log(gpu_s))


def test_what_folding_takes_is_estimated_within_a_few_percent_of_its_execution():
    """Of known lengths of several spreads: static plans are compared with this estimate."""
    for noise, seed in ((0.3, 0), (0.8, 1), (1.0, 2)):
        truth, _ = steps(noise, seed)
        problem, options = given(truth, latency=HEAVY)
        plan = make_policy("fold").plan(problem, options)
        assert plan.rule is not None
        (estimated,) = plan_values(plan, problem)
        assert np.log(estimated) == pytest.approx(executed_log_value(plan, truth), abs=0.04)


def test_where_little_is_known_folding_runs_and_is_as_good_as_the_policy_fold():
    truth, forecast = steps(1.0)
    asked = given(forecast, latency=HEAVY)
    plan, fold = Solver().plan(*asked), make_policy("fold").plan(*asked)
    assert plan.notes["chosen"] == solver_policy.CONSOLIDATION
    assert abs(len(plan.actors) - len(fold.actors)) <= solver_policy.MORE_ACTORS
    assert executed_log_value(plan, truth) < executed_log_value(fold, truth) + 0.01


def test_noise_is_not_taken_for_a_prediction():
    """Scenarios that group responses in one way on those chosen on, in another on those left out: the random split runs."""
    _, forecast = steps(0.05)
    rng = np.random.default_rng(0)
    wrong = forecast.scenarios.copy()
    wrong[1::2] = wrong[1::2][:, rng.permutation(len(forecast))]
    asked = given(replace(forecast, scenarios=wrong))
    dealt = [responses(Random().plan(*asked)), *(
        [tuple(g.tolist()) for g in assign_round_robin(asked[0].workload, n, 0)] for n in range(1, 9)
    )]  # fmt: skip
    assert responses(Solver().plan(*asked)) in dealt


def test_values_over_scenarios_are_those_of_evaluate():
    _, forecast = steps(0.3)
    asked = given(forecast)
    plan = Random().plan(*asked)
    taken = evaluate(plan, PlanningProblem(forecast, CLUSTER, LATENCY))
    expected = 0.7 * np.log(taken.makespans_s) + 0.3 * np.log(taken.gpu_seconds_of)
    np.testing.assert_allclose(np.log(plan_values(plan, asked[0])), expected)


def test_where_the_random_split_is_best_the_notes_say_so():
    """Scenarios of which each shuffles the lengths: nothing is known of any response."""
    _, forecast = steps(0.05)
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(row) for row in forecast.scenarios])
    asked = given(replace(forecast, scenarios=shuffled), objective=Objective(time_weight=1.0))
    plan = Solver().plan(*asked)
    assert plan.notes["chosen"] == solver_policy.RANDOM_SPLIT
    assert responses(plan) == responses(Random().plan(*asked))
    assert json.loads(plan.to_json())["notes"]["chosen"] == solver_policy.RANDOM_SPLIT


def test_a_forecast_without_spread_is_not_taken_for_the_truth():
    """Equal scenarios that are all wrong: grouping by them would be far worse than the random split."""
    truth, forecast = steps(0.8)
    wrong = np.random.default_rng(1).permutation(forecast.scenarios[0])
    asked = given(replace(forecast, scenarios=np.tile(wrong, (8, 1))))
    assert log_value(Solver().plan(*asked), truth) < log_value(Random().plan(*asked), truth) + 0.05
    logs = np.log(calibrated(*asked).workload.scenarios)
    assert logs.std(axis=0).mean() > UNSTATED_SD / 2


@pytest.mark.parametrize("error_sd", [None, 0.1, 0.6])
def test_scenarios_are_as_far_from_their_middle_as_earlier_errors_and_further_under_stress(error_sd):
    _, forecast = steps(0.3)
    problem, options = given(forecast)
    lengths = LengthForecast(forecast.response_tokens, forecast.scenarios, error_sd=error_sd)
    options = replace(options, forecast=lengths)
    known = calibrated(problem, options)
    further = stressed(known, options)
    inside = further.workload.scenarios.max(axis=0) < forecast.max_response_tokens
    before, after, last = (
        np.log(s)[:, inside] for s in (forecast.scenarios, *(p.workload.scenarios for p in (known, further)))
    )
    np.testing.assert_allclose(before.mean(axis=0), after.mean(axis=0), atol=0.05)
    sd = [np.sqrt(logs.var(axis=0, ddof=1).mean()) for logs in (before, after, last)]
    assert sd[1] == pytest.approx(STRESS * sd[0] if error_sd is None else error_sd, rel=0.1)
    assert sd[2] == pytest.approx(sd[1] if error_sd is None else STRESS * sd[1], rel=0.1)


def test_limits_tails_few_scenarios_and_known_lengths_are_planned_as_asked():
    truth, forecast = steps(0.3)
    few = replace(forecast, scenarios=forecast.scenarios[: LEAST_SCENARIOS - 1])
    for asked in (
        given(truth), given(few), given(forecast, objective=Objective(deadline_s=60.0)),
        given(forecast, objective=Objective(cvar_alpha=0.5)),
    ):  # fmt: skip
        assert Solver().plan(*asked).lower_bound is not None


@pytest.mark.parametrize("policy", ["solver", "solver+replan"])
def test_the_same_step_has_the_same_plan(policy, monkeypatch):
    """On a clock that runs and on one that runs away: plans depend on counted work alone."""
    _, forecast = steps(0.1)
    first = make_policy(policy).plan(*given(replace(forecast)))
    ticks = itertools.count(0.0, 1e4)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    second = make_policy(policy).plan(*given(replace(forecast)))
    assert responses(first) == responses(second)


def test_what_no_actor_holds_is_refused_before_anything_is_tried():
    _, forecast = steps(0.3)
    with refused(PlanningError):
        Solver().plan(*given(forecast, latency=replace(LATENCY, kv_capacity_tokens=100)))
