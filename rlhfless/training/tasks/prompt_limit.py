"""The longest prompt that a run can train on. Longer ones are left out of a data set, as by verl's ``filter_overlong_prompts``.

Which rows are left out depends on the data set, the tokenizer and the options alone, so a resumed run leaves out the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.problem import Problem
from solver.model.plurals import counted


class LongPromptWarning(UserWarning):
    """Prompts are left out because they are too long; the message says how many, and which option sets the limit."""


@dataclass(frozen=True)
class PromptLimit:
    """The limit on the tokens of a prompt.

    Attributes:
        reason: what sets the limit, as part of a sentence, with the option to change.
    """

    tokens: int
    reason: str = "task.max_prompt_tokens limits prompts"

    @classmethod
    def of(cls, config: TrainConfig, model_tokens: int | None) -> PromptLimit | None:
        """Return the limit of a run; None without a limit.

        Args:
            model_tokens: the longest context of its model, prompt and response; None where it is not known.

        Raises:
            TrainError: the context has no room for a prompt beside the longest response.
        """
        task, rollout = config.task, config.rollout
        limits, response = [], f"rollout.max_response_tokens is {rollout.max_response_tokens}"
        if rollout.max_model_len is not None:
            room = rollout.max_model_len - rollout.max_response_tokens
            reason = f"rollout.max_model_len is {rollout.max_model_len} and {response}; change either to keep more"
            limits.append(cls(room, reason))
        if model_tokens is not None:
            room = model_tokens - rollout.max_response_tokens
            if room < 1:
                raise TrainError(
                    f"{response}, but the model's context has {model_tokens} tokens, so no prompt has room beside the longest "
                    f"response; give at most {model_tokens - 1}"
                )
            limits.append(cls(room, f"the model's context has {model_tokens} tokens and {response}; lower it to keep more"))
        if task.max_prompt_tokens is not None:
            reason = f"task.max_prompt_tokens is {task.max_prompt_tokens}; raise it to keep more"
            limits.append(cls(task.max_prompt_tokens, reason))
        return min(limits, key=lambda limit: limit.tokens, default=None)


def longest_prompt(problems: Sequence[Problem], tokenizer: Any, limit: PromptLimit | None) -> int:
    """Return the tokens of the longest prompt.

    Raises:
        TrainError: it is longer than the limit; the message names it.
    """
    tokens = [len(tokenizer.encode(problem.prompt)) for problem in problems]
    longest = max(tokens)
    if limit is not None and longest > limit.tokens:
        name = problems[tokens.index(longest)].prompt_id
        raise TrainError(
            f"prompt {name!r} has {counted(longest, 'token')}, but there is room for {limit.tokens}: {limit.reason}"
        )
    return longest


def warn_of_left_out(name: str, left_out: Mapping[int, int], limit: PromptLimit, prompts: int) -> None:
    """Warn of the prompts of a data set that were left out.

    Args:
        name: of the data set. left_out: tokens of each prompt, by the row's number. prompts: that an epoch has.
    """
    count, first = len(left_out), min(left_out)
    are = "is" if count == 1 else "are"
    warnings.warn(
        f"data set {name!r}: {counted(count, 'prompt')} of more than {counted(limit.tokens, 'token')} {are} left out (the "
        f"first, row {first}, has {left_out[first]}), and an epoch has {counted(prompts, 'prompt')}; {limit.reason}",
        LongPromptWarning,
        stacklevel=2,
    )
