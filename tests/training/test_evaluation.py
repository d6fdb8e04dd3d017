"""Evaluation on held-out prompts while training: it changes nothing else, and its numbers are those of the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from error_messages import refused
from training_samples import config, run_config

from rlhfless.errors import InputError
from rlhfless.plots import plot_curves
from rlhfless.trace import learning_numbers, read_trace
from rlhfless.training.config import TrainError
from rlhfless.training.evaluation import held_out_problems
from rlhfless.training.loop import Trainer
from rlhfless.training.rewards import RewardWarning
from rlhfless.training.tasks import DatasetTask
from rlhfless.training.tasks.arithmetic import ArithmeticTask, is_held_out


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """Those in a run's trace, in order."""
    events = read_trace(folder).events
    return [json.loads(detail) for detail in events.loc[events["name"] == "evaluation", "detail"]]


def run(folder: Path, model: Path, resume: bool = False, **changes: Any) -> list[dict[str, float]]:
    """The metrics of each step of a run."""
    given = config(**{"policy": "static", "gpus": 1, **changes})
    with Trainer(given, folder, model=None if resume else model, resume=resume, progress=False) as trainer:
        return [step.metrics for step in trainer]


@pytest.mark.full
def test_evaluations_are_in_trace_and_metrics_and_change_no_weight(tmp_path: Path, model: Path) -> None:
    plain = run(tmp_path / "plain", model)
    done = run(tmp_path / "run", model, eval_every=2, eval_prompts=5)
    assert [step["learn_loss"] for step in plain] == [step["learn_loss"] for step in done]
    columns = ["prompt_id", "sample", "response", "start_s", "end_s"]
    ours, theirs = (read_trace(tmp_path / name).rollouts[columns] for name in ("run", "plain"))
    pd.testing.assert_frame_equal(ours, theirs)
    found = evaluations(tmp_path / "run")
    assert [one["after_steps"] for one in found] == [0, 2, 3], "at the start, after every second step, and at the end"
    assert [("eval_reward_mean" in step) for step in done] == [False, True, True]
    assert all(one["problems"] == 5 and 0 <= one["accuracy"] <= 1 for one in found)
    assert done[1]["eval_reward_mean"] == found[1]["reward_mean"]
    assert found[0]["reward_mean"] != found[1]["reward_mean"], "other weights"
    assert not any(name.startswith("eval") for name in plain[-1])
    table = learning_numbers(read_trace(tmp_path / "run"))
    accuracy = table.set_index("step")["eval_accuracy"].dropna().to_dict()
    assert accuracy == {one["after_steps"] - 1: one["accuracy"] for one in found}
    assert table["learn_mismatch_mean"].dropna().between(0, 1e-4).all()
    drawn = plot_curves(table).table
    assert {"eval_accuracy", "eval_reward_mean", "learn_mismatch_mean"} <= set(drawn)
    # a run that was stopped goes on with the same evaluations
    run(tmp_path / "parts", model, steps=2, eval_every=2, eval_prompts=5)
    run(tmp_path / "parts", model, resume=True, eval_every=2, eval_prompts=5)
    again = evaluations(tmp_path / "parts")
    assert [{**one, "seconds": 0} for one in again] == [{**one, "seconds": 0} for one in found]


def test_the_progress_line_has_mismatch_and_accuracy(model: Path) -> None:
    with Trainer(config(steps=1, eval_every=1, eval_prompts=2), model=model, progress=False) as trainer:
        line = trainer.step().in_short
    assert list(line) == ["reward", "tokens", "actors", "mismatch", "held-out accuracy"]
    assert float(line["mismatch"]) < 1e-4


def same_letters(completions: list[str], **columns: Any) -> list[float]:
    return [1 - len(set(text)) / max(1, len(text)) for text in completions]


def longer(completions: list[str], log_metric: Any, **columns: Any) -> list[float]:
    log_metric("longest", max(map(len, completions)))
    return [float(len(text)) for text in completions]


