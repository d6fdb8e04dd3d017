"""Whether deduplicated prefill pays is decided by the time and cost of the whole step, in the unit of the objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from solver_strategies import l40s

import solver
from solver.model.cluster import GpuPool, MixedCluster
from solver.model.plan import ActorPlan, Plan
from solver.prefix_sharing.deduplicate import deduplicate
from solver.timing.build_plan import assemble

SPEED = l40s(prefill_per_token_s=3e-5, start_s=0.1, sync_s=0.1, transfer_per_kv_token_s=1e-8)
FAST = replace(SPEED, prefill_per_token_s=3e-6)  # of the prefill actor: it makes the step shorter, and costs its own start
WORK = solver.Workload.grid([167] * 16, np.full((16, 2), 20), max_response_tokens=256)
CLUSTER = solver.Cluster(2, 8, 2, usd_per_gpu_hour=3600.0)
PLAN = assemble("split", np.arange(32).reshape(16, 2).T, solver.PlanningProblem(WORK, CLUSTER, SPEED))


def found(objective, phases=solver.NonGenerationPhases(), plan=PLAN, cluster=CLUSTER, latency=SPEED, work=WORK, **options):  # noqa: B008
    problem = solver.PlanningProblem(work, cluster, latency, objective, phases)
    return deduplicate(plan, problem, prefill_latency=FAST, **options)


FASTER, CHEAPER = found(solver.Objective(1.0)), found(solver.Objective(0.0))


def test_the_instance_trades_time_for_cost():
    assert (FASTER.how, CHEAPER.how) == ("prefill actor", "none")
    assert FASTER.plan.makespan_s < 0.9 * CHEAPER.plan.makespan_s
    assert FASTER.plan.gpu_seconds > CHEAPER.plan.gpu_seconds


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_deadline_is_that_of_the_step(seconds):
    phases = solver.NonGenerationPhases(seconds / 2, seconds / 2)
    between = (FASTER.plan.makespan_s + CHEAPER.plan.makespan_s) / 2 + seconds
    assert found(solver.Objective(deadline_s=between), phases).how == "prefill actor"
    assert found(solver.Objective(deadline_s=CHEAPER.plan.makespan_s + seconds), phases).how == "none"


def test_a_deadline_that_is_missed_is_missed_by_as_little_as_can_be():
    assert found(solver.Objective(deadline_s=1e-3)).how == "prefill actor"


def test_the_learners_gpus_pay_for_a_shorter_step():
    assert found(solver.Objective(0.0), solver.NonGenerationPhases(1.0, 1.0, learner_gpus=64)).how == "prefill actor"
    assert found(solver.Objective(0.0), solver.NonGenerationPhases(1.0, 1.0, learner_gpus=0)).how == "none"
    free = solver.NonGenerationPhases(1.0, 1.0, learner_gpus=64, usd_per_gpu_hour=0.0)
    assert found(solver.Objective(0.0, cost="usd"), free).how == "none"


def test_a_budget_is_in_its_own_unit_and_holds_the_whole_step():
    """A GPU-second costs one dollar here, the learner's three."""
    phases = solver.NonGenerationPhases(0.5, 0.5, learner_gpus=4, usd_per_gpu_hour=3 * 3600.0)
    for plan, how in ((FASTER.plan, "prefill actor"), (CHEAPER.plan, "none")):
        step_s = plan.makespan_s + 1.0
        paid = plan.gpu_seconds + 12 * step_s
        dear = found(solver.Objective(budget_usd=paid * (1 + 1e-6)), phases)
        assert dear.how == "prefill actor" or how == "none"
        assert dear.plan.cost_usd + 12 * (dear.plan.makespan_s + 1.0) <= paid * (1 + 1e-6)
    cents = solver.Cluster(2, 8, 2, usd_per_gpu_hour=36.0)  # a budget in dollars is no budget in GPU-seconds
    plan = assemble("split", np.arange(32).reshape(16, 2).T, solver.PlanningProblem(WORK, cents, SPEED))
    enough = found(solver.Objective(budget_usd=0.011 * FASTER.plan.gpu_seconds), plan=plan, cluster=cents)
    assert enough.how == "prefill actor"
    too_little = 0.01 * (FASTER.plan.gpu_seconds + CHEAPER.plan.gpu_seconds) / 2
    assert found(solver.Objective(budget_usd=too_little), plan=plan, cluster=cents).how == "none"


def test_what_is_cheap_in_gpu_seconds_may_be_dear_in_dollars():
    """The longest group's GPUs, beside which the prefill actor is started, cost a hundred times those of the others."""
    cluster = MixedCluster((GpuPool("dear", 1, 8, usd_per_gpu_hour=100.0), GpuPool("cheap", 1, 8, usd_per_gpu_hour=1.0)))
    speed = replace(SPEED, start_s=0.01, sync_s=0.0)
    models = {("dear", 2): replace(speed, prefill_per_token_s=1e-6), ("cheap", 2): replace(speed, prefill_per_token_s=1e-4)}
    work = solver.Workload.grid([167] * 16, np.array([[200, 20, 20, 20]] * 16), max_response_tokens=256)
    responses = np.arange(64).reshape(16, 4).T
    actors = tuple(
        ActorPlan(
            "cheap" if i else "dear", (8 * (i > 0) + 2 * i, 8 * (i > 0) + 2 * i + 1), int(i > 0), tuple(responses[i].tolist()),
            tuple(range(16)), 64, usd_per_gpu_s=(1.0 if i else 100.0) / 3600,
        )
        for i in range(4)
    )  # fmt: skip
    plan = Plan(actors, "split", 0.0, 0.0, 0.0)

    def how(cost: str) -> str:
        return found(solver.Objective(0.0, cost=cost), plan=plan, cluster=cluster, latency=models, work=work).how

    assert (how("gpu_s"), how("usd")) == ("prefill actor", "none")


def test_dollars_without_a_price_are_refused():
    with refused(solver.PlanningError, "usd_per_gpu_hour"):
        found(solver.Objective(cost="usd"), cluster=solver.Cluster(2, 8, 2))


def test_over_scenarios_the_tail_decides():
    """The mean of the worst scenarios, not of all, misses the deadline without a prefill actor."""
    lengths = np.stack([np.full(32, n) for n in (20, 20, 20, 40)])
    work = solver.Workload(WORK.prompt_tokens, WORK.prompt_of, lengths, max_response_tokens=256)
    plan = assemble("split", np.arange(32).reshape(16, 2).T, solver.PlanningProblem(work, CLUSTER, SPEED))
    worst = solver.evaluate(plan, solver.PlanningProblem(work, CLUSTER, SPEED)).makespans_s.max()
    assert found(solver.Objective(deadline_s=worst * 0.99), plan=plan, work=work).how == "none"
    assert found(solver.Objective(deadline_s=worst * 0.99, cvar_alpha=0.25), plan=plan, work=work).how == "prefill actor"
