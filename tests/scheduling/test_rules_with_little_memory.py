"""Rules that move responses where KV memory binds: what is foreseen knows of queues, true lengths never make a step worse, and
nobody asks again and again whether there is room."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.rules import DrainingFold
from solver import Cluster, LatencyModel, Plan, Workload
from solver.lengths.survival import known_lengths
from solver.model.problem import PlanningProblem
from solver.replanning.lookahead import simulated_busy_s
from solver.replanning.marginal_value import group_by_token_value
from solver.replanning.replan import Replan

LITTLE = LatencyModel(
    "large model", 2, 0.027, 3.4e-5, 1.9e-8, prefill_base_s=0.019, prefill_per_token_s=9e-5, start_s=1.1, sync_s=0.15,
    transfer_base_s=5e-3, transfer_per_kv_token_s=7e-7, kv_capacity_tokens=5500,
)  # fmt: skip
CLUSTER = Cluster(1, 8, 2)
RULES = ("preempt", "reserve")


def long_and_short(seed: int) -> Workload:
    """About 24 responses for each of four actors, that hold between two and nine of them at once."""
    draw = np.random.default_rng(seed)
    median = 600 * np.exp(0.6 * draw.standard_normal((24, 1)))
    lengths = np.clip(median * np.exp(0.3 * draw.standard_normal((24, 4))), 1, 2000).astype(int)
    return Workload.grid(draw.integers(30, 130, 24), lengths, max_response_tokens=2000)


def planned(work: Workload, policy: str, admission: str) -> Plan:
    asked = (PlanningProblem(work, CLUSTER, LITTLE, admission=admission), PlanningOptions())
    return make_policy(policy).plan(*asked)


def executed(plan: Plan, work: Workload, admission: str) -> StepRecord:
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    requests = [
        Request(i, p, work.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, work.response_tokens.tolist(), strict=True))
    ]
    return run_step(plan, requests, SimulatedEngine, LITTLE, CLUSTER, admission=admission)


def value(record: StepRecord) -> float:
    """``T^0.7 C^0.3``."""
    held = sum(a["end_s"] - a["start_s"] for a in record.allocations)
    return math.exp(0.7 * math.log(record.makespan_s) + 0.3 * math.log(held))


@pytest.mark.parametrize("admission", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_true_lengths_and_re_planning_make_no_step_worse(seed, admission):
    work = long_and_short(seed)
    values = {name: value(executed(planned(work, name, admission), work, admission)) for name in ("random", "oracle")}
    replanned = value(executed(planned(work, "oracle+replan", admission), work, admission))
    assert replanned <= 1.05 * min(values.values())


@pytest.mark.parametrize("admission", RULES)
@pytest.mark.parametrize("price", [None, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_queues_are_foreseen(seed, price, admission):
    work = long_and_short(seed)
    plan = Spread().plan(PlanningProblem(work, CLUSTER, LITTLE, admission=admission), PlanningOptions())
    groups = [np.array(a.responses) for a in plan.actors]
    remaining = known_lengths(work)
    left = work.response_tokens.astype(float)
    busy, _ = simulated_busy_s(groups, left, remaining, work, LITTLE, price, admission)
    rule = None if price is None else Replan(remaining, LITTLE, price)
    record = executed(replace(plan, rule=rule), work, admission)
    ready = LITTLE.start_s + LITTLE.sync_s
    assert busy.max() + ready == pytest.approx(record.makespan_s, rel=0.15)
    held = sum(a["end_s"] - a["start_s"] for a in record.allocations)
    assert busy.sum() + ready * len(groups) == pytest.approx(held, rel=0.1)


def test_what_does_not_fit_at_once_is_dealt_so_that_no_actor_gets_all_that_is_valuable():
    worth = np.linspace(9, 1, 40)
    groups = group_by_token_value(np.full(40, 1e-3), worth, 1e-2, 4, 64, np.full(40, 100.0), 300.0)
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    assert np.ptp([worth[g].mean() for g in groups]) < 1.0
    assert all(np.all(np.diff(worth[g]) < 0) for g in groups)


@pytest.mark.parametrize("admission", RULES)
def test_a_fold_that_finds_no_room_waits_for_a_completion(admission, monkeypatch):
    work, asked = long_and_short(0), []
    decide = DrainingFold.decide
    monkeypatch.setattr(DrainingFold, "decide", lambda self, *given: asked.append(1) or decide(self, *given))
    record = executed(planned(work, "fold", admission), work, admission)
    assert sorted(record.completions) == list(range(len(work)))
    assert len(asked) <= 2 * (len(work) + record.moves)
