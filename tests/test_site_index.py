"""docs/index.md is the navigation of the documentation site: it lists every page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")


@pytest.fixture(scope="module")
def staged() -> Any:
    """``docs/website/staged.py`` as a module."""
    spec = importlib.util.spec_from_file_location("staged", ROOT / "docs" / "website" / "staged.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_of_the_folder_is_listed() -> None:
    listed = set(re.findall(r"^- \[[^]]*\]\(([^)]*)\)", INDEX, re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed
    assert all((ROOT / "docs" / target).exists() for target in listed)


def test_the_list_becomes_the_navigation(staged: Any) -> None:
    made = staged.contents(
        "# Title\n\n## Use it\n\n- [Planning](planning.md): plans\n- [A site](https://x.org)\n\n## No list\n\nWords.\n"
    )
    assert ":caption: Use it\n\nPlanning <planning>\n```" in made
    assert "x.org" not in made
    assert "No list" not in made
    assert "Python <reference/python/index>" in made


@pytest.mark.parametrize(
    ("page", "written", "in_the_site"),
    [
        ("docs/planning.md", "[d](decisions/one_solver.md)", "[d](decisions/one_solver.md)"),
        ("docs/planning.md", "[n](../notebooks/03_planning.ipynb#Files)", "[n](notebooks/03_planning.ipynb#files)"),
        ("docs/planning.md", "[why](../solver/__init__.py)", "why (`solver/__init__.py`)"),
        ("docs/planning.md", "[`solver/`](../solver)", "`solver/`"),
        ("docs/planning.md", "[x](https://x.org)", "[x](https://x.org)"),
        ("docs/planning.md", "`[x](gone.md)` and\n```\n[x](gone.md)\n```\n", "`[x](gone.md)` and\n```\n[x](gone.md)\n```\n"),
        ("ARCHITECTURE.md", "[p](docs/planning.md#bounds)", "[p](../planning.md#bounds)"),
        ("notebooks/README.md", "[r](../README.md)", "[r](../project/readme.md)"),
    ],
)
def test_links_hold_in_the_site(staged: Any, tmp_path: Path, page: str, written: str, in_the_site: str) -> None:
    file = ROOT / page
    assert staged.moved(written, file, staged.page_of(file), tmp_path) == in_the_site


def test_a_link_to_nothing_is_refused(staged: Any, tmp_path: Path) -> None:
    with pytest.raises(staged.BrokenLink, match=r"docs/planning\.md: links to gone\.md"):
        staged.moved("[x](gone.md)", ROOT / "docs" / "planning.md", "planning.md", tmp_path)
