"""What a plan on several kinds of GPUs says about who found and who proved it."""

from __future__ import annotations

import itertools
import json
import math
import time

import numpy as np
import pytest
from solver_strategies import lognormal_workload, plan_generation

import solver
from solver.planning.history import SearchHistory

POOLS = (
    solver.GpuPool("slow", 2, 8, usd_per_gpu_hour=1.0), solver.GpuPool("fast", 1, 8, usd_per_gpu_hour=3.0),
)  # fmt: skip
MODELS = {
    (kind, gpus): solver.LatencyModel(f"{kind}{gpus}", gpus, base_s / gpus**0.7, 2e-5, 3e-8, kind=kind, start_s=1.0)
    for kind, base_s in (("slow", 8e-3), ("fast", 4e-3))
    for gpus in (1, 2)
}
CAUSES = {"random split", "first fill", "sequences", "linear programme", "rounding", "local search"}
OVER_SCENARIOS = CAUSES | {"other actors", "near the limit", "bounds of the scenarios"}


def plan_of(uncertain: bool, objective: solver.Objective = solver.Objective(0.7)) -> solver.Plan:  # noqa: B008
    work = lognormal_workload(64, 4)
    if uncertain:
        lengths = work.response_tokens * np.random.default_rng(0).lognormal(0, 0.3, (4, len(work)))
        work = solver.Workload(work.prompt_tokens, work.prompt_of, lengths)
    return plan_generation(solver.PlanningProblem(work, solver.MixedCluster(POOLS), MODELS, objective), time_limit_s=1.5)


@pytest.mark.parametrize("uncertain", [False, True])
def test_every_line_moves_value_or_bound_and_names_what_did_it(uncertain):
    plan = plan_of(uncertain)
    assert {line.solver for line in plan.history} <= (OVER_SCENARIOS if uncertain else CAUSES)
    assert plan.history[0].solver == "random split"
    assert (plan.history[-1].value, plan.history[-1].lower_bound) == (plan.value, plan.lower_bound)
    for before, after in itertools.pairwise(plan.history):
        assert after.value < before.value or after.lower_bound > before.lower_bound
        assert after.value <= before.value
        assert after.lower_bound >= before.lower_bound
        assert after.at_s >= before.at_s
        if after.value < before.value:
            assert after.solver not in ("sequences", "linear programme", "bounds of the scenarios")
        if after.lower_bound > before.lower_bound:
            assert after.solver not in ("first fill", "rounding", "local search", "other actors")


def test_over_scenarios_the_search_for_the_predicted_lengths_is_kept_beside_the_history():
    lines = json.loads(plan_of(True).to_json())["notes"]["predicted"]
    assert lines[0]["solver"] == "random split"
    assert {line["solver"] for line in lines} <= CAUSES
    assert lines[-1]["value"] < 1.0


def test_moves_of_one_cause_are_one_line_while_they_are_little_together():
    history = SearchHistory(time.perf_counter())
    for value in (1.0, 0.9):
        history.note("random split" if value == 1.0 else "fill", value, 0.0)
    for k in range(30):
        history.note("local search", 0.9 * (1 - 2e-4 * k), 0.0)
    history.note("sequences", history.lines[-1].value, 1e-12)
    history.note("sequences", history.lines[-1].value, 1e-12)  # nothing moved
    lines = [(line.solver, line.value) for line in history.lines]
    assert [name for name, _ in lines[:2]] == ["random split", "fill"]
    assert {name for name, _ in lines[2:-1]} == {"local search"}
    assert 5 <= len(lines[2:-1]) <= 10  # 29 moves of 0.02 %, the last of them among the lines
    assert lines[-1] == ("sequences", pytest.approx(0.9 * (1 - 2e-4 * 29)))
    assert lines[-2][1] == lines[-1][1]


def test_a_limit_that_nothing_keeps_at_first_has_lines_too():
    history = SearchHistory(time.perf_counter())
    history.note("random split", math.inf, 0.0)
    history.note("sequences", math.inf, 3.0)
    history.note("sequences", math.inf, 3.001)
    history.note("local search", 5.0, 3.001)
    assert [line.solver for line in history.lines] == ["random split", "sequences", "sequences", "local search"]
