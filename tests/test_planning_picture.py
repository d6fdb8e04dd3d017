"""The picture of docs/planning.md is what the planner's functions give."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("ortools", reason="OR-Tools, which buys columns, is not installed")
DOCS = Path(__file__).parents[1] / "docs"


def test_the_picture_shows_what_the_planner_does_now() -> None:
    spec = importlib.util.spec_from_file_location("planning_picture", DOCS / "planning_picture.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = script.drawn(script.problem())
    assert drawn == (DOCS / "planning.svg").read_text("utf-8"), "draw it anew: make picture"
    (alt,) = re.findall(r"!\[([^]]*)\]\(planning\.svg\)", (DOCS / "planning.md").read_text("utf-8"))
    (columns,) = re.findall(r"(\d+) columns", drawn)
    assert f"{columns} priced columns" in alt
