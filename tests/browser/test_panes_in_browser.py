"""The panes alone in a bare page: quick enough for every change."""

from __future__ import annotations

import html
import zlib
from typing import Any

import plotly.graph_objects as go
from bare_page import show
from figures import hover_text, plotly_data, point_at
from lab import pane, wait_drawn
from log_samples import HOSTILE, log

from rlhfless.plots import plot_timeline
from rlhfless.system.templates import Markup
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.panes import Panes


def test_panes_draw_tell_clicks_grey_and_show_text_as_text(page: Any) -> None:
    panes = Panes(((("figure", 1), ("other", 1)), (("text", 1),)), ("text",))
    names = [text[:60] for text in HOSTILE]
    clean = [html.escape(name, quote=False) for name in names]
    figure = go.Figure(
        go.Bar(x=[3, 1, 2, 4, 5, 6, 7], y=clean, orientation="h", hovertext=clean, name=clean[1], customdata=[5] * 7)
    )
    panes.draw("figure", figure, request=3)
    panes.draw("other", go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    told = Markup().join(html_parts.quoted(text[:20], text) for text in HOSTILE) + html_parts.copies([("Copy", "it", "a < b")])
    panes.put("text", told + html_parts.choice(html_parts.Choice("<i>this", 4)))
    show(page, panes)
    wait_drawn(page, "figure", 3)
    wait_drawn(page, "other")
    texts = {name: getattr(panes, f"pane_{name}") for name in ("figure", "other", "text")}
    assert page.evaluate("window.sent") == [{"has": {name: zlib.adler32(text.encode()) for name, text in texts.items()}}]
    assert plotly_data(page, pane("figure"), ["type", "x"]) == [{"type": "bar", "x": [3, 1, 2, 4, 5, 6, 7]}]
    assert HOSTILE[0] in page.locator(pane("text")).inner_text()
    assert "x" * 4_000 in page.locator(pane("text")).inner_text()
    assert page.locator(f"{pane('text')} script, {pane('text')} img, {pane('figure')} img").count() == 0

    bar = f"{pane('figure')} .points path"
    point_at(page, bar)
    assert "<script>window.hacked = 1</script>" in hover_text(page, pane("figure"))
    point_at(page, bar, click=True)
    page.wait_for_function("window.sent.some((one) => one.click)")
    told = page.evaluate("window.sent.find((one) => one.click)")
    assert (told["pane"], told["click"]["customdata"], told["click"]["x"]) == ("figure", 5, 3)

    press_while_it_is_drawn(page, bar, panes, figure)
    page.evaluate("model.set('stale', ['figure'])")
    box = page.locator(pane("figure")).locator("..")
    page.wait_for_function("(el) => Number(getComputedStyle(el).opacity) < 0.5", arg=box.element_handle())
    page.evaluate("model.set('stale', [])")
    page.wait_for_function("(el) => Number(getComputedStyle(el).opacity) > 0.9", arg=box.element_handle())

    page.get_by_role("button", name="<i>this").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("window.sent.some((one) => 'choice' in one)")
    assert page.evaluate("window.sent.find((one) => 'choice' in one)") == {"pane": "text", "choice": 4}
    page.evaluate("model.set('pane_text', model.get('pane_text') + ' ')")
    assert page.evaluate("document.activeElement.textContent") == "<i>this", "the keyboard stays where it was"

    page.get_by_role("button", name="Copy").click()
    page.wait_for_function("window.getSelection().toString() === 'a < b'")  # this page has no clipboard
    assert page.evaluate("window.hacked") is None
    assert page.errors == []


def press_while_it_is_drawn(page: Any, bar: str, panes: Panes, figure: go.Figure) -> None:
    """A figure that comes between the press and the release of the mouse waits: plotly would lose the click."""
    page.evaluate("window.sent.length = 0")
    point_at(page, bar)
    page.mouse.down()
    panes.draw("figure", figure, request=4)
    page.evaluate("(text) => model.set('pane_figure', text)", panes.pane_figure)
    page.mouse.up()
    page.wait_for_function("window.sent.some((one) => one.click)")
    wait_drawn(page, "figure", 4)


def test_of_many_figures_the_last_is_shown_and_zooms_are_reported(page: Any) -> None:
    panes = Panes(((("timeline", 1),),))
    figure = go.Figure(go.Bar(base=[0, 1], x=[1, 1], y=[0, 1], orientation="h"))
    panes.draw("timeline", figure.update_yaxes(fixedrange=True), request=1)
    show(page, panes)
    wait_drawn(page, "timeline", 1)
    texts = []
    for request in range(2, 30):
        panes.draw("timeline", figure.update_layout(title=f"number {request}"), request=request)
        texts.append(panes.pane_timeline)
    page.evaluate("(texts) => texts.forEach((text) => model.set('pane_timeline', text))", texts)
    wait_drawn(page, "timeline", 29)
    assert "number 29" in page.locator(pane("timeline")).inner_text()
    assert int(page.locator(pane("timeline")).get_attribute("data-drawn")) < 29, "those in between are not drawn"
    area = page.locator(f"{pane('timeline')} .nsewdrag").bounding_box()
    page.mouse.move(area["x"] + 0.2 * area["width"], area["y"] + 40)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_function("window.sent.some((one) => one.zoom)")
    low, high = page.evaluate("window.sent.find((one) => one.zoom).zoom")
    assert 0 < low < high < 2
    page.mouse.dblclick(area["x"] + 0.5 * area["width"], area["y"] + 60)
    page.wait_for_function("window.sent.some((one) => one.zoom === null)")


def test_a_title_of_an_axis_that_is_wider_than_the_figure_stands_in_lines(page: Any) -> None:
    """As in JupyterLab on a telephone."""
    panes = Panes(((("timeline", 1),),))
    figure = go.Figure(go.Bar(x=[1, 2], y=["actor-10 (10, 11)", "learner (0)"], orientation="h"))
    panes.draw("timeline", figure.update_xaxes(title="time since the start of the step (s)").update_yaxes(automargin=True))
    show(page, panes)
    wait_drawn(page, "timeline")
    fits = """([which, px]) => { const figure = document.querySelector(which), whole = figure.getBoundingClientRect();
      const title = figure.querySelector(".xtitle").getBoundingClientRect();
      return Math.abs(figure._fullLayout.width - px) < 40 && title.right <= whole.right && title.bottom <= whole.bottom; }"""
    lines = {}
    for width in (800, 390, 270):
        page.evaluate("(px) => { document.querySelector('.rlhfless-panes').style.width = px + 'px'; }", width)
        page.wait_for_function(fits, arg=[pane("timeline"), width])
        lines[width] = page.locator(f"{pane('timeline')} .xtitle tspan").count()
    assert lines[800] == 0
    assert lines[270] == 2


def test_a_figure_without_data_says_why(page: Any) -> None:
    panes = Panes(((("timeline", 1),),))
    panes.draw("timeline", plot_timeline(log()))
    show(page, panes)
    wait_drawn(page, "timeline")
    assert "the log holds lengths, without times of GPUs" in page.locator(pane("timeline")).inner_text()
