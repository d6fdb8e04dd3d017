"""Prompts for which a context has no room are left out of a data set, with a warning; a run without any is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command, warned

pytest.importorskip("torch")

from byte_tokenizer import byte_tokenizer
from training_samples import config, same_weights

from rlhfless.errors import InputError
from rlhfless.training.config import TrainError
from rlhfless.training.engines import model_context
from rlhfless.training.loop import Trainer, train
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.tasks.prompt_limit import LongPromptWarning

CONTEXT = 128
LONG = 3  # the row whose prompt is too long
ROWS: list[dict[str, Any]] = [{"prompt": "x" * (200 if i == LONG else 5 + i)} for i in range(9)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes without a chat template, with a context of 128."""
    folder, tokenizer = tmp_path_factory.mktemp("plain"), byte_tokenizer(chat=False)
    save_model(tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64, max_tokens=CONTEXT), tokenizer, folder)
    return folder


def length(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text)) for text in completions]


def made(plain: Path, rows: list[dict[str, Any]], **options: object) -> Trainer:
    return Trainer(config(**options), model=plain, rewards=length, dataset=rows, progress=False)


def test_a_long_prompt_is_left_out_and_another_row_taken(plain: Path) -> None:
    with warned(LongPromptWarning, "1 prompt ", "104 tokens", f"row {LONG}", "200", "128", "max_response_tokens is 24"):
        trainer = made(plain, ROWS)
    with trainer:
        assert {len(problem.prompt) for problem in trainer.task.problems} == {5 + i for i in range(9) if i != LONG}
        assert [trainer.step().step for _ in range(3)] == [0, 1, 2], "the second epoch, too"


def test_where_too_few_are_left_an_epoch_has_as_many_whole_steps_as_they_fill(plain: Path) -> None:
    with warned(LongPromptWarning, f"row {LONG}", "an epoch has 4 prompts"):
        trainer = made(plain, ROWS[:8])
    with trainer:
        assert (trainer.config.task.prompts, trainer.config.steps_per_epoch) == (4, 1)
        assert trainer.step().rollouts["prompt_id"].nunique() == 4


def test_without_options_a_run_is_over_those_that_are_left() -> None:
    """Of the default options, responses of 320 tokens leave 680 of a context of 1,000."""
    tokenizer = byte_tokenizer(chat=False)
    model = tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64, max_tokens=1000), tokenizer
    with warned(LongPromptWarning, "680 tokens", "an epoch has 3 prompts"):
        trainer = Trainer(model=model, rewards=length, dataset=[{"prompt": "x" * 800}, *ROWS[:3]], progress=False)
    with trainer:
        assert (trainer.config.task.prompts, trainer.config.rollout.prompts_per_step) == (3, 3)


@pytest.mark.parametrize(
    ("options", "left", "named"),
    [
        ({"max_prompt_tokens": 11}, 6, ["2 prompts", "11 tokens", f"row {LONG}", "max_prompt_tokens is 11"]),
        ({"max_model_len": 35}, 6, ["2 prompts", "11 tokens", "max_model_len is 35"]),
        ({"max_prompt_tokens": 500}, 7, ["1 prompt ", "104 tokens", "128"]),
    ],
)
def test_options_leave_out_more(plain: Path, options: dict[str, int], left: int, named: list[str]) -> None:
    with warned(LongPromptWarning, *named):
        trainer = made(plain, ROWS[:8], prompts=2, prompts_per_step=2, eval_every=1, eval_prompts=left - 2, **options)
    with trainer:
        kept = [*trainer.task.problems, *trainer.evaluator.problems]
        assert len({problem.prompt_id for problem in kept}) == left, "those to evaluate on fit, too"
        assert max(len(problem.prompt) for problem in kept) <= options.get("max_prompt_tokens", 104)


def test_nothing_is_left_out_or_warned_of_where_all_fit(plain: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", LongPromptWarning)
        made(plain, [row for row in ROWS if len(row["prompt"]) < 100], max_prompt_tokens=13).close()


def test_a_run_without_a_prompt_that_fits_is_refused_with_the_option(plain: Path, tmp_path: Path) -> None:
    with refused(InputError, "4 tokens", "row 0", "5", "max_prompt_tokens is 4"):
        made(plain, ROWS, max_prompt_tokens=4)
    with refused(TrainError, "2 prompts", "6 tokens", "prompts_per_step is 4", "max_prompt_tokens is 6"):
        made(plain, ROWS, max_prompt_tokens=6)
    with refused(TrainError, "max_response_tokens is 128", "128 tokens"):
        made(plain, ROWS, max_response_tokens=128)
    with refused(InputError, "8", "9"), warnings.catch_warnings():
        made(plain, ROWS[:8], prompts=9, prompts_per_step=9)


def test_problems_of_a_task_that_do_not_fit_are_named(untrained: Path) -> None:
    with refused(TrainError, "'arithmetic-", "there is room for 1", "max_model_len is 25"):
        Trainer(config(max_model_len=25), model=untrained, progress=False)


@pytest.mark.full
def test_a_resumed_run_leaves_out_the_same(plain: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:8]))
    options = {"task": str(data), "rewards": ["format:[a-e]"]}
    for folder, stops in (("whole", (3,)), ("parts", (1, 3))):
        for number, steps in enumerate(stops):
            start: dict[str, Any] = {"resume": True} if number else {"model": plain}
            with warned(LongPromptWarning, "'data'", f"row {LONG}"):
                trace = train(config(**options, steps=steps), tmp_path / folder, **start)
    assert set(trace.rollouts["reward"]) == {0.0, 1.0}
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_the_command_line_trains_on_what_fits(plain: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:8]))
    (tmp_path / "run.yaml").write_text(
        "preset: demo\nsteps: 1\ntask: {prompts: 8, rewards: ['length:8,8']}\ncluster: {gpus: 2}\n"
        "rollout: {prompts_per_step: 4, samples_per_prompt: 2, max_response_tokens: 8}\n"
    )
    given = ["train", str(tmp_path / "run.yaml"), f"task.name={data}", f"model={plain}", "-o", str(out)]
    with warned(LongPromptWarning, "'data'", "1 prompt ", "120 tokens", f"row {LONG}", "max_response_tokens"):
        result = run_rlhfless(*given)
    assert result.exit_code == 0, result.stderr
    result = run_rlhfless(*given[:-1], str(tmp_path / "none"), "task.max_prompt_tokens=4")
    refused_command(result, "data.jsonl", "row 0", "max_prompt_tokens is 4")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("engine", "rope", "expected"),
    [
        ("torch", {"rope_type": "default"}, 512),
        ("torch", {"rope_type": "yarn"}, 512),
        ("transformers", {"rope_type": "default"}, 512),
        ("transformers", {"rope_type": "dynamic", "original_max_position_embeddings": 128}, 128),
        ("vllm", {"rope_type": "default"}, 512),
        ("vllm", {"rope_type": "yarn"}, None),  # vLLM extends the context itself
        ("vllm", {"full_attention": {"rope_type": "yarn"}}, None),
    ],
)
def test_the_context_is_the_models_where_it_is_known(engine: str, rope: dict[str, Any], expected: int | None) -> None:
    text = SimpleNamespace(max_position_embeddings=512, rope_parameters=rope)
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text, model_type="some"))
    assert model_context(engine, model) == expected
    text.max_position_embeddings = None
    assert model_context(engine, model) is None
