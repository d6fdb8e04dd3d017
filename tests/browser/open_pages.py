"""Opens pages that keep what their console says, and tells what the pages of a failed test show.

Knows Playwright and where JupyterLab keeps its kernel; nothing of what is tested. A failure on a machine that nobody can look
at should be understood from its log alone.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from real_browser import FAILS, PATIENCE_S

GIVEN_UP = "[anywidget] Failed to initialize model"
"""What anywidget says of a widget that a slow page has not started after 2 s; panes are drawn nevertheless."""
KEPT, KINDS = 30, ("error", "warning")  # lines of the console
SHOWN = """() => {
  const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
  const said = [...document.querySelectorAll("[data-pane]")].map((pane) =>
    `pane ${pane.dataset.pane}: ${JSON.stringify({...pane.dataset})} ${pane.innerText.slice(0, 600)}`);
  const buttons = [...document.querySelectorAll("button.jupyter-button")];
  const names = buttons.map((one) => one.innerText + (one.disabled ? " (off)" : ""));
  const figures = [...document.querySelectorAll(".figure > div[id]")].filter((div) => !div.dataset.drawn).map((div) => div.id);
  return [
    `title ${document.title}, ${innerWidth} x ${innerHeight}, ${document.visibilityState}`,
    `kernel ${kernel ? `${kernel.status}, ${kernel.connectionStatus}, pending input ${kernel.hasPendingInput}` : "none"}`,
    `buttons ${names.join(", ") || "none"}; figures that are not drawn: ${figures.join(", ") || "none"}`,
    ...(said.length ? said : [document.body.innerText.slice(0, 3000)]),
  ].join("\\n");
}"""
"""State of a page in words: its kernel, what its panes say, or its text where it has none."""


def open_page(browser: Any, **options: Any) -> Any:
    """Return an empty page in a context of its own.

    Its ``errors`` are those that nothing caught; ``context.said`` has the last warnings and errors of the console.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(1e3 * PATIENCE_S)
    context.said = deque(maxlen=KEPT)
    context.on("console", lambda told: context.said.append(f"{told.type}: {told.text[:300]}") if told.type in KINDS else None)
    context.on("requestfailed", lambda request: context.said.append(f"request failed: {request.url[:200]} {request.failure}"))
    page = context.new_page()
    page.add_init_script(FAILS)
    return keeping_errors(page, [])


def keeping_errors(page: Any, errors: list[str]) -> Any:
    """Return the page; its uncaught errors go to the list ``errors``, without those of widgets that a slow page starts late."""
    page.errors = errors
    page.on("pageerror", lambda error: None if GIVEN_UP in str(error) else errors.append(str(error)))
    return page


def what_pages_say(browser: Any, name: str, pictures: Path) -> str:
    """Return what every open page shows and its console said; a picture of each goes to the folder."""
    told = []
    for context in browser.contexts:
        for number, page in enumerate(context.pages):
            told.append(f"--- {page.url.split('?')[0]}")
            try:
                pictures.mkdir(parents=True, exist_ok=True)
                told.append(str(page.evaluate(SHOWN)))
                page.screenshot(path=pictures / f"failed_{name}_{number}.png", timeout=30_000)
            except Exception as error:  # the page may be what is broken: the test's own failure is reported in any case
                told.append(f"the page does not answer: {error}")
            told += [f"uncaught: {error}" for error in getattr(page, "errors", [])]
        told += getattr(context, "said", [])
    return "\n".join(told)
