"""A timeline of a hundred thousand spans: a heatmap from afar, bars from near, and the same numbers in both."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused
from every_plot import part
from many_spans import many_spans

from rlhfless.plots import plot_timeline
from rlhfless.trace import Trace, TraceError
from rlhfless.widgets import zoom


@pytest.fixture(scope="module")
def trace() -> Trace:
    return many_spans(100_000)


def kinds(figure: object) -> set[str]:
    return {one.type for one in figure.data}  # type: ignore[attr-defined]


def test_the_whole_step_is_a_heatmap_and_a_part_of_it_is_bars(trace: Trace) -> None:
    assert kinds(plot_timeline(trace)) == {"heatmap"}
    part = plot_timeline(trace, between_s=(100.0, 101.0))
    assert kinds(part) == {"bar"}
    assert part.layout.xaxis.range == (100.0, 101.0)


def test_a_part_holds_exactly_the_spans_that_reach_into_it(trace: Trace) -> None:
    near, whole = plot_timeline(trace, between_s=(100.0, 101.0)), plot_timeline(trace)
    spans, drawn = trace.spans, part(near, "spans")
    assert len(drawn) == ((spans["end_s"] > 100) & (spans["start_s"] < 101)).sum() > 10
    assert all(text for bar in near.data if bar.hovertext is not None for text in bar.hovertext)
    held = ["holder", "gpu_seconds", "idle_gpu_seconds"]
    assert part(near, "allocations")[held].equals(part(whole, "allocations")[held]), "sums are of the whole step"


def test_a_large_part_is_a_finer_heatmap(trace: Trace) -> None:
    whole, half = plot_timeline(trace), plot_timeline(trace, between_s=(0.0, 600.0))
    assert kinds(half) == {"heatmap"}
    assert np.diff(half.data[0].x)[0] == pytest.approx(600 / 240)
    assert np.diff(half.data[0].x)[0] < np.diff(whole.data[0].x)[0]


def test_the_widget_draws_what_is_zoomed_into(trace: Trace) -> None:
    shown = zoom(trace)
    assert json.loads(shown.pane_timeline)["data"][0]["type"] == "heatmap"
    shown._on_message(None, {"pane": "timeline", "zoom": [100.0, 101.0]}, [])
    assert shown.wait(300)
    drawn = json.loads(shown.pane_timeline)
    assert {one["type"] for one in drawn["data"]} == {"bar"}
    assert drawn["layout"]["meta"] == {"request": 1}
    assert shown.stale == []
    shown._on_message(None, {"pane": "timeline", "zoom": None}, [])
    assert shown.wait(300)
    assert json.loads(shown.pane_timeline)["data"][0]["type"] == "heatmap"
    assert shown.between_s is None


def test_a_zoom_back_while_another_is_drawn_is_not_lost(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = zoom(trace)
    begun, go_on = threading.Event(), threading.Event()
    show = shown._show

    def slowly(asked: int, between_s: tuple[float, float] | None) -> None:
        begun.set()
        assert go_on.wait(300)
        show(asked, between_s)

    monkeypatch.setattr(shown, "_show", slowly)
    shown._on_message(None, {"pane": "timeline", "zoom": [100.0, 101.0]}, [])
    assert begun.wait(300)
    shown._on_message(None, {"pane": "timeline", "zoom": None}, [])
    assert shown.stale == ["timeline"]
    go_on.set()
    assert shown.wait(300)
    assert shown.between_s is None
    assert json.loads(shown.pane_timeline)["data"][0]["type"] == "heatmap"
    assert shown.stale == []


def test_a_part_that_cannot_be_drawn_says_so(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no <b>figure</b> today")

    shown = zoom(trace)
    monkeypatch.setattr("rlhfless.widgets.zooming.plot_timeline", broken)
    shown._on_message(None, {"pane": "timeline", "zoom": [100.0, 101.0]}, [])
    assert shown.wait(300)
    assert isinstance(shown.error, ValueError)
    assert "no &lt;b&gt;figure&lt;/b&gt; today" in json.loads(shown.pane_timeline)["layout"]["annotations"][0]["text"]


def test_a_folder_is_zoomed_into_like_its_trace_and_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    small = many_spans(100)
    assert zoom(small.save(tmp_path / "small")).pane_timeline == zoom(small).pane_timeline
    with refused(TraceError, "NoneType"):
        zoom(None)  # type: ignore[arg-type]
    with refused(TraceError):
        zoom("no/such")


def test_a_run_or_a_step_that_is_not_there_is_said_in_the_figure() -> None:
    small = many_spans(100)
    assert f"There is no run mine; the runs are {small.run}." in zoom(small, run="mine").pane_timeline
    assert "There is no step 99; the steps are" in zoom(small, 99).pane_timeline
