"""A prompt's samples together or split: both are planned, prefill deduplicated, and the better is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from solver_strategies import l40s, plan_generation

import solver

CLUSTER = solver.Cluster(2, 8, 2)
QUICK_S = 0.19
DEAR = l40s(prefill_per_token_s=1e-3, transfer_per_kv_token_s=1e-2, start_s=0.1)  # sending is dearer than computing


def work(prompt_tokens: int, ragged: bool, prompts: int = 8) -> solver.Workload:
    """Prompts of equal groups, or with one group of longer responses."""
    lengths = np.full((prompts, 4), 100)
    if ragged:
        lengths[0] = 400
    return solver.Workload.grid(np.full(prompts, prompt_tokens), lengths, max_response_tokens=512)


def chosen(asked, latency, objective, min_actors=1, **sharing) -> solver.Plan:
    problem = solver.PlanningProblem(asked, CLUSTER, latency, objective, min_actors=min_actors)
    return solver.together_or_split(problem, time_limit_s=2 * QUICK_S, deterministic=True, **sharing)


def by_hand(asked, latency, objective, together, **prefill) -> float:
    """The value of one way, with the reference of the split plan."""
    plan = plan_generation(
        solver.PlanningProblem(asked, CLUSTER, latency, objective, keep_together=together, share_prefill=True),
        time_limit_s=QUICK_S,
    )
    shared = solver.deduplicate(plan, solver.PlanningProblem(asked, CLUSTER, latency, objective), **prefill).plan
    return objective.value(shared.makespan_s, shared.gpu_seconds, plan.reference.norms("gpu_s"))


@pytest.mark.parametrize("time_weight", [0.2, 1.0])
@pytest.mark.parametrize("prompt_tokens", [0, 1000])
def test_the_better_of_both_is_kept(prompt_tokens, time_weight):
    asked, objective = work(prompt_tokens, ragged=True), solver.Objective(time_weight)
    plan = chosen(asked, DEAR, objective)
    samples = plan.notes["samples"]
    for name, together in (("split", False), ("together", True)):
        assert samples[name] == pytest.approx(by_hand(asked, DEAR, objective, together), rel=2e-2)
    assert plan.value == samples[samples["kept"]] == min(samples["split"], samples["together"])
    assert objective.value(plan.makespan_s, plan.gpu_seconds, plan.reference.norms("gpu_s")) == pytest.approx(plan.value)
    assert [line.solver.split(",")[0] for line in plan.history[-2:]] == ["split", "together"]
    assert plan.history[-1].value == plan.value
    assert plan.lower_bound is None


def test_long_prompts_stay_together_and_long_groups_are_split():
    """Where prompts are dear to compute and to send they are computed on one actor; where they are free, time is all."""
    even = chosen(work(1000, ragged=False), DEAR, solver.Objective(0.5), min_actors=8)
    assert len({p for a in even.actors for p in a.prompts}) == sum(len(a.prompts) for a in even.actors) == 8
    slots = replace(DEAR, max_batch=2)  # a whole group takes twice as long as its half
    fast = chosen(work(0, ragged=True), slots, solver.Objective(1.0), min_actors=8)
    assert fast.notes["samples"]["kept"] == "split"
    assert fast.notes["samples"]["split"] < 0.9 * fast.notes["samples"]["together"]


def test_links_decide_whether_split_samples_share_a_prefill():
    """A split plan with a learner that computes all prompts, over links that are fast enough, beats one over slow ones."""
    fast = l40s(prefill_per_token_s=1e-3, transfer_per_kv_token_s=1e-8, start_s=0.1)
    values = [
        chosen(work(1000, ragged=True), latency, solver.Objective(0.0), learner_node=0).notes["samples"]["split"]
        for latency in (fast, DEAR)
    ]
    assert values[0] < values[1]


def test_a_limit_that_one_way_cannot_keep_leaves_the_other():
    slots = replace(DEAR, max_batch=2)
    asked = work(0, ragged=True, prompts=4)
    split = plan_generation(solver.PlanningProblem(asked, CLUSTER, slots, solver.Objective(1.0)), time_limit_s=QUICK_S)
    deadline = solver.Objective(deadline_s=1.05 * split.makespan_s)
    with pytest.raises(solver.PlanningError):
        plan_generation(solver.PlanningProblem(asked, CLUSTER, slots, deadline, keep_together=True), time_limit_s=QUICK_S)
    plan = chosen(asked, slots, deadline)
    assert plan.notes["samples"]["kept"] == "split"
    assert plan.makespan_s <= deadline.deadline_s
    with refused(solver.PlanningError):
        chosen(asked, slots, solver.Objective(deadline_s=1e-3))


def test_what_makes_no_sense_is_refused():
    for arguments, named in (({"learner_node": 9}, "learner_node"), ({"time_limit_s": "2"}, "time_limit_s")):
        problem = solver.PlanningProblem(work(10, False), CLUSTER, DEAR)
        with refused(solver.PlanningError, named):
            solver.together_or_split(problem, **arguments)
