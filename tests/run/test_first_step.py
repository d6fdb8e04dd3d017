"""A step without history: whatever plans it says that its lengths are a guess."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import run_rlhfless
from log_samples import rollouts

import rlhfless as rl
from rlhfless.run import Run

PROFILE = "l40s-qwen2.5-3b-tp2"
GUESS = "All lengths of step 0 are a guess"


@pytest.fixture(scope="module")
def run() -> Run:
    return rl.load(rollouts(steps=2, prompts=4, samples=2), 4, PROFILE, verbose=False)


def test_a_plan_of_the_first_step_says_that_its_lengths_are_a_guess(run: Run) -> None:
    first, second = run.plan(step=0), run.plan(step=1)
    assert GUESS in repr(first)
    assert GUESS in first._repr_html_()
    for shown in (repr(second), second._repr_html_()):
        assert "guess" not in shown
    compared = first.compare("static")
    assert GUESS in repr(compared)
    assert GUESS in compared._repr_html_()


def test_a_whole_step_says_so_too() -> None:
    run = rl.load(rollouts(steps=2, prompts=4, samples=2), 4, "h100-qwen2.5-3b-tp1", verbose=False)
    planned = run.plan_step(0, levers="assignment")
    assert GUESS in repr(planned)
    assert GUESS in planned._repr_html_()


def test_a_step_of_mostly_new_prompts_says_how_many() -> None:
    log = rollouts(steps=2, prompts=4, samples=2)
    new = (log["step"] == 1) & ~log["prompt_id"].str.endswith("-0")
    log.loc[new, "prompt_id"] += " of another set"
    planned = rl.load(log, 4, PROFILE, verbose=False).plan(step=1)
    assert "Most lengths of step 1 are a guess, because 75% of its prompts" in repr(planned)


@pytest.mark.parametrize("step", [0, 1])
def test_the_command_says_so(step: int, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pd.DataFrame(rollouts(steps=2, prompts=4, samples=2)).drop(columns=["prompt", "response"]).to_csv(path, index=False)
    words = ["plan", str(path), "--gpus", "4", "--profile", PROFILE, "--step", str(step)]
    shown = run_rlhfless(*words)
    assert shown.exit_code == 0, shown.output
    assert (GUESS in shown.stdout) == (step == 0)
    as_json = json.loads(run_rlhfless(*words, "--format", "json").stdout)
    assert ("guess" in as_json) == (step == 0)
