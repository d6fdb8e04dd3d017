"""Decision records are numbered once, and a record that a document names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions.md"
RECORD = re.compile(r"\b(?:[Rr]ecord|[Dd]ecision)s? (\d+(?:(?:, | and | to | or )\d+)*)(?![\d.,]*\d|\w)")


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
