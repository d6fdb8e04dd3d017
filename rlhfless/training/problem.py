"""Interfaces that the training loop needs of a task: problems with prompts, a reward rule, and reference answer lengths.

``rlhfless.training.tasks.arithmetic`` and ``dataset`` implement them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Problem(Protocol):
    """One prompt with its answer."""

    @property
    def prompt_id(self) -> str:
        """Unique name of the problem among those of a task."""
        ...

    @property
    def prompt(self) -> str:
        """Text of the prompt, as the tokenizer encodes it."""
        ...

    @property
    def answer(self) -> Any:
        """The right answer."""
        ...

    @property
    def reference_answer_tokens(self) -> int:
        """Tokens of a reference as long as a good response, from which a first visit's lengths are forecast; 0 where there is
        none.
        """
        ...


class Task(Protocol):
    """Training problems and their default reward; ``name`` is recorded in the run's trace."""

    name: str

    @property
    def problems(self) -> Sequence[Problem]:
        """The problems to train on, always in the same order."""
        ...

    def reward(self, problem: Any, response_text: str) -> float:
        """Reward of a response's text."""


class RewardWarning(UserWarning):
    """Some responses could not be scored, or all rewards of a step are equal, so nothing is learned; the message says which,
    and why.
    """


class TextTokenizer(Protocol):
    """Tokenizer methods that a text task needs; ``PretrainedTokenizer`` has them."""

    def encode(self, text: str, *, eos: bool = False) -> list[int]:
        """Tokens of ``text``, with the end token after them if ``eos``."""
        ...


@dataclass(frozen=True)
class TextProblem:
    """A prompt of a data set.

    Attributes:
        prompt: the text to encode: the filled chat template, or the plain prompt.
        messages: the conversation in the template; empty for a plain prompt.
        row: all columns of the data set, for reward functions that need more than the answer.
        given: the prompt as in the data set, a text or a conversation, which reward functions get; None: ``prompt``.
    """

    prompt_id: str
    prompt: str
    answer: str
    reference_answer_tokens: int
    messages: tuple[Mapping[str, str], ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    given: str | Sequence[Mapping[str, str]] | None = field(default=None, repr=False)


def digest(problems: Sequence[Problem]) -> str:
    """Return 16 hex digits that identify problems by their names, prompts, reference lengths, JSON-able answers and order."""
    facts = [(p.prompt_id, p.prompt, p.answer, int(p.reference_answer_tokens)) for p in problems]
    text = json.dumps(facts, skipkeys=True, default=lambda unknown: None)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
