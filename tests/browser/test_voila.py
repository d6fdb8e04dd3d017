"""The dashboard as a page of Voila, in a real browser: sliders without code, for whoever has the token."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lab import pane, wait_drawn
from real_browser import PATIENCE_S
from voila_server import open_dashboard, served

if find_spec("voila") is None:  # not imported, as it is a command here
    pytest.skip("voila is not installed (pip install 'rlhfless[dev]')", allow_module_level=True)
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


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
