"""``rlhfless step`` with levers: what each saves is printed, and what is missing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command

from solver.model.step_levers import DRAFTS, LEVERS

LOG = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"
SMALL = ("--algorithm", "grpo", "--model", "actor=qwen2.5-7b", "--gpus", 4, "--gpu", "h100")


def step(*arguments: object) -> Result:
    return run_rlhfless("step", LOG, *arguments)


def test_what_each_lever_saves_is_printed_and_in_json() -> None:
    chosen = ("--levers", "drafts", "--drafts", "weak", "--mini-batches", 1)
    done = step(*SMALL, *chosen)
    assert done.exit_code == 0, done.stderr
    assert "elastic plain: expected" in done.stdout
    assert "  drafts: " in done.stdout
    shown = json.loads(step(*SMALL, *chosen, "--format", "json").stdout)
    assert shown["batch"]["responses"] == 256  # of the log
    (lever,) = shown["levers"]
    assert lever["lever"] == "drafts"


@pytest.mark.full
def test_one_plan_over_all_levers_is_planned_executed_and_drawn(tmp_path: Path) -> None:
    chosen = ("--levers", "all", "--mini-batches", 1)
    done = step(*SMALL, *chosen, "-o", tmp_path / "step.html")
    assert done.exit_code == 0, done.stderr
    assert "GPUs decode as" in done.stdout
    assert "elastic plain: expected" in done.stdout
    assert (tmp_path / "step.html").exists()
    shown = json.loads(step(*SMALL, *chosen, "--limit", "100s", "--format", "json").stdout)
    assert [row["plan"] for row in shown["results"]] == ["elastic plain", "this plan"]
    assert all(row["bound_gpu_s"] <= row["gpu_s"] for row in shown["results"])
    assert {row["lever"] for row in shown["levers"]} == set(LEVERS) - {DRAFTS}
    late = step(*SMALL, *chosen, "--limit", "0.001s")
    assert "no plan with these optimisations is expected to keep within 0.001 s" in late.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--levers", "faster"), "--levers name 'faster'"),
        (("--levers", "drafts"), "--drafts weak, strong or A0.7 is needed"),
        (("--drafts", "weak", "--levers", "cut"), "the plan may not draft"),
        (("--levers", "all", "--drafts", "often"), "--drafts often"),
        (("--levers", "cut", "--limit", "1s", "--time-weight", 1), "leave out one of the two"),
        (("--levers", "cut", "--limit", "1 day"), "90s"),
        (("--levers", "cut", "--algorithm", "remax"), "--algorithm is 'remax'; grpo or gspo or ppo or rloo is needed"),
    ],
)
def test_what_levers_lack_is_refused(arguments: tuple[object, ...], named: str) -> None:
    refused_command(step(*SMALL, *arguments), named)
