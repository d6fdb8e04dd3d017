"""A user's function as a reward: of a batch, called as TRL calls it, or of one response; in Python and in a file."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused, warned

from rlhfless.errors import InputError
from rlhfless.training.problem import TextProblem
from rlhfless.training.rewards import BatchFunctionReward, Response, RewardError, Rewards, RewardWarning, Scores, as_rewards
from rlhfless.training.rewards.called_with import RewardLog, TrainerState
from rlhfless.training.rewards.calling import takes_batch
from rlhfless.training.rewards.registry import make_rewards
from rlhfless.training.tasks.arithmetic import ArithmeticTask

MESSAGES = [{"role": "user", "content": "hello"}]


def responses(given: str | list[dict[str, str]] = "?", messages: tuple[dict[str, str], ...] = ()) -> list[Response]:
    problems = [
        TextProblem(f"p{i}", f"prompt {i}", str(i), 1, messages, {"prompt": given, "level": i}, given) for i in range(2)
    ]
    written = (("a", (5, 1)), ("bbb", (6, 7, 8, 1)))
    return [Response(problem, text, len(ids), token_ids=ids) for problem, (text, ids) in zip(problems, written, strict=True)]


def test_a_function_gets_texts_prompts_and_columns() -> None:
    seen: dict[str, Any] = {}

    def length(completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, completions=completions)
        return [len(text) for text in completions]

    scores = as_rewards(length).score(responses())
    assert scores.values.tolist() == [1.0, 3.0]
    assert list(scores.parts) == ["length"]
    lists = {"completions": ["a", "bbb"], "prompts": ["?", "?"], "level": [0, 1], "answer": ["0", "1"]}
    assert {name: seen[name] for name in lists} == lists
    assert seen["completion_ids"] == [[5, 1], [6, 7, 8, 1]]
    assert seen["trainer_state"].global_step == 0
    assert set(seen) == {*lists, "completion_ids", "trainer_state", "log_extra", "log_metric"}


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


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_a_function_without_a_say_is_left_out_of_the_sum_as_in_trl(nothing: float | None) -> None:
    def first(completions: list[str]) -> list[float | None]:
        return [1.0, nothing]

    def second(completions: list[str]) -> list[float | None]:
        return [0.5, 0.25]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = as_rewards([first, second], [2.0, 4.0]).score(responses())
    assert scores.values.tolist() == [4.0, 1.0]
    assert scores.metrics() == {"reward_first": 1.0, "reward_second": 0.375, "reward_failures": 0.0}

    def third(completions: list[str]) -> list[float | None]:
        return [0.5, nothing]

    with warned(RewardWarning, "'first' and 'third'", "1 of 2", "response 1"):
        scores = as_rewards([first, third]).score(responses())
    assert scores.values[0] == 1.5
    assert np.isnan(scores.values[1])


def test_a_step_without_any_reward_names_every_function_and_what_it_did() -> None:
    def silent(completions: list[str]) -> list[None]:
        return [None, None]

    def fails(response: Response) -> float:
        raise KeyError("gold")

    scores = as_rewards([silent, fails]).judge(responses())
    with refused(RewardError, "step 3", "'silent' returned None", "'fails' failed on 2 of 2", "KeyError: 'gold'"):
        scores.check(3)


def test_an_error_leaves_a_response_out_whatever_the_others_say() -> None:
    def fails(response: Response) -> float:
        return 1 / (len(response.text) - 1)

    with warned(RewardWarning, "'fails'", "1 of 2", "ZeroDivisionError"):
        scores = as_rewards([fails, lambda completions: [1.0, 1.0]]).score(responses())
    assert np.isnan(scores.values[0])
    assert scores.values[1] == 1.5


def test_tensors_and_arrays_are_lists_of_numbers() -> None:
    for made in (torch.tensor, np.array, lambda numbers: [torch.tensor(number) for number in numbers]):
        scores = as_rewards(lambda completions, made=made: made([0.5, 2.0])).score(responses())
        assert scores.values.tolist() == [0.5, 2.0]


def test_async_functions_run_at_once_also_beside_a_notebooks_loop() -> None:
    def meeting() -> list[Callable[..., Any]]:
        here, there = asyncio.Event(), asyncio.Event()

        async def one(completions: list[str], **columns: Any) -> list[float]:
            here.set()
            await there.wait()
            return [1.0, 2.0]

        async def two(completions: list[str], **columns: Any) -> list[float | None]:
            there.set()
            await here.wait()
            return [0.5, None]

        return [one, two]

    async def cell() -> list[float]:
        rewards = as_rewards(meeting())
        found = rewards.score(responses()).values.tolist()
        rewards.close()
        return found

    assert asyncio.run(cell()) == [1.5, 2.0]

    async def of_response(response: Response) -> float:
        return 1.0

    with refused(InputError, "'of_response'", "async", "f(completions, **columns)"):
        as_rewards(of_response)


def test_an_async_function_of_one_response_is_refused_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def late(response):\n    return 1.0\n")
    with refused(InputError, "late", "async", "f(completions, **columns)"):
        make_rewards([f"{tmp_path / 'mine.py'}:late"], ArithmeticTask(0, 1))


def test_functions_log_columns_and_numbers_and_get_the_state(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOGGING)
    namespace: dict[str, Any] = {}
    exec(LOGGING, namespace)
    of_file = make_rewards([f"{tmp_path / 'mine.py'}:logs"], ArithmeticTask(0, 1))
    for rewards in (as_rewards(namespace["logs"]), of_file):
        scores = rewards.score(responses(), TrainerState(global_step=7))
        assert scores.values.tolist() == [7.0, 7.0]
        assert scores.log.columns == {"first": ["a", "b"], "number": ["0", None]}
        assert scores.metrics() == {"mine": 2.0, "reward_logs": 7.0, "reward_failures": 0.0}
        rewards.close()
    silent = Scores(np.zeros(2), {"logs": np.zeros(2)}, log=RewardLog(2))
    both = Scores.joined([scores, silent])
    assert both.log.columns["first"] == ["a", "b", None, None]
    assert both.metrics()["mine"] == 2.0


LOGGING = """
def logs(completions, trainer_state, log_extra, log_metric, **columns):
    log_extra("first", [text[:1] for text in completions])
    log_extra("number", [0, None])
    log_metric("mine", 1)
    log_metric("mine", 3)
    return [trainer_state.global_step] * len(completions)
