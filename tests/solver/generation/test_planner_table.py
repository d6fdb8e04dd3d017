"""The table of the planner's benchmark compares plans as it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import solver


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import planner_table

    return planner_table


@pytest.fixture
def problems(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import planner_problems

    return planner_problems


def test_a_row_counts_ratios_gaps_and_lost_plans(table):
    def plan(value, bound=1.0, cpu_s=1.0):
        return table.Measured(value, None if value is None else bound, cpu_s, 1)

    before = {"equal": plan(2.0), "worse": plan(2.0), "lost": plan(2.0), "found": plan(None), "never": plan(None)}
    now = {"equal": plan(2.0), "worse": plan(4.0, cpu_s=6.0), "lost": plan(None), "found": plan(2.0), "never": plan(None)}
    cells, said = table.compared("row", now, before)
    assert dict(zip(table.HEAD, cells, strict=True)) == {
        "row": "row", "problems": "5", "value": "1.5000 (1.000 to 2.000)", "above 1.005, 1.01": "1, 1", "lost, found": "1, 1",
        "gap": "50.00% -> 62.50%", "CPU s": "1.00 -> 2.00", "most CPU s": "6.00", "realised": "-",
    }  # fmt: skip
    assert [sentence for sentence in said if "lost" in sentence] == ["row: lost lost"]
    assert any("worse" in sentence for sentence in said)


def test_a_row_without_an_earlier_one_compares_nothing(table):
    cells, said = table.compared("row", {"a": table.Measured(2.0, 1.0, 1.0, 1)}, {})
    assert dict(zip(table.HEAD, cells, strict=True))["value"] == "-"
    assert said == []


def test_what_was_stored_is_read_as_it_was(table, tmp_path):
    case = next(table.ROWS["small"](table.Limits(solver.plan)))
    measured = table.measure(case, quick=True)
    path = tmp_path / "table.json"
    table.write(path, {"small": {case.name: vars(measured)}}, {"a": (1.0, 2.0)}, True)
    rows, limits = table.read(path)
    assert rows == {"small": {case.name: measured}}
    assert limits == {"a": (1.0, 2.0)}


def test_limits_are_relative_to_the_fastest_and_the_cheapest_plan(problems):
    base = next(problems.ROWS["small"](problems.Limits(solver.plan)))
    limits = problems.Limits(solver.plan)
    late, dear = limits.cases(base, (0.5,), (0.25,))
    fastest = solver.plan(replace(base.problem, objective=solver.Objective(1.0)))
    cheapest = solver.plan(replace(base.problem, objective=solver.Objective(0.0)))
    assert late.problem.objective.deadline_s == pytest.approx(1.5 * fastest.makespan_s)
    assert dear.problem.objective.budget_gpu_s == pytest.approx(1.25 * cheapest.gpu_seconds)
    told = problems.Limits(solver.plan, {base.name: (10.0, 20.0)})
    assert [case.problem.objective.deadline_s for case in told.cases(base, (0.5,), ())] == [15.0]


def test_the_stored_table_has_the_problems_of_every_row_but_those_of_public_logs(table, problems):
    path = Path(problems.__file__).parent / "results" / "planner_table_before.json"
    before, known = table.read(path)
    limits = problems.Limits(solver.plan, known)
    assert set(before) == set(problems.ROWS)
    for row in ("options", "small", "tight", "limits_small", "fresh_one"):
        assert {case.name for case in problems.ROWS[row](limits)} == set(before[row])
