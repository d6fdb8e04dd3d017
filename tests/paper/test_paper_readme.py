"""The tables of `docs/papers.md`: every figure has its rows, and their numbers are the same when they are measured again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from paper_samples import BESIDE, VERDICTS, Paper

from rlhfless.paper import FIGURES, Numbers, Row, claims, figure_10, figure_14, figure_15
from rlhfless.paper.index import CLAIMS_HEAD, HEAD, PRINTED, markdown

README = Path(__file__).parents[2] / "docs" / "papers.md"
AGAIN = ("3c", "7b", "9", "11", "12")  # figures whose full settings take seconds


def cells(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def body(text: str, head: tuple[str, ...]) -> list[list[str]]:
    """The rows of the table with this head."""
    lines = text.splitlines()
    start = lines.index("| " + " | ".join(head) + " |") + 2
    rows = lines[start:]
    return [cells(line) for line in rows[: next((i for i, line in enumerate(rows) if not line), len(rows))]]


def numbers_in(line: str) -> list[str]:
    """The numbers of a line, in order."""
    return re.findall(r"\d+(?:[.,]\d+)*", line)


def test_every_figure_has_its_rows_and_the_command_that_measured_them() -> None:
    text = README.read_text(encoding="utf-8")
    assert "`rlhfless figures -o out/figures`" in text
    printed, stated = body(text, HEAD), body(text, CLAIMS_HEAD)
    assert len(printed) >= len(PRINTED)
    assert Counter(row[0] for row in stated) == Counter(name for name, _ in VERDICTS)
    assert {row[2] for row in stated} == {"yes", "in part", "no"}
    for rows, head in ((printed, HEAD), (stated, CLAIMS_HEAD)):
        assert all(len(row) == len(head) and all(row) for row in rows)


def test_a_table_of_markdown_shows_text_as_it_is() -> None:
    row = Row("a | b", "tau <= 0.5", "*5* ~ 6_7", "none", "plain.")
    text = markdown(pd.DataFrame([("15", *row)]), claims({}), "a command")
    assert "| a \\| b | tau &lt;= 0.5 | \\*5\\* \\~ 6\\_7 | none |" in text
    assert "- **A \\| b**: plain." in text
    assert "`a command`" in text
    assert " | ".join(HEAD) in text
    assert " | ".join(CLAIMS_HEAD) not in text, "no claims, no table"


@pytest.mark.full
def test_every_row_says_what_is_possible_and_what_to_make_of_it(paper: Paper) -> None:
    rows = [row for name in PRINTED for row in FIGURES[name].rows(paper.found(name))]
    for row in rows:
        assert all(text and not re.search(r"\bnan", text) for text in row), row.what
        assert row.plain.endswith("."), row.what
        assert row.plain[0].isupper(), row.what


@pytest.mark.full
def test_what_is_out_of_reach_and_with_which_learner_is_decided_by_the_numbers(paper: Paper) -> None:
    numbers = paper.found("14")
    speed = next(row for row in figure_14.rows(numbers) if row.paper == "1.22x and 28.9 %")
    assert numbers.table.query("measure == 'most_speedup' and scope == 'step'")["value"].max() < 1.22
    assert "not possible" in speed.plain.split("; ")[0]
    assert not re.search(r"any policy|no policy", " ".join(text for row in figure_10.rows(paper.found("10")) for text in row))
    rows = numbers.table.copy()
    rows.loc[rows["measure"] == "most_speedup", "value"] = 1.21
    rows.loc[rows["measure"] == "most_speedup_on_all", "value"] = 1.22
    rows.loc[(rows["measure"] == "most_cost_saved") & (rows["algorithm"] == "PPO"), "value"] = 0.2
    (turned, *_) = figure_14.rows(Numbers(rows))
    speed_of, cost_of, *_ = turned.plain.split(". ")
    own_size, on_all = speed_of.split("; ")
    assert "not possible" in own_size
    assert "possible" in on_all
    assert "not" not in on_all.split()
    assert "not possible" in cost_of
    assert "PPO" in cost_of


@pytest.mark.full
def test_tau_lambda_and_window_have_a_bound_and_a_share(paper: Paper) -> None:
    table = paper.found("15").table.query("scope == 'generation'")
    for row, panel, choice in zip(figure_15.rows(paper.found("15")), ("tau", "lambda", "window"), (0.5, 0.7, 1), strict=True):
        own = table[(table["panel"] == panel) & (table["policy"] == "rlhfless")]
        at = own[own["parameter"] == choice]
        room = (1 - at["bound_gpu_s"] / at["gpu_s"]).agg(["min", "max"])
        assert all(f"{value:.0%}" in row.possible for value in room), panel
        assert f"{own['share'].min():.0%}" in row.plain, panel


@pytest.mark.nightly
@pytest.mark.skipif(BESIDE.math500() is None, reason="the public logs are not beside the checkout")
def test_numbers_of_the_readme_are_the_same_when_they_are_measured_again() -> None:
    found = {name: FIGURES[name].numbers(FIGURES[name].setting, BESIDE) for name in AGAIN}
    rows = pd.DataFrame([(name, *row) for name in PRINTED if name in found for row in FIGURES[name].rows(found[name])])
    fresh = [line for line in markdown(rows, claims(found), "").splitlines() if line.startswith(("|", "- **"))]
    assert len(fresh) == 2 + 2 + 2 + 2 + 5, "two heads of two lines, two printed numbers with their words, five statements"
    there = [numbers_in(line) for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(("|", "- **"))]
    assert [line for line in fresh if numbers_in(line) not in there] == []
