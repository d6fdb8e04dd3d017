"""Texts of logs in figures, with a real mouse over them: what looks like plotly's own markup is shown as it is, too.

plotly reads ``<b>``, ``<a href>`` and entities in titles, legends, ticks and hovers. A bare page is enough, and quick.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from bare_page import show
from every_plot import LATENCY, WORKLOAD, every_plot
from figures import hover_text, markup_of_texts, point_at
from lab import WIDE, pane, wait_drawn
from open_pages import open_page

import solver
from rlhfless import plots
from rlhfless.simulate import Comparison
from rlhfless.trace import Trace
from rlhfless.widgets.panes import Panes

pytestmark = pytest.mark.full
EVIL = "<b>x</b><a href='javascript:window.hacked=1'>y</a>&lt;i&gt;"
TURNED = "\u202eabc"
SEEN = "<b>x</b><a href='jav"  # what the shortest label keeps of it
BARS, POINTS = ".barlayer .point path", ".scatterlayer .points path"


def trace(holder: str = EVIL) -> Trace:
    """One step of one holder; every text in it is hostile."""
    same = {"run": EVIL, "step": 0, "holder": holder}
    rows = [
        {
            "run": EVIL, "step": 0, "prompt_id": EVIL, "sample": i, "prompt_tokens": 4, "response_tokens": 20 + 5 * i,
            "finish_reason": "stop", "predicted_tokens": 22.0, "actor": holder, "start_s": 0.1, "end_s": 0.5 + 0.1 * i,
        }
        for i in range(3)
    ]  # fmt: skip
    held = {**same, "role": "decode", "gpu_ids": [0], "kind": EVIL, "usd_per_gpu_s": 1.0, "start_s": 0.0, "end_s": 1.0}
    spans = [{**same, "phase": "decode", "start_s": 0.1, "end_s": 0.8, "from_actor": EVIL}]
    events = [{**same, "time_s": 0.5, "name": EVIL, "detail": json.dumps(EVIL)}]
    return Trace(rows, allocations=[held], spans=spans, events=events, meta={"policy": EVIL})


RESULTS = pd.DataFrame({"policy": [EVIL, "static"], "time_s": [1.0, 2.0], "gpu_seconds": [3.0, 2.0], "cost_usd": [1.0, 1.0]})
TABLE = pd.DataFrame({EVIL: [1.0, 2.0]}, index=[EVIL, "other"])
EVERY = every_plot(EVIL)
FIGURES = {  # figure, what is drawn in it, whether the text is in the hover
    "timeline": (lambda: plots.plot_timeline(trace()), BARS, True),
    "events": (lambda: plots.plot_timeline(trace()), POINTS, True),
    "heatmap": (lambda: plots.plot_timeline(trace(), max_spans=0), ".heatmaplayer image", True),
    "timelines": (lambda: plots.plot_timelines({EVIL: trace(), "other": trace("actor-1")}), BARS, True),
    "responses": (lambda: plots.plot_responses(trace(), EVIL), BARS, True),
    "lengths": (lambda: plots.plot_lengths(trace()), POINTS, True),
    "steps": (lambda: plots.plot_steps(trace()), BARS, False),
    "plane": (lambda: plots.plot_plane(RESULTS), POINTS, True),
    "waterfall": (lambda: plots.plot_waterfall(RESULTS), BARS, True),
    "overview": (EVERY["plot_overview"], BARS, True),
    "side_by_side": (lambda: plots.plot_side_by_side(TABLE, title=EVIL, axis=EVIL, groups=EVIL), BARS, True),
    "acceptance": (EVERY["plot_acceptance"], POINTS, True),
    "speedup_map": (EVERY["plot_speedup_map"], POINTS, False),
    "two_step_gain": (EVERY["plot_two_step_gain"], POINTS, False),
    "front": (EVERY["plot_front"], POINTS, False),
    "gap_history": (EVERY["plot_gap_history"], POINTS, False),
    "kinds": (EVERY["plot_kinds"], ".x2y2 .barlayer .point path", True),
    "learning": (EVERY["plot_curves, several seeds"], POINTS, True),
    "plan_bars": (EVERY["plot_plan_bars"], BARS, False),
    "prefill": (EVERY["plot_prefill"], BARS, True),
    "value_of_information": (EVERY["plot_value_of_information"], POINTS, True),
}


@pytest.fixture(scope="module")
def drawn(chromium: Any) -> Iterator[Any]:
    """A page with all figures, and two more that show what the checks are worth."""
    unsafe = go.Bar(x=["a"], y=[1], hovertext=["<a href='https://example.org'>y</a>"], hoverinfo="text")
    turned = f"{plots.style.clean(TURNED)}<br>time: 123"
    figures = {name: make() for name, (make, *_) in FIGURES.items()}
    figures["unsafe"] = go.Figure(unsafe)
    figures["turned"] = go.Figure(go.Bar(x=["a"], y=[1], hovertext=[turned], hoverinfo="text"))
    panes = Panes([[(name, 1)] for name in figures])
    for name, figure in figures.items():
        panes.draw(name, figure, request=1)
    page = open_page(chromium, viewport=WIDE)
    show(page, panes)
    for name in figures:
        wait_drawn(page, name, 1)
    yield page
    page.context.close()


@pytest.mark.parametrize("name", FIGURES)
def test_markup_of_a_log_is_shown_as_it_is(name: str, drawn: Any) -> None:
    _, shapes, hovers = FIGURES[name]
    point_at(drawn, f"{pane(name)} {shapes}")
    assert (SEEN in hover_text(drawn, pane(name)).lower()) == hovers  # names of algorithms are in capitals
    assert SEEN in drawn.locator(pane(name)).text_content().lower()
    assert markup_of_texts(drawn, pane(name)) == 0
    assert drawn.evaluate("window.hacked") is None
    assert drawn.errors == []


def test_what_is_not_escaped_would_be_markup(drawn: Any) -> None:
    """The check above can fail: plotly makes a link of the same text as it is."""
    point_at(drawn, f"{pane('unsafe')} {BARS}")
    hover_text(drawn, pane("unsafe"))
    assert markup_of_texts(drawn, pane("unsafe")) == 1


def test_text_that_turns_around_turns_nothing_beside_it(drawn: Any) -> None:
    """An override of the direction that is never closed is left out."""
    point_at(drawn, f"{pane('turned')} {BARS}")
    assert hover_text(drawn, pane("turned")) == "abctime: 123"


def test_markup_in_results_that_notebooks_show_is_text(page: Any) -> None:
    """Tables of plans, profiles, traces and simulations, as a notebook puts them into its page."""
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    latency = replace(LATENCY, name=evil, kind=evil)
    pools = solver.MixedCluster([solver.GpuPool(evil, 1, 4, 1.0)])
    plan = solver.plan(solver.PlanningProblem(WORKLOAD, pools, {(evil, 1): latency}, solver.Objective(0.5)))
    shown = trace(holder=evil)
    shown.meta["policy"] = evil
    steps = pd.DataFrame(
        [
            {
                "policy": evil,
                "variant": evil,
                "time_weight": 0.7,
                "gpu_kind": evil,
                "gpus": 8,
                "step": 0,
                "time_s": 1.0,
                "gpu_seconds": 1.0,
                "idle_gpu_seconds": 0.0,
                "bound_gpu_seconds": 1.0,
                "bound_method": evil,
                "cost_usd": 0.0,
            }
        ]
    )
    results = (replace(plan, policy=evil), latency, shown, Comparison(steps, {evil: shown}))
    for result in results:
        page.set_content(f"<body><main>{result._repr_html_()}</main></body>")
        assert evil in page.locator("main").inner_text(), type(result).__name__
        assert markup_of_texts(page, "main") == 0
    assert page.evaluate("window.hacked") is None
    page.set_content(f"<body><main>{evil}</main></body>")
    assert markup_of_texts(page, "main") == 2, "the check finds what is not escaped"
    assert page.errors == []
