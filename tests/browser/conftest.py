"""What browser tests share: without a browser they are skipped; pictures for people go to ``out/screenshots``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT, TALL, WIDE, Lab, missing
from log_samples import rollouts
from open_pages import open_page, what_pages_say
from real_browser import browser, wait_all_drawn
from voila_server import served

PICTURES = ROOT / "out" / "screenshots"
WHY_NOT = missing()


class Skipped(pytest.Module):
    """A file of browser tests where there is no browser; it is not imported, as it may need what is missing, too."""

    def collect(self) -> Any:
        pytest.skip(WHY_NOT, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Skip every file of this folder where there is no browser."""
    return Skipped.from_parent(parent, path=module_path) if WHY_NOT else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add what the open pages say to the report of a failed test, while they are still open."""
    report = yield
    opened = getattr(item, "funcargs", {}).get("chromium")
    if report.when == "call" and report.failed and opened is not None:
        name = re.sub(r"\W+", "_", item.name)
        report.sections.append(("what the pages say", what_pages_say(opened, name, PICTURES)))
    return report


@pytest.fixture(scope="module")  # its event loop would be in the way of tests that start their own
def chromium() -> Iterator[Any]:
    """A browser."""
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What JupyterLab serves: the notebooks, the shipped data, the docs' pictures, a log with hostile texts."""
    root = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    (root / "data").symlink_to(ROOT / "data")
    (root / "docs").mkdir()
    for picture in (ROOT / "docs").glob("*.png"):  # copied: the server answers no request for files beyond links
        shutil.copy(picture, root / "docs")
    rollouts(prompts=24, samples=8).to_json(root / "hostile.jsonl", orient="records", lines=True)
    return root


@pytest.fixture(scope="session")
def lab(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(folder, tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture(scope="session")
def voila(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address and token of the dashboard that Voila serves."""
    with served(tmp_path_factory.mktemp("voila")) as (address, token):
        yield address, token


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page as wide as a laptop's screen; no error may reach its console unseen."""
    opened = open_page(chromium, viewport=WIDE)
    yield opened
    opened.context.close()


@pytest.fixture(scope="session")
def picture() -> Callable[[Any, str], Path]:
    """Takes a picture of an element for people to look at."""

    def take(element: Any, name: str, size: dict[str, int] = TALL) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        element.page.set_viewport_size(size)  # JupyterLab's panel cuts off what does not fit
        element.page.wait_for_timeout(700)
        element.screenshot(path=PICTURES / f"{name}.png")
        element.page.set_viewport_size(WIDE)
        return PICTURES / f"{name}.png"

    return take


@pytest.fixture(scope="session")
def pages() -> Callable[[Any, str], Path]:
    """Takes a picture of a whole page for people to look at.

    The window grows to the page and back. For Playwright's own pictures of whole pages Chromium makes the window one pixel
    wide for a moment, and all figures are drawn anew.
    """

    def take(page: Any, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        before = page.viewport_size
        page.set_viewport_size({**before, "height": page.evaluate("document.documentElement.scrollHeight")})
        page.screenshot(path=PICTURES / f"{name}.png")
        page.set_viewport_size(before)
        wait_all_drawn(page)
        return PICTURES / f"{name}.png"

    return take
