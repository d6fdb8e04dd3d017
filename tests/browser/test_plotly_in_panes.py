"""How the panes come to their plotly.js: while it is on its way and where it does not come they say so, and try again."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest
from bare_page import OPEN, show
from lab import pane, wait_drawn

from rlhfless.widgets import plotly_js
from rlhfless.widgets.panes import Panes, script

pytestmark = pytest.mark.full
NEW_COPY = (
    "(text) => { const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));"
    " window.library.set('code', new DataView(bytes.buffer)); window.library.set('problem', '');"
    " window.library.set('sent', window.library.get('sent') + 1); }"
)
SECURE = "https://panes.example/"  # browsers work out hashes on encrypted and local pages only
BUTTON = f"{pane('figure')} button:text-is('Try again')"


def panes() -> Panes:
    made = Panes(((("figure", 1), ("later", 1)), (("text", 1),)), ("text",))
    made.draw("figure", go.Figure(go.Bar(x=[1, 2], y=[3, 4])), request=1)
    made.put("text", "not a figure")
    return made


def says(page: Any, name: str, text: str) -> None:
    page.wait_for_function("([which, text]) => document.querySelector(which).innerText.includes(text)", arg=[pane(name), text])


def test_a_damaged_copy_is_not_run_and_another_try_draws(page: Any) -> None:
    code = plotly_js.FILE.read_bytes()
    page.route(SECURE, lambda route: route.fulfill(body="<!DOCTYPE html>", content_type="text/html"))
    page.goto(SECURE)
    show(page, panes(), code=b"window.hacked = 1;" + code)
    for name in ("figure", "later"):
        says(page, name, "another SHA-256")
    assert page.evaluate("window.hacked") is None
    assert page.locator(pane("text")).inner_text() == "not a figure"
    page.locator(BUTTON).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("window.sent.some((one) => one.again)")
    page.evaluate(NEW_COPY, code.decode("latin-1"))
    wait_drawn(page, "figure", 1)
    says(page, "later", "Waiting for the first figure")
    assert page.locator(BUTTON).count() == 0
    assert page.evaluate("window.Plotly") is None, "the page's own names are as they were"
    assert page.errors == []


def test_what_the_kernel_says_of_its_file_is_in_the_panes(page: Any) -> None:
    show(page, panes(), code=b"", problem="<b>plotly.js</b> cannot be read; install rlhfless again.")
    says(page, "figure", "The figures cannot be drawn yet. <b>plotly.js</b> cannot be read; install rlhfless again.")
    assert page.get_by_role("alert").count() == 2


def test_a_model_that_is_not_there_is_said_and_one_that_comes_is_taken(page: Any) -> None:
    show(page, panes(), code=b"")
    says(page, "figure", "The kernel sent no plotly.js.")
    page.evaluate("window.model.set('library', 'nowhere')")
    says(page, "figure", "no model nowhere")
    page.evaluate(NEW_COPY, plotly_js.FILE.read_bytes().decode("latin-1"))
    page.evaluate("window.model.set('library', 'library')")
    wait_drawn(page, "figure", 1)


def test_a_page_runs_one_copy_for_all_dashboards(page: Any) -> None:
    show(page, panes())
    wait_drawn(page, "figure", 1)
    page.evaluate("window.library.set('code', new DataView(new ArrayBuffer(0)))")  # what it sent before is enough
    page.evaluate("() => { const el = document.createElement('div'); document.body.append(el); el.id = 'second'; }")
    page.evaluate(OPEN, [script(), "second"])
    page.wait_for_selector("#second [data-pane='figure'][data-drawn]")
    assert page.errors == []
