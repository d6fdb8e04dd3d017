"""``rlhfless step`` with levers: what each saves is printed, and what is missing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command

from rlhfless.cli import main
from solver.model.step_levers import DRAFTS, LEVERS

LOG = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"
SMALL = ("--algorithm", "grpo", "--model", "actor=qwen2.5-7b", "--gpus", 4, "--kind", "h100", "--work", 4_000)


def step(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["step", *map(str, arguments)])


def test_what_each_lever_saves_is_printed_and_in_json() -> None:
    chosen = ("--levers", "drafts", "--drafts", "weak", "--lengths", LOG, "--mini-batches", 1)
    done = step(*SMALL, *chosen)
    assert done.exit_code == 0, done.stderr
    assert "drafts: generate with drafts" in done.stdout
    assert "expected to save" in done.stdout
    shown = json.loads(step(*SMALL, *chosen, "--format", "json").stdout)
    assert shown["batch"]["responses"] == 256  # of the log
    (lever,) = shown["plan"]["levers"]
    assert lever["used"]
    assert lever["saves_s"] > 0


@pytest.mark.full
def test_one_plan_over_all_levers_is_planned_executed_and_drawn(tmp_path: Path) -> None:
    chosen = ("--levers", "all", "--lengths", LOG, "--mini-batches", 1)
    done = step(*SMALL, *chosen, "-o", tmp_path / "step.html")
    assert done.exit_code == 0, done.stderr
    assert "GPUs decode as" in done.stdout
    assert "elastic plain: expected" in done.stdout
    assert (tmp_path / "step.html").exists()
    shown = json.loads(step(*SMALL, *chosen, "--deadline-s", 100, "--format", "json").stdout)
    assert [row["plan"] for row in shown["results"]] == ["elastic plain", "this plan"]
    assert all(row["bound_gpu_s"] <= row["gpu_s"] for row in shown["results"])
    assert {row["lever"] for row in shown["levers"]} == set(LEVERS) - {DRAFTS}
    late = step(*SMALL, *chosen, "--deadline-s", 0.001)
    assert "no plan with these levers is expected to keep within 0.001 s" in late.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--levers", "faster", "--lengths", LOG), "--levers name 'faster'"),
        (("--levers", "overlap"), "--lengths LOG is needed"),
        (("--levers", "drafts", "--lengths", LOG), "--drafts weak, strong or A0.7 is needed"),
        (("--drafts", "weak"), "the plan may not draft"),
        (("--levers", "all", "--lengths", LOG, "--drafts", "often"), "--drafts often"),
        (("--levers", "overlap", "--lengths", LOG, "--compare", "megatron"), "leave out one of the two"),
        (("--levers", "overlap", "--lengths", LOG, "--time-weight", "0.5"), "leave out --lengths or the objective"),
        (("--levers", "all", "--lengths", LOG, "--held", "step"), "--held step pays for all GPUs"),
        (("--levers", "cut", "--lengths", LOG, "--deadline-s", 1, "--budget-usd", 1), "deadline_s and budget_gpu_s"),
        (("--levers", "cut", "--lengths", LOG, "--budget-gpu-s", 1, "--budget-usd", 1), "choose one of them"),
        (("--levers", "cut", "--lengths", LOG, "--algorithm", "remax"), "does not generate exactly once"),
    ],
)
def test_what_levers_lack_is_refused(arguments: tuple[object, ...], named: str) -> None:
    refused_command(step(*SMALL, *arguments), named)
