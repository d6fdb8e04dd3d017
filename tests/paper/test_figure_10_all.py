"""Figure 10 as whole steps: rows, sums against the comparators, printed lines and the picture, on one small setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

import solver
from rlhfless.paper import OTHER_FIGURES, Numbers, Runs, Sources, chosen
from rlhfless.paper.machine import QWEN_7B_L40S
from rlhfless.paper.whole_step_costs import ChargeOptions, size_variants, step_costs
from rlhfless.paper.whole_step_rows import BOUND, BOUND_SIZED, FAIR, FAIR_SIZED, TOGETHER_SIZED
from rlhfless.paper.whole_step_summary import against_naive, aims, at_most, bounds, fair, half_width, levers, stages
from rlhfless.simulate import SimulationConfig

FIGURE = OTHER_FIGURES["10_all"]
SMALL = {**FIGURE.fast, "algorithms": ("GRPO",), "responses": 24}


@pytest.fixture(scope="module")
def found() -> Numbers:
    return FIGURE.numbers(Runs(Sources(None)), **SMALL)


@pytest.mark.full
def test_no_executed_plan_is_below_the_bound(found: Numbers) -> None:
    steps = found.table[found.table["part"] == "system"]
    together = steps[steps["system"] == "together"]
    bounded = steps[steps["system"].isin(["together", TOGETHER_SIZED])]
    assert (bounded["bound_gpu_s"] <= bounded["gpu_s"] * (1 + 1e-9)).all()
    assert set(together["drafts"]) == {"without", "weak", "strong"}
    published = {"rlhfless", "rlhfuse", "real", "rlhfspec"}
    assert {"naive", "elastic", FAIR, "together", FAIR_SIZED, TOGETHER_SIZED} | published == set(steps["system"])
    means = against_naive(found.table).set_index(["system", "drafts", "objective"])
    assert means.loc[("naive", "without", ""), ["speedup", "cost_saved"]].tolist() == [1.0, 0.0]
    assert (bounds(found.table)["most_speedup"] >= 1).all()
    assert len(fair(found.table)) == 3
    assert list(fair(found.table, any_size=True)) == [(("GRPO", "Qwen2.5-7B", "GSM8K"), "without")]
    own, of_any_size = (bounds(found.table, part).iloc[0] for part in (BOUND, BOUND_SIZED))
    assert of_any_size["saved at 1.35x"] >= own["saved at 1.35x"]
    assert of_any_size["most_speedup"] >= own["most_speedup"]
    assert (levers(found.table)["expected"] >= 0).all()
    assert (stages(found.table) > 0).all()


@pytest.mark.full
def test_without_plans_with_drafts_their_aims_are_not_executed(found: Numbers) -> None:
    plain = found.table[found.table["drafts"].isin(["without"]) | found.table["drafts"].isna()]
    rows = {aim.what: (aim.ours, aim.bound) for aim in aims(plain)}
    drafted = [name for name in rows if "weak drafts" in name or "strong drafts" in name]
    assert drafted
    assert {rows[name] for name in drafted} == {("not executed", "")}
    assert {name: row for name, row in rows.items() if name not in drafted} == {
        aim.what: (aim.ours, aim.bound) for aim in aims(found.table) if aim.what not in drafted
    }
    assert {aim.holds for aim in aims(plain) if aim.what in drafted} == {""}, "no verdict without plans"


@pytest.mark.full
def test_the_command_prints_the_settings_and_writes_the_figure(
    found: Numbers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OTHER_FIGURES, "10_all", replace(FIGURE, numbers=lambda *_, **__: found))
    result = run_rlhfless("figures", "figure_10_all", "--fast", "--pictures", "none", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "GRPO 7B GSM8K (lengths modelled)" in result.output
    assert result.output.count("    together, ") == 6 + 2, "two speeds with every kind of drafts, and with any size of actors"
    assert all(f"    {aim.what} (" in result.output for aim in aims(found.table))
    page = (tmp_path / "out" / "figure_10_all.html").read_text(encoding="utf-8")
    assert "character task" in page
    assert len(pd.read_csv(tmp_path / "out" / "figure_10_all.csv")) == len(found.table)


def test_other_sizes_of_actors_learn_with_as_many_gpu_seconds_and_in_the_layout_of_the_setting() -> None:
    setting = SimulationConfig(QWEN_7B_L40S.cluster, QWEN_7B_L40S.latency)
    costs = step_costs(QWEN_7B_L40S, "GRPO", ChargeOptions())
    predicted = solver.Workload([100], [0, 0], [200, 400])
    found = {one.setting.cluster.gpus_per_actor: one for one in size_variants(QWEN_7B_L40S, costs, setting, predicted)}
    assert set(found) == {1, 2}
    for size, variant in found.items():
        own, charges = variant.token_work, variant.token_work.charges
        assert own.learn_per_token_s * size == pytest.approx(costs.learn_per_token_s * 4)
        assert own.prepare_per_token_s * size == pytest.approx(costs.prepare_per_token_s * 4)
        assert [servers * size for servers in range(1, 17) if charges.fits(servers)] == [4, 8, 12, 16]
        for servers in range(1, 5):
            assert charges.slower(servers * 4 // size) == costs.charges.slower(servers)
            assert charges.finish_s(servers * 4 // size) == costs.charges.finish_s(servers)
            assert charges.loading_s(servers * 4 // size) == costs.charges.loading_s(servers)
        latency = variant.setting.latency
        assert latency.sync_s == pytest.approx(QWEN_7B_L40S.latency.sync_s * 4 / size)
        assert latency.transfer_per_kv_token_s == QWEN_7B_L40S.latency.transfer_per_kv_token_s


def test_between_executed_plans_the_hull_counts_and_one_seed_has_no_interval() -> None:
    points = np.array([[0.8, 1.2], [1.2, 0.8], [1.1, 1.1]])
    assert at_most(points, 1.0) == pytest.approx(1.0)
    assert at_most(points, 2.0) == 0.8
    assert np.isnan(at_most(points, 0.5))
    assert np.isnan(half_width(pd.Series([1.0])))
    assert half_width(pd.Series([1.0, 2.0, 3.0])) == pytest.approx(4.303 / np.sqrt(3))


def test_a_figure_is_named_by_its_file_too_and_seeds_are_checked() -> None:
    assert [figure.name for figure in chosen(["figure_10_all", "figure_02b"])] == ["2b", "10_all"]
    few = run_rlhfless("figures", "10_all", "--seeds", "0", "--pictures", "none")
    assert (few.exit_code, few.stderr) == (2, "rlhfless: --seeds is 0; a whole number of at least 1 is needed\n")
    without = run_rlhfless("figures", "4b", "--seeds", "2", "--pictures", "none")
    assert without.exit_code == 2
    assert "figure '4b' has no seeds" in without.stderr
