"""A real browser without a window, and a page as it stands when all its figures are drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.system.browser import find_browser

PATIENCE_S = 240.0  # of everything that is waited for: machines may be slow, and others may use them
DRAWN = """() => {
  const figures = [...document.querySelectorAll('.figure > div[id]')].filter((div) => !div.closest('details:not([open])'));
  return (figures.length || document.querySelector('main > footer')) && figures.every((div) =>
    div.dataset.drawn && Math.abs(div._fullLayout.width - div.clientWidth) <= 1);
}"""
"""Every figure that is not in a folded section is drawn, as wide as it should be, and no drawing waits; a report, which has a
footer, may have none outside of folds."""
UNFOLD = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"
FAILS = """for (const kind of ["error", "unhandledrejection"])
  addEventListener(kind, (event) => { window.failed ??= String(event.message ?? event.reason); });"""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # the last: other tests fill the shared memory on purpose


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()


def drawn_page(path: Path, **options: Any) -> str:
    """Return the HTML of a page whose figures are all drawn; a page with an error, or one that is never drawn, fails."""
    with browser() as opened:
        page = opened.new_page(**options)
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.add_init_script(FAILS)
        page.goto(path.as_uri())
        wait_all_drawn(page)
        return str(page.content())


def resize(page: Any, size: dict[str, int]) -> None:
    """Resize a page with figures, and wait until all are drawn for this size."""
    page.set_viewport_size(size)
    page.wait_for_function("(size) => innerWidth === size.width && innerHeight === size.height", arg=size)
    page.evaluate("() => new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)))")  # it knows by then
    wait_all_drawn(page)


def wait_all_drawn(page: Any) -> None:
    """Wait until all figures are drawn; a page that has ``FAILS`` and an error fails at once, with its words."""
    page.wait_for_function(f"() => window.failed !== undefined || ({DRAWN})()", polling=200)
    failed = page.evaluate("window.failed ?? null")
    assert failed is None, failed
