"""When a step is planned again, and what a new plan moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dataflow_samples import RandomCosts

from solver import Cluster
from solver.dataflow import Layout, Mesh, StepPlan, Strategy, grpo, moved_state_bytes, plan_step, ppo, why_again
from solver.model.errors import PlanningError

CLUSTER = Cluster(1, 4, 1)


@pytest.fixture(scope="module")
def plan() -> StepPlan:
    return plan_step(ppo(), CLUSTER, RandomCosts(1), work=2_000)


def trained_elsewhere(plan: StepPlan, role: str) -> StepPlan:
    new = Layout(Mesh(0, 1), Strategy(1, 1, 1))
    moved = (replace(call, layout=new) if call.kind == "train" and call.role == role else call for call in plan.calls)
    return replace(plan, calls=tuple(moved))


def test_a_plan_stays_until_lengths_move_by_more_than_a_tenth(plan: StepPlan) -> None:
    for tokens, again in ((360, False), (440, False), (441, True), (359, True)):
        assert (why_again(plan, CLUSTER, planned_tokens=400, mean_tokens=tokens) is not None) is again
    assert why_again(plan, CLUSTER, planned_tokens=400, mean_tokens=900) == "mean length 400 -> 900 tokens"


@pytest.mark.parametrize("cluster", [Cluster(2, 4, 1), Cluster(2, 2, 1), Cluster(1, 2, 1)])
def test_other_gpus_need_another_plan(plan: StepPlan, cluster: Cluster) -> None:
    reason = why_again(plan, cluster, planned_tokens=400, mean_tokens=400)
    assert reason == f"GPUs 4 in nodes of 4 -> {cluster.gpus} in nodes of {cluster.gpus_per_node}"


def test_only_trainings_that_moved_move_their_state(plan: StepPlan) -> None:
    parameters = {"actor": 13e9, "critic": 7e9}
    assert moved_state_bytes(plan, plan, parameters) == 0
    both = trained_elsewhere(trained_elsewhere(plan, "actor"), "critic")
    differ = [role for role in parameters if trained_elsewhere(plan, role) != plan]
    assert differ
    for role in differ:
        assert moved_state_bytes(plan, trained_elsewhere(plan, role), parameters) == 20 * parameters[role]
    assert moved_state_bytes(plan, both, parameters) == 20 * sum(parameters[role] for role in differ)


def test_what_makes_no_sense_is_refused(plan: StepPlan) -> None:
    for tokens in (0, -3, float("nan"), "many"):
        with pytest.raises(PlanningError, match="a mean length above 0 is needed"):
            why_again(plan, CLUSTER, planned_tokens=400, mean_tokens=tokens)  # type: ignore[arg-type]
    with pytest.raises(PlanningError, match="parameters of 'critic' are None"):
        moved_state_bytes(plan, plan, {"actor": 1e9})
    other = plan_step(grpo(), CLUSTER, RandomCosts(1), work=2_000)
    with pytest.raises(PlanningError, match="plans of one algorithm are needed"):
        moved_state_bytes(plan, other, {"actor": 1e9, "critic": 1e9})
