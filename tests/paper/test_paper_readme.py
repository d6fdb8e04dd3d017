"""The tables of `docs/papers.md`: every figure has its rows, and their numbers are the same when they are measured again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from paper_samples import BESIDE, VERDICTS, Paper

from rlhfless.paper import FIGURES, Finding, Runs, findings
from rlhfless.paper.write import HEAD, markdown

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


def test_every_figure_has_its_rows_and_the_command_that_measured_them() -> None:
    text = README.read_text(encoding="utf-8")
    assert "`rlhfless figures -o out/figures`" in text
    rows = body(text, HEAD)
    assert Counter(row[0] for row in rows) == Counter(name for name, _ in VERDICTS)
    assert {row[-1] for row in rows} == {"yes", "in part", "no"}
    assert all(len(row) == len(HEAD) and all(row) for row in rows)


def test_a_table_of_markdown_shows_text_as_it_is() -> None:
    row = Finding("a | b", "tau <= 0.5", "*5* ~ 6_7", "", "no")
    text = markdown(pd.DataFrame([("15", *row)], columns=list(HEAD)), "a command")
    assert "| 15 | a \\| b | tau &lt;= 0.5 | \\*5\\* \\~ 6\\_7 | - | no |" in text
    assert "`a command`" in text
    assert " | ".join(HEAD) in text


@pytest.mark.full
def test_every_finding_says_what_is_possible(paper: Paper) -> None:
    rows = [row for name in FIGURES for row in FIGURES[name].findings(paper.found(name))]
    for row in rows:
        assert all(text and not re.search(r"\bnan", text) for text in row), row.what
        assert row.holds in ("yes", "in part", "no"), row.what


@pytest.mark.full
def test_what_is_out_of_reach_and_with_which_learner_is_decided_by_the_numbers(paper: Paper) -> None:
    numbers = paper.found("14")
    speed = FIGURES["14"].findings(numbers)[0]
    most = numbers.table.query("measure == 'most_speedup' and scope == 'step'")["value"]
    assert most.max() < 1.22
    assert f"a learner of the naive system's size: {most.min():.2f}" in speed.bound
    assert not re.search(
        r"any policy|no policy", " ".join(text for row in FIGURES["10"].findings(paper.found("10")) for text in row)
    )
    rows = numbers.table.copy()
    rows.loc[(rows["measure"] == "speedup"), "value"] = 1.22
    rows.loc[(rows["measure"] == "cost_saved"), "value"] = 0.3
    assert FIGURES["14"].findings(numbers._replace(table=rows))[0].holds == "yes"


@pytest.mark.full
def test_tau_lambda_and_window_have_a_bound_and_a_share(paper: Paper) -> None:
    table = paper.found("15").table.query("scope == 'generation'")
    rows = {row.what: row.bound for row in FIGURES["15"].findings(paper.found("15"))}
    for panel, choice, what in (
        ("tau", 0.5, "tau from which a smaller one saves no further cost"),
        ("lambda", 0.7, "lambda = 0.7 among 0.3 to 0.9"),
        ("window", 1, "predicting from 1 to 4 past epochs"),
    ):
        own = table[(table["panel"] == panel) & (table["policy"] == "rlhfless")]
        at = own[own["parameter"] == choice]
        room = (1 - at["bound_gpu_s"] / at["gpu_s"]).agg(["min", "max"])
        assert all(f"{value:.0%}" in rows[what] for value in room), panel
    tau = table[(table["panel"] == "tau") & (table["policy"] == "rlhfless")]
    assert f"{tau['share'].min():.0%}" in rows["a smaller tau is cheaper and slower"]


@pytest.mark.nightly
@pytest.mark.skipif(BESIDE.math500() is None, reason="the public logs are not beside the checkout")
def test_numbers_of_the_readme_are_the_same_when_they_are_measured_again() -> None:
    runs = Runs(BESIDE)
    fresh = markdown(findings({name: FIGURES[name].compute(runs) for name in AGAIN}), "").splitlines()
    fresh = [line for line in fresh if line.startswith("|")]
    assert len(fresh) == 2 + 6, "a head of two lines, and the findings of these figures"
    there = README.read_text(encoding="utf-8").splitlines()
    assert [line for line in fresh if line not in there] == []
