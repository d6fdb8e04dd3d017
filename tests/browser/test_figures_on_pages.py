"""Every figure of ours on a page, from a telephone to a desk: titles and legends are whole and lie on nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every_plot import every_plot
from figures import illegible
from lab import WIDE
from open_pages import open_page
from placement import misplaced, overlaid
from plot_samples import busy_trace, rollouts, sample_trace, tables
from real_browser import resize, wait_all_drawn

from rlhfless.plots import plot_before_after, plot_timeline, plot_timelines, save
from rlhfless.plots.export.html_page import Page
from rlhfless.trace import Trace

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
TELEPHONE, TABLET, DESK = {"width": 390, "height": 844}, {"width": 768, "height": 1000}, {"width": 1280, "height": 900}
LONG_NAME = "a rather long name of a policy of mine"


def waiting(actors: int, name: str = "actor") -> Trace:
    """One step of so many actors that end one after the other; the last response is that of the last actor."""
    one = tables()
    held = [
        {**one["allocations"][0], "holder": f"{name}-{i}", "gpu_ids": [2 * i, 2 * i + 1], "end_s": float(actors)}
        for i in range(actors)
    ]
    spans = [
        {"step": 0, "holder": f"{name}-{i}", "phase": "decode", "start_s": 0.0, "end_s": i + 1.0, "batch_mean": 4, "slots": 8}
        for i in range(actors)
    ]
    rows = [
        {**row, "prompt_id": f"{name}-of-a-prompt-{i}", "actor": f"{name}-{i}", "start_s": 0.0, "end_s": i + 1.0}
        for i in range(actors)
        for row in rollouts()[:2]
    ]
    plans = [{"step": 0, "actors": [{"start_s": 0.0, "predicted_s": i + 0.5, "responses": [i]} for i in range(actors)]}]
    return Trace(rows, allocations=held, spans=spans, plans=plans)


def with_learner(actors: int) -> Trace:
    """The same and a learner that takes long, so that the axis ends before it does."""
    trace = waiting(actors)
    held = {**tables()["allocations"][0], "holder": "learner", "role": "learner", "gpu_ids": [99], "start_s": 1.0}
    learns = {"step": 0, "holder": "learner", "phase": "learn", "start_s": 1.0, "end_s": 40.0 * actors}
    allocations = [*trace.allocations.to_dict("records"), {**held, "end_s": 40.0 * actors}]
    return Trace(trace.rollouts, allocations=allocations, spans=[*trace.spans.to_dict("records"), learns])


TIMELINES = {
    "few actors": lambda: plot_timeline(waiting(2)),
    "many actors": lambda: plot_timeline(waiting(40)),
    "long names": lambda: plot_timeline(waiting(5, "replica-with-a-long-name-on-node-17")),
    "a learner": lambda: plot_timeline(with_learner(4)),
    "events": lambda: plot_timeline(sample_trace(1)),
    "a heatmap": lambda: plot_timeline(waiting(30), max_spans=5),
    "a busy heatmap": lambda: plot_timeline(busy_trace(12_000)),
    "two schedules": lambda: plot_timelines({"static": waiting(3), "solver": waiting(2)}),
    "before and after": lambda: plot_before_after({"static": waiting(8), "solver": waiting(5)}),
}
PANELS = ("two schedules", "before and after")  # figures whose panels have headings
CUT_TEXTS = """() => [...document.querySelectorAll('.figure')].flatMap((frame) => {
  const {left, right} = frame.getBoundingClientRect(), found = frame.scrollWidth > frame.clientWidth + 1 ? ["scrolls"] : [];
  const written = [...frame.querySelectorAll('.annotation, .bartext')];
  const texts = written.map((one) => [one.textContent, one.getBoundingClientRect()]);
  for (const [place, [text, box]] of texts.entries()) {
    if (box.left < left - 1 || box.right > right + 1) found.push(text);
    for (const [other, its] of texts.slice(place + 1))
      if (Math.min(box.right, its.right) - Math.max(box.left, its.left) > 2
          && Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top) > 2) found.push(`${text} lies on ${other}`);
  }
  return found;
})"""
"""Headings of panels and texts at bars that are cut off or lie on each other, and frames that scroll sideways."""
LINES = "() => [...document.querySelectorAll('.figure .annotation .line, .figure .bartext')].map((one) => one.textContent)"


def page_of(figures: dict[str, Callable[[], Any]], path: Path) -> str:
    """The address of a page with these figures."""
    page = Page("Figures", "of all kinds")
    for name, make in figures.items():
        page.section(name)
        page.figure(make())
    path.write_text(page.render("end"), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("text", ["demo", LONG_NAME])
def test_titles_and_legends_are_whole_and_lie_on_nothing(text: str, page: Any, pages: Callable, tmp_path: Path) -> None:
    page.set_viewport_size(TELEPHONE)
    page.goto(page_of(every_plot(text), tmp_path / "all.html"))
    wait_all_drawn(page)
    for size in (TELEPHONE, TABLET, DESK):
        resize(page, size)
        assert misplaced(page) == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
        pages(page, f"figures_{size['width']}_{len(text)}")
    assert page.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_written_over_the_bars_and_names_of_a_timeline(
    scheme: str, chromium: Any, pages: Callable, tmp_path: Path
) -> None:
    page = open_page(chromium, viewport=TELEPHONE, color_scheme=scheme)
    page.goto(page_of(TIMELINES, tmp_path / "timelines.html"))
    wait_all_drawn(page)
    for size in (TELEPHONE, TABLET, DESK):
        resize(page, size)
        assert misplaced(page) == []
        assert overlaid(page) == []
        assert illegible(page, "main") == []
        pages(page, f"timelines_{scheme}_{size['width']}")
    assert page.evaluate("document.querySelector('.gtitle').textContent").count("last response: prompt actor-of-a-pr") == 1
    assert page.errors == []
    page.context.close()


def test_headings_of_panels_are_read_on_a_telephone_without_scrolling(page: Any, pages: Callable, tmp_path: Path) -> None:
    bound = lambda time_s: 9.0  # noqa: E731
    long_names = {LONG_NAME: waiting(8, "replica-with-a-long-name"), "solver": waiting(5)}
    figures = {
        **{name: TIMELINES[name] for name in PANELS},
        "long names": lambda: plot_before_after(long_names, bound=bound),
        "a bound": lambda: plot_before_after({"static": waiting(8), "solver": waiting(5)}, bound=bound),
    }
    address = page_of(figures, tmp_path / "panels.html")
    page.goto(address)
    wait_all_drawn(page)
    wide = page.evaluate(LINES)
    resize(page, TELEPHONE)
    assert page.evaluate(CUT_TEXTS) == []
    assert misplaced(page) == []
    assert overlaid(page) == []
    assert len(page.evaluate(LINES)) > len(wide), "the headings are in more lines"
    pages(page, "headings_telephone")
    resize(page, WIDE)
    assert page.evaluate(LINES) == wide, "with room again they are as they were"
    assert page.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_file_fits_a_telephone_and_follows_its_colours(
    scheme: str, chromium: Any, pages: Callable, tmp_path: Path
) -> None:
    page = open_page(chromium, viewport=TELEPHONE, color_scheme=scheme)
    for name, make in {**every_plot("demo"), **TIMELINES}.items():
        if name not in ("plot_plane", "plot_front", "plot_overview", "before and after", "many actors"):
            continue
        wide = name == "plot_plane"
        page.goto(save(make().update_layout(width=700 if wide else None), tmp_path / f"{name}.html").as_uri())
        wait_all_drawn(page)
        assert misplaced(page) == []
        assert illegible(page, "body") == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= TELEPHONE["width"]
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 25, 29)")
        pages(page, f"file_{name.replace(' ', '_')}_{scheme}")
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    page.wait_for_function(
        "() => { const text = document.querySelector('.gtitle');"
        " return text && getComputedStyle(text).fill === getComputedStyle(document.body).color; }"
    )
    wait_all_drawn(page)
    assert illegible(page, "body") == [], "also when the scheme changes while the page is open"
    resize(page, DESK)
    assert page.evaluate("document.querySelector('#figure').clientWidth") <= DESK["width"]
    assert page.errors == []
    page.context.close()
