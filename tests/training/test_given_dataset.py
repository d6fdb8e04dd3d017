"""A trainer of a data set in memory, a function as reward and a function as policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused, warned

pytest.importorskip("torch")

import pandas as pd
from byte_tokenizer import byte_tokenizer
from training_samples import config

import solver
from rlhfless.errors import InputError
from rlhfless.training import ArithmeticTask, Trainer
from rlhfless.training.config import TrainError
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.rewards import RewardWarning

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


def example_of_the_page() -> str:
    """The example of an own reward."""
    text = (ROOT / "docs" / "executing_and_training.md").read_text("utf-8").split("## Your own rewards and prompts")[1]
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)[0]


def test_the_documented_reward_teaches_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, Any] = {}
    exec(example_of_the_page(), namespace)
    metrics = namespace["step"].metrics
    assert metrics["reward_std"] > 0
    assert metrics["learn_flat_groups"] < 1
    assert metrics["learn_grad_norm"] > 0


@pytest.mark.parametrize("conversations", [False, True])
def test_the_documented_reward_gets_texts_where_a_text_is_filled_into_a_chat_template(conversations: bool) -> None:
    """As in TRL, completions are messages where the data set's prompts are."""
    defined = example_of_the_page().split("rows = ")[0]
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


def test_a_run_is_over_all_rows(untrained: Path) -> None:
    """A smaller data set is one step; of a larger one every epoch leaves out other rows, or has a smaller last step."""
    rows = [{"prompt": f"{a}+{b}="} for a in range(7) for b in range(5)]
    for given, options, sizes in (
        (ROWS, {}, (4, 4, 1)),
        (rows, {}, (35, 32, 1)),
        (rows, {"prompts_per_step": 8}, (35, 8, 4)),
        (rows, {"prompts_per_step": 8, "drop_last": False}, (35, 8, 5)),
    ):
        with Trainer(model=untrained, rewards=shorter, dataset=given, progress=False, **options) as trainer:
            made = trainer.config
            assert (made.task.prompts, made.rollout.prompts_per_step, made.steps_per_epoch) == sizes
            epochs = [
                [p.prompt for step in range(sizes[2]) for p in trainer.problems_of(sizes[2] * epoch + step)] for epoch in (0, 1)
            ]
            whole = len(given) if options.get("drop_last") is False else sizes[1] * sizes[2]
            assert [len(set(epoch)) for epoch in epochs] == [whole, whole]
            assert len({prompt for epoch in epochs for prompt in epoch}) >= min(len(given), whole + 1)


def test_the_last_step_of_an_epoch_may_be_smaller(untrained: Path) -> None:
    given = {"prompts_per_step": 3, "drop_last": False, "samples_per_prompt": 2, "max_response_tokens": 8, "steps": 2}
    with Trainer(model=untrained, rewards=shorter, dataset=ROWS, progress=False, **given) as trainer:
        assert [step.rollouts["prompt_id"].nunique() for step in trainer] == [3, 1]


def test_a_step_needs_as_many_rows_as_it_has_prompts(untrained: Path) -> None:
    with refused(TrainError, "prompts_per_step is 8", "4 prompts"):
        Trainer(model=untrained, rewards=shorter, dataset=ROWS, prompts_per_step=8, progress=False)
    with refused(InputError, "no rows"):
        Trainer(model=untrained, rewards=shorter, dataset=[], progress=False)


def test_a_rule_beside_a_function_needs_answers_and_the_trainer_says_what_it_is(untrained: Path, tmp_path: Path) -> None:
    with refused(InputError, "'answer'"):
        Trainer(model=untrained, dataset=ROWS, rewards=["exact", shorter], progress=False)
    rows = [{**row, "answer": "3"} for row in ROWS]
    options: dict[str, Any] = {"model": untrained, "dataset": rows, "rewards": ["exact", shorter], "progress": False}
    with Trainer(config(steps=2, prompts=4, prompts_per_step=2), tmp_path / "run", **options) as trainer:
        done = trainer.step()
        assert {"reward_exact", "reward_shorter"} <= set(done.metrics)
        assert repr(trainer).startswith("Trainer(grpo of ")
        assert "1 of 2 steps complete" in repr(trainer)
        assert str(tmp_path / "run") in repr(trainer)
        assert list(done.record.completions) == list(range(len(done.rollouts)))
        trainer.train()
        assert len(pd.read_parquet(tmp_path / "run" / "rollouts.parquet")) == 2 * len(done.rollouts), "before it is closed"
        trainer.state.check_folder()
    with refused(TrainError, "resume='auto'"):
        Trainer(config(steps=2, prompts=4, prompts_per_step=2), tmp_path / "run", **options)


def test_of_a_data_set_with_splits_one_is_given(untrained: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
    with refused(InputError, "'train', 'test'", "dataset['train']"):
        Trainer(model=untrained, dataset=both, rewards=shorter, progress=False)


@pytest.mark.parametrize("learning", ["batch", "stream"])
def test_what_a_reward_function_logs_is_in_rollouts_and_metrics(learning: str, untrained: Path, tmp_path: Path) -> None:
    def mine(completions: list[str], completion_ids: list[list[int]], trainer_state: Any, **given: Any) -> list[float]:
        given["log_extra"]("tokens", [len(ids) for ids in completion_ids])
        given["log_metric"]("steps_so_far", trainer_state.global_step)
        return [float(len(text)) for text in completions]

    options = config(learning=learning, steps=2, prompts_per_step=2)
    with Trainer(options, tmp_path / "run", model=untrained, rewards=mine, progress=False) as trainer:
        assert [step.metrics["steps_so_far"] for step in trainer] == [0.0, 1.0]
        rollouts = trainer.train().rollouts  # type: ignore[union-attr]
    assert rollouts["tokens"].astype(int).tolist() == rollouts["response_tokens"].tolist()


def test_a_logged_column_of_a_known_name_is_left_out_with_a_warning(untrained: Path) -> None:
    def mine(completions: list[str], log_extra: Any) -> list[float]:
        log_extra("response", ["?"] * len(completions))
        return [float(len(text)) for text in completions]

    with (
        Trainer(config(), model=untrained, rewards=mine, progress=False) as trainer,
        warned(RewardWarning, "'response'", "log_extra"),
    ):
        assert "?" not in set(trainer.step().rollouts["response"])
