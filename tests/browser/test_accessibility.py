"""Report, dashboards and Voila by axe, the checker of accessibility rules: names, roles, contrasts, landmarks, tables' headers.

Its violations have four grades; none of the two worst ones may be left. What needs the Tab key is reached and left by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bare_page import show
from command_line import run_rlhfless
from lab import ROOT, pane, wait_drawn, wait_text
from log_samples import log
from real_browser import UNFOLD, wait_all_drawn

import rlhfless as rl
from rlhfless.simulate import simulate
from rlhfless.widgets import Settings, compare

sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
TRL = ROOT / "tests" / "trace" / "importers" / "golden" / "trl"
WORST = ("serious", "critical")
STOPS = 80  # more than a dashboard has
FOCUSED = """() => {
  const one = document.activeElement, name = one.getAttribute("aria-label") || one.getAttribute("data-title") || one.title;
  const labels = [...(one.labels || [])].map((label) => label.textContent).join(" ");
  return [one.closest("[data-pane]")?.dataset.pane ?? one.tagName, name || labels || one.textContent.trim()];
}"""


def violations(page: Any) -> list[str]:
    """The serious and critical violations on a page, each with the element that has it."""
    found = sync_playwright.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found if one["impact"] in WORST for node in one["nodes"]]


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
    assert violations(page) == []
    page.set_content("<html><body><img src='x.png'><button></button></body></html>")
    assert {one.split(":")[0] for one in violations(page)} >= {"image-alt", "button-name", "html-has-lang"}, (
        "the test sees them"
    )


def test_dashboards_have_no_serious_violation(page: Any) -> None:
    explorer = rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False).explore()
    assert explorer.wait(60)
    explorer.time_weight.value = 0.1
    assert explorer.wait(60)
    explorer.show_response(0)
    runs = simulate(log().rollouts, Settings("cpu-tiny-qwen2", gpus=8).setting, ["static", "solver"]).traces
    for panes, last in ((explorer.panes, "plane"), (compare(runs).panes, "timelines")):
        show(page, panes)
        wait_drawn(page, last)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.evaluate("document.documentElement.lang = 'en'; document.title = 'Panes'")
        assert violations(page) == []
        for figure in page.get_by_role("figure").all():
            assert len(figure.get_attribute("aria-label")) > len("timelines"), "a figure is named by its title"


def test_voila_has_no_serious_violation_and_tab_goes_through(page: Any, voila: tuple[str, str]) -> None:
    address, token = voila
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    page.goto(f"{address}?token={token}")
    wait_drawn(page, "plane", 1)
    page.locator(f"{pane('response')} button").first.click()
    wait_text(page, "response", "next response")
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert violations(page) == []
    stops = stops_of_tab(page)
    assert [stop for stop in stops if not stop[1]] == [], "whatever has the focus has a name"
    assert {"timeline", "plane", "actors", "responses", "response", "copy"} <= {where for where, _ in stops}
    weight = page.get_by_role("slider", name="GPUs", exact=True)
    assert weight.get_attribute("aria-valuetext") == page.locator(".widget-readout").nth(1).inner_text()
    assert page.errors == []
