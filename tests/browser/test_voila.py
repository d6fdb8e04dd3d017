"""The dashboard as a page of Voila, in a real browser: sliders without code, light and dark, for whoever has the token."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dashboard_cells import ALL_DRAWN, DASHBOARDS, DRAWN_PANES
from figures import illegible
from lab import notebook, pane, wait_drawn, wait_text
from real_browser import PATIENCE_S
from voila_server import open_dashboard, served

if find_spec("voila") is None:  # not imported, as it is a command here
    pytest.skip("voila is not installed (pip install 'rlhfless[dev]')", allow_module_level=True)
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
OTHER = {"light": "dark", "dark": "light"}
COLOURS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const figures = [...document.querySelectorAll(".rlhfless-panes .js-plotly-plot")];
  return {
    page: numbers(getComputedStyle(document.body).backgroundColor),
    papers: figures.map((one) => numbers(getComputedStyle(one.querySelector(".main-svg")).backgroundColor)),
    inks: figures.map((one) => numbers(getComputedStyle(one.querySelector(".xtick text, .gtitle")).fill)),
  };
}"""
"""Red, green, blue (0 to 255) and, where it is not 1, opacity: of the page, and of every figure's paper and text."""


def wrong_colours(page: Any, theme: str) -> list[str]:
    """What of the page and its figures is not of the theme; in the dark, papers are dark and texts are light."""
    found = page.evaluate(COLOURS)
    assert found["papers"], "there are figures"
    seen = {"page": found["page"], **{f"ink {n}": ink for n, ink in enumerate(found["inks"])}}
    seen |= {f"paper {n}": paper for n, paper in enumerate(found["papers"]) if paper[3:] != [0]}  # else it is the page's
    dark = {name: sum(colour[:3]) / 3 < 128 for name, colour in seen.items()}
    return [f"{name}: {seen[name]}" for name, one in dark.items() if one != (name.startswith("ink") != (theme == "dark"))]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_and_its_figures_have_the_theme_that_is_asked_for(
    theme: str, page: Any, picture: Callable, voila: tuple[str, str]
) -> None:
    """Whatever the reader's system prefers: Voila's page does not follow it."""
    address, token = voila
    page.emulate_media(color_scheme=OTHER[theme])
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    open_dashboard(page, f"{address}?token={token}&theme={theme}", "timeline", "plane", "responses")
    assert wrong_colours(page, theme) == []
    assert wrong_colours(page, OTHER[theme]), "the test sees them"
    assert illegible(page, "body") == []
    before = page.locator(pane("facts")).inner_text()
    page.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    wait_text(page, "plane", "time weight 0,")
    wait_drawn(page, "plane", 2)
    assert page.locator(pane("facts")).inner_text() != before
    assert wrong_colours(page, theme) == [], "also what is drawn later"
    assert illegible(page, "body") == []
    assert page.errors == []
    picture(page.locator("body"), f"voila_{theme}")


def test_every_dashboard_is_legible_in_the_dark(page: Any, folder: Path, tmp_path: Path, picture: Callable) -> None:
    book = notebook(folder / "dark_on_voila.ipynb", *DASHBOARDS.values(), "result")
    with served(tmp_path, notebook=book) as (address, token):
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.goto(f"{address}?token={token}&theme=dark")
        page.wait_for_function(ALL_DRAWN, arg=DRAWN_PANES)
        wait_text(page, "phase", "done")
        assert wrong_colours(page, "dark") == []
        assert illegible(page, "body") == []
        assert page.errors == []
        picture(page.locator("body"), "voila_dashboards_dark")


def test_a_slider_moves_on_a_page_without_code(page: Any, picture: Callable, voila: tuple[str, str]) -> None:
    address, token = voila
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())  # Voila asks a network for icons
    open_dashboard(page, f"{address}?token={token}", "timeline", "plane", "responses")
    shown = page.evaluate("which => document.querySelector(which)._fullData.map((one) => one.name)", pane("plane"))
    assert {"solver (this plan)", "static"} <= set(shown)
    assert page.locator("text=os.environ").count() == 0  # of the first cell; code to copy stands on the page itself
    before = page.locator(pane("facts")).inner_text()
    slider = page.get_by_role("slider").first
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "([which, before]) => document.querySelector(which).innerText !== before", arg=[pane("facts"), before]
    )
    wait_drawn(page, "plane", 2)
    assert page.errors == []
    picture(page.locator("body"), "voila")


def test_without_the_token_there_is_a_login_only(voila: tuple[str, str]) -> None:
    address, token = voila
    for path in ("", "?token=" + "0" * len(token), "api/kernels"):
        with urllib.request.urlopen(address + path, timeout=PATIENCE_S) as answer:
            assert answer.url.startswith(f"{address}login?next=")
            assert b"What if" not in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{address}voila/files/06_what_if.ipynb", timeout=PATIENCE_S)


def test_a_log_that_cannot_be_read_is_refused_in_a_sentence(page: Any, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with served(tmp_path, tmp_path / "log.csv") as (address, token):
        page.goto(f"{address}?token={token}")
        told = page.wait_for_selector("text=cannot be explored", timeout=1e3 * PATIENCE_S).inner_text()
        assert "log.csv" in told
        assert "Traceback" not in page.locator("body").inner_text()
