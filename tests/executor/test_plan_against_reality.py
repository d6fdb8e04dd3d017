"""The benchmark of plans against their execution compares what it says that it compares. How close they are is not asserted."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from benchmark_scripts import emulation_honesty, plan_against_reality
from executor_samples import plan_of, run, uniform_step

from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal, Replayed
from solver.model.latency import LatencyModel
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate


def row(planned: float, executed: float, drift: float = 1.0) -> dict:
    sides = {"planned": planned, "by_table": planned / 2, "executed": executed, "without_drift": executed / drift}
    parts = {part: {"planned": planned, "executed": executed} for part in plan_against_reality.PARTS}
    return {"actors": 1, "drift": drift, "makespan_s": sides, "gpu_seconds": sides, "parts": parts}


def test_errors_are_relative_to_what_was_executed():
    rows = [row(1.1, 1.0), row(0.8, 1.0), row(3.0, 2.0), row(2.0, 2.0)]
    found = plan_against_reality.errors(rows, "makespan_s")
    assert found == pytest.approx({"median": 0.15, "p90": 0.41, "worst": 0.5, "mean_signed": 0.1})
    assert plan_against_reality.errors(rows, "gpu_seconds", "by_table")["worst"] == pytest.approx(0.6)


def test_drift_is_taken_out_of_what_was_executed():
    """Twice as slow a machine took 4 s for what was planned as 2 s, and was measured to take that."""
    found = plan_against_reality.report([row(2.0, 4.0, drift=2.0)], [row(3.0, 4.0)])
    for what in ("makespan_s", "gpu_seconds"):
        medians = {side: x["median"] for side, x in found[what].items()}
        assert list(medians.values()) == pytest.approx([0.5, 0, 0.5, 0.25])


def test_shares_of_parts_are_of_all_that_was_executed() -> None:
    found = plan_against_reality.shares([row(1.0, 2.0), row(3.0, 2.0), row(4.0, 2.0)])
    assert found == pytest.approx(dict.fromkeys(plan_against_reality.PARTS, 2 / 12))


class Fixed:
    """In place of a torch factory: simulated engines whose journals are made up, and replays that take what the test says."""

    def __init__(self, seconds: list[np.ndarray]) -> None:
        self.seconds = seconds

    def replay(self, journal: EngineJournal) -> Replayed:
        return Replayed(self.seconds.pop(0), 0.0)


def journal_of(latency: LatencyModel) -> EngineJournal:
    """Two join with 5 and 3 tokens; one ends after 3 iterations, and a third joins with 4 tokens for one more."""
    journal = EngineJournal(2)
    journal.change(2, 8, [AdmittedResponse(0, 5, 0, True), AdmittedResponse(1, 3, 0, True)], rows=2, width=5)
    for k in range(4):
        if k == 3:
            journal.leave([1])
            journal.change(2, 12, [AdmittedResponse(2, 4, 0, True)], rows=2, width=8)
        prefill_s = float(latency.prefill_s([8, 0, 0, 4][k])) if k in (0, 3) else 0.0
        decode_s = float(latency.iteration_s(2, [8, 10, 12, 12][k])) + latency.join_s * [2, 0, 0, 1][k]
        journal.commit(0.0, prefill_s, [decode_s], 0.0)
    return journal


def test_planned_seconds_are_what_engines_are_charged() -> None:
    latency = LatencyModel("x", 1, 1.0, 0.1, 0.01, prefill_base_s=0.5, prefill_per_token_s=0.02, join_s=0.3)
    journal = journal_of(latency)
    seconds, part = plan_against_reality.planned_seconds(journal, latency)
    assert seconds == pytest.approx(np.add(journal.prefill_s, journal.decode_s))
    assert [plan_against_reality.PARTS[i] for i in part] == ["around changes"] * 4
    executed = np.stack([np.zeros(4), 2 * seconds], axis=1)
    parts = plan_against_reality.parts_of([(journal, Replayed(executed, 0.0), 2.0)], latency)
    assert parts["around changes"] == pytest.approx({"planned": seconds.sum(), "executed": seconds.sum()})
    assert parts["unchanged"] == {"planned": 0.0, "executed": 0.0}


def test_a_step_is_retold_with_the_seconds_of_every_replay_without_its_drift() -> None:
    journal = journal_of(LatencyModel("x", 1, 1.0, 0.1))
    slower = iter([1.0, 3.0, 5.0])
    beside = plan_against_reality.Beside(Fixed([np.full((4, 2), 2.0), np.full((4, 2), 8.0)]), lambda: next(slower))
    assert [beside.replay(journal).seconds[0, 0] for _ in range(2)] == [2.0, 8.0]
    again = plan_against_reality.Again(Fixed([]), beside.replays)
    assert [again.replay(journal).seconds.tolist() for _ in range(2)] == [[[1.0, 1.0]] * 4, [[2.0, 2.0]] * 4]


def test_a_row_holds_the_plan_s_and_the_record_s_numbers():
    step = uniform_step([5, 3, 4], start_s=0.2)
    plan = plan_of([(0, 1), (2,)])
    taken = evaluate(plan, PlanningProblem(step.truth, step.cluster, step.latency))
    record, retold = run(step, plan), run(uniform_step([5, 3, 4], start_s=0.1), plan)
    found = plan_against_reality.compared(plan, record, retold, (taken.makespan_s, taken.gpu_seconds), 1.5)
    assert found["makespan_s"] == pytest.approx({"planned": 0.0, "by_table": 0.7, "executed": 0.7, "without_drift": 0.6})
    assert found["gpu_seconds"] == pytest.approx({"planned": 0.0, "by_table": 1.3, "executed": 1.3, "without_drift": 1.1})
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


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_few_steps_are_planned_executed_and_reported(tmp_path, monkeypatch, capsys):
    out = tmp_path / "report.json"
    monkeypatch.setattr("sys.argv", ["plan_against_reality.py", "--steps", "2", "--fast", "--json", str(out)])
    plan_against_reality.main()
    result = json.loads(out.read_text())
    assert set(result["versions"]) == {"python", *plan_against_reality.PACKAGES}
    printed = capsys.readouterr().out
    for what in ("makespan_s", "gpu_seconds"):
        signed = np.array([r[what]["planned"] / r[what]["executed"] - 1 for r in result["known"]])
        found = result["errors"][what]["known lengths"]
        assert len(signed) == 2
        assert found["median"] == pytest.approx(np.median(np.abs(signed)))
        assert found["mean_signed"] == pytest.approx(signed.mean())
        assert f"{what}, known lengths: error median {found['median']:.1%}" in printed
    for r in (*result["known"], *result["predicted"]):
        for side in ("executed", "without_drift"):
            executed = r["makespan_s"][side], r["gpu_seconds"][side]
            assert 0 < executed[0] <= executed[1] <= executed[0] * r["actors"]
        assert r["drift"] > 0
        assert math.isfinite(r["makespan_s"]["planned"])
