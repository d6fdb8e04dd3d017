"""Figures for print: sizes in millimetres and points, nothing that papers have elsewhere, colours kept, texts that fit."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from error_messages import refused
from plot_samples import busy_trace, degenerate_traces, sample_trace

from rlhfless.errors import InputError
from rlhfless.plots import (
    paper_style,
    plot_before_after,
    plot_lengths,
    plot_overview,
    plot_plane,
    plot_steps,
    plot_timeline,
    plot_waterfall,
)
from rlhfless.plots.frames import caption, slider
from rlhfless.plots.palette import PHASE_STYLES
from rlhfless.plots.style import lines_of, plain, styled
from rlhfless.trace import Trace

TRACES = degenerate_traces()
RESULTS = pd.DataFrame(
    {"policy": ["static", "right-sizing", "oracle"], "time_s": [4.0, 3.0, 2.0], "gpu_seconds": [10.0, 11.0, 6.0]}
)
PT = 96 / 72


def sizes(node: object, found: list[float]) -> list[float]:
    """Sizes of all fonts."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key.endswith("font") and isinstance(value, dict) and "size" in value:
                found += np.ravel(value["size"]).tolist()
            if key != "template":
                sizes(value, found)
    elif isinstance(node, list | tuple):
        for one in node:
            sizes(one, found)
    return found


def test_a_figure_has_the_size_that_was_asked_for_in_millimetres() -> None:
    printed = paper_style(plot_timeline(sample_trace()), 85, 60, font_pt=9)
    assert (printed.layout.width, printed.layout.height) == pytest.approx((85 / 25.4 * 96, 60 / 25.4 * 96))
    assert printed.layout.font.size == pytest.approx(9 * PT)


def test_nothing_is_there_that_papers_have_elsewhere_and_the_figure_itself_stays_as_it_is() -> None:
    figure = plot_timeline(sample_trace())
    before = figure.to_json()
    printed = paper_style(figure)
    assert figure.to_json() == before
    assert paper_style(figure, title=False).layout.title.text == ""
    assert printed.layout.paper_bgcolor == printed.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert [trace.type for trace in printed.data] == [trace.type for trace in figure.data]
    assert printed.layout.title.text.startswith("<b>GPU timeline of step 1")
    assert "span" not in printed.layout.title.text


def test_colours_and_hatches_are_kept() -> None:
    printed = {trace.name: trace for trace in paper_style(plot_timeline(sample_trace())).data}
    for phase in ("decode", "prefill"):
        assert printed[phase].marker.color == PHASE_STYLES[phase].colour
        assert (printed[phase].marker.pattern.shape or "") == PHASE_STYLES[phase].hatch


@pytest.mark.parametrize("font_pt", [6, 8, 12])
def test_no_text_is_smaller_than_six_points(font_pt: float) -> None:
    for figure in (plot_timeline(sample_trace()), plot_waterfall(RESULTS), plot_plane(RESULTS), plot_steps(sample_trace())):
        spec = paper_style(figure, 85, font_pt=font_pt)
        found = sizes(spec.layout.to_plotly_json(), []) + sizes([trace.to_plotly_json() for trace in spec.data], [])
        assert min(found) >= 6 * PT - 1e-9
        assert max(found) <= 1.25 * font_pt * PT


def test_a_slider_is_left_out_with_its_line_and_what_it_shows_stays() -> None:
    figure = go.Figure(go.Scatter(x=[1], y=[2], name="this plan"))
    figure.frames = [go.Frame(data=[go.Scatter(x=[3], y=[4])], traces=[0], name="a")]
    figure.update_layout(sliders=[slider(["a"], 0, "")], **caption("what the frame shows", [(0.0, "a panel")]))
    printed = paper_style(figure)
    assert not printed.frames
    assert not printed.layout.sliders
    assert [note.text for note in printed.layout.annotations] == ["<b>a panel</b>"]
    assert printed.data[0].x == (1,)


def test_long_texts_are_broken_into_lines_that_fit() -> None:
    figure = plot_waterfall(RESULTS)
    wide, narrow = (paper_style(figure, width) for width in (170, 60))
    lines = re.split("<br>", narrow.layout.xaxis2.title.text)
    assert " ".join(lines) == figure.layout.xaxis2.title.text
    assert max(map(len, lines)) * 0.5 * narrow.layout.font.size <= narrow.layout.width
    assert wide.layout.xaxis2.title.text.count("<br>") < len(lines) - 1
    assert any("<br>" in trace.name for trace in paper_style(figure, 40).data if trace.name)


