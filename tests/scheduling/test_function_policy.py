"""A plain function as a policy, and the other forms in which a user gives one."""

from __future__ import annotations

import pytest
from error_messages import refused
from log_samples import rollouts

import rlhfless as rl
import solver
from rlhfless.scheduling import FunctionPolicy, PlanningOptions, PolicyError, SchedulingPolicy, as_policy
from rlhfless.scheduling.assignments import Static


def one_actor(problem: solver.PlanningProblem, options: PlanningOptions) -> solver.Plan:
    return solver.random_split(problem, actors=1, seed=options.seed)


def test_a_function_is_a_policy_with_its_name() -> None:
    run = rl.load(rollouts(), 16, "l40s-qwen2.5-3b-tp2", verbose=False)
    steps = run.simulate(["random", one_actor], steps=run.steps[-1:]).table
    assert steps["policy"].tolist() == ["random", "one_actor"]
    assert steps["actors"].tolist()[1] == 1
    planned = run.plan(policy=one_actor)
    assert len(planned.plan.actors) == 1
    assert planned.plan.policy == "one_actor"
    assert repr(planned).startswith("Plan by 'one_actor'")
    assert planned.compare("static").table["policy"].tolist() == ["static", "one_actor"]


def test_every_form_of_a_policy_is_taken() -> None:
    given = Static(2)
    assert as_policy(given) is given
    assert as_policy("static", static_actors=3) == Static(3)
    assert as_policy(one_actor) == FunctionPolicy(one_actor, "one_actor")


def test_what_is_no_policy_is_one_sentence() -> None:
    workload = solver.Workload([5], [0, 0], [30, 20], max_response_tokens=64)
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), rl.load_profile("cpu-tiny-qwen2"))
    wrong: SchedulingPolicy = as_policy(lambda problem, options: None)  # type: ignore[arg-type,return-value]
    with refused(PolicyError, "<lambda>", "Plan"):
        wrong.plan(problem, PlanningOptions())
    with refused(PolicyError, "(problem)", "(problem, options)"):
        as_policy(lambda problem: None)  # type: ignore[arg-type,misc]
    with refused(PolicyError, "(problem, options, seed)"):
        as_policy(lambda problem, options, seed: None)  # type: ignore[arg-type,misc]
    for given in (3, Static, None):
        with refused(PolicyError, "policy"):
            as_policy(given)  # type: ignore[arg-type]
    run = rl.load(rollouts(), 16, "l40s-qwen2.5-3b-tp2", verbose=False)
    with refused(PolicyError, "'one_actor'"):
        run.simulate([one_actor, one_actor])


@pytest.mark.parametrize("name", ["static", "solver"])
def test_a_name_is_made_by_the_registry(name: str) -> None:
    assert as_policy(name).name == name
