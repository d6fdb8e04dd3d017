"""Policies with drafts: another policy's plan on faster actors, and how many tokens are drafted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused

from rlhfless.scheduling import DRAFTING_POLICIES, PlanningOptions, PolicyError, make_policy
from rlhfless.scheduling.speculative import Speculative
from solver import Acceptance, Cluster, Drafting, LatencyModel, PlanningError, PlanningProblem, Workload, drafted

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


@pytest.mark.parametrize("name", ["spec-fixed-0", "spec-fixed-33", "spec-fixed-x", "spec-fixed-N", "speculate"])
def test_other_names_are_refused(name: str) -> None:
    with refused(PolicyError, repr(name)):
        make_policy(name)
    assert name == "spec-fixed-N" or name not in DRAFTING_POLICIES


def test_an_acceptance_that_is_none_is_refused() -> None:
    with refused(PlanningError, "acceptance", "0.7"):
        PlanningOptions(acceptance=0.7)  # type: ignore[arg-type]
