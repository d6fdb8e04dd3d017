"""``solver.plan`` keeps its promises: no worse than the random split, complete, within the cluster, with a history."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from solver_strategies import LIMIT, instances, l40s, lognormal_workload, problem_of

import solver
from solver.generation.random_split import random_split
from solver.timing.step_cost import StepObjective

either = st.booleans().flatmap(lambda refill: instances(refill=refill))
objectives = st.sampled_from([solver.Objective(w) for w in (0.0, 0.3, 0.7, 1.0)])


PARTS = {"random split", "round-robin", "columns", "fill", "repack", "level", "few items", "exchange", "bound"}
OPTIONS = [
    {},
    {"keep_together": True},
    {"share_prefill": True},
    {"release": "generation"},
    {"release": "step"},
    {"max_actors": 2},
]


@given(
    st.data(),
    st.one_of(either, st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))),
    objectives,
    st.sampled_from(OPTIONS),
    st.booleans(),
    st.sampled_from([1.0, 0.4]),
)
@settings(max_examples=30, deadline=None)
def test_never_worse_than_the_random_split_on_the_same_lengths_or_scenarios(data, instance, objective, options, quick, tail):
    """By ``evaluate``: of one kind of actors and several, whatever the options, in full and quickly, with a bound below."""
    old = instance.workload
    if data.draw(st.booleans()):
        row = st.lists(st.integers(0, LIMIT), min_size=len(old), max_size=len(old))
        lengths = data.draw(st.lists(row, min_size=2, max_size=4))
        work = solver.Workload(old.prompt_tokens, old.prompt_of, lengths, old.generated_tokens, max_response_tokens=LIMIT)
        instance = instance._replace(workload=work)
    objective = replace(objective, cvar_alpha=tail)
    problem = problem_of(instance, objective, solver.NonGenerationPhases(0.01, 0.02, 1), **options)
    goal = StepObjective.of_problem(problem)

    def value_of(plan: solver.Plan) -> float:
        taken = solver.evaluate(plan, problem)
        step = goal.step(taken.makespans_s, taken.gpu_seconds_of)
        return objective.value_over(*step, plan_found.reference.norms("gpu_s"))

    plan_found = solver.plan(problem, quick=quick)
    assert plan_found.value == pytest.approx(value_of(plan_found), rel=1e-9, abs=1e-12)
    assert plan_found.value <= value_of(solver.random_split(problem)) * (1 + 1e-9) + 1e-12
    assert 0 <= plan_found.lower_bound <= plan_found.value
    assert plan_found.status in ("optimal", "feasible")
    assert {line.solver for line in plan_found.history} <= PARTS


def test_where_scenarios_agree_on_no_length_round_robin_beats_whole_prompts_at_random():
    """Every response has any of the lengths, so only numbers of responses count, and prompts have different ones."""
    rng, lengths = np.random.default_rng(0), lognormal_workload(16, 4).response_tokens
    scenarios = np.stack([rng.permutation(lengths) for _ in range(16)])
    owner = np.sort(rng.integers(0, 10, 64))
    workload = solver.Workload([50] * 10, owner, scenarios, max_response_tokens=2048)
    plan = solver.plan(solver.PlanningProblem(workload, solver.Cluster(1, 16, 2), l40s(start_s=0.0), solver.Objective(1.0)))
    reached = {line.solver: line.value for line in plan.history}
    assert reached["round-robin"] < reached["random split"]
    assert sorted(i for actor in plan.actors for i in actor.responses) == list(range(64))


@pytest.mark.parametrize("quick", [False, True])
def test_the_history_names_the_parts_that_ran(quick):
    work, cluster = lognormal_workload(16, 4), solver.Cluster(2, 8, 2)
    rng = np.random.default_rng(0)
    sampled = work.with_response_tokens(work.response_tokens * rng.lognormal(0, 0.3, (4, len(work))))
    slots = l40s(max_batch=8)
    parts = [
        {
            line.solver
            for line in solver.plan(solver.PlanningProblem(w, cluster, slots, solver.Objective(0.9)), quick=quick).history
        }
        for w in (work, sampled)
    ]
    always = {"random split", "columns", "fill", "repack", "level", "bound"}
    assert parts[0] == always | (set() if quick else {"exchange"})
    assert parts[1] == always | {"round-robin"}
    few = solver.plan(solver.PlanningProblem(lognormal_workload(4, 3), solver.Cluster(1, 6, 2), slots), quick=quick)
    assert ("few items" in {line.solver for line in few.history}) == (not quick)


@given(either, objectives)
@settings(max_examples=25, deadline=None)
def test_never_worse_than_the_random_split_and_the_history_only_improves(instance, objective):
    plan = solver.plan(solver.PlanningProblem(*instance[:3], objective, admission=instance.admission))
    assert plan.history[0].solver == "random split"
    assert plan.history[-1].value == plan.value
    assert plan.history[-1].lower_bound == plan.lower_bound
    for before, after in itertools.pairwise(plan.history):
        assert after.value <= before.value
        assert after.lower_bound >= before.lower_bound
        assert after.at_s >= before.at_s
    assert plan.lower_bound <= plan.value


@given(either, objectives)
@settings(max_examples=25, deadline=None)
def test_every_response_once_and_every_gpu_once_within_its_node(instance, objective):
    workload, cluster, latency, admission = instance
    plan = solver.plan(solver.PlanningProblem(workload, cluster, latency, objective, admission=admission))
    assert sorted(i for a in plan.actors for i in a.responses) == list(range(len(workload)))
    gpus = [g for a in plan.actors for g in a.gpu_ids]
    assert len(set(gpus)) == len(gpus)
    assert 1 <= len(plan.actors) <= cluster.max_actors
    for actor in plan.actors:
        assert len(actor.gpu_ids) == cluster.gpus_per_actor
        assert all(g // cluster.gpus_per_node == actor.node < cluster.nodes for g in actor.gpu_ids)
        assert actor.max_batch <= latency.max_batch
        assert set(actor.prompts) == {int(workload.prompt_of[i]) for i in actor.responses}


@pytest.mark.parametrize(("gpus_per_node", "gpus_per_actor", "most"), [(8, 3, 4), (5, 2, 4), (4, 4, 2)])
def test_an_actor_never_spans_two_nodes(gpus_per_node, gpus_per_actor, most):
    """Two nodes: GPUs left over in a node stay unused."""
    cluster = solver.Cluster(2, gpus_per_node, gpus_per_actor)
    latency = solver.LatencyModel("x", gpus_per_actor, 1e-3, 1e-2)
    plan = solver.plan(solver.PlanningProblem(lognormal_workload(16, 4), cluster, latency, solver.Objective(1.0)))
    assert len(plan.actors) == cluster.max_actors == most
    assert all(g // gpus_per_node == a.node for a in plan.actors for g in a.gpu_ids)


def test_time_weight_one_is_faster_and_zero_is_cheaper():
    workload, cluster, latency = lognormal_workload(64, 4), solver.Cluster(2, 8, 2), l40s()
    fast, cheap = (solver.plan(solver.PlanningProblem(workload, cluster, latency, solver.Objective(w))) for w in (1.0, 0.0))
    assert fast.makespan_s < cheap.makespan_s
    assert cheap.gpu_seconds < fast.gpu_seconds
    assert len(fast.actors) > len(cheap.actors)


@given(st.permutations(range(24)), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=15, deadline=None)
def test_the_order_of_responses_changes_no_value(order, time_weight):
    """Slots do not bind here: where they do, the random split admits in the given order, so the reference moves."""
    workload, cluster, latency = lognormal_workload(6, 4), solver.Cluster(1, 8, 2), l40s()
    shuffled = solver.Workload(workload.prompt_tokens, workload.prompt_of[list(order)], workload.response_tokens[list(order)])
    objective = solver.Objective(time_weight)
    one, two = (solver.plan(solver.PlanningProblem(w, cluster, latency, objective)) for w in (workload, shuffled))
    assert two.value == pytest.approx(one.value, rel=1e-9)
    assert two.lower_bound == pytest.approx(one.lower_bound, rel=1e-9)


@given(either, st.floats(1.0, 3.0))
@settings(max_examples=30, deadline=None)
def test_a_deadline_and_a_budget_are_kept_by_evaluate(instance, slack):
    workload, cluster, latency, admission = instance
    phases = solver.NonGenerationPhases(prepare_s=0.01, learn_s=0.02, learner_gpus=2)
    split = random_split(solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    deadline_s = slack * phases.step_time_s(split.makespan_s) + 1e-6
    budget_gpu_s = slack * phases.step_gpu_s(split.makespan_s, split.gpu_seconds) + 1e-6
    early, poor = (
        solver.plan(solver.PlanningProblem(workload, cluster, latency, objective, phases, admission=admission))
        for objective in (solver.Objective(deadline_s=deadline_s), solver.Objective(budget_gpu_s=budget_gpu_s))
    )
    taken = solver.evaluate(early, solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    assert phases.step_time_s(taken.makespan_s) <= deadline_s * (1 + 1e-9)
    assert early.value == pytest.approx(phases.step_gpu_s(taken.makespan_s, taken.gpu_seconds))
    taken = solver.evaluate(poor, solver.PlanningProblem(workload, cluster, latency, phases=phases, admission=admission))
    assert phases.step_gpu_s(taken.makespan_s, taken.gpu_seconds) <= budget_gpu_s * (1 + 1e-9)
    assert poor.value == pytest.approx(phases.step_time_s(taken.makespan_s))


DEGENERATE = {
    "one response": solver.Workload([5], [0], [7]),
    "one prompt": solver.Workload.grid([5], [[3, 90, 14, 15, 92, 65]]),
    "all equal": solver.Workload.grid([5] * 8, np.full((8, 4), 100)),
    "zero lengths": solver.Workload.grid([5] * 4, np.zeros((4, 4), dtype=int)),
    "some zero lengths": solver.Workload.grid([5] * 4, [[0, 0, 9, 9]] * 4),
    "empty prompts": solver.Workload.grid([0] * 4, [[1, 2, 3, 4]] * 4),
    "prompts without responses": solver.Workload([5, 6, 7], [1, 1], [10, 20]),
    "more actors than prompts": lognormal_workload(2, 4),
    "already complete": solver.Workload.grid([5] * 2, [[4, 4]] * 2, generated_tokens=9),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("start_s", [0.0, 2.0])
@pytest.mark.parametrize("cluster", [solver.Cluster(1, 1, 1), solver.Cluster(4, 8, 1)], ids=["one GPU", "32 GPUs"])
def test_degenerate_workloads_are_planned(name, cluster, start_s):
    workload = DEGENERATE[name]
    latency = solver.LatencyModel("x", 1, 5e-3, 1e-4, 1e-7, start_s=start_s)
    plan = solver.plan(solver.PlanningProblem(workload, cluster, latency))
    taken = solver.evaluate(plan, solver.PlanningProblem(workload, cluster, latency))
    assert (plan.makespan_s, plan.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
    assert 0 <= plan.lower_bound <= plan.value < math.inf