def test_ticks_that_would_overlap_lose_their_texts_evenly() -> None:
    held = [
        {"step": 0, "holder": f"actor-{i}", "gpu_ids": [i], "role": "decode", "node": 0, "kind": "cpu", "usd_per_gpu_s": 0.0,
         "start_s": 0.0, "end_s": 1.0 + i}
        for i in range(24)
    ]  # fmt: skip
    figure = plot_timeline(Trace([{"step": 0, "prompt_id": 1, "sample": 0, "response_tokens": 5}], allocations=held))
    assert len(paper_style(figure, 85, 150).layout.yaxis.tickvals) == 24
    shown = paper_style(figure, 85, 50).layout.yaxis
    assert 4 <= len(shown.tickvals) < 24
    assert len(set(np.diff(shown.tickvals))) == 1
    assert shown.ticktext[1] == f"actor-{shown.tickvals[1]} ({shown.tickvals[1]})"


@pytest.mark.parametrize(
    ("sizes_mm", "sentence"),
    [
        ({"width_mm": 5}, ("width_mm", "20", "2000")),
        ({"width_mm": float("nan")}, ("width_mm",)),
        ({"height_mm": 5000}, ("height_mm", "5000", "20", "2000")),
        ({"font_pt": 2}, ("font_pt", "40")),
    ],
)
def test_a_size_that_is_none_is_refused(sizes_mm: dict[str, float], sentence: tuple[str, ...]) -> None:
    with refused(InputError, *sentence):
        paper_style(plot_steps(sample_trace()), **sizes_mm)


@pytest.mark.parametrize("name", list(TRACES))
def test_figures_of_strange_traces_can_be_printed(name: str) -> None:
    trace = TRACES[name]
    for figure in (plot_timeline(trace), plot_lengths(trace), plot_steps(trace)):
        assert paper_style(figure, 85).layout.width == pytest.approx(85 / 25.4 * 96)


@pytest.mark.parametrize("width_mm", [60, 85, 170])
def test_the_data_stay_as_they_are_and_categories_the_same_in_all_panels(width_mm: float) -> None:
    uses = pd.DataFrame(
        {"use": ["decode", "waiting for the longest response"], "kind": ["work", "idle"], "gpu_s": [5.0, 3.0],
         "usd": [0.1, 0.2], "share": [0.6, 0.4]}
    )  # fmt: skip
    ladder = pd.DataFrame(
        {
            "policy": ["static", "right-sizing", "random", "fold", "oracle+replan"],
            "time_s": 2.0,
            "gpu_seconds": range(9, 4, -1),
        }
    )
    for figure in (plot_waterfall(ladder.assign(bound_gpu_seconds=2.0)), plot_steps(sample_trace()), plot_overview(uses)):
        for printed, shown in zip(paper_style(figure, width_mm).data, figure.data, strict=True):
            assert [list(map(plain, printed[axis])) for axis in "xy"] == [list(map(plain, shown[axis])) for axis in "xy"]


def test_what_reaches_over_the_plot_has_room_above_it() -> None:
    plain_top = paper_style(plot_steps(sample_trace())).layout.margin.t
    assert paper_style(plot_waterfall(RESULTS)).layout.margin.t >= plain_top + 8 * PT, "the text on the tallest bar"
    flat = paper_style(plot_plane(RESULTS).update_layout(height=200))
    arrow = next(note for note in flat.layout.annotations if note.text == "better")
    inner = 10 * 8 * PT  # the least height of a plot
    assert flat.layout.margin.t + (1 - arrow.y) * inner >= -arrow.ay + 8 * PT


def test_texts_on_the_bars_of_a_lower_panel_have_room_below_the_one_above() -> None:
    layout = paper_style(plot_waterfall(RESULTS), 170).layout
    inner = layout.height - layout.margin.t
    assert (layout.yaxis.domain[0] - layout.yaxis2.domain[1]) * inner > 2 * layout.font.size, "two lines: change and share"


def test_names_at_bars_have_a_row_of_their_height_each() -> None:
    names = [lines_of(f"{i}: nobody works, waiting for the longest response", 22) for i in range(9)]
    printed = paper_style(styled(go.Figure(go.Bar(x=[1.0] * 9, y=names, orientation="h")), "bars"), 85)
    lines = max(name.count("<br>") + 1 for name in printed.data[0].y)
    assert lines > 1
    assert printed.layout.height > 9 * lines * printed.layout.font.size


