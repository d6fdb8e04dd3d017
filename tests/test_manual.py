"""README, docs and benchmark results: every command, target of make and heading that they name is there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhfless.cli import main

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "notebooks", "tests/benchmarks")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "data" / "README.md",
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
each = pytest.mark.parametrize("path", PAGES, ids=lambda path: os.path.relpath(path, ROOT))


def commands(text: str) -> list[str]:
    """The lines of code blocks that call ``rlhfless``, lines that go on joined, and what stands between backticks."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M)).replace("\\\n", " ")
    lines = [" ".join(line.split("  #")[0].split()) for line in blocks.splitlines()]
    inline = re.findall(r"`((?:\.venv/bin/)?rlhfless [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    found = [line.strip() for line in (*lines, *inline)]
    return [line.split("rlhfless ", 1)[1] for line in found if re.match(r"(\.venv/bin/)?rlhfless ", line)]


@each
def test_every_target_of_make_is_in_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    text = path.read_text("utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^make ([a-z-]+)", text, flags=re.M))
    assert named <= targets


@each
def test_every_command_has_the_options_that_it_is_shown_with(path: Path) -> None:
    for line in commands(path.read_text("utf-8")):
        words = shlex.split(line)
        if words[0].startswith("-"):
            assert words in (["--help"], ["--version"])
            continue
        options = {option for parameter in main.commands[words[0]].params for option in parameter.opts}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= options | {"--help"}, line


@each
def test_links_to_headings_lead_to_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", path.read_text("utf-8")):
        if "://" not in target:
            file, anchor = target.split("#")
            there = (path.parent / file).resolve() if file else path
            titles = re.findall(r"^#+ (.*)$", there.read_text("utf-8"), flags=re.M)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, target


def test_commands_are_found() -> None:
    text = "`rlhfless doctor` and\n\n```\nrlhfless plan LOG --gpus 1 \\\n   --profile x    # why\nmake run\n```\n"
    assert commands(text) == ["plan LOG --gpus 1 --profile x", "doctor"]


def test_help_points_to_the_notebooks() -> None:
    told = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for file in ("notebooks/01_quick_start.ipynb", "notebooks/README.md", "docs/guide.md"):
        assert file in told
        assert (ROOT / file).is_file()
    assert "make lab" in told
