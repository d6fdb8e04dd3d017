"""Report, figures, pages of notebooks, dashboards and Voila by axe, the checker of accessibility rules: names, roles,
contrasts, landmarks, tables' headers. Pages are checked on a desk's screen and on a telephone, light and dark.

Its violations have four grades; none of the two worst ones may be left. What needs the Tab key is reached and left by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from bare_page import show
from command_line import run_rlhfless
from every_plot import every_plot
from lab import ROOT, pane, wait_drawn, wait_text
from log_samples import log
from real_browser import UNFOLD, resize, wait_all_drawn

import rlhfless as rl
from rlhfless.plots import save, write_notebook_page
from rlhfless.plots.export.html_page import Page
from rlhfless.simulate import simulate
from rlhfless.widgets import Settings, compare

sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
TRL = ROOT / "tests" / "trace" / "importers" / "golden" / "trl"
WORST = ("serious", "critical")
STOPS = 80  # more than a dashboard has
TELEPHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
FOCUSED = """() => {
  const one = document.activeElement, name = one.getAttribute("aria-label") || one.getAttribute("data-title") || one.title;
  const labels = [...(one.labels || [])].map((label) => label.textContent).join(" ");
  return [one.closest("[data-pane]")?.dataset.pane ?? one.tagName, name || labels || one.textContent.trim()];
}"""


def violations(page: Any) -> list[str]:
    """The serious and critical violations on a page, each with the element that has it."""
    found = sync_playwright.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found if one["impact"] in WORST for node in one["nodes"]]


def each_look(page: Any) -> Iterator[str]:
    """Show a page with figures on a desk's screen and on a telephone, light and dark; yields the name of each."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for size in (DESK, TELEPHONE):
            resize(page, size)
            yield f"{scheme}, {size['width']} px"


def stops_of_tab(page: Any) -> list[tuple[str, str]]:
    """Where the Tab key goes from the page's first slider on, until it has left the page: (pane or element, name)."""
    page.get_by_role("slider").first.focus()
    stops = []
    for _ in range(STOPS):
        page.keyboard.press("Tab")
        stops.append(tuple(page.evaluate(FOCUSED)))
        if stops[-1][0] == "BODY":
            return stops[:-1]
    raise AssertionError(f"the Tab key does not leave the page: {stops[-10:]}")


def test_a_report_has_no_serious_violation(page: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    words = [str(TRL), "--tokenizer", str(TRL), "--max-response-tokens", "24", "--gpus", "8", "--steps", "1"]
    done = run_rlhfless("report", *words, "-o", str(out))
    assert done.exit_code == 0, done.output
    page.goto(out.as_uri())
    wait_all_drawn(page)
    page.evaluate(UNFOLD)
    wait_all_drawn(page)
    for look in each_look(page):
        assert violations(page) == [], look
    page.set_content("<html><body><img src='x.png'><button></button></body></html>")
    assert {one.split(":")[0] for one in violations(page)} >= {"image-alt", "button-name", "html-has-lang"}, (
        "the test sees them"
    )


def test_figures_have_no_serious_violation_on_a_page_and_in_files(page: Any, tmp_path: Path) -> None:
    made = {name: make() for name, make in every_plot("demo").items()}
    together = Page("Figures", "of all kinds")
    for name, figure in made.items():
        together.section(name)
        together.figure(figure)
    (tmp_path / "all.html").write_text(together.render("end"), encoding="utf-8")
    files = [tmp_path / "all.html", *(save(made[name], tmp_path / f"{name}.html") for name in ("plot_plane", "plot_timeline"))]
    for file in files:
        page.goto(file.as_uri())
        wait_all_drawn(page)
        for look in each_look(page):
            assert violations(page) == [], f"{file.name}, {look}"


def test_the_page_of_a_notebook_has_no_serious_violation(page: Any, tmp_path: Path) -> None:
    figure = json.loads(every_plot("demo")["plot_timeline"]().to_json())
    table = pd.DataFrame({"a": [1]}).to_html()
    outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="printed"),
        nbformat.v4.new_output("display_data", {"application/vnd.plotly.v1+json": figure}),
        nbformat.v4.new_output("execute_result", {"text/html": table}, execution_count=1),
    ]
    cells = [
        nbformat.v4.new_markdown_cell(
            "# A notebook\n\n**What it is for:** to be checked.\n\n## A section\n\n| a | b |\n|---|---|\n| 1 | two |"
        ),
        nbformat.v4.new_code_cell("made", outputs=outputs),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "one.ipynb")
    page.goto(write_notebook_page(tmp_path / "one.ipynb", tmp_path / "one.html").as_uri())
    wait_all_drawn(page)
    for look in each_look(page):
        assert violations(page) == [], look


def test_dashboards_have_no_serious_violation(page: Any) -> None:
    explorer = rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False).explore()
    assert explorer.wait(60)
    explorer.time_weight.value = 0.1
    assert explorer.wait(60)
    explorer.show_response(0)
    runs = simulate(log().rollouts, Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.7).setting, ["static", "solver"]).traces
    for panes, last in ((explorer.panes, "plane"), (compare(runs).panes, "timelines")):
        show(page, panes)
        wait_drawn(page, last)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.evaluate("document.documentElement.lang = 'en'; document.title = 'Panes'")
        assert violations(page) == []
        for figure in page.get_by_role("figure").all():
            assert len(figure.get_attribute("aria-label")) > len("timelines"), "a figure is named by its title"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_voila_has_no_serious_violation_and_tab_goes_through(theme: str, page: Any, voila: tuple[str, str]) -> None:
    address, token = voila
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    page.goto(f"{address}?token={token}&theme={theme}")
    wait_drawn(page, "plane", 1)
    page.locator(f"{pane('response')} button").first.click()
    wait_text(page, "response", "next response")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.locator(f"body[data-jp-theme-light='{'true' if theme == 'light' else 'false'}']").count() == 1
    for size in (TELEPHONE, DESK):
        page.set_viewport_size(size)
        assert violations(page) == [], f"{size['width']} px"
    stops = stops_of_tab(page)
    assert [stop for stop in stops if not stop[1]] == [], "whatever has the focus has a name"
    assert {"timeline", "plane", "actors", "responses", "response", "copy"} <= {where for where, _ in stops}
    weight = page.get_by_role("slider", name="GPUs", exact=True)
    assert weight.get_attribute("aria-valuetext") == page.locator(".widget-readout").nth(1).inner_text()
    assert page.errors == []
