"""The documentation site: it is built without a warning, needs no network, and has what a reader looks for.

Notebooks are executed by other tests; here one that they share has its outputs, and the others have none.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rlhfless as rl
from rlhfless import plots
from rlhfless.cli.command_line import COMMANDS, command
from rlhfless.cli.options import flag
from rlhfless.training import TrainConfig

ROOT = Path(__file__).parents[1]
NEEDED = ("sphinx", "myst_nb", "furo")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed: pip install 'rlhfless[docs]'"),
]
NOTEBOOK = "01_quick_start"
LOOKED_AT = ("index", "gallery/index", "gallery/one_step", f"notebooks/{NOTEBOOK}", "reference/python/rlhfless")
WORST = ("serious", "critical")
DRAWN = "() => [...document.querySelectorAll('.figure > div[id]')].every((div) => div.dataset.drawn)"


class Element(NamedTuple):
    """An element of a page that names another file, or that others can name."""

    tag: str
    attributes: dict[str, str]


class Elements(HTMLParser):
    """All elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Element] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(Element(tag, {name: value or "" for name, value in attrs}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, executed_notebook: Callable[[str], Path]) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "executed").mkdir()
    shutil.copy(executed_notebook(NOTEBOOK), folder / "executed" / f"{NOTEBOOK}.ipynb")
    words = ["docs/website/build.py", str(folder / "site"), "--executed", str(folder / "executed")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, list[Element]]:
    """The elements of every page, by its path."""
    return {
        path.relative_to(site).as_posix(): Elements(path.read_text("utf-8")).found
        for path in sorted(site.rglob("*.html"))
        if path.relative_to(site).parts[0] != "_static"
    }


def ids(elements: list[Element]) -> set[str]:
    return {one.attributes["id"] for one in elements if "id" in one.attributes}


def text_of(site: Path, name: str) -> str:
    """The text of a page's body, without tags."""
    body = (site / f"{name}.html").read_text("utf-8").partition("<article")[2]
    return re.sub(r"<[^>]+>", "", body)


def test_nothing_is_loaded_from_a_network(pages: dict[str, list[Element]], site: Path) -> None:
    for page, elements in pages.items():
        for tag, attributes in elements:
            loaded = attributes.get("src" if tag in ("script", "img", "iframe", "source") else "href", "")
            if tag in ("script", "img", "iframe", "source", "link"):
                assert not re.match(r"(https?:)?//", loaded), (page, tag, loaded)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet.name


def test_every_link_leads_to_a_page_and_its_heading(pages: dict[str, list[Element]], site: Path) -> None:
    named = {page: ids(elements) for page, elements in pages.items()}
    broken = []
    for page, elements in pages.items():
        for tag, attributes in elements:
            target = attributes.get("href", "")
            if tag != "a" or not target or "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            there = (site / page).parent.joinpath(path).resolve() if path else site / page
            known = named.get(there.relative_to(site.resolve()).as_posix()) if there.is_relative_to(site.resolve()) else None
            if not there.exists() or (anchor and known is not None and anchor not in known):
                broken.append((page, target))
    assert broken == []


def test_the_navigation_has_every_page_of_the_repository(pages: dict[str, list[Element]]) -> None:
    from_index = {one.attributes.get("href", "").partition("#")[0] for one in pages["index.html"] if one.tag == "a"}
    for page in (*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")):
        name = page.relative_to(ROOT).with_suffix(".html").as_posix().removeprefix("docs/")
        assert name in pages
        assert name == "index.html" or name in from_index


def test_every_public_name_has_an_anchor(pages: dict[str, list[Element]]) -> None:
    found = ids(pages["reference/python/rlhfless.html"])
    assert {f"rlhfless.{name}" for name in rl.__all__} <= found
    assert {"rlhfless.Run.plan", "rlhfless.Run.report", "rlhfless.Trainer.step"} <= found
    assert {f"rlhfless.plots.{name}" for name in plots.__all__} <= ids(pages["reference/python/rlhfless.plots.html"])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_section_with_all_its_options(site: Path, pages: dict[str, list[Element]], name: str) -> None:
    assert f"{name}-command" in ids(pages["reference/command_line.html"])
    text = (site / "reference" / "command_line.html").read_text("utf-8")
    section = re.split(r'<section id="', text.partition(f'id="{name}-command"')[2])[0]
    section = re.sub(r"<[^>]+>", "", section)
    for option, field in command(name).options.model_fields.items():
        assert flag(option, field) in section


def test_every_key_of_the_configuration_of_training_is_described(site: Path) -> None:
    text = text_of(site, "reference/configuration")
    config = TrainConfig().to_dict()
    keys = [f"{section}.{key}" for section, values in config.items() if isinstance(values, dict) for key in values]
    assert len(keys) > 50
    assert [key for key in [*keys, "steps", "model", "algorithm.gamma"] if f"{key}: " not in text] == []


def test_every_plot_is_in_the_gallery_with_its_line_and_its_figure(site: Path, pages: dict[str, list[Element]]) -> None:
    shown = []
    for page in sorted((site / "gallery").glob("*.html")):
        if page.stem == "index":
            continue
        text = page.read_text("utf-8")
        for section in text.split('id="gallery-')[1:]:
            shown.append(re.findall(r"rlhfless\.\w+\.([\w.]+)</span></code></a> describes", section)[0])
            assert re.search(r'<div class="highlight"><pre>.*\(', section, re.DOTALL)
            assert re.search(r'<div class="figure"><div id="figure-\d+">', section)
        assert "const PACKED" in text
    assert {name for name in plots.__all__ if name.startswith("plot_")} <= set(shown)
    linked = {
        one.attributes["href"] for one in pages["gallery/index.html"] if ".html#gallery-" in one.attributes.get("href", "")
    }
    assert len(linked) == len(shown)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser."""
    from real_browser import browser

    from rlhfless.system.browser import find_browser

    pytest.importorskip("playwright", reason="playwright, which drives the browser, is not installed")
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome is installed")
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_can_be_read_in_a_browser_without_a_network(site: Path, chromium: Any, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    context.set_default_timeout(240e3)
    try:
        for name in LOOKED_AT:
            page, said = context.new_page(), []
            page.on("console", lambda told, said=said: said.append(told.text) if told.type in ("error", "warning") else None)
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("requestfailed", lambda request, said=said: said.append(request.url))
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_function(DRAWN)
            figures = page.locator(".figure .main-svg").count()
            assert figures > 0 or not name.endswith(("one_step", NOTEBOOK)), name
            assert said == [], name
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            found = [one for one in axe.run(page).response["violations"] if one["impact"] in WORST]
            assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == [], name
            page.close()
    finally:
        context.close()
