"""A user's function as a reward: of a batch, called as TRL calls it, or of one response; in Python and in a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.training.problem import TextProblem
from rlhfless.training.rewards import BatchFunctionReward, Response, RewardError, Rewards, RewardWarning, as_rewards
from rlhfless.training.rewards.registry import make_rewards
from rlhfless.training.rewards.user_function import takes_batch
from rlhfless.training.tasks.arithmetic import ArithmeticTask

MESSAGES = [{"role": "user", "content": "hello"}]


def responses(given: str | list[dict[str, str]] = "?", messages: tuple[dict[str, str], ...] = ()) -> list[Response]:
    problems = [
        TextProblem(f"p{i}", f"prompt {i}", str(i), 1, messages, {"prompt": given, "level": i}, given) for i in range(2)
    ]
    return [Response(problem, text) for problem, text in zip(problems, ("a", "bbb"), strict=True)]


def test_a_function_gets_texts_prompts_and_columns() -> None:
    seen: dict[str, Any] = {}

    def length(completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, completions=completions)
        return [len(text) for text in completions]

    scores = as_rewards(length).score(responses())
    assert scores.values.tolist() == [1.0, 3.0]
    assert list(scores.parts) == ["length"]
    assert seen == {"completions": ["a", "bbb"], "prompts": ["?", "?"], "level": [0, 1], "answer": ["0", "1"]}


def test_a_function_gets_only_what_it_names() -> None:
    def right(completions: list[str], answer: list[str]) -> np.ndarray:
        return np.array([len(text) + int(known) for text, known in zip(completions, answer, strict=True)])

    assert as_rewards([right]).score(responses()).values.tolist() == [1.0, 4.0]


def test_a_task_without_a_data_set_gives_the_prompts_that_the_model_saw() -> None:
    problem = ArithmeticTask(0, 1).problems[0]

    def reward(completions: list[str], prompts: list[str]) -> list[float]:
        return [float(prompts == [problem.prompt] and completions == ["12"])]

    assert as_rewards(reward).score([Response(problem, "12")]).values.tolist() == [1.0]


@pytest.mark.parametrize("prompt", ["hello", MESSAGES])
def test_completions_are_messages_where_the_data_sets_prompts_are(prompt: Any) -> None:
    """Not where the tokenizer has a chat template, which a text was filled into."""
    data_utils = pytest.importorskip("trl.data_utils", reason="TRL is not installed, whose rule this is")
    seen: list[Any] = []

    def reward(completions: list[Any], prompts: list[Any]) -> list[float]:
        seen.append((prompts[0], completions[1]))
        return [1.0, 2.0]

    assert as_rewards(reward).score(responses(prompt, messages=tuple(MESSAGES))).values.tolist() == [1.0, 2.0]
    conversational = data_utils.is_conversational({"prompt": prompt})
    assert seen == [(prompt, [{"role": "assistant", "content": "bbb"}] if conversational else "bbb")]


def test_rewards_of_functions_are_added_and_none_leaves_a_response_out() -> None:
    def first(completions: list[str]) -> list[float | None]:
        return [1.0, None]

    def second(completions: list[str]) -> list[float]:
        return [0.5, 0.5]

    with pytest.warns(RewardWarning, match="1 of 2"):
        scores = as_rewards([first, second]).score(responses())
    assert scores.values[0] == 1.5
    assert np.isnan(scores.values[1])


def test_wrong_functions_are_one_sentence() -> None:
    def short(completions: list[str]) -> list[float]:
        return [1.0]

    def word(completions: list[str]) -> str:
        return "ab"

    with refused(RewardError, "short", 2):
        BatchFunctionReward(short).score(responses())
    with refused(RewardError, "word", "'ab'"):
        BatchFunctionReward(word).score(responses())
    for wrong in (3, "exact", [], [short, 3]):
        with refused(InputError, "rewards"):
            as_rewards(wrong)  # type: ignore[arg-type]
    given = Rewards([(BatchFunctionReward(short), 1.0)])
    assert as_rewards(given) is given


# --- which form -------------------------------------------------------------------------------------------------------


class Judge:
    def __call__(self, response: Response) -> float:
        return float(response.tokens)


@pytest.mark.parametrize(
    ("function", "batch"),
    [
        (lambda completions: [], True),
        (lambda completions, prompts, **columns: [], True),
        (lambda prompts, completions, answer: [], True),
        (lambda prompts, **columns: [], True),
        (lambda **columns: [], True),
        (lambda *, completions: [], True),
        (lambda response: 0.0, False),
        (lambda r, threshold=0.5: 0.0, False),
        (lambda response, **options: 0.0, False),
        (lambda *responses: 0.0, False),
        (Judge(), False),
    ],
)
def test_the_form_is_recognised_by_the_signature(function: Callable[..., Any], batch: bool) -> None:
    assert takes_batch(function, "mine") == batch


def test_a_function_of_neither_form_is_refused_with_both(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def two(given, wanted):\n    return 1.0\ndef none():\n    return 1.0\n")
    for name in ("two", "none"):
        with refused(InputError, f"mine.py:{name}", "completions", "f(response)"):
            make_rewards([f"{tmp_path / 'mine.py'}:{name}"], ArithmeticTask(0, 1))

    def two(given: str, wanted: str) -> float:
        return 1.0

    with refused(InputError, "'two'", "(given", "completions", "f(response)"):
        as_rewards(two)


FILE = """
import os, random, time

