"""A trainer of a data set in memory, a function as reward and a function as policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

pytest.importorskip("torch")

import pandas as pd
from byte_tokenizer import byte_tokenizer
from training_samples import config

import solver
from rlhfless.errors import InputError
from rlhfless.training import ArithmeticTask, Trainer
from rlhfless.training.config import TrainError
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.tasks.given_rows import run_over

ROOT = Path(__file__).parents[2]
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


def example_of_the_guide() -> str:
    """The guide's example of an own reward."""
    text = (ROOT / "docs" / "guide.md").read_text("utf-8").split("### Your own reward, prompts and engine")[1]
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)[0]


def test_the_guides_reward_teaches_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, Any] = {}
    exec(example_of_the_guide(), namespace)
    metrics = namespace["step"].metrics
    assert metrics["reward_std"] > 0
    assert metrics["learn_flat_groups"] < 1
    assert metrics["learn_grad_norm"] > 0


@pytest.mark.parametrize("conversations", [False, True])
def test_the_guides_reward_gets_texts_where_a_text_is_filled_into_a_chat_template(conversations: bool) -> None:
    """As in TRL, completions are messages where the data set's prompts are."""
    defined = example_of_the_guide().split("rows = ")[0]
    namespace: dict[str, Any] = {}
    exec(defined, namespace)
    seen: list[Any] = []

    def short(completions: list[Any], prompts: list[Any], **columns: Any) -> list[float]:
        seen.extend(zip(prompts, completions, strict=True))
        texts = [each[0]["content"] for each in completions] if conversations else completions
        return list(namespace["short"](texts, prompts, **columns))

    tokenizer = byte_tokenizer(chat=True)
    model = tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64)
    rows = [{"prompt": [{"role": "user", "content": row["prompt"]}] if conversations else row["prompt"]} for row in ROWS]
    options = config(prompts=4, prompts_per_step=4)
    with Trainer(options, model=(model, tokenizer), rewards=short, dataset=rows, progress=False) as trainer:
        step = trainer.step()
    assert step.rollouts["prompt"].str.startswith("<user>").all(), "the model saw the template"
    given = [row["prompt"] for row in rows]
    assert all(prompt in given for prompt, _ in seen)
    found = [each[0]["content"] if conversations else each for _, each in seen]
    assert found == step.rollouts["response"].tolist()
    assert step.metrics["reward_std"] > 0
    assert step.metrics["learn_grad_norm"] > 0


def test_a_function_of_one_response_is_a_reward(untrained: Path) -> None:
    with Trainer(
        config(prompts=4, prompts_per_step=4), model=untrained, rewards=lambda response: float(response.problem.row["level"]),
        dataset=ROWS, progress=False,
    ) as trainer:  # fmt: skip
        rollouts = trainer.step().rollouts
    level = {row["prompt"]: float(row["level"]) for row in ROWS}  # type: ignore[arg-type]
    assert rollouts["reward"].tolist() == [level[prompt] for prompt in rollouts["prompt"]]


def test_a_run_is_over_all_whole_steps_of_the_rows() -> None:
    for rows, sizes in ((ROWS, (4, 4)), (ROWS * 20, (64, 32))):
        made, given = run_over(None, None, rows)
        assert (made.task.prompts, made.rollout.prompts_per_step) == sizes
        assert given is not None
        assert given.rows == rows
