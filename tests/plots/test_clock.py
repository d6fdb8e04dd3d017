"""Every figure of a trace says the clock that its times come from, and the profile where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go
import pytest
from every_plot import COSTS
from test_schedule_plots import moving_trace

from rlhfless import plots
from rlhfless.plots.clock import clock_words
from rlhfless.trace import Trace

Meta = Mapping[str, Any]
VIRTUAL = {"clock": "virtual", "charging": "profile", "profile": "h100-qwen2.5-3b-tp1"}
WORDS = [
    (VIRTUAL, "virtual clock, profile h100-qwen2.5-3b-tp1"),
    ({"clock": "virtual", "charging": "profile"}, "virtual clock"),
    ({**VIRTUAL, "charging": "measured"}, "virtual clock, iterations measured on this run's device"),
    ({"clock": "wall", "charging": "measured"}, "wall clock"),
    ({}, ""),
]
TIMED: dict[str, Callable[[Trace], go.Figure]] = {
    "plot_timeline": plots.plot_timeline,
    "plot_timelines": lambda trace: plots.plot_timelines({"a": trace, "b": trace}),
    "plot_before_after": lambda trace: plots.plot_before_after({"a": trace, "b": trace}),
    "plot_responses": plots.plot_responses,
    "plot_steps": plots.plot_steps,
    "plot_step_fusion": plots.plot_step_fusion,
    "plot_cost_over_time": lambda trace: plots.plot_cost_over_time(COSTS, trace.meta),
    "plot_curves": plots.plot_curves,
}


def with_meta(meta: Meta) -> Trace:
    """A trace of times that has this meta.json."""
    trace = moving_trace()
    rollouts = trace.rollouts.assign(actor="actor-0", start_s=0.0, end_s=1.0)
    return Trace(rollouts, trace.allocations, trace.spans, trace.events, trace.plans, dict(meta))


def said(figure: go.Figure) -> str:
    """The title and subtitle on one line."""
    return plots.plain(figure.layout.title.text)


@pytest.mark.parametrize(("meta", "words"), WORDS)
def test_the_words_of_a_clock(meta: Meta, words: str) -> None:
    assert clock_words(meta) == words


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize(("meta", "words"), WORDS)
def test_a_figure_with_times_says_its_clock(name: str, meta: Meta, words: str) -> None:
    title = said(TIMED[name](with_meta(meta)))
    assert words in title
    assert ("clock" in title) == bool(words)


def test_schedules_of_several_clocks_are_told_apart() -> None:
    figure = plots.plot_before_after({"ran": with_meta({"clock": "wall"}), "planned": with_meta(VIRTUAL)})
    assert "ran: wall clock; planned: virtual clock, profile h100-qwen2.5-3b-tp1" in said(figure)


def test_a_profile_with_markup_in_its_name_is_a_text() -> None:
    assert "<b>" not in clock_words({**VIRTUAL, "profile": "<b>mine</b>"})