def of_batch(completions, prompts, level, **columns):
    return [len(text) + (prompt == "?") + number for text, prompt, number in zip(completions, prompts, level)]

def of_response(response):
    return len(response.text) + (response.given_prompt == "?") + response.problem.row["level"]

def some(completions):
    return [1.0, None]

def fails(completions, **columns):
    return [columns["gold"]]

def fewer(completions):
    return [1.0]

def stuck(completions):
    time.sleep(600)

def ends(completions):
    os._exit(3)

def drawn(completions):
    return [random.random() for _ in completions]
"""


@pytest.fixture
def named(tmp_path: Path) -> Callable[..., Rewards]:
    (tmp_path / "mine.py").write_text(FILE)
    return lambda name, **options: make_rewards([f"{tmp_path / 'mine.py'}:{name}"], ArithmeticTask(0, 1), **options)


def test_both_forms_work_in_python_and_in_a_file(named: Callable[..., Rewards]) -> None:
    namespace: dict[str, Any] = {}
    exec(FILE, namespace)
    for name in ("of_batch", "of_response"):
        for rewards in (as_rewards(namespace[name]), named(name)):
            scores = rewards.score(responses())
            assert scores.values.tolist() == [2.0, 5.0]
            assert list(scores.parts) == [name]
            rewards.close()


def test_a_function_of_a_batch_in_a_file_leaves_a_response_out_with_none(named: Callable[..., Rewards]) -> None:
    rewards = named("some")
    with pytest.warns(RewardWarning, match="1 of 2"):
        assert rewards.score(responses()).values[0] == 1.0
    rewards.close()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("fails", {}, ("KeyError: 'gold'", "mine.py, line ")),
        ("fewer", {}, ("[1.0]", "2")),
        ("stuck", {"timeout_s": 1.0}, ("2 s",)),
        ("ends", {}, ("exit code 3",)),
    ],
)
def test_a_function_of_a_batch_in_a_file_that_fails_is_one_sentence(
    named: Callable[..., Rewards], name: str, options: dict[str, float], reason: tuple[str, ...]
) -> None:
    rewards = named(name, **options)
    with refused(RewardError, repr(name), *reason):
        rewards.score(responses())
    rewards.close()


def test_what_a_function_of_a_batch_draws_depends_on_the_streams_alone(named: Callable[..., Rewards]) -> None:
    rewards, found = named("drawn"), []
    for _ in range(2):
        random.seed(7)
        found.append(rewards.score(responses()).values.tolist())
    rewards.close()
    assert found[0] == found[1]
    assert len(set(found[0])) == 2
