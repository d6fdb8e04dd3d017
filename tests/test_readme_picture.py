"""README's picture is what README's code gives: the numbers on it were recorded when it was drawn, and are still the same."""

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


def test_the_readme_states_the_numbers_of_the_picture() -> None:
    title = json.loads(PICTURE.with_suffix(".json").read_text("utf-8"))["title"]
    shares = re.findall(r"(\d+)%", title)
    assert len(shares) == 3, "cost, time and bound"
    assert all(f"{share} %" in README for share in shares)


def test_a_readme_without_the_code_is_refused(drawing: Any) -> None:
    with pytest.raises(ValueError, match=re.compile("README.*comparison", re.DOTALL)):
        drawing.readme_figure("```python\nimport rlhfless\n```")
