"""``rlhfless step`` with levers: what each saves is printed, and what is missing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command

from rlhfless.cli import main

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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--levers", "faster", "--lengths", LOG), "--levers name 'faster'"),
        (("--levers", "fuse"), "--lengths LOG is needed"),
        (("--levers", "drafts", "--lengths", LOG), "--drafts weak, strong or A0.7 is needed"),
        (("--drafts", "weak"), "the plan may not draft"),
        (("--levers", "all", "--lengths", LOG, "--drafts", "often"), "--drafts often"),
        (("--levers", "fuse", "--lengths", LOG, "--compare", "megatron"), "leave out one of the two"),
    ],
)
def test_what_levers_lack_is_refused(arguments: tuple[object, ...], named: str) -> None:
    refused_command(step(*SMALL, *arguments), named)
