"""Pictures of README and docs are what the code gives: the numbers recorded when they were drawn are still the same."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PICTURE = ROOT / re.findall(r"!\[[^]]*\]\(([^)]*)\)", README)[0]


@pytest.fixture(scope="module")
def drawing() -> Any:
    """``docs/picture.py`` as a module."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_the_numbers_on_the_picture_are_those_of_the_code(drawing: Any) -> None:
    record = json.loads(PICTURE.with_suffix(".json").read_text("utf-8"))
    assert hashlib.sha256(PICTURE.read_bytes()).hexdigest() == record.pop("sha256"), "drawn together: make picture"
    assert drawing.told(drawing.readme_figure(README)) == record, "draw it anew: make picture"


@pytest.mark.full
def test_the_numbers_on_the_dashboard_are_those_of_the_code(drawing: Any) -> None:
    picture = ROOT / "docs" / "explore.png"
    record = json.loads(picture.with_suffix(".json").read_text("utf-8"))
    assert hashlib.sha256(picture.read_bytes()).hexdigest() == record.pop("sha256"), "drawn together: make picture"
    assert drawing.dashboard_texts() == record, "draw it anew: make picture"


def test_every_picture_of_the_pages_is_drawn_by_the_one_command(drawing: Any) -> None:
    named = {
        (page.parent / target).resolve()
        for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb"))
        for target in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text("utf-8"))
    }
    drawn = re.findall(r"^(\w+\.(?:png|svg)): ", drawing.__doc__, re.MULTILINE)
    assert {path.name for path in named} == set(drawn)
    assert {path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg")} == set(drawn)


def test_the_first_notebook_shows_the_picture_where_no_code_runs() -> None:
    first = next(iter(json.loads((ROOT / "notebooks" / "01_quick_start.ipynb").read_text("utf-8"))["cells"]))
    ((text, target),) = re.findall(r"!\[([^]]*)\]\(([^)]*)\)", "".join(first["source"]))
    assert (ROOT / "notebooks" / target).resolve() == PICTURE
    assert f"![{text}](" in README, "the picture has one description"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_states_the_numbers_of_the_picture(page: str) -> None:
    title = json.loads(PICTURE.with_suffix(".json").read_text("utf-8"))["title"]
    shares = re.findall(r"([\d.]+)%", title)
    assert len(shares) == 3, "cost, time and bound"
    text = (ROOT / page).read_text("utf-8")
    assert all(f"{share} %" in text for share in shares)


def test_a_readme_without_the_code_is_refused(drawing: Any) -> None:
    with pytest.raises(ValueError, match=re.compile("README.*comparison", re.DOTALL)):
        drawing.readme_figure("```python\nimport rlhfless\n```")