"""


def test_names_stand_beside_functions() -> None:
    def length(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    rewards = as_rewards(["0.5*contains", length], [2.0, 3.0])
    asked = [replace(response, text=f"so {response.answer}" if i else "no") for i, response in enumerate(responses())]
    scores = rewards.score(asked)
    assert scores.parts["contains"].tolist() == [0.0, 1.0]
    assert scores.values.tolist() == [6.0, 1.0 + 12.0]
    for name in ("task", "model:FOLDER"):
        with refused(InputError, repr(name), "functions"):
            as_rewards([name, length])
    with refused(InputError, "'exactly'", "exact"):
        as_rewards(["exactly", length])


def test_trls_own_reward_functions_run() -> None:
    rewards = pytest.importorskip("trl.rewards", reason="TRL is not installed, whose functions these are")
    soft = rewards.get_soft_overlong_punishment(max_completion_len=4, soft_punish_cache=2)
    repeats = rewards.get_repetition_penalty_reward(ngram_size=1)
    scores = as_rewards([soft, repeats]).score(responses())
    assert scores.parts["soft_overlong_punishment_reward"].tolist() == soft([[5, 1], [6, 7, 8, 1]]) == [0.0, -1.0]
    assert scores.parts["repetition_penalty_reward"].tolist() == [0.0, 0.0]
    conversations = responses(MESSAGES, messages=tuple(MESSAGES))
    thought = replace(conversations[1], text="<think>so</think> 2")
    assert as_rewards(rewards.think_format_reward).score([conversations[0], thought]).values.tolist() == [0.0, 1.0]
    if importlib.util.find_spec("math_verify"):
        right = replace(thought, problem=replace(thought.problem, row={"solution": "$2$"}), text="so $2$")
        assert as_rewards(rewards.accuracy_reward).score([right]).values.tolist() == [1.0]


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


def test_an_argument_that_no_column_has_is_refused_with_the_names_there_are(named: Callable[..., Rewards]) -> None:
    async def late(completions: list[str], levle: list[int]) -> list[float]:
        return [0.0, 0.0]

    def early(completions: list[str], levle: list[int]) -> list[float]:
        return [0.0, 0.0]

    for rewards, name in ((as_rewards(late), "'late'"), (as_rewards(early), "'early'"), (named("misspelt"), "'misspelt'")):
        with refused(RewardError, name, "'levle'", "rename", "answer", "level", "default"):
            rewards.score(responses())
        rewards.close()


def test_a_response_taken_for_a_text_is_told_where_its_text_is(named: Callable[..., Rewards]) -> None:
    def short(text: Any, target: int = 3) -> float:
        return float(len(text) < target)

    for rewards in (as_rewards(short), named("of_text")):
        with pytest.warns(RewardWarning, match=r"its text is response\.text"):
            rewards.score(responses())
        rewards.close()


def test_an_exception_of_a_function_of_a_batch_names_its_reward_in_a_note() -> None:
    def fails(completions: list[str]) -> list[float]:
        raise KeyError("gold")

    async def later(completions: list[str]) -> list[float]:
        raise KeyError("gold")

    for function in (fails, later):
        with pytest.raises(KeyError, match="gold") as raised:
            as_rewards(function).score(responses())
        assert repr(function.__name__) in raised.value.__notes__[0]


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
        (lambda completion_ids, **columns: [], True),
        (lambda trainer_state, **columns: [], True),
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

def misspelt(completions, levle):
    return [0.0, 0.0]

def of_text(text, target=3):
    return len(text) < target
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
