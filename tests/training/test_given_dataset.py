"""A trainer of a data set in memory, a function as reward and a function as policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused

pytest.importorskip("torch")

import pandas as pd
from training_samples import config

import solver
from rlhfless.errors import InputError
from rlhfless.training import ArithmeticTask, Trainer
from rlhfless.training.config import TrainError
from rlhfless.training.tasks.given_rows import run_over

ROWS = [{"prompt": f"{a}+{b}=", "level": a} for a, b in ((1, 2), (3, 4), (5, 6), (7, 8))]


def shorter(completions: list[str], level: list[int]) -> list[float]:
    return [float(-len(text)) for text in completions]


def two_actors(problem: solver.PlanningProblem, options: object) -> solver.Plan:
    return solver.random_split(problem, actors=2, seed=0)


@pytest.mark.parametrize("form", [list, pd.DataFrame])
def test_functions_and_rows_make_a_trainer(form: type, untrained: Path) -> None:
    dataset = form(ROWS)
    with Trainer(model=untrained, rewards=shorter, dataset=dataset, planner=two_actors, progress=False) as trainer:
        assert {problem.prompt for problem in trainer.task.problems} == {row["prompt"] for row in ROWS}
        done = trainer.step()
    assert len(done.plan.actors) == 2
    rollouts = done.trace.rollouts
    assert set(rollouts["prompt"]) == {row["prompt"] for row in ROWS}
    assert rollouts["reward"].tolist() == [float(-len(text)) for text in rollouts["response"]]


def test_without_rewards_answers_are_needed(untrained: Path) -> None:
    with refused(InputError, "'answer'"):
        Trainer(model=untrained, dataset=ROWS, progress=False)
    with refused(InputError, 4):
        Trainer(config(prompts=8, prompts_per_step=8), model=untrained, dataset=ROWS, rewards=shorter, progress=False)
    with refused(TrainError, "task", "dataset"):
        Trainer(model=untrained, dataset=ROWS, task=ArithmeticTask(0, 4), progress=False)


def test_a_run_is_over_all_whole_steps_of_the_rows() -> None:
    for rows, sizes in ((ROWS, (4, 4)), (ROWS * 20, (64, 32))):
        made, given = run_over(None, None, rows)
        assert (made.task.prompts, made.rollout.prompts_per_step) == sizes
        assert given is not None
        assert given.rows == rows
