"""The side-by-side benchmark counts, charges, resamples and bounds as it says, on a log of a few responses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlhfless.scheduling import make_policy
from rlhfless.simulate import SimulationConfig, logged_steps, simulate
from rlhfless.trace import validate
from solver import Cluster, LatencyModel, Objective
from solver.bounds.headroom import summed_bounds
from solver.bounds.schedules import ScheduleBound
from solver.model.problem import PlanningProblem

LATENCY = LatencyModel("small", 1, 5e-3, 4e-4, 1e-7, prefill_per_token_s=1e-5, start_s=0.1, transfer_base_s=1e-3, max_batch=16)
SETTING = SimulationConfig(Cluster(1, 4, 1), LATENCY, Objective(0.7), max_response_tokens=400)
NAMES = ["random", "random+tau", "fold", "solver", "oracle", "not yet there"]


@pytest.fixture
def comparison(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import policy_comparison

    return policy_comparison


@pytest.fixture
def benchmark_script(comparison):
    import policies

    return policies


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    mean = rng.normal(4.2, 0.8, 12)
    return validate(
        "rollouts",
        [
            {
                "run": "r", "step": 2 * visit + p % 2, "prompt_id": f"p{p}", "sample": s, "prompt_tokens": 20 + p,
                "response_tokens": int(np.clip(np.exp(mean[p] + rng.normal(0, 0.3)), 1, 400)), "finish_reason": "stop",
            }
            for visit in range(2) for p in range(12) for s in range(3)
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def steps(log):
    return [s for s in logged_steps(log, max_response_tokens=400) if s.has_history]


def test_sums_are_those_of_simulate(comparison, log, steps):
    """The same steps by another way: GPU-seconds, idleness and bound to the digit, time up to what planning took."""
    known = NAMES[:-1]
    result = comparison.compare(steps, SETTING, NAMES)
    assert result.policies == known  # what is not registered is left out
    table = simulate(log, SETTING, known, steps=[2, 3]).table.groupby("policy").sum(numeric_only=True)
    for name, own in zip(known, result.runs.sum(axis=0), strict=True):
        row = dict(zip(comparison.NUMBERS, own, strict=True))
        assert row["planning_s"] > 0
        if name != "solver":  # which folds where it plans nothing
            assert (row["deciding_s"] > 0) == (name in ("random+tau", "fold"))
        assert row["time_s"] - row["planning_delay_s"] - row["deciding_s"] == pytest.approx(table.loc[name, "time_s"])
        for number in ("gpu_seconds", "idle_gpu_seconds", "bound_gpu_seconds", "moves"):
            assert row[number] == pytest.approx(table.loc[name, number], abs=1e-9), number
        assert row["planning_delay_s"] == row["planning_s"]
    overlapped = comparison.compare(steps, SETTING, known[:1], overlap_s=1e6).runs.sum(axis=(0, 1))
    charged = dict(zip(comparison.NUMBERS, overlapped, strict=True))
    assert charged["planning_s"] > 0
    assert (charged["planning_delay_s"], charged["deciding_s"]) == (0.0, 0.0)
    assert charged["time_s"] == pytest.approx(table.loc[known[0], "time_s"])
    rows = {row["policy"]: row for row in result.rows()}
    assert rows["random"]["value"] == 1.0
    assert all(rows["bound"]["value"] <= row["value"] for row in rows.values())
    assert all(row["over_bound"] >= 1 for row in rows.values())
    json.dumps(list(rows.values()), allow_nan=False)


def test_the_rows_of_the_bound_are_never_above_the_curve(comparison, steps):
    bound = ScheduleBound(PlanningProblem(steps[0].truth, SETTING.cluster, LATENCY, admission="preempt"))
    times_s = np.geomspace(bound.shortest_s(), 100, 5000)
    gpu_s = [bound.gpu_seconds(time_s) for time_s in times_s]
    for weight in (0.2, 0.7, 1.0):
        best = summed_bounds([bound.curve(*comparison.GRID)], weight)
        assert best.gpu_s == pytest.approx(bound.gpu_seconds(best.time_s * (1 + 1e-9)), rel=1e-6)
        on_curve = times_s**weight * np.array(gpu_s) ** (1 - weight)
        assert best.value <= on_curve.min()
        assert best.value >= 0.98 * on_curve.min()


def test_a_resample_keeps_prompts_whole_and_is_drawn_for_everyone_alike(comparison, steps):
    step = steps[0]
    one, two = (comparison.resampled(step, np.random.default_rng(3)) for _ in range(2))
    assert one.truth.response_tokens.tolist() == two.truth.response_tokens.tolist()
    assert len(one.truth) == len(step.truth)
    groups = {tuple(step.truth.response_tokens[step.truth.prompt_of == p]) for p in range(6)}
    for p in range(6):
        own = one.truth.prompt_of == p
        assert tuple(one.truth.response_tokens[own]) in groups
        assert one.predicted.scenarios[:, own].shape == (8, 3)
    assert [r.target_tokens for r in one.requests()] == one.truth.response_tokens.tolist()


@pytest.mark.full
@pytest.mark.parametrize("replicates", [0, 4])
def test_intervals_are_paired_and_verdicts_follow_from_them(comparison, steps, replicates):
    result = comparison.compare(steps, SETTING, NAMES, draws=2, replicates=replicates)
    assert len(result.runs) == 4
    for row in result.rows()[:-1]:
        if row["policy"] in comparison.RESAMPLED or not replicates:
            assert row["low"] <= row["value"] <= row["high"]
        else:  # only the rivals and the solver's policies run on resampled prompts
            assert (row["low"], row["high"]) == (None, None)
    assert result.ratio("fold", "fold") == (1.0, 1.0, 1.0)
    for of in ("time_s", "gpu_seconds"):
        ratio, low, high = result.ratio("fold", "random", of)
        own = [row[of] for name in ("fold", "random") for row in result.rows() if row["policy"] == name]
        assert ratio == pytest.approx(own[0] / own[1])
        assert low <= ratio <= high
    json.dumps(result.rows(), allow_nan=False)
    forth, back = result.ratio("oracle", "random"), result.ratio("random", "oracle")
    assert forth[0] * back[0] == pytest.approx(1.0)
    for sentence in result.verdicts():
        policy, rest = sentence.split(" ", 1)
        low, high = (float(x) for x in sentence[sentence.index("[") + 1 : -1].split(", "))
        assert policy == "solver"
        assert ("beats" in rest) <= (high <= 1)
        assert ("loses to" in rest) <= (low >= 1)


def test_planning_with_another_latency_changes_plans_and_not_what_is_charged(comparison, benchmark_script, steps):
    """A planner that thinks an iteration costs next to nothing starts more actors; the same plan costs the same."""
    wrong = replace(SETTING, planned_latency=replace(LATENCY, base_s=1e-5, start_s=0.0))
    counts = {}
    for name, setting in (("true", SETTING), ("wrong", wrong)):
        counts[name] = len(make_policy("random").plan(*steps[0].inputs(setting)).actors)
    assert counts["wrong"] > counts["true"]
    fixed = [comparison.compare(steps, s, ["random", "static"]).runs[:, 1, 1] for s in (SETTING, wrong)]
    assert fixed[0].tolist() == fixed[1].tolist()
    off = benchmark_script.off(LATENCY, 0.2)
    assert (off.base_s, off.per_response_s) == (pytest.approx(6e-3), pytest.approx(3.2e-4))


def test_logs_that_are_not_there_are_skipped_in_one_sentence(benchmark_script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark_script, "DATA", tmp_path)
    assert list(benchmark_script.available(["gsm8k", "math500"])) == []
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "gsm8k is skipped: its data folder is not beside the project (../shared/data)."
    assert len(said) == 2


def test_the_script_prints_a_table_and_writes_its_rows(benchmark_script, monkeypatch, log, tmp_path, capsys):
    monkeypatch.setattr(benchmark_script, "LOGS", {"tiny": lambda: benchmark_script.Log(log, 400, "a few responses")})
    file = tmp_path / "rows.json"
    benchmark_script.main(["--fast", "--logs", "tiny", "--policies", "random", "fold", "solver", "--json", str(file)])
    said = capsys.readouterr().out
    assert "tiny (a few responses; 1 steps x 1 draws), l40s-qwen2.5-3b-tp2, 16 GPUs" in said
    rows = json.loads(file.read_text())
    assert [row["policy"] for row in rows] == ["random", "fold", "solver", "bound"]
    assert "| policy |" not in said
    assert all(math.isfinite(row["value"]) for row in rows)


def row_of(policy, value, low, high, **more):
    row = {"policy": policy, "actors": 4.0, "value": value, "low": low, "high": high, "generation_value": value}
    return {**row, "time_s": 20.0, "gpu_seconds": 300.0, "against": None, **more}


def test_tables_mark_what_is_told_apart_and_nothing_else(benchmark_script):
    import policy_tables

    better, worse, open_ = (0.9, 0.8, 0.99), (1.1, 1.01, 1.2), (0.98, 0.9, 1.1)
    ratios = {
        "random": {"value": better, "time_s": better, "gpu_seconds": worse},
        "random+tau": {"value": open_, "time_s": better, "gpu_seconds": open_},
        "fold": {"value": worse, "time_s": open_, "gpu_seconds": open_},
    }
    ours = row_of("solver", 0.9, 0.8, 0.99, against=ratios, generation_value=0.89)
    rows = [row_of("random", 1.0, 1.0, 1.0), row_of("static", 1.2, None, None), row_of("fold", 1.1, 1.01, 1.2), ours]
    values, times, against, said = policy_tables.markdown(
        [
            policy_tables.Column(
                "math500", "l40s-x", 0.2, [*rows, {"policy": "bound", "time_s": 9, "gpu_seconds": 99, "value": 0.5}]
            )
        ]
    ).split("\n\n")
    assert values.splitlines()[0] == "| policy | MATH-500, L40S off by 20 % |"
    assert values.splitlines()[2:] == [
        "| random | 1.000 |", "| static | 1.200 |", "| fold | *1.100* |", "| solver | **0.900** (0.890) |", "| bound | 0.500 |",
    ]  # fmt: skip
    assert "| 20.00 +rt / 300 -r |" in times
    assert against.splitlines()[2].split(" | ")[1:4] == [
        "**0.900** [0.800, 0.990]", "0.980 [0.900, 1.100]", "*1.100* [1.010, 1.200]",
    ]  # fmt: skip
    assert said.splitlines()[2] == (
        "- `solver` against fold: better in 0 of 1 rows, worse in 1, else not told apart; ratios 1.100 to 1.100."
    )


def test_every_policy_is_given_the_workload_as_new(comparison, steps):
    """What one policy works out and keeps with the workload (its scenarios one by one) is no gift to the next."""
    seen = []

    class Watching:
        name, clairvoyant = "watching", False

        def plan(self, problem, options):
            assert not {"_sampled", "remaining_tokens", "context_tokens"} & vars(problem.workload).keys()
            seen.append(problem.workload)
            return make_policy("random").plan(problem, options)

    bound = ScheduleBound(PlanningProblem(steps[0].truth, SETTING.cluster, SETTING.latency, admission="preempt"))
    for _ in range(2):
        comparison.run(steps[0], Watching(), SETTING, bound, 0.0)
    assert seen[0] is not seen[1]
