"""The right-sized split of a large workload whose KV memory binds: its lower bounds know nothing of that."""

from __future__ import annotations

import numpy as np
import pytest

import solver.reference as reference
from solver import Cluster, LatencyModel, Objective, StepRest, Workload, evaluate
from solver.reference import random_split, sizing_key

LITTLE = LatencyModel("little", 1, 0.03, 3e-5, 2e-8, prefill_per_token_s=1e-5, start_s=2.0, kv_capacity_tokens=4000)
CLUSTER = Cluster(8, 8, 1)


def workload() -> Workload:
    lengths = np.clip(np.random.default_rng(0).lognormal(5.0, 0.6, (100, 4)), 1, 600).astype(int)
    return Workload.grid(np.full(100, 100), lengths, response_limit=600)


def value(actors: int | None, objective: Objective) -> tuple[float, float]:
    plan = random_split(workload(), CLUSTER, LITTLE, objective, actors=actors)
    took = evaluate(plan, workload(), LITTLE)
    return sizing_key(np.array([took.makespan_s]), np.array([took.gpu_seconds]), objective)


@pytest.mark.parametrize("objective", [Objective(0.7), Objective(0.3), Objective(deadline_s=120.0)])
def test_it_is_close_to_the_best_of_all_counts(monkeypatch, objective):
    best = value(None, objective)
    monkeypatch.setattr(reference, "EXACT_RESPONSES", 50)
    chosen = value(None, objective)
    if objective.limited:
        assert chosen[0] == best[0] == 0
        assert chosen[1] <= 1.3 * best[1]
    else:
        assert chosen[1] <= best[1] + 0.1


def test_it_is_one_count_that_is_timed_where_bounds_are_close(monkeypatch):
    """What a large workload takes to be right-sized stays as it was where memory is enough."""
    monkeypatch.setattr(reference, "EXACT_RESPONSES", 50)
    counted = []
    busy_s = reference.GroupTimes.busy_s

    def noting(self, edges, how="exact"):
        counted.append(how)
        return busy_s(self, edges, how) if how != "exact" else busy_s(self, edges)

    monkeypatch.setattr(reference.GroupTimes, "busy_s", noting)
    enough = LatencyModel("enough", 1, 0.03, 3e-5, 2e-8, prefill_per_token_s=1e-5, start_s=2.0, kv_capacity_tokens=10**7)
    random_split(workload(), CLUSTER, enough, Objective(0.7), StepRest())
    assert counted.count("exact") == 1
