"""What the documents name exists: files in decision records, modules and names in the list of renamed things, and the files and
functions on ARCHITECTURE.md's ways through the project."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DECISIONS, RENAMES = ROOT / "docs" / "decisions.md", ROOT / "docs" / "renames.md"
MODULE = re.compile(r"(?:solver|rlhfless)(?:\.\w+)*")
FILE = re.compile(r"`((?:solver|rlhfless|tests|docs|data|notebooks)/[\w/.-]+)`")
RECORD = re.compile(r"\b(?:[Rr]ecord|[Dd]ecision)s? (\d+(?:(?:, | and | to | or )\d+)*)(?![\d.,]*\d|\w)")
INSTALLED = {"rlhfless/_data/notebooks"}  # only in the wheel


def _module(name: str) -> Path | None:
    """The file or folder of a module."""
    path = ROOT.joinpath(*name.split("."))
    return path if path.is_dir() else path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


@cache
def _names(module: str) -> frozenset[str]:
    """Names that a module, or any module of a package, defines or uses."""
    path = _module(module)
    assert path is not None
    found: set[str] = set()
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        found.add(file.stem)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "attr", None)
            found |= {str(name or getattr(node, "arg", None))}
    return frozenset(found)


def _rows(columns: int) -> Iterator[tuple[int, list[str]]]:
    """Rows of the tables with so many columns, and their lines."""
    for line, text in enumerate(RENAMES.read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if text.startswith("|") and len(cells) == columns and cells[0] != "before" and not set(text) <= set("|- "):
            yield line, cells


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_decision_records_name_files_that_exist() -> None:
    named = set(FILE.findall(DECISIONS.read_text(encoding="utf-8")))
    assert len(named) > 50
    assert {name for name in named - INSTALLED if not (ROOT / name).exists()} == set()


def test_decision_records_are_numbered_once_and_stand_in_the_table_of_contents() -> None:
    text = DECISIONS.read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^### (\d+)\. ", text, flags=re.MULTILINE)]
    assert sorted(numbers) == list(range(1, max(numbers) + 1))
    listed: set[int] = set()
    for ranges in re.findall(r"^- \[[^]]+\]\(#[\w-]+\): (.+)$", text, flags=re.MULTILINE):
        for first, _, last in re.findall(r"(\d+)( to (\d+))?", ranges):
            listed |= set(range(int(first), int(last or first) + 1))
    assert listed == set(numbers)


def test_decision_records_are_headed_after_a_blank_line() -> None:
    assert re.findall(r"[^\n]\n(### \d+)", DECISIONS.read_text(encoding="utf-8")) == []


def test_records_that_documents_name_exist() -> None:
    numbers = set(re.findall(r"^### (\d+)\. ", DECISIONS.read_text(encoding="utf-8"), flags=re.MULTILINE))
    pages = [path for folder in ("docs", "rlhfless", "solver", "tests", "notebooks") for path in (ROOT / folder).rglob("*")]
    named = {}
    for path in [*ROOT.glob("*.md"), *(path for path in pages if path.suffix in (".md", ".py", ".ipynb"))]:
        for numbered in RECORD.findall(path.read_text(encoding="utf-8")):
            named |= {(path.name, number): number for number in re.findall(r"\d+", numbered)}
    assert ("decisions.md", "97") in named
    assert [key for key, number in named.items() if number not in numbers] == []


def test_renamed_modules_exist_under_their_new_names() -> None:
    rows = list(_rows(2))
    assert len(rows) > 100
    modules = [(line, name) for line, (_, now) in rows for name in _quoted(now) if MODULE.fullmatch(name)]
    assert [(line, name) for line, name in modules if _module(name) is None and not _is_name(name)] == []


def test_renamed_names_exist_where_the_list_says() -> None:
    rows = list(_rows(3))
    assert len(rows) > 100
    missing = []
    for line, (_, now, places) in rows:
        modules = [place for place in _quoted(places) if MODULE.fullmatch(place)]
        missing += [(line, module) for module in modules if _module(module) is None]
        known = {name for module in modules if _module(module) for name in (*_names(module), *module.split("."))}
        words = [word for name in _quoted(now) for word in re.findall(r"[A-Za-z_]\w*", name.split("(")[0])]
        missing += [(line, word) for word in words if modules and word not in known and "gone" not in now]
    assert missing == []


def _is_name(dotted: str) -> bool:
    """Whether it is a name of a module, ``rlhfless.plots.plane_info``."""
    module, _, name = dotted.rpartition(".")
    return _module(module) is not None and name in _names(module)


def _ways() -> dict[str, list[tuple[str, str]]]:
    """The ways through the project in ARCHITECTURE.md, by heading: files and functions in order."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("Two ways through it")[1].split("```")[1]
    ways: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, block.splitlines()):
        if not line.startswith(" "):
            ways[line] = way = []
            continue
        folder, stops = re.fullmatch(r" +(\S+) +(\S.*)", line).groups()  # type: ignore[union-attr]
        root = "" if folder.startswith("solver") else "rlhfless/"
        way += [(f"{root}{folder}/{file}.py", name) for file, name in (stop.split(".") for stop in stops.split(" ► "))]
    return ways


def test_ways_through_the_project_name_files_and_functions_that_exist_and_count_them() -> None:
    ways = _ways()
    assert len(ways) == 2
    for heading, way in ways.items():
        for file, function in way:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, function)
        files = [file for file, _ in way]
        entered = [file for file, before in zip(files, [None, *files], strict=False) if file != before]
        counts = f"{len(set(entered))} files, {len(entered) - len(set(entered))} returns"
        assert heading.endswith(f": {counts}"), counts


@pytest.mark.parametrize("name", ["solver.planning.no_such", "rlhfless.plots.no_such_info"])
def test_what_does_not_exist_is_found(name: str) -> None:
    assert _module(name) is None
    assert not _is_name(name)