def test_texts_in_bars_are_broken_into_lines_that_fit_in_the_bar() -> None:
    uses = pd.DataFrame({"use": ["decode"], "kind": ["work"], "gpu_s": [6.0], "usd": [0.2], "share": [1.0]})
    best = pd.Series({"policy": "fold", "GPU-seconds mean": 0.3, "time mean": 0.1, "GPU-seconds most": 0.5})
    figure = plot_overview(uses, best)
    printed = paper_style(figure, 85)
    for bar, shown in zip(printed.data, figure.data, strict=True):
        if shown.constraintext == "none":
            (text,), (end,) = bar.text, bar.x
            assert plain(text) == plain(shown.text[0])
            longest = max(map(len, text.split("<br>"))) * 0.5 * printed.layout.font.size
            assert longest < end / printed.layout.xaxis.range[1] * printed.layout.width


def test_texts_on_bars_that_narrow_paper_has_no_room_for_are_left_out() -> None:
    uses = pd.DataFrame(
        {"use": ["decode", "idle GPUs"], "kind": ["work", "idle"], "gpu_s": [3.0, 3.0], "usd": 0.1, "share": [0.5, 0.5]}
    )
    figure = plot_overview(uses)
    (note,) = figure.layout.annotations
    assert [len(paper_style(figure, width).layout.annotations) for width in (170, 85)] == [1, 0]
    assert any(trace.name == note.text for trace in paper_style(figure, 85).data), "the legend says it"


def test_a_heatmap_can_be_printed() -> None:
    printed = paper_style(plot_timeline(busy_trace(12_000)), 85)
    assert printed.data[0].type == "heatmap"
    assert printed.data[0].z.shape == (1, 240)


@pytest.mark.parametrize("height_mm", [None, 160.0])
@pytest.mark.parametrize("width_mm", [85.0, 170.0])
def test_headings_stand_between_the_ticks_above_and_their_own_panel(width_mm: float, height_mm: float | None) -> None:
    figure = plot_before_after({"static": sample_trace(1), "solver": sample_trace(1)}, bound=lambda time_s: 2.0 * time_s)
    layout = paper_style(figure, width_mm, height_mm).layout
    em, inner = layout.font.size, layout.height - layout.margin.t - 80
    panels = [axis.domain for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3)]
    assert panels == sorted(panels, reverse=True)
    assert [note.y for note in layout.annotations] == pytest.approx([high for _, high in panels])
    for above, (note, panel) in zip(panels, list(zip(layout.annotations, panels, strict=True))[1:], strict=False):
        lines = note.text.count("<br>") + 1
        assert (above[0] - panel[1]) * inner > (1 + lines) * em, "a line of tick labels, and the heading"
    assert layout.title.text.startswith("<b>After (solver) saves")
    assert layout.margin.t > (layout.annotations[0].text.count("<br>") + 2 + layout.title.text.count("<br>")) * em


@pytest.mark.parametrize("width_mm", [85.0, 170.0])
def test_headings_and_texts_at_bars_are_broken_into_lines_that_fit(width_mm: float) -> None:
    figure = plot_before_after({"static": sample_trace(1), "solver": sample_trace(1)}, bound=lambda time_s: 2.0 * time_s)
    printed = paper_style(figure, width_mm)
    letter, width = 0.5 * printed.layout.font.size, printed.layout.width
    for note, shown in zip(printed.layout.annotations, figure.layout.annotations, strict=True):
        assert plain(note.text) == plain(shown.text)
        assert max(len(plain(line)) for line in note.text.split("<br>")) * letter < 0.8 * width
    bars, axis = printed.data[-1], printed.layout.xaxis3.range
    for text, end in zip(bars.text, bars.x, strict=True):
        assert max(map(len, text.split("<br>"))) * letter < (1 - end / axis[1]) * width
    rows = sum(text.count("<br>") + 1 for text in bars.text)
    low, high = printed.layout.yaxis3.domain
    assert (high - low) * (printed.layout.height - printed.layout.margin.t) > rows * printed.layout.font.size


def test_panels_of_a_figure_that_is_too_low_still_stand_under_each_other() -> None:
    figure = plot_before_after({"static": sample_trace(1), "solver": sample_trace(1)})
    layout = paper_style(figure, 85, 40).layout
    edges = [edge for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3) for edge in reversed(axis.domain)]
    assert edges == sorted(edges, reverse=True)
    assert (edges[0], edges[-1]) == pytest.approx((1.0, 0.0))
