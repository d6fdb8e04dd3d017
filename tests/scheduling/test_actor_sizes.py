"""Policy ``solver`` where actors may have several sizes: it plans each alone, and says what the others would have given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

import solver
from rlhfless.latency import load_profile, other_sizes
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.solver import Solver, plan_values
from rlhfless.simulate import SimulationConfig, logged_steps, simulate_steps
from rlhfless.trace import validate
from solver import Cluster, MixedCluster, Objective, Plan, PlanningError, PlanningProblem, Workload

ONE, TWO = (load_profile(f"h100-qwen2.5-3b-tp{gpus}") for gpus in (1, 2))
CLUSTER = Cluster(2, 8, 1, "h100", 3.0)


def forecast(seed: int = 0, prompts: int = 48, spread: float = 0.6) -> Workload:
    rng = np.random.default_rng(seed)
    mean = rng.normal(6.5, 0.4, (prompts, 1))
    drawn = np.clip(np.exp(mean + rng.normal(0, spread, (9, prompts, 4))), 1, 8000).astype(int)
    first = Workload.grid([80] * prompts, drawn[0], max_response_tokens=8000)
    return replace(first, scenarios=drawn[1:].reshape(8, -1))


def sizes(plan: Plan) -> set[int]:
    return {len(actor.gpu_ids) for actor in plan.actors}


def value(plan: Plan, problem: PlanningProblem, latency: object, gpus: int) -> float:
    one = replace(problem, cluster=replace(CLUSTER, gpus_per_actor=gpus), latency=latency)  # type: ignore[arg-type]
    return float(plan_values(plan, one).mean())


@pytest.mark.parametrize("time_weight", [0.2, 0.7, 1.0])
def test_the_plan_is_as_good_as_that_of_the_best_size(time_weight: float) -> None:
    problem = PlanningProblem(forecast(), CLUSTER, ONE, Objective(time_weight))
    plan = Solver().plan(problem, PlanningOptions(sizes=(TWO,)))
    others = plan.notes["sizes"]
    assert set(others) == {"1", "2"}
    assert min(others.values()) >= 1.0 - 1e-9, "a plan of several sizes runs only where it is better than each alone"
    if len(sizes(plan)) == 1:
        (used,) = sizes(plan)
        assert others[str(used)] == pytest.approx(1.0)
        alone = Solver().plan(
            replace(problem, cluster=replace(CLUSTER, gpus_per_actor=used), latency={1: ONE, 2: TWO}[used]), PlanningOptions()
        )
        assert [a.responses for a in alone.actors] == [a.responses for a in plan.actors]
        assert alone.notes["chosen"] == plan.notes["chosen"]
    assert f"{max(others.values()) - 1:.1%} higher" in plan.notes["why"]


def test_the_order_of_sizes_does_not_matter_to_what_runs() -> None:
    work = forecast(1)
    first = Solver().plan(PlanningProblem(work, CLUSTER, ONE), PlanningOptions(sizes=(TWO,)))
    other = Solver().plan(PlanningProblem(work, replace(CLUSTER, gpus_per_actor=2), TWO), PlanningOptions(sizes=(ONE,)))
    assert [(a.gpu_ids, a.responses) for a in first.actors] == [(a.gpu_ids, a.responses) for a in other.actors]


@pytest.mark.parametrize(("own", "own_gpus", "other"), [(ONE, 1, TWO), (TWO, 2, ONE)])
def test_a_deadline_that_one_size_alone_cannot_keep_is_kept_by_the_other(own, own_gpus: int, other) -> None:
    work = forecast(2)
    fast, slow = (
        make_policy("solver")
        .plan(PlanningProblem(work, replace(CLUSTER, gpus_per_actor=gpus), model, Objective(1.0)), PlanningOptions())
        .makespan_s
        for model, gpus in ((TWO, 2), (ONE, 1))
    )
    assert fast < slow
    objective = Objective(deadline_s=fast + 0.3 * (slow - fast))
    problem = PlanningProblem(work, replace(CLUSTER, gpus_per_actor=own_gpus), own, objective)
    plan = Solver().plan(problem, PlanningOptions(sizes=(other,)))
    assert 2 in sizes(plan)
    mixed = replace(problem, cluster=MixedCluster(CLUSTER.pools), latency={("h100", 1): ONE, ("h100", 2): TWO})
    assert solver.evaluate(plan, mixed).makespan_s <= objective.deadline_s * (1 + 1e-9)
    with refused(PlanningError, "deadline"):
        Solver().plan(replace(problem, objective=Objective(deadline_s=0.3 * fast)), PlanningOptions(sizes=(other,)))


def test_a_size_that_no_node_holds_is_left_out() -> None:
    small = Cluster(4, 1, 1, "h100", 3.0)
    plan = Solver().plan(PlanningProblem(forecast(), small, ONE), PlanningOptions(sizes=(TWO,)))
    assert sizes(plan) == {1}
    assert "sizes" not in plan.notes


def test_other_policies_start_actors_of_the_problem_s_own_size() -> None:
    problem, options = PlanningProblem(forecast(), CLUSTER, ONE), PlanningOptions(sizes=(TWO,))
    for name in ("random", "fold", "solver+replan"):
        assert sizes(make_policy(name).plan(problem, options)) == {1}


def test_what_are_no_latency_models_is_refused() -> None:
    with refused(PlanningError, "sizes"):
        PlanningOptions(sizes=("h100-qwen2.5-3b-tp2",))  # type: ignore[arg-type]


def test_shipped_profiles_have_their_other_sizes_and_files_of_one_s_own_have_none(tmp_path) -> None:
    assert [model.name for model in other_sizes("h100-qwen2.5-3b-tp2")] == ["h100-qwen2.5-3b-tp1"]
    assert other_sizes("l40s-qwen2.5-3b-tp2") == []


def test_a_simulated_step_runs_the_chosen_size_beside_policies_of_the_run_s_own() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"run": "r", "step": s, "prompt_id": f"p{p}", "sample": k, "response_tokens": int(rng.lognormal(6, 0.8)) + 1}
        for s in range(2) for p in range(16) for k in range(4)
    ]  # fmt: skip
    *_, logged = logged_steps(validate("rollouts", rows))
    setting = SimulationConfig(CLUSTER, ONE, Objective(0.7), sizes=(TWO,))
    found = simulate_steps([logged], setting, ["random", "solver"])
    (plan,), results = found.plans["solver"], found.table.set_index("policy")
    assert sizes(found.plans["random"][0]) == {1}
    assert sizes(plan) == {2}
    gpus = [len(ids) for ids in found.traces["solver"].allocations["gpu_ids"]]
    assert set(gpus) == {2}
    assert (results["bound_gpu_seconds"] <= results["gpu_seconds"]).all(), "the bound is that of actors of any one size"
    one, two = setting.each_size
    least = [min(logged.bound(of).gpu_seconds(time_s) for of in (one, two)) for time_s in results["time_s"]]
    assert results["bound_gpu_seconds"].tolist() == pytest.approx(least)
    assert simulate_steps([logged], two, ["solver"]).table["time_s"].tolist() == [results.loc["solver", "time_s"]]
