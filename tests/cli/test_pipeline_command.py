"""``rlhfless pipeline``: published instances, one actor and critic, tables of instances, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command
from page_figures import figures_json

from rlhfless.cli import main
from rlhfless.paper.fused_pipelines import PUBLISHED
from solver.pipeline import PipelinePlan

ONE = ("--actor", "4:2:8:1", "--critic", "2:1:4:0.5")


def pipeline(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


def test_the_published_instances_are_rows_with_the_papers_values() -> None:
    shown = pipeline("--instances", "rlhfuse", "--time-limit", 0.02, "--format", "csv").stdout
    table = pd.read_csv(io.StringIO(shown))
    assert len(table) == 12
    assert table["paper_latency"].tolist()[9] == 613 > table["latency_bound"].tolist()[9] == 606
    assert (table["latency"] >= table["latency_bound"]).all()
    assert (table["peak_memory"] >= table["memory_bound"] * (1 - 1e-9)).all()
    assert table["paper_memory"].tolist()[0] == 19.7


def test_one_actor_and_critic_are_one_row_and_json_has_the_plan() -> None:
    shown = pipeline(*ONE).stdout
    assert "optimal" in shown
    assert "paper" not in shown
    assert "latency proven optimal in 1 of 1" in shown
    assert "peak memory was not searched for (--memory)" in shown
    found = json.loads(pipeline(*ONE, "--split-backward", "--format", "json").stdout)
    plan = PipelinePlan.from_json(json.dumps(found[0]["plan"]))
    assert plan.problem.split_backward
    assert found[0]["latency"] == plan.latency


def test_a_table_of_instances_needs_no_published_results(tmp_path: Path) -> None:
    rows = pd.read_csv(PUBLISHED).iloc[[5]].drop(columns=["experiment", "paper_latency", "paper_peak_memory_memory_pass"])
    rows.to_csv(tmp_path / "mine.csv", index=False)
    shown = json.loads(pipeline("--instances", tmp_path / "mine.csv", "--time-limit", 0.02, "--format", "json").stdout)
    assert [row["instance"] for row in shown] == ["0"]
    assert shown[0]["paper_latency"] is None


def test_memory_is_searched_for_and_the_schedules_are_drawn(tmp_path: Path) -> None:
    done = pipeline("--actor", "4:2:4:1", "--critic", "4:1:4:1", "--memory", "--time-limit", 0.1, "-o", tmp_path / "page.html")
    assert "% of each time limit" in done.stdout
    assert "peak memory proven least at that latency in" in done.stdout
    assert "actor, forward" in figures_json((tmp_path / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--instances"),
        (("--actor", "4:2:8"), "--critic"),
        ((*ONE, "--instances", "rlhfuse"), "--instances"),
        (("--actor", "4:2", "--critic", "2:1:4"), "--actor"),
        (("--actor", "4:2:8", "--critic", "3:1:4"), "3 stages"),
    ],
)
def test_malformed_commands(arguments: tuple[str, ...], named: str) -> None:
    refused_command(pipeline(*arguments), named)


def test_malformed_tables(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    refused_command(pipeline("--instances", "missing.csv"), "missing.csv")
    for text, named in (("a,b\n1,2\n", "pp_actor"), ("", "mine.csv")):
        file.write_text(text, encoding="utf-8")
        assert named in pipeline("--instances", file).stderr
    columns = list(pd.read_csv(PUBLISHED))
    file.write_text(",".join(columns) + "\n", encoding="utf-8")
    assert "has no rows" in pipeline("--instances", file).stderr
    file.write_text(",".join(columns) + "\n" + ",".join(["x"] * len(columns)) + "\n", encoding="utf-8")
    assert "no number" in pipeline("--instances", file).stderr
