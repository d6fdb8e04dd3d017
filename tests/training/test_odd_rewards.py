"""Rewards that teach nothing, or are none: the run goes on, says so, and its weights stay numbers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused, warned
from training_samples import config

from rlhfless.training.loop import Trainer
from rlhfless.training.rewards import FunctionReward, Response, RewardError, Rewards, RewardWarning


def step_with(
    function: Callable[[Response], float], untrained: Path, timeout_s: float | None = None, **options: Any
) -> tuple[Any, bool]:
    """A step judged by the function, and whether it changed a weight."""
    rewards = Rewards([(FunctionReward("mine", function, timeout_s), 1.0)])
    trainer = Trainer(config(**options), model=untrained, rewards=rewards, progress=False)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    step = trainer.step()
    after = trainer.model.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    return step, any(not torch.equal(before[name], after[name]) for name in before)


def test_groups_of_equal_rewards_teach_grpo_nothing(untrained: Path) -> None:
    step, changed = step_with(lambda response: 0.5, untrained)
    assert not changed
    assert step.metrics["learn_flat_groups"] == 1
    assert step.metrics["reward_std"] == 0
    assert step.trace.steps == [0]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "good"])
def test_what_is_no_reward_is_one_responses_and_reported(untrained: Path, algorithm: str, odd: Any) -> None:
    """A response that holds an even number of characters gets something that is no number."""

    def reward(response: Response) -> Any:
        return odd if len(response.text) % 2 == 0 else len(set(response.text)) / 10

    with warned(RewardWarning, "'mine'", "12"):
        step, changed = step_with(reward, untrained, algorithm=algorithm)
    even = step.rollouts["response"].str.len() % 2 == 0
    assert 0 < even.sum() < 12
    assert (step.rollouts["reward"].isna() == even).all()
    assert [step.metrics[name] for name in ("learn_unjudged", "reward_failures")] == pytest.approx([even.mean()] * 2)
    assert changed, "the others teach something"


@pytest.mark.parametrize("learning", ["batch", "stream"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_step_that_nobody_could_judge_ends_the_run_and_is_undone(untrained: Path, algorithm: str, learning: str) -> None:
    """The step after one that was judged. Its penalty would pull the weights back. With a reward that works it is repeated."""

    def breaks_down(response: Response) -> float:
        if broken:
            raise KeyError("gold")
        return len(set(response.text))

    broken: list[bool] = []
    rewards = Rewards([(FunctionReward("mine", breaks_down), 1.0)])
    options = config(algorithm=algorithm, kl_coef=0.1, learning=learning)
    with Trainer(options, model=untrained, rewards=rewards, progress=False) as trainer:
        assert trainer.step().metrics["learn_grad_norm"] > 0
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        broken.append(True)
        with refused(RewardError, "step 1", "'mine'", "12 of 12", "KeyError: 'gold'"):
            trainer.step()
        assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
        assert trainer.next_step == 1
        broken.clear()
        assert trainer.step().step == 1


def test_an_error_of_a_function_of_a_batch_is_raised_as_it_was_and_the_step_undone(tmp_path: Path, untrained: Path) -> None:
    def gold(completions: list[str], **columns: list[str]) -> list[float]:
        return [float(text == right) for text, right in zip(completions, columns["gold"], strict=True)]

    with Trainer(config(), tmp_path / "run", model=untrained, rewards=gold, progress=False) as trainer:
        with pytest.raises(KeyError, match="gold"):
            trainer.step()
        assert trainer.next_step == 0


def test_the_first_step_of_equal_rewards_is_warned_of_once_in_a_run(untrained: Path) -> None:
    rewards = Rewards([(FunctionReward("mine", lambda response: 0.5), 1.0)])
    with (
        Trainer(config(steps=2), model=untrained, rewards=rewards, progress=False) as trainer,
        warned(RewardWarning, "step 0", "0.5", "'mine'", "response", "reward") as told,
    ):
        assert [step.metrics["learn_flat_groups"] for step in trainer] == [1.0, 1.0]
    assert len([one for one in told if issubclass(one.category, RewardWarning)]) == 1


def test_equal_rewards_of_each_prompt_are_warned_of_where_only_groups_teach(untrained: Path) -> None:
    """A critic learns from prompts with other rewards, too."""

    def of_prompt(response: Response) -> float:
        return float(len(response.prompt) + sum(map(ord, response.prompt)))

    with warned(RewardWarning, "step 0", "'mine'", "each prompt"):
        _, changed = step_with(of_prompt, untrained)
    assert not changed
    with warnings.catch_warnings():
        warnings.simplefilter("error", RewardWarning)
        _, changed = step_with(of_prompt, untrained, algorithm="ppo")
    assert changed


@pytest.mark.full
def test_a_function_that_takes_too_long_is_one_responses_and_reported(untrained: Path) -> None:
    def slow(response: Response) -> float:
        if response.text.startswith(first):
            time.sleep(60)
        return len(response.text)

    first = "\0"  # nothing begins so
    known, _ = step_with(slow, untrained)
    first = known.rollouts["response"][0]
    with warned(RewardWarning, "12"):
        step, changed = step_with(slow, untrained, timeout_s=5.0)
    assert step.rollouts["reward"].isna().tolist() == [True] + [False] * 11
    assert changed


def test_rewards_that_draw_are_the_same_in_a_resumed_run(tmp_path: Path, untrained: Path) -> None:
    """A function that draws from the global streams does the same, however the run was stopped."""

    def drawn(response: Response) -> float:
        return float(np.random.random() + torch.rand(()))  # noqa: NPY002

    def rewards(folder: str, *stops: int) -> list[float]:
        for number, steps in enumerate(stops):
            given = Rewards([(FunctionReward("mine", drawn), 1.0)])
            start = {"model": untrained} if number == 0 else {"resume": True}
            with Trainer(config(steps=steps), tmp_path / folder, rewards=given, progress=False, **start) as trainer:
                torch.rand(number + 1)
                trace = trainer.train()
        assert trace is not None
        found: list[float] = trace.rollouts["reward"].tolist()
        return found

    whole = rewards("whole", 3)
    assert rewards("parts", 1, 2, 3) == whole
    assert len(set(whole)) == len(whole)


def test_nothing_is_warned_of_where_all_is_well(untrained: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RewardWarning)
        _, changed = step_with(lambda response: len(set(response.text)) / 10, untrained)
    assert changed
