"""The planner on two public logs: GRPO on GSM8K (second visit of 128 prompts, 8 samples) and MATH-500 (4k cap)."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from solver_strategies import l40s

import solver

DATA = Path(__file__).parents[3].parent / "shared" / "data"
CLUSTER = solver.Cluster(3, 8, 2)


def rows(name: str) -> list[dict[str, str]]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"the public log {name} is not beside this checkout")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gsm8k() -> solver.Workload:
    log = [row for row in rows("grpo-gsm8k-lengths/areal_s0_lengths.csv") if row["visit"] == "1"]
    owner = np.array([int(row["prompt_index"]) for row in log])
    return solver.Workload(np.full(owner.max() + 1, 100), owner, [int(row["response_tokens"]) for row in log], 0, 512)


def math500() -> solver.Workload:
    log = [
        row for row in rows("reasoning-eval-lengths/response_lengths.csv")
        if row["benchmark"] == "math500" and row["run"].startswith("base") and row["max_tokens"] == "4096"
    ]  # fmt: skip
    tokens = [min(4096, int(row["response_tokens"])) for row in log]
    return solver.Workload(np.full(len(tokens), 100), np.arange(len(tokens)), tokens, 0, 4096)


@pytest.mark.parametrize(("log", "responses"), [(gsm8k, 1024), (math500, 500)])
@pytest.mark.parametrize(("slots", "widest_gap"), [(64, 0.25), (256, 0.1), (1024, 0.005)])
def test_bound_value_and_right_sized_random_split_in_this_order(log, responses, slots, widest_gap, record_property):
    workload = log()
    assert len(workload) == responses
    plan = solver.plan(solver.PlanningProblem(workload, CLUSTER, l40s(max_batch=slots)))
    record_property("gap", plan.gap)
    print(f"{log.__name__}, {slots} slots: value {plan.value:.4f}, gap {plan.gap:.2%}, {len(plan.actors)} actors")
    assert 0 < plan.lower_bound <= plan.value < 1.0 == pytest.approx(plan.history[0].value)
    assert plan.gap <= widest_gap  # wide where slots are refilled: the relaxation knows them on average only