def test_own_rewards_are_evaluated_by_their_names_and_there_is_no_accuracy(untrained: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(12)]
    given: dict[str, Any] = {"rewards": [same_letters, longer], "reward_weights": [1.0, 0.5], "dataset": rows}
    sizes = {"prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 8, "steps": 2, "eval_every": 2}
    with Trainer(
        None, tmp_path / "run", model=untrained, eval_prompts=3, callbacks="jsonl", progress=False, **given, **sizes
    ) as trainer:
        numbers = trainer.evaluate()
        done = list(trainer)
    assert numbers["reward_mean"] == pytest.approx(numbers["reward_same_letters"] + 0.5 * numbers["reward_longer"])
    assert numbers["longest"] >= numbers["reward_longer"]
    assert "accuracy" not in numbers
    assert list(done[1].in_short)[-1] == "held-out reward"
    assert "held-out reward" in repr(done[1])
    assert "\n" not in repr(done[1])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [(line["step"], "eval_reward_mean" in line) for line in lines] == [(-1, True), (0, False), (1, True)]
    assert {name: value for name, value in lines[0].items() if name not in ("step", "eval_seconds")} == {
        f"eval_{name}": value for name, value in numbers.items() if name != "seconds"
    }, "the baseline, before the first step"
    table = learning_numbers(read_trace(tmp_path / "run"))
    assert table["eval_reward_mean"].tolist() == [
        lines[0]["eval_reward_mean"],
        pytest.approx(float("nan"), nan_ok=True),
        lines[2]["eval_reward_mean"],
    ]


def taking_a_name(completions: list[str], log_metric: Any, **columns: Any) -> list[float]:
    log_metric("step_s", 1000.0)
    log_metric("mine", 5.0)
    return [float(len(text)) for text in completions]


def test_a_number_of_a_reward_replaces_none_of_a_step(untrained: Path) -> None:
    rows = [{"prompt": f"{a}+1="} for a in range(4)]
    sizes = {"prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 8, "steps": 1}
    with Trainer(None, model=untrained, rewards=taking_a_name, dataset=rows, progress=False, **sizes) as trainer:
        done = trainer.step()
    with pytest.warns(RewardWarning, match="'step_s'"):
        metrics = done.metrics
    assert metrics["mine"] == 5.0
    assert metrics["step_s"] != 1000.0


def test_held_out_problems_are_never_trained_on() -> None:
    task = ArithmeticTask(0, 8)
    found = held_out_problems(task, 8, 6)
    assert len(found) == 6
    assert all(is_held_out(problem.prompt) for problem in found)
    rows = [{"prompt": f"question {i}", "answer": str(i)} for i in range(10)]

    class Words:
        def encode(self, text: str, *, eos: bool = False) -> list[int]:
            return [1] * len(text.split())

    rest = DatasetTask(rows, Words(), seed=3, prompts=6)
    others = held_out_problems(rest, 6, 4)
    assert len({problem.prompt for problem in [*rest.problems, *others]}) == 10
    with refused(TrainError, "eval_prompts is 5", "4 problems", "6"):
        held_out_problems(rest, 6, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval_every": 0}, ("eval_every is 0", "at least 1")),
        ({"eval_every": "two"}, ("eval_every", "'two'", "whole number")),
        ({"eval_prompts": 0}, ("eval_prompts is 0", "at least 1")),
    ],
)
def test_wrong_options_are_one_sentence(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(InputError, *said):
        run_config(**changes)


def test_weights_that_answer_have_their_accuracy(model: Path) -> None:
    """A rule that accepts every text gives 1, one that accepts none gives 0."""
    with Trainer(config(eval_every=1, eval_prompts=3), model=model, progress=False) as trainer:
        for right in (1.0, 0.0):
            object.__setattr__(trainer.evaluator, "rule", lambda problem, text, right=right: right)
            assert trainer.evaluator.of_weights(trainer.model, 1)["accuracy"] == right
        before = torch.random.get_rng_state()
        trainer.evaluator.of_weights(trainer.model, 1)
        assert torch.equal(before, torch.random.get_rng_state()), "it draws from its own stream"
