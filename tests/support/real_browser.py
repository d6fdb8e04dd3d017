"""A real browser without a window, and a page as it stands when all its figures are drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.system.browser import find_browser

PATIENCE_S = 240.0  # of everything that is waited for: machines may be slow, and others may use them
DRAWN = """() => {
  const figures = [...document.querySelectorAll('.figure > div[id]')];
  return figures.length && figures.every((div) => div.querySelector('.main-svg'));
}"""
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
    """Return the HTML of a page whose figures are all drawn; one that is not drawn, or says an error, fails."""
    with browser() as opened:
        page, errors = opened.new_page(**options), []
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_function(DRAWN, polling=200)
        assert errors == []
        return str(page.content())
