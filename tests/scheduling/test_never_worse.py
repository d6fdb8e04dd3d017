"""Planning that has to earn its place: better on scenarios left out, and worth the time that it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

from rlhfless.scheduling import PlanningInput, make_policy, replan_start
from rlhfless.scheduling import solver as solver_policy
from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.scheduling.solver import LEAST_SCENARIOS, Solver, groups_of, log_values, surely_less, with_scenarios
from solver import Cluster, LatencyModel, Objective, Plan, PlanningError, Workload
from solver.timing.evaluate import evaluate

LATENCY = LatencyModel(
    "x", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=5e-3,
    transfer_per_kv_token_s=1e-6, start_s=0.1, max_batch=256,
)  # fmt: skip
CLUSTER = Cluster(2, 8, 2)


def steps(noise: float, seed: int = 0, limit: int = 4000) -> tuple[Workload, Workload]:
    """The truth, and a forecast whose scenarios are as far from their means as the truth is."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(6.0, 0.9, (64, 1))
    drawn = np.clip(np.exp(mean + rng.normal(0, noise, (9, 64, 4))), 1, limit).astype(int)
    truth = Workload.grid(rng.integers(0, 60, 64), drawn[0], max_response_tokens=limit)
    return truth, Workload(truth.prompt_tokens, truth.prompt_of, drawn[1:].reshape(8, -1), max_response_tokens=limit)


def given(work: Workload, **changes: object) -> PlanningInput:
    return replace(PlanningInput(work, CLUSTER, LATENCY, time_limit_s=1.0, deterministic=True), **changes)  # type: ignore[arg-type]


def log_value(plan: Plan, truth: Workload) -> float:
    taken = evaluate(plan, truth, LATENCY)
    return float(np.log(taken.makespan_s) * 0.7 + np.log(taken.gpu_seconds) * 0.3)


def responses(plan: Plan) -> list[tuple[int, ...]]:
    return [a.responses for a in plan.actors]


def test_a_difference_is_sure_beyond_two_standard_errors_and_never_when_there_is_none():
    zero = np.zeros(4)
    assert surely_less(np.array([-1.0, -1.1, -0.9, -1.0]), zero)
    assert not surely_less(np.array([-3.0, 1.0, 1.0, -1.0]), zero)
    assert not surely_less(zero, zero)
    assert not surely_less(np.full(4, 0.1), zero)


@pytest.mark.parametrize("seed", range(4))
def test_grouping_earns_its_place_where_predictions_are_good(seed):
    truth, forecast = steps(0.05, seed)
    asked = given(forecast, seed=seed)
    assert log_value(Solver().plan(asked), truth) < log_value(Random().plan(asked), truth) - 0.02


@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_is_the_random_split_or_surely_better_on_scenarios_left_out(seed, noise):
    _, forecast = steps(noise, seed)
    asked = given(forecast, seed=seed)
    plan, split = Solver().plan(asked), Random().plan(asked)
    assert plan.policy == "solver"
    if responses(plan) == responses(split):
        return
    left_out = with_scenarios(forecast, forecast.scenarios[1::2])
    mine, other = (log_values(groups_of(p), left_out, asked) for p in (plan, split))
    assert mine.mean() < other.mean()


def test_noise_is_not_taken_for_a_prediction():
    """Scenarios that group responses in one way on those chosen on, in another on those left out: the random split runs."""
    _, forecast = steps(0.05)
    rng = np.random.default_rng(0)
    wrong = forecast.scenarios.copy()
    wrong[1::2] = wrong[1::2][:, rng.permutation(len(forecast))]
    asked = given(with_scenarios(forecast, wrong))
    dealt = [responses(Random().plan(asked)), *(
        [tuple(g.tolist()) for g in solver_policy.assign_round_robin(asked.workload, n, asked.seed)] for n in range(1, 9)
    )]  # fmt: skip
    assert responses(Solver().plan(asked)) in dealt


def test_values_over_scenarios_are_those_of_evaluate():
    _, forecast = steps(0.3)
    asked = given(forecast)
    plan = Random().plan(asked)
    taken = evaluate(plan, forecast, LATENCY)
    expected = 0.7 * np.log(taken.makespans_s) + 0.3 * np.log(taken.gpu_seconds_of)
    np.testing.assert_allclose(log_values(groups_of(plan), forecast, asked), expected)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_planner_is_asked_only_where_its_time_is_worth_it(monkeypatch, share):
    calls = []
    plan_generation = solver_policy.plan_generation
    monkeypatch.setattr(solver_policy, "plan_generation", lambda *a, **k: calls.append(a) or plan_generation(*a, **k))
    monkeypatch.setattr(solver_policy, "SOLVER_SHARE", share)
    _, forecast = steps(0.3)
    Solver().plan(given(forecast))
    assert len(calls) == (1 if share else 0)


def test_limits_tails_few_scenarios_and_known_lengths_are_planned_as_asked(monkeypatch):
    monkeypatch.setattr(solver_policy, "SOLVER_SHARE", 0.0)
    truth, forecast = steps(0.3)
    few = with_scenarios(forecast, forecast.scenarios[: LEAST_SCENARIOS - 1])
    for asked in (
        given(truth), given(few), given(forecast, objective=Objective(deadline_s=60.0)),
        given(forecast, objective=Objective(cvar_alpha=0.5)),
    ):  # fmt: skip
        assert Solver().plan(asked).lower_bound is not None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_looking_ahead_is_left_out_where_it_takes_too_long(monkeypatch, share):
    calls = []
    busy_ahead = replan_start.busy_ahead
    monkeypatch.setattr(replan_start, "busy_ahead", lambda *a, **k: calls.append(a) or busy_ahead(*a, **k))
    monkeypatch.setattr(replan_start, "FIRST_SHARE", share)
    monkeypatch.setattr(replan_start, "FURTHER_SHARE", 0.0)
    _, forecast = steps(0.5)
    asked = given(forecast, latency=replace(LATENCY, max_batch=64))
    plan = SolverReplan().plan(asked)
    assert len(calls) == (1 if share else 0)
    if not share:
        assert plan.rule is None
        assert responses(plan) == responses(Solver().plan(asked))


@pytest.mark.parametrize("policy", ["solver", "solver+replan"])
def test_the_same_step_has_the_same_plan(policy):
    _, forecast = steps(0.4)
    first, second = (make_policy(policy).plan(given(with_scenarios(forecast, forecast.scenarios))) for _ in range(2))
    assert responses(first) == responses(second)


def test_what_no_actor_holds_is_refused_before_anything_is_tried():
    _, forecast = steps(0.3)
    with refused(PlanningError):
        Solver().plan(given(forecast, latency=replace(LATENCY, kv_capacity_tokens=100)))
