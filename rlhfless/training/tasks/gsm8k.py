"""GSM8K (Cobbe et al. 2021, arXiv:2110.14168): grade-school problems whose answer is one number after ``####``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training.problem import TextTokenizer
from rlhfless.training.rewards.rules import exact_answer, gsm8k_answer
from rlhfless.training.tasks.dataset import DatasetTask

HUB = "openai/gsm8k:main"
INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'
"""What verl's example adds to each question."""


class Gsm8kTask(DatasetTask):
    """The problems of ``train.jsonl`` or ``test.jsonl`` of the authors' repository, or of the hub.

    The reward is 1 if the number after ``####`` is right by the authors' own rule. The reference answer is the worked solution;
    the first epoch's lengths are forecast from its length.

    Raises:
        InputError: see ``DatasetTask``; or an answer has no number after ``####``.
    """

    prompts_named = "gsm8k"
    answers_are_worked = True

    def __init__(self, source: Any, tokenizer: TextTokenizer, **options: Any) -> None:
        arguments = {
            "prompt_column": "question",
            "reward": exact_answer,
            "instruction": INSTRUCTION,
            "name": "gsm8k",
            **options,
        }
        super().__init__(source, tokenizer, **arguments)

    def answer_of(self, row: Mapping[str, Any], location: str) -> str:
        """Return the number after ``####``."""
        answer = super().answer_of(row, location)
        number = gsm8k_answer(answer)
        if number is None and not answer:
            return ""
        if number is None:
            raise InputError(f"{location} has no number after #### in its answer; rows of GSM8K are needed")
        return number
