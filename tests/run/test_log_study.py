"""A logged run's findings one by one are those of its report."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest
from error_messages import refused
from importer_samples import many_rollouts

import rlhfless as rl
from rlhfless.errors import InputError
from rlhfless.report import Assumptions
from rlhfless.run.log_study import LogStudy

PROFILE = "l40s-qwen2.5-3b-tp2"


@pytest.fixture(scope="module")
def study() -> LogStudy:
    stated, rollouts = Assumptions(prices={"spot": 0.5}), many_rollouts().rename(columns={"prompt": "prompt_id"})
    return rl.load(rollouts, 16, PROFILE, assumptions=stated, verbose=False).study(max_steps=2)


@pytest.mark.full
def test_it_says_what_the_report_says(study: LogStudy, tmp_path: Path) -> None:
    page = study.report(tmp_path / "report.html").read_text("utf-8")
    assert "RLHFless report" in page
    for sentence in str(study).splitlines():
        assert sentence.replace("'", "&#39;") in page
    assert any("dispatch" in sentence for sentence in study.assumed)


def test_its_tables_have_a_row_per_schedule_change_and_price(study: LogStudy) -> None:
    assert {"random", "solver", "rlhfless"} <= set(study.savings.index)
    assert all("%" in text for text in study.savings["GPU-seconds saved"])
    assert study.what_if["change"].iloc[0] == "unchanged run"
    assert study.at_prices.set_index("price").loc["spot", "usd_per_gpu_hour"] == 0.5
    assert study.checks.empty, "the log measured nothing"
    assert "unknown" in study.configuration
    assert "last response has" in study.straggler


def test_its_figures_are_drawn(study: LogStudy) -> None:
    for figure in (study.plot_gpu_seconds(), study.plot_timeline(), study.plot_ideas(), study.plot_schedules()):
        assert isinstance(figure, go.Figure)
        assert len(figure.data)


def test_an_executed_run_has_a_report_only() -> None:
    with refused(InputError, "reasoning-static"):
        rl.load(rl.example(), verbose=False).study()
