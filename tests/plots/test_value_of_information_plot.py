"""The figure of values by forecast: lines of policies, the information limit, the bound, and what it says without runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from every_plot import informed

from rlhfless.plots import plot_value_of_information


def test_values_are_means_over_draws_with_two_standard_errors_of_the_ratio_to_random():
    table = plot_value_of_information(informed("mine")).table.set_index(["forecast", "policy"])
    assert table.loc[("mine", "random"), "value"] == pytest.approx((1.0 * 1.02) ** 0.5)
    assert table.loc[("truth", "mine"), "value"] == pytest.approx(0.8)
    own = table.loc[("truth", "mine")]
    assert own["high"] - own["value"] == pytest.approx(own["value"] - own["low"])
    assert own["high"] > own["value"]  # the ratio to random varies over draws, though the value does not
    assert table.loc[("truth", "random"), "low"] == table.loc[("truth", "random"), "high"]


def test_the_figure_has_a_line_per_policy_and_one_for_the_limit():
    fig = plot_value_of_information(informed("mine"))
    assert [trace.name for trace in fig.data] == ["random", "mine", "best with this forecast (estimated)"]
    assert list(fig.data[-1].x) == ["mine", "truth"]
    assert [shape.y0 for shape in fig.layout.shapes] == [0.7]


def test_without_runs_the_figure_says_so():
    found = informed("mine")
    nothing = replace(found, runs=found.runs.iloc[:0])
    assert "no runs" in str(plot_value_of_information(nothing).layout.annotations)
    assert plot_value_of_information(nothing).table["policy"].tolist()[-1] == "lower bound"
