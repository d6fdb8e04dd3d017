"""What a task is to the loop: problems with prompts, a rule that judges a response, and how long the reference answers are.

Knows names only; ``rlhfless.training.tasks.arithmetic`` and ``dataset`` have tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Problem(Protocol):
    """One prompt."""

    @property
    def prompt_id(self) -> str:
        """Its name; no two problems of a pool share one."""
        ...

    @property
    def prompt(self) -> str:
        """Its text as the tokenizer encodes it."""
        ...

    @property
    def answer(self) -> Any:
        """The right answer."""
        ...

    @property
    def reference_answer_tokens(self) -> int:
        """Tokens of the reference answer, from which the first epoch's lengths are predicted."""
        ...


class Task(Protocol):
    """Training problems, and the reward that is given where nothing else is asked for; ``name`` is the run's in its trace."""

    name: str

    @property
    def problems(self) -> Sequence[Problem]:
        """Those to train on, always in the same order."""
        ...

    def reward(self, problem: Any, response_text: str) -> float:
        """Reward of a response's text."""


class TextTokenizer(Protocol):
    """What a task of texts asks of a tokenizer, see ``PretrainedTokenizer``."""

    def encode(self, text: str, *, eos: bool = False) -> list[int]:
        """Tokens of ``text``, with the end token after them if ``eos``."""
        ...


@dataclass(frozen=True)
class TextProblem:
    """A prompt of a data set.

    Attributes:
        prompt: the text that is encoded: the chat template filled in, or the plain prompt.
        messages: the conversation that the template was filled with; empty for a plain prompt.
        row: all columns of the data set, for reward functions that need more than the answer.
    """

    prompt_id: str
    prompt: str
    answer: str
    reference_answer_tokens: int
    messages: tuple[Mapping[str, str], ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)


def digest(problems: Sequence[Problem]) -> str:
    """16 hex digits that tell problems apart by names, prompts, reference lengths and answers that JSON has, in their order."""
    facts = [(p.prompt_id, p.prompt, p.answer, int(p.reference_answer_tokens)) for p in problems]
    told = json.dumps(facts, skipkeys=True, default=lambda unknown: None)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
