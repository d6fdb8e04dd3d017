"""The benchmark of plans against their execution compares what it says that it compares. How close they are is not asserted."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from benchmark_scripts import emulation_honesty, plan_against_reality
from executor_samples import plan_of, run, uniform_step

from solver.evaluate import evaluate


def row(planned: float, executed: float, drift: float = 1.0) -> dict:
    sides = {"planned": planned, "by_table": planned / 2, "executed": executed}
    return {"actors": 1, "drift": drift, "makespan_s": sides, "gpu_seconds": sides}


def test_errors_are_relative_to_what_was_executed():
    rows = [row(1.1, 1.0), row(0.8, 1.0), row(3.0, 2.0), row(2.0, 2.0)]
    found = plan_against_reality.errors(rows, "makespan_s")
    assert found == pytest.approx({"median": 0.15, "p90": 0.41, "worst": 0.5, "mean_signed": 0.1})
    assert plan_against_reality.errors(rows, "gpu_seconds", "by_table")["worst"] == pytest.approx(0.6)


def test_drift_is_taken_out_of_what_was_executed():
    """Twice as slow a machine took 4 s for what was planned as 2 s, and was measured to take that."""
    rows = [row(2.0, 4.0, drift=2.0)]
    assert plan_against_reality.errors(rows, "makespan_s")["median"] == pytest.approx(0.5)
    assert plan_against_reality.errors(rows, "makespan_s", drift=False)["median"] == pytest.approx(0)


def test_a_row_holds_the_plan_s_and_the_record_s_numbers():
    step = uniform_step([5, 3, 4], start_s=0.2)
    plan = plan_of([(0, 1), (2,)])
    taken = evaluate(plan, step.truth, step.latency)
    record = run(step, plan)
    found = plan_against_reality.compared(plan, record, (taken.makespan_s, taken.gpu_seconds), 1.5)
    assert found["makespan_s"] == pytest.approx({"planned": 0.0, "by_table": 0.7, "executed": 0.7})
    assert found["gpu_seconds"] == pytest.approx({"planned": 0.0, "by_table": 1.3, "executed": 1.3})
    assert (found["actors"], found["drift"]) == (2, 1.5)


def test_steps_differ_and_predictions_are_no_truth():
    steps = [plan_against_reality.step_of(seed) for seed in range(5)]
    assert len({tuple(s.truth.response_tokens) for s in steps}) == 5
    for s in steps:
        assert (s.truth.response_tokens != s.predicted.response_tokens).mean() > 0.5
        assert s.truth.response_tokens.max() <= plan_against_reality.LIMIT
        assert [r.target_tokens for r in s.requests()] == s.truth.response_tokens.tolist()


def test_the_summary_of_emulation_is_of_charged_against_alone():
    sides = dict.fromkeys(("alone_s", "alone_whole_s", "alone_wall_s", "alone_whole_wall_s", "alone_first_s"), 1.0)
    rows = [{**sides, "charged_s": c, "interleaved_s": 2.0, "alone_last_s": 1.0} for c in (1.1, 0.8, 1.0)]
    found = emulation_honesty.summary(rows)
    assert found["charged_s / alone_s"] == pytest.approx({"median": 0.1, "worst": 0.2, "mean_signed": -0.1 / 3})
    assert found["interleaved_s / alone_s"]["median"] == pytest.approx(1)
    assert found["alone_last_s / alone_first_s"]["worst"] == 0


@pytest.mark.full
def test_a_few_steps_are_planned_executed_and_reported(tmp_path, monkeypatch, capsys):
    out = tmp_path / "report.json"
    monkeypatch.setattr("sys.argv", ["plan_against_reality.py", "--steps", "3", "--fast", "--json", str(out)])
    plan_against_reality.main()
    result = json.loads(out.read_text())
    assert set(result["versions"]) == {"python", *plan_against_reality.PACKAGES}
    printed = capsys.readouterr().out
    for what in ("makespan_s", "gpu_seconds"):
        signed = np.array([r[what]["planned"] / r[what]["executed"] - 1 for r in result["known"]])
        found = result["errors"][what]["known lengths"]
        assert len(signed) == 3
        assert found["median"] == pytest.approx(np.median(np.abs(signed)))
        assert found["mean_signed"] == pytest.approx(signed.mean())
        assert f"{what}, known lengths: error median {found['median']:.1%}" in printed
    for r in (*result["known"], *result["predicted"]):
        executed = r["makespan_s"]["executed"], r["gpu_seconds"]["executed"]
        assert 0 < executed[0] <= executed[1] <= executed[0] * r["actors"]
        assert r["drift"] > 0
        assert math.isfinite(r["makespan_s"]["planned"])
