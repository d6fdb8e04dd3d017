"""ReaL's main figure: its published settings are facts, one node is planned here, and the findings say what may be claimed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

from rlhfless.paper import OTHER_FIGURES, Numbers, Runs, Sources, real_fit, real_main, real_settings
from rlhfless.paper.real_fit import FITTED

FIGURE = OTHER_FIGURES["real_main"]
SMALL = {**FIGURE.fast, "most_gpus": 8, "work": 4_000}


@pytest.fixture(scope="module")
def found() -> Numbers:
    return FIGURE.numbers(Runs(Sources(None)), **SMALL)


def test_the_published_settings_are_those_of_the_paper() -> None:
    settings = real_settings()
    assert len(settings) == 36
    assert [one.published_gain > 1 for one in settings] == [True] * 36
    gains, gpus = [one.published_gain for one in settings], [one.gpus for one in settings]
    assert np.average(gains, weights=gpus) == pytest.approx(1.26, abs=0.005)  # the 26 % of its abstract
    assert all(one.responses * (128 + one.response_tokens) == 1 << 17 for one in settings)


def test_models_grow_with_the_gpus() -> None:
    models = {(one.scaled, one.gpus): one.models for one in real_settings()}
    assert models["actor", 64] == {
        "actor": "llama2-70b",
        "critic": "llama2-7b",
        "reference": "llama2-70b",
        "reward": "llama2-7b",
    }
    assert models["critic", 16]["reward"] == "llama2-13b"
    assert set(models["both", 16].values()) == {"llama2-7b"}
    assert set(models["both", 128].values()) == {"llama2-70b"}


def test_one_node_is_planned_faster_than_megatrons_rule(found: Numbers) -> None:
    table = found.table
    assert list(table) == real_main.COLUMNS
    assert len(table) == 2 * 6
    assert (table["heuristic_status"] == "given").all()
    assert (table["bound_s"] <= table["planned_s"]).all()
    assert (table["gain"] > 1).all()
    assert table["gain"].to_numpy() == pytest.approx((table["heuristic_s"] / table["planned_s"]).to_numpy())
    same = ["heuristic_s", "planned_s", "planned_fifo_s", "bound_s"]  # at 8 GPUs actor and critic are the same problem
    halves = [table[table["scaled_model"] == scaled][same].reset_index(drop=True) for scaled in ("actor", "critic")]
    assert halves[0].equals(halves[1])
    untuned, hidden = (part.reset_index(drop=True) for _, part in table.groupby("variant", sort=False))
    assert (hidden["heuristic_s"] < untuned["heuristic_s"]).all()


def test_operations_of_a_step_are_counted_by_hand() -> None:
    costs = real_settings()[0].costs("a100", 1, real_main.VARIANTS[real_main.UNTUNED])
    assert real_main.step_flops(costs) == (2 + 2 + 2 + 2 + 6 + 6) * 6_738_415_616 * 512 * 256


def test_the_summary_is_what_its_columns_say() -> None:
    table = pd.DataFrame(
        {
            "variant": ["a", "a", "b"],
            "gpus": [8, 24, 8],
            "gain": [2.0, 1.0, 0.5],
            "gain_fifo": [1.0, 1.0, 1.0],
            "published_gain": [1.6, 1.25, 1.5],
            "heuristic_pflops": [1.0, 2.0, 1.0],
            "published_heuristic_pflops": [2.0, 1.0, 1.25],
        }
    )
    first, second = real_main.summary(Numbers(table)).to_dict("records")
    assert (first["settings"], first["same_direction"], first["weighted"], first["plain"]) == (2, 1, 1.25, 1.5)
    assert first["published_weighted"] == pytest.approx((8 * 1.6 + 24 * 1.25) / 32)
    assert first["median_error"] == pytest.approx((0.25 + 0.2) / 2)
    assert (first["rank"], first["heuristic_rank"]) == pytest.approx((1.0, -1.0))
    assert (first["heuristic_error"], second["heuristic_error"]) == pytest.approx((0.75, 0.2))
    assert second["same_direction"] == 0


@pytest.mark.full
def test_constants_fitted_to_the_rule_are_those_that_are_shipped() -> None:
    table = real_fit.fit_table()
    best = table.iloc[0]
    assert (best["host_s_per_layer"], best["all_reduce_share"]) == (FITTED.host_s_per_layer, FITTED.all_reduce_share)
    assert table["median_error"].is_monotonic_increasing
    untuned = table[(table["host_s_per_layer"] == 0.4e-3) & (table["all_reduce_share"] == 1.0)].iloc[0]
    assert best["median_error"] < 0.1 < untuned["median_error"]
    numbers = FIGURE.numbers(Runs(Sources(None)), **{**SMALL, "variants": (real_main.FITTED_TO_RULE,)}).table
    again = real_fit.fit_table(most_gpus=8)
    of_best = again[(again["host_s_per_layer"] == FITTED.host_s_per_layer) & (again["all_reduce_share"] == 1.0)].iloc[0]
    errors = (numbers["heuristic_pflops"] / numbers["published_heuristic_pflops"] - 1).abs()
    assert of_best["median_error"] == pytest.approx(float(errors.median()))


def test_plot_and_findings_show_the_summary(found: Numbers) -> None:
    fig = FIGURE.plot(found)
    marks = [trace for trace in fig.data if trace.type == "scatter" and trace.mode == "markers"]
    assert sum(len(trace.x) for trace in marks) == 6
    (means,) = [trace for trace in fig.data if trace.type == "bar"]
    assert list(means.y) == list(SMALL["variants"])
    assert list(means.x) == real_main.summary(found)["weighted"].tolist()
    direction, mean, sensitivity = FIGURE.findings(found)
    assert (direction.holds, direction.ours[:6]) == ("yes", "6 of 6")
    assert mean.holds in ("yes", "no")
    assert sensitivity.holds == "", "a variant that was chosen after looking decides nothing"
    assert "same direction in 6 of 6 settings" in sensitivity.ours


def test_the_command_writes_it_and_names_its_paper(tmp_path: Path, found: Numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OTHER_FIGURES, "real_main", replace(FIGURE, numbers=lambda *_, **__: found))
    result = run_rlhfless("figures", "real_main", "--fast", "--pictures", "none", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index.html", "figure_real_main.html", "figure_real_main.csv", "findings_measured.csv",
    }  # fmt: skip
    for page in ("index.html", "figure_real_main.html"):
        text = (tmp_path / "out" / page).read_text(encoding="utf-8")
        assert "arXiv:2406.14088" in text
        assert "2602.22718" not in text
    assert len(pd.read_csv(tmp_path / "out" / "figure_real_main.csv")) == 12


@pytest.mark.full
def test_the_direction_is_right_on_16_gpus_and_rows_repeat(found: Numbers) -> None:
    full = FIGURE.compute(Runs(Sources(None)), fast=True).table
    assert (full["gain"] > 1).all()
    again = FIGURE.numbers(Runs(Sources(None)), **SMALL).table
    pd.testing.assert_frame_equal(again, found.table, check_exact=True)
