"""Names beside points on paper: whatever the data, the page keeps its height, and no name leaves it or lies on a marker."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.plots import paper_style, plot_plane
from rlhfless.plots.export.print_places import axis_share, note_span
from rlhfless.plots.time_cost import NAME

MM = 96 / 25.4
TALLEST_MM = 130.0  # of a plane 170 mm wide
TIMES, COSTS = st.floats(0.5, 5000.0), st.floats(0.5, 1e6)
NAMES = ["static", "right-sizing", "oracle+replan", "least-loaded, held", "a policy of mine with a long name", "fold"]


@st.composite
def results(draw: st.DrawFn) -> pd.DataFrame:
    """One to six policies; some of them are equal or close to the first one."""
    first = draw(TIMES), draw(COSTS)
    near = st.sampled_from([1.0, 1.0 + 1e-9, 1.001, 1.01, 0.97])
    points = [first]
    for _ in range(draw(st.integers(0, 5))):
        beside = st.tuples(near, near).map(lambda factor: (first[0] * factor[0], first[1] * factor[1]))
        points.append(draw(st.one_of(beside, st.tuples(TIMES, COSTS))))
    return pd.DataFrame(points, columns=["time_s", "gpu_seconds"]).assign(policy=NAMES[: len(points)])


def named(printed: go.Figure) -> list[go.layout.Annotation]:
    """The names of policies."""
    return [note for note in printed.layout.annotations if note.name == NAME]


def heights_of(printed: go.Figure, note: go.layout.Annotation) -> tuple[float, float]:
    """The upper and the lower edge of a name, in pixels from the top of the page; the plot ends above the ticks."""
    layout = printed.layout
    em = note.font.size
    low, high = note_span(printed, note, "y")
    assert low == high
    inner = layout.height - layout.margin.t - layout.margin.b
    tall = 0.5 * 1.2 * em * (note.text.count("<br>") + 1)
    middle = layout.margin.t + (1 - low) * inner + note.ay
    return middle - tall, middle + tall


@settings(max_examples=60, deadline=None)
@given(results(), st.sampled_from([85.0, 120.0, 170.0]), st.sampled_from([None, 60.0, 90.0]))
def test_the_page_keeps_its_size_and_names_stay_on_it(table: pd.DataFrame, width_mm: float, height_mm: float | None) -> None:
    printed = paper_style(plot_plane(table), width_mm, height_mm)
    assert printed.layout.width == pytest.approx(width_mm * MM)
    if height_mm is None:
        assert 20 * MM < printed.layout.height < TALLEST_MM * MM
    else:
        assert printed.layout.height == pytest.approx(height_mm * MM)
    notes = named(printed)
    assert sorted(" ".join(note.text.replace("<br>", " ").split(" = ")) for note in notes)
    for note in notes:
        top, bottom = heights_of(printed, note)
        assert top >= 0
        assert bottom <= printed.layout.height


@pytest.mark.parametrize("count", [1, 2, 6])
def test_policies_with_the_same_time_and_cost_share_one_name_on_a_page_as_high_as_usual(count: int) -> None:
    table = pd.DataFrame({"policy": NAMES[:count], "time_s": 100.0, "gpu_seconds": 2500.0})
    printed = paper_style(plot_plane(table))
    (note,) = named(printed)
    assert note.text.replace("<br>", " ") == " = ".join(NAMES[:count])
    assert printed.layout.height < TALLEST_MM * MM


def test_a_name_that_stands_over_its_point_makes_no_room_of_the_size_of_the_data() -> None:
    figure = plot_plane(pd.DataFrame({"policy": NAMES[:2], "time_s": [100.0, 150.0], "gpu_seconds": [2500.0, 1800.0]}))
    for note in figure.layout.annotations:
        note.update(ay=-40)
    assert paper_style(figure).layout.height < TALLEST_MM * MM


@pytest.mark.parametrize("ay", [-60, 60])
@pytest.mark.parametrize("value", [1.0, 1e3, 1e6])
def test_texts_at_arrows_stay_on_the_page_on_log_axes(value: float, ay: float) -> None:
    figure = go.Figure(go.Scatter(x=[1, value * 10], y=[1, value * 10], mode="markers"))
    figure.update_xaxes(type="log", range=[0, math.log10(value) + 1]).update_yaxes(type="log", range=[0, math.log10(value) + 1])
    figure.add_annotation(x=math.log10(value), y=math.log10(value), text="here", showarrow=True, ax=60, ay=ay, name=NAME)
    printed = paper_style(figure.update_layout(height=400), 85, 60)
    (note,) = named(printed)
    top, bottom = heights_of(printed, note)
    assert top >= 0
    assert bottom <= printed.layout.height


def test_where_a_value_lies_on_an_axis_is_a_share_of_the_plot() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[10, 1000]))
    axis = figure.update_yaxes(range=[10, 30], domain=[0.5, 1.0]).layout.yaxis
    assert axis_share(axis, 20) == pytest.approx(0.75)
    axis.range = [30, 10]
    assert axis_share(axis, 15) == pytest.approx(0.875)
    axis.update(type="log", range=[1, 3])
    assert axis_share(axis, 2) == pytest.approx(0.75), "plotly wants the logarithm of a place on such an axis"
    axis.update(range=None)
    assert axis_share(axis, 2) is None, "only plotly knows"
    figure.add_annotation(x=0, y=1, xref="paper", yref="y domain", text="over the panel")
    assert note_span(figure, figure.layout.annotations[0], "y") == (1.0, 1.0)
    assert note_span(figure, figure.layout.annotations[0], "x") == (0.0, 0.0)
