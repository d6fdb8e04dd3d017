"""README, docs, notebooks and benchmark results: every command, target of make and heading that they name is there.

A command that a reader types has all that it requires, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from command_line import run_rlhfless
from pydantic.fields import FieldInfo

from rlhfless.cli.command_line import command
from rlhfless.cli.parser import parser_of
from rlhfless.errors import InputError

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "notebooks", "tests/benchmarks")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "data" / "README.md",
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
each = pytest.mark.parametrize("path", PAGES, ids=lambda path: os.path.relpath(path, ROOT))


each_notebook = pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
BLOCK = re.compile(r"^```\w*\n(.*?)^```", flags=re.S | re.M)


def in_blocks(text: str) -> list[str]:
    """The lines of code blocks that call ``rlhfless``, lines that go on joined."""
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
    lines = [" ".join(line.split("  #")[0].split()) for line in blocks.splitlines()]
    return [line.split("rlhfless ", 1)[1] for line in lines if re.match(r"(\.venv/bin/)?rlhfless ", line)]


SAMPLE = re.compile(r"^\$ (rlhfless [^\n]+)\n(.*?)^```", flags=re.S | re.M)


@each
def test_a_printed_sample_is_what_the_program_prints(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are broken for the page; nothing else is changed."""
    monkeypatch.chdir(ROOT)
    for line, shown in SAMPLE.findall(path.read_text(encoding="utf-8")):
        assert run_rlhfless(*shlex.split(line)[1:]).stdout.split() == shown.split()


def inline(text: str) -> list[str]:
    """What stands between backticks and calls ``rlhfless``, also after variables of the environment."""
    return [line.strip() for line in re.findall(r"`(?:\w+=\S+ )*(?:\.venv/bin/)?rlhfless ([^`]+)`", BLOCK.sub("", text))]


def typed(text: str) -> list[list[str]]:
    """The commands that a reader types, in words: not the name of a command alone in a sentence, nor one with ``...``."""
    lines = [shlex.split(line) for line in in_blocks(text)]
    lines += [words for words in map(shlex.split, inline(text)) if len(words) > 1]
    return [words for words in lines if "..." not in words and not words[0].startswith("-")]


def left_out(words: list[str]) -> list[str]:
    """The required options and arguments that a command lacks, or what is wrong with an option."""
    kind = command(words[0]).options
    try:
        given = parser_of(kind, words[0]).typed(words[1:])
    except InputError as error:
        return [str(error)]
    return [
        name for name, field in kind.model_fields.items() if field.is_required() and not given.keys() & {name, *aliases(field)}
    ]


def aliases(field: FieldInfo) -> list[str]:
    """The names of a field on the command line."""
    alias = field.validation_alias
    return [str(one) for one in getattr(alias, "choices", [alias])]


def cells(path: Path) -> str:
    """The texts of a notebook."""
    read = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in read if cell["cell_type"] == "markdown")


@each
def test_every_target_of_make_is_in_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    text = path.read_text("utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^make ([a-z-]+)", text, flags=re.M))
    assert named <= targets


@each
def test_every_command_has_the_options_that_it_is_shown_with(path: Path) -> None:
    check_options(path.read_text("utf-8"))


@each_notebook
def test_every_command_in_a_notebook_has_the_options_that_it_is_shown_with(path: Path) -> None:
    check_options(cells(path))


def check_options(text: str) -> None:
    for line in (*in_blocks(text), *inline(text)):
        words = shlex.split(line)
        if words[0].startswith("-"):
            assert words in (["--help"], ["--version"])
            continue
        options = parser_of(command(words[0]).options, words[0])._option_string_actions.keys()
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= {*options, "--help"}, line


@pytest.mark.parametrize(
    "path", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda path: os.path.relpath(path, ROOT)
)
def test_a_command_to_type_has_all_that_it_requires(path: Path) -> None:
    """The list of changes names commands; nobody types from it."""
    assert {" ".join(words): missing for words in typed(path.read_text("utf-8")) if (missing := left_out(words))} == {}


@each_notebook
def test_a_command_to_type_from_a_notebook_has_all_that_it_requires(path: Path) -> None:
    assert {" ".join(words): missing for words in typed(cells(path)) if (missing := left_out(words))} == {}


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
    block = "```\nrlhfless plan LOG --gpus 1 \\\n   --profile x    # why\nmake run\n```\n"
    text = f"`rlhfless doctor`, `A=1 rlhfless report LOG` and\n\n{block}"
    assert in_blocks(text) == ["plan LOG --gpus 1 --profile x"]
    assert inline(text) == ["doctor", "report LOG"]
    assert typed(text) == [["plan", "LOG", "--gpus", "1", "--profile", "x"], ["report", "LOG"]]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("`rlhfless profile --fast`", [["out"]]),
        (
            "`rlhfless profile --max-batch`",
            [["--max-batch needs a value (largest batch to measure, in responses (the engine's slots))"]],
        ),
        ("`rlhfless report LOG -o page.html`", [[]]),
        ("```\nrlhfless train\n```", [[]]),
        ("`rlhfless train`", []),
        ("`rlhfless report LOG ...`", []),
    ],
)
def test_what_a_command_lacks_is_found(line: str, missing: list[list[str]]) -> None:
    assert [left_out(words) for words in typed(line)] == missing


def test_an_option_without_its_value_is_found() -> None:
    (said,) = left_out(["report", "LOG", "-o"])
    assert "-o" in said


def test_help_points_to_the_manual_and_to_what_is_installed() -> None:
    shown = " ".join(run_rlhfless("--help").output.split())
    assert "rlhfless doctor" in shown
    for folder in ("docs", "notebooks"):
        assert folder in shown
        assert (ROOT / folder).is_dir()
