"""Dashboards and reports on a slow page: with a sixth of the processor every pane is drawn or says a sentence, later messages
arrive, and the figures of a report are drawn.

Chromium slows the page down itself, and anywidget gives its widgets up at once instead of after 2 s, which is the worst that a
slow page does to them. The seconds are printed and not judged, as other work on the machine changes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, another_tab, notebook, pane, wait_text
from log_samples import log
from real_browser import DRAWN as FIGURES_DRAWN
from real_browser import PATIENCE_S, UNFOLD

import rlhfless as rl
from rlhfless.widgets.fallback import SENTENCE

if find_spec("voila") is None:  # not imported, as it is a command here
    pytest.skip("voila is not installed (pip install 'rlhfless[dev]')", allow_module_level=True)
pytestmark = pytest.mark.timeout(900)
SLOWER = 6
EXPLORE = "import rlhfless as rl\nshown = rl.load('data/traces/arithmetic-grpo', verbose=False).explore()\nshown"
OTHER = "other = rl.load('hostile.jsonl', 8, 'cpu-tiny-qwen2', verbose=False).explore()\nother"
PANES = ("facts", "timeline", "plane", "actors", "responses", "response", "copy")
DRAWN = ("timeline", "plane", "responses")
SAY = "(which) => [...document.querySelectorAll(which)].every((one) => one.innerText.trim())"
GIVES_UP = """
const later = AbortSignal.timeout;
AbortSignal.timeout = (ms) => later.call(AbortSignal, ms === 2000 ? 0 : ms);
"""
ALL_DRAWN = "(all) => all.every((which) => (document.querySelector(which) || {dataset: {}}).dataset.drawn)"


def slow(page: Any) -> None:
    """Give the page a sixth of the processor, and anywidget no time."""
    page.add_init_script(GIVES_UP)
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})


def wait_for_all_panes(page: Any, since: float, where: str) -> None:
    """Wait until every pane says something and the figures are drawn, and print when that was."""
    page.wait_for_selector(pane("facts"), timeout=1e3 * PATIENCE_S)
    panes = time.monotonic() - since
    page.wait_for_function(SAY, arg=".rlhfless-panes [data-pane]", timeout=1e3 * PATIENCE_S)
    said = time.monotonic() - since
    page.wait_for_function(ALL_DRAWN, arg=[pane(name) for name in DRAWN], timeout=1e3 * PATIENCE_S)
    drawn = time.monotonic() - since
    print(
        f"{where}, {SLOWER} times slower: panes after {panes:.1f} s, a sentence in each {said:.1f} s, all drawn {drawn:.1f} s"
    )
    assert {one.get_attribute("data-pane") for one in page.locator(".rlhfless-panes [data-pane]").all()} == set(PANES)


def wait_both(page: Any) -> None:
    """Wait until the figures of two dashboards are drawn."""
    page.wait_for_function("(which) => document.querySelectorAll(which).length === 2 * 3", arg=".rlhfless-panes [data-drawn]")


def move(page: Any) -> None:
    """Move the time weight: what the kernel then sends is shown."""
    page.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    wait_text(page, "plane", "time weight 0,")


@pytest.mark.nightly  # beside other tests anywidget gives up widgets of a reloaded page, as it waits 2 s only
def test_two_dashboards_in_jupyterlab_and_notebook_7(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    """Both are drawn, also after a reload. After a restart of the kernel they say so, and run again in another program."""
    notebook(folder / "slow.ipynb", EXPLORE, OTHER)
    slow(page)
    lab.open(page, "slow.ipynb")
    since = time.monotonic()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    wait_for_all_panes(page, since, "JupyterLab")
    wait_both(page)
    move(page)
    picture(page.locator(".jp-OutputArea-output").first, "slow_jupyterlab")

    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.reload()
    lab.wait_ready(page)
    wait_both(page)
    wait_text(page, "plane", "time weight 0,")  # what was moved before is shown, and moves on
    page.get_by_role("slider").first.focus()
    page.keyboard.press("End")
    wait_text(page, "plane", "time weight 1,")
    assert "time weight 0.7," in page.locator(pane("plane")).last.inner_text(), "the other dashboard stays as it was"

    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_for_function("(said) => document.body.innerText.split(said).length === 3", arg="this dashboard has ended")
    wait_both(page)  # what was drawn stays
    picture(page.locator(".jp-OutputArea-output").first, "kernel_restarted")

    page = another_tab(page)
    lab.open(page, "slow.ipynb", view="notebooks")
    print("Notebook 7 itself:", page.errors)
    page.errors.clear()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    wait_both(page)
    move(page)
    assert page.get_by_text("this dashboard has ended").count() == 0
    picture(page.locator(".jp-OutputArea-output").first, "notebook_7")
    assert page.errors == []


@pytest.mark.full
def test_a_dashboard_in_voila(page: Any, picture: Callable, voila: tuple[str, str]) -> None:
    address, token = voila
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    slow(page)
    since = time.monotonic()
    page.goto(f"{address}?token={token}")
    wait_for_all_panes(page, since, "Voila")
    move(page)
    picture(page.locator("body"), "slow_voila")

    page.route("**/widgets-manager8/**", lambda route: route.abort())  # a request that a busy machine lost
    page.goto(f"{address}?token={token}")
    page.get_by_text(SENTENCE).wait_for()
    assert page.get_by_role("link", name="Reload the page").count() == 1
    assert "children=" not in page.locator("body").inner_text()
    picture(page.locator("body"), "voila_without_widgets")
    assert page.errors == []


@pytest.mark.full
def test_a_report_on_a_slow_page(page: Any, tmp_path: Path) -> None:
    """The verdict is on the page, then all figures are drawn, also those of folded sections, and a menu works."""
    out = Path(rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False).report(tmp_path / "report.html"))
    slow(page)
    page.goto(out.as_uri(), wait_until="commit")
    page.locator(".headline").wait_for()
    page.wait_for_function(FIGURES_DRAWN)
    page.evaluate(UNFOLD)
    page.wait_for_function(FIGURES_DRAWN)
    choice = page.get_by_label("Policy")
    choice.select_option("static")
    shown = choice.locator("xpath=ancestor::*[contains(@class, 'figure')]").locator("[data-drawn] .gtitle")
    page.wait_for_function(FIGURES_DRAWN)
    assert "GPU timeline of step" in shown.text_content()
    assert page.errors == []
