"""No step that is executed with drafts lies below the bounds with drafts, on shipped profiles and with every draft length."""

from __future__ import annotations

import numpy as np
import pytest
from solver_strategies import lognormal_workload

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.accepted_runs import DrawnRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from solver.bounds.drafts import DraftedBound
from solver.bounds.schedules import ScheduleBound
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting

ACCEPTANCES = {
    "none": Acceptance([0.0, 0.0]),
    "weak": Acceptance([0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025]),
    "strong": Acceptance([0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22]),
}


def _executed(problem: solver.PlanningProblem, name: str, length: int | str, drawn: DrawnRuns) -> tuple[float, float]:
    """Makespan and GPU-seconds of a policy on engines that draft."""
    cluster, latency = problem.one_kind
    work = problem.workload
    plan = make_policy(name).plan(problem, PlanningOptions())
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    requests = [
        Request(i, p, work.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, work.response_tokens.tolist(), strict=True))
    ]
    drafting = Drafting(max_draft_tokens=drawn.acceptance.max_draft_tokens, length=length)  # type: ignore[arg-type]
    record = run_step(plan, requests, DraftedEngineFactory(drafting, drawn), latency, cluster, admission=problem.admission)
    return record.makespan_s, sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("profile", ["l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1"])
def test_no_executed_step_is_below(profile: str, acceptance: str) -> None:
    latency = load_profile(profile)
    work = lognormal_workload(16, 4, limit=500, mean_log=4.5)
    problem = solver.PlanningProblem(work, solver.Cluster(2, 8, latency.gpus_per_actor), latency, admission="preempt")
    drawn = DrawnRuns(ACCEPTANCES[acceptance], seed=1)
    most = drawn.acceptance.max_draft_tokens
    runs = [drawn.of(i, n).accepted for i, n in enumerate(work.response_tokens.tolist())]
    expected, replayed, without = DraftedBound(problem, drawn.acceptance), DraftedBound(problem, runs), ScheduleBound(problem)
    below_one_token = 0
    for policy in ("random", "oracle"):
        for length in ("adaptive", 1, most):
            time_s, gpu_s = _executed(problem, policy, length, drawn)
            assert replayed.gpu_seconds(time_s) * (1 - 2e-9) <= gpu_s
            assert expected.gpu_seconds(time_s) <= gpu_s * 1.02  # luck of the draws
            below_one_token += int(without.gpu_seconds(time_s) > gpu_s)
    assert (below_one_token > 0) == (acceptance != "none")


def test_responses_that_accept_different_shares_are_bounded_by_their_own_runs() -> None:
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    work = lognormal_workload(16, 4, limit=500, mean_log=4.5)
    problem = solver.PlanningProblem(work, solver.Cluster(2, 8, 2), latency, admission="preempt")
    drawn = DrawnRuns(ACCEPTANCES["weak"], seed=2, spread=0.5)
    runs = [drawn.of(i, n).accepted for i, n in enumerate(work.response_tokens.tolist())]
    bound = DraftedBound(problem, runs)
    costs = np.array([_executed(problem, "oracle", length, drawn) for length in ("adaptive", 4)])
    for time_s, gpu_s in costs:
        assert 0.3 * gpu_s < bound.gpu_seconds(time_s) <= gpu_s
