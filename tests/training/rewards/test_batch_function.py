"""Plain functions as rewards, called as TRL calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.training.problem import TextProblem
from rlhfless.training.rewards import BatchFunctionReward, Response, Rewards, RewardWarning, as_rewards


def responses(messages: tuple[dict[str, str], ...] = ()) -> list[Response]:
    problems = [TextProblem(f"p{i}", f"prompt {i}", str(i), 1, messages, {"prompt": "?", "level": i}) for i in range(2)]
    return [Response(problem, text) for problem, text in zip(problems, ("a", "bbb"), strict=True)]


def test_a_function_gets_texts_prompts_and_columns() -> None:
    seen: dict[str, Any] = {}

    def length(completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, completions=completions)
        return [len(text) for text in completions]

    scores = as_rewards(length).score(responses())
    assert scores.values.tolist() == [1.0, 3.0]
    assert list(scores.parts) == ["length"]
    assert seen == {"completions": ["a", "bbb"], "prompts": ["prompt 0", "prompt 1"], "level": [0, 1], "answer": ["0", "1"]}


def test_a_function_gets_only_what_it_names() -> None:
    def right(completions: list[str], answer: list[str]) -> np.ndarray:
        return np.array([len(text) + int(known) for text, known in zip(completions, answer, strict=True)])

    assert as_rewards([right]).score(responses()).values.tolist() == [1.0, 4.0]


def test_conversations_come_as_messages() -> None:
    def reward(completions: list[Any], prompts: list[Any]) -> list[float]:
        assert completions[1] == [{"role": "assistant", "content": "bbb"}]
        assert prompts[0] == [{"role": "user", "content": "hello"}]
        return [1.0, 2.0]

    assert as_rewards(reward).score(responses(({"role": "user", "content": "hello"},))).values.tolist() == [1.0, 2.0]


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

    with refused(InputError, "short", 2):
        BatchFunctionReward(short).score(responses())
    for wrong in (3, "exact", [], [short, 3]):
        with refused(InputError, "rewards"):
            as_rewards(wrong)  # type: ignore[arg-type]
    given = Rewards([(BatchFunctionReward(short), 1.0)])
    assert as_rewards(given) is given
