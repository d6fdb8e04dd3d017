"""Policies with drafts: another policy's plan on faster actors, and how many tokens are drafted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

from rlhfless.scheduling import PlanningOptions, PolicyError, make_policy, policy_names
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.scheduling.rules import DrainingFold
from rlhfless.scheduling.speculative import Speculative
from solver import Cluster, LatencyModel, PlanningError, PlanningProblem, Workload
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.replanning.replan import Replan
from solver.timing.draft_length import best_length
from solver.timing.drafted_latency import drafted  # fmt: skip

LATENCY = LatencyModel("small", 1, 5e-3, 1e-4, 1e-7, start_s=0.1, max_batch=64)
ACCEPTANCE = Acceptance([0.8, 0.6, 0.4, 0.2])


def problem() -> PlanningProblem:
    lengths = np.random.default_rng(1).integers(20, 300, 96)
    work = Workload([10] * 24, np.repeat(np.arange(24), 4), lengths, max_response_tokens=300)
    return PlanningProblem(work, Cluster(1, 8, 1), LATENCY)


@pytest.mark.parametrize(("name", "length"), [("spec", "adaptive"), ("spec+fold", "adaptive"), ("spec+critical", "critical"),
                                              ("spec-fixed-3", 3), ("spec-fixed-12", 12)])  # fmt: skip
def test_a_name_says_how_many_tokens_are_drafted(name: str, length: str | int) -> None:
    plan = make_policy(name).plan(problem(), PlanningOptions(acceptance=ACCEPTANCE))
    assert plan.policy == name
    assert plan.drafting is not None
    assert plan.drafting.length == length
    assert (plan.rule is not None) == (name == "spec+fold" and len(plan.actors) > 1)
    stored = json.loads(plan.to_json())
    assert stored["drafting"]["length"] == length
    assert stored["drafting"]["drafter"] == "suffix"
    assert stored["predicted_survival"] == ACCEPTANCE.survival.tolist()
    assert f"drafts: {length}" in repr(plan)
    assert not make_policy(name).clairvoyant


def test_actors_are_planned_as_fast_as_drafts_make_them() -> None:
    at_best = replace(problem(), latency=drafted(LATENCY, ACCEPTANCE))
    plan = make_policy("spec").plan(problem(), PlanningOptions(acceptance=ACCEPTANCE))
    assert plan.makespan_s == make_policy("random").plan(at_best, PlanningOptions()).makespan_s
    unknown = make_policy("spec").plan(problem(), PlanningOptions())
    plain = make_policy("random").plan(problem(), PlanningOptions())
    assert unknown.actors == plain.actors
    assert unknown.acceptance is None
    assert "predicted_survival" not in unknown.to_dict()


def test_without_drafts_a_plan_is_stored_as_before() -> None:
    plan = make_policy("random").plan(problem(), PlanningOptions(acceptance=ACCEPTANCE))
    assert plan.drafting is None
    assert not plan.to_dict().keys() & {"drafting", "predicted_survival"}
    assert "drafts" not in repr(plan)


def test_any_policy_can_draft() -> None:
    policy = Speculative(Drafting(length=2), make_policy("oracle"), "oracle with drafts")
    assert policy.clairvoyant
    plan = policy.plan(problem(), PlanningOptions())
    assert plan.policy == "oracle with drafts"
    assert plan.drafting == Drafting(length=2)


def test_reallocation_counts_passes_where_all_responses_accept_alike() -> None:
    """Rules that fold or rank by remaining tokens get the latency model with drafts. One of its iterations is one token, and as
    many of them as a pass yields take as long as the pass: remaining tokens are remaining passes, times a constant.
    """
    fast, options = drafted(LATENCY, ACCEPTANCE), PlanningOptions(acceptance=ACCEPTANCE)
    fold = make_policy("spec+fold").plan(problem(), options).rule
    assert isinstance(fold, DrainingFold)
    assert (fold.latency.base_s, fold.latency.per_response_s) == (fast.affine.base_s, fast.affine.per_response_s)
    replan = Speculative(base=SolverReplan(looks_ahead=False)).plan(problem(), options).rule
    assert isinstance(replan, Replan)
    assert (replan.latency.base_s, replan.latency.per_response_s) == (fast.base_s, fast.per_response_s)
    batch, context, passes = 4, 200.0, 30
    length, speedup = best_length(LATENCY, batch, context, ACCEPTANCE)
    tokens = passes * ACCEPTANCE.tokens_per_pass(length)
    assert length > 0
    assert tokens * fast.one_iteration_s(batch, 800) == pytest.approx(
        tokens * LATENCY.one_iteration_s(batch, 800) / speedup, rel=0.03
    )  # fmt: skip


def test_drafts_let_a_fold_wait_longer() -> None:
    """A thin actor gains more from drafts than a full one, so at the same price more of them are kept for as many responses."""
    fast, price = drafted(LATENCY, ACCEPTANCE).affine, 20.0
    shares = [model.per_response_s + 100 * model.per_kv_token_s for model in (LATENCY, fast)]
    rules = [DrainingFold(price, model, 64, 4) for model in (LATENCY, fast)]
    kept = [rule.best_squared(64, share) for rule, share in zip(rules, shares, strict=True)]
    assert kept[1] > 1.2 * kept[0]


@pytest.mark.parametrize("name", ["spec-fixed-0", "spec-fixed-33", "spec-fixed-x", "spec-fixed-N", "speculate"])
def test_other_names_are_refused(name: str) -> None:
    with refused(PolicyError, repr(name)):
        make_policy(name)
    assert name == "spec-fixed-N" or name not in policy_names("drafts")


def test_an_acceptance_that_is_none_is_refused() -> None:
    with refused(PlanningError, "acceptance", "0.7"):
        PlanningOptions(acceptance=0.7)  # type: ignore[arg-type]
