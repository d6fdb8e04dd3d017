"""Few items are planned exactly, with slots, memory, prompts kept together and shared: the optimum of all plans, no refusal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance
from solver_strategies import instances, plan_generation

import solver
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.offers import offers_of
from solver.timing.build_plan import assemble

options = st.fixed_dictionaries({"keep_together": st.booleans(), "share_prefill": st.booleans()})


def every_plan(instance, asked: dict[str, bool], prewarmed: int) -> EveryMixedPlan:
    """All plans of one kind, in every admission order, by the independent simulator."""
    workload, cluster, latency, admission = instance
    pools = MixedCluster([GpuPool("gpu", cluster.nodes, cluster.gpus_per_node, prewarmed=prewarmed)])
    offers = offers_of(pools, {("gpu", latency.gpus_per_actor): latency})
    return EveryMixedPlan(MixedInstance(workload, pools, offers, admission), **asked)


def problem_of(instance, objective: solver.Objective, asked: dict[str, bool], **others) -> solver.PlanningProblem:
    return solver.PlanningProblem(*instance[:3], objective, admission=instance.admission, **asked, **others)


@given(instances(refill=True), options, st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 1))
@settings(max_examples=25, deadline=None)
def test_the_plan_is_the_optimum_of_all_plans(instance, asked, time_weight, prewarmed):
    objective, phases = solver.Objective(time_weight), solver.NonGenerationPhases(0.02, 0.1, 3)
    cluster = dataclasses.replace(instance.cluster, prewarmed=prewarmed)
    problem = problem_of(instance._replace(cluster=cluster), objective, asked, phases=phases)
    plan = plan_generation(problem, time_limit_s=0.1)
    optimum = every_plan(instance, asked, prewarmed).optimum(objective, phases, plan.reference.norms("gpu_s"))
    assert plan.value == pytest.approx(optimum, rel=1e-9)
    assert plan.status == "optimal"


@given(st.data(), instances(refill=True), options, st.sampled_from(["deadline_s", "budget_gpu_s"]))
@settings(max_examples=25, deadline=None)
def test_a_limit_that_a_plan_keeps_is_kept_and_below_the_least_of_all_it_is_refused(data, instance, asked, limit):
    every = every_plan(instance, asked, 0)
    of = [plan[0] if limit == "deadline_s" else plan[1] for plan in every.plans]
    kept = data.draw(st.sampled_from(sorted(of)))

    def ask(most: float) -> solver.Plan:
        return plan_generation(problem_of(instance, solver.Objective(**{limit: most}), asked), time_limit_s=0.1)

    tight = kept * (1 + 1e-6) + 1e-9
    optimum = every.optimum(solver.Objective(**{limit: tight}), solver.NonGenerationPhases(), (1.0, 1.0))
    assert ask(tight).value == pytest.approx(optimum, rel=1e-6)
    if min(of) > 1e-3:
        with pytest.raises(solver.PlanningError, match="no plan found") as refusal:
            ask(min(of) * 0.99)
        least = float(str(refusal.value).split("at least ")[1].split()[0])
        assert least == pytest.approx(min(of), abs=1e-3)


@pytest.mark.parametrize("time_limit_s", [0.15, 1.0])
def test_a_deadline_is_met_that_only_one_assignment_to_slots_meets(time_limit_s):
    workload = solver.Workload([0], [0] * 9, [18, 34, 10, 47, 6, 17, 30, 13, 5])
    latency = solver.LatencyModel("two slots", 1, 10e-3, 1e-4, max_batch=2)
    met = solver.Objective(deadline_s=0.918 + 1e-6)
    plan = plan_generation(solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, met), time_limit_s=time_limit_s)
    assert (plan.makespan_s, plan.status) == (pytest.approx(0.918), "optimal")


def test_six_responses_in_two_slots_take_the_best_admission_order():
    """18 iterations; prompt after prompt, or longest first, they take 20. A deadline that only this order keeps is kept."""
    workload = solver.Workload.grid([1, 1, 1], [[6, 4], [12, 4], [6, 4]], max_response_tokens=32)
    latency = solver.LatencyModel("two slots", 1, 1.0, 0.01, max_batch=2)
    fastest = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, solver.Objective(1.0), keep_together=True)
    orders = [range(6), [2, 0, 4, 1, 3, 5]]
    by_prompt, longest_first = (assemble("listed", [list(order)], fastest).makespan_s for order in orders)
    best = plan_generation(fastest)
    assert (best.makespan_s, best.status) == (pytest.approx(18.36), "optimal")
    assert min(by_prompt, longest_first) == pytest.approx(20.36)

    def within(deadline_s: float) -> solver.PlanningProblem:
        return dataclasses.replace(fastest, objective=solver.Objective(deadline_s=deadline_s))

    assert plan_generation(within(best.makespan_s + 1e-9)).makespan_s == pytest.approx(best.makespan_s)
    with refused(solver.PlanningError, "18.360 s", "2 slots"):
        plan_generation(within(0.99 * best.makespan_s))


def test_more_responses_than_are_tried_in_all_orders_are_exchanged_in_pairs():
    rng = np.random.default_rng(3)
    workload = solver.Workload.grid([4, 4], rng.integers(1, 60, (2, 6)), max_response_tokens=64)
    latency = solver.LatencyModel("three slots", 1, 1e-2, 1e-4, max_batch=3)
    fastest = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, solver.Objective(1.0), keep_together=True)
    plan = plan_generation(fastest)
    fewest = int(np.ceil(workload.remaining_tokens.sum() / 3))
    loads = plan.makespan_s - 1e-2 * fewest
    assert loads == pytest.approx(1e-4 * workload.remaining_tokens.sum())
