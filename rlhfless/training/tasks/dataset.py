"""A task made of prompts and answers from a data set (file, hub or memory)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.errors import InputError
from rlhfless.trace.limits import Limits
from rlhfless.training.problem import TextProblem, TextTokenizer
from rlhfless.training.rewards.response import Response
from rlhfless.training.rewards.rules import contains_answer
from rlhfless.training.tasks.prompt_limit import PromptLimit
from rlhfless.training.tasks.rows import read_rows, require_columns
from solver.model.plurals import counted

PROMPT_COLUMNS = ("prompt", "messages", "conversations")
ROLES = {"human": "user", "gpt": "assistant"}
"""Of ShareGPT's {"from", "value"} -> of chat templates."""


class TooFewRows(InputError):
    """A data set has fewer rows than prompts are asked for; a resumed run asks for those that it was started with."""


class DatasetTask:
    """A task with prompts and answers from a file, the hub or memory.

    Args:
        source, split, limits: see ``read_rows``.
        tokenizer: encodes prompts; a ``PretrainedTokenizer`` with a chat template applies it to prompts.
        seed, prompts, held_out: number of rows to use (``prompts``), in an order determined by ``seed``; a larger number
            contains the rows of a smaller one. None: all rows except ``held_out`` ones.
        prompt_column: a text, or a conversation as a list of {"role", "content"}, or of {"from", "value"}. Assistant messages
            at its end are left out. None: the first of ``PROMPT_COLUMNS`` that the rows have.
        answer_column: column of the answers that rewards compare with; None: there is none.
        needs_answer: whether the rewards need answers; if not, the column may be missing and answers may be empty.
        reference_column: column with a text about as long as a good response, such as a worked solution, for the first length
            predictions; None: they follow the responses of earlier steps.
        chat: apply the chat template to prompts; None does so if the tokenizer has one.
        reward: function of one response; by default 1 if the response contains the answer, else 0.
        instruction: text added to every plain-text prompt.
        prompt_limit: rows with a longer prompt are left out and replaced by other rows, if there are any; None: no limit.
        as_before: prompts are named after the data set, and without ``reference_column`` the answer is the reference, as in
            runs of earlier versions, which are resumed so.

    Attributes:
        left_out: tokens of the prompts that were left out so far, by the row's number.

    Raises:
        InputError: a column is missing, a row has no text, there are fewer rows than ``prompts``, or a template is missing, or
            no prompt is short enough.
        TraceError: a csv or parquet file is damaged, or a file is larger than the limits.
    """

    prompts_named = "row"
    """Prompts have this name and the row's number, whatever the file is called: their random numbers follow from it."""
    answers_are_worked = False
    """Whether an answer is a worked solution, which is as long as a good response."""

    def __init__(
        self,
        source: Any,
        tokenizer: TextTokenizer,
        *,
        seed: int = 0,
        prompts: int | None = None,
        held_out: int = 0,
        split: str = "train",
        prompt_column: str | None = None,
        answer_column: str | None = "answer",
        reference_column: str | None = None,
        chat: bool | None = None,
        reward: Callable[[Response], float] = contains_answer,
        instruction: str = "",
        name: str | None = None,
        limits: Limits | None = None,
        needs_answer: bool = True,
        prompt_limit: PromptLimit | None = None,
        as_before: bool = False,
    ) -> None:
        source_name, rows = read_rows(source, split, limits)
        self.name, self.rule = name or source_name, reward
        location = str(source) if isinstance(source, str) or hasattr(source, "__fspath__") else "the data set"
        if prompt_column is None:
            prompt_column = next((name for name in PROMPT_COLUMNS if name in rows[0]), PROMPT_COLUMNS[0])
        needed = {"prompt": prompt_column, "answer": answer_column if needs_answer else None, "reference": reference_column}
        require_columns(rows, {purpose: column for purpose, column in needed.items() if column is not None}, location)
        if prompts is not None and not 1 <= prompts <= len(rows):
            raise TooFewRows(f"{location}: has {len(rows)} rows, but prompts is {prompts}; give 1 to {len(rows)}")
        has_template = isinstance(tokenizer, PretrainedTokenizer) and tokenizer.has_chat_template
        if chat and not has_template:
            raise InputError("the model's tokenizer has no chat template; give chat=False to prompt with plain text")
        self._tokenizer, self._chat = tokenizer, has_template if chat is None else chat
        if reference_column is None and (as_before or self.answers_are_worked):
            reference_column = answer_column
        self._columns, self._instruction = (prompt_column, answer_column, reference_column), instruction
        self._named_after = self.name if as_before else self.prompts_named
        self._needs_answer, self._prompt_limit = needs_answer, prompt_limit
        self._rows, self._location = rows, location
        self._no_row = dict.fromkeys(name for row in rows for name in row)  # every problem has all columns
        self.left_out: dict[int, int] = {}
        order = iter(np.random.default_rng(seed).permutation(len(rows)).tolist())
        self.problems: tuple[TextProblem, ...] = self._taken(order, prompts)
        self._others: list[int] = list(order)
        self._held_out: tuple[TextProblem, ...] = ()
        if prompts is None and held_out:
            self.problems, self._held_out = self.problems[:-held_out], self.problems[-held_out:]
        if not self.problems and self.left_out and prompt_limit is not None:
            shortest = min(self.left_out, key=self.left_out.__getitem__)
            raise InputError(
                f"{location}: no prompt has at most {counted(prompt_limit.tokens, 'token')} (the shortest, row {shortest}, has "
                f"{self.left_out[shortest]}); {prompt_limit.reason}"
            )

    def held_out(self, count: int) -> tuple[TextProblem, ...]:
        """Return the next ``count`` rows after those of ``problems``, in the same order; fewer if there are fewer."""
        return self._held_out[:count] or self._taken(iter(self._others), count)

    def _taken(self, rows: Iterator[int], count: int | None) -> tuple[TextProblem, ...]:
        """Return the problems of the first ``count`` rows whose prompts are short enough."""
        taken: list[TextProblem] = []
        while len(taken) != count and (i := next(rows, None)) is not None:
            problem = self._problem(i, self._rows[i], f"{self._location}: row {i}")
            if self._prompt_limit is not None:
                tokens = len(self._tokenizer.encode(problem.prompt))
                if tokens > self._prompt_limit.tokens:
                    self.left_out[i] = tokens
                    continue
            taken.append(problem)
        return tuple(taken)

    def reward(self, problem: TextProblem, response_text: str) -> float:
        """Return the reward by the task's own rule."""
        return self.rule(Response(problem, response_text))

    def answer_of(self, row: Mapping[str, Any], location: str) -> str:
        """Return the answer of a row that rewards compare with; empty if there is none and none is needed.

        Raises:
            InputError: it is needed, and there is none.
        """
        if self._columns[1] is None:
            return ""
        answer = row.get(self._columns[1])
        if answer is not None and str(answer).strip():
            return str(answer)
        if self._needs_answer:
            raise InputError(f"{location} has no answer in column {self._columns[1]!r}")
        return ""

    def _problem(self, index: int, row: Mapping[str, Any], location: str) -> TextProblem:
        given = row[self._columns[0]]
        if isinstance(given, np.ndarray):  # a list in a frame that was read from a parquet file
            given = given.tolist()
        if isinstance(given, list):
            given = _asked(given)
        prompt, messages = self._prompt(given, location)
        answer = self.answer_of(row, location)
        reference = None if self._columns[2] is None else row.get(self._columns[2])
        tokens = 0 if reference is None else len(self._tokenizer.encode(str(reference), eos=True))
        return TextProblem(f"{self._named_after}-{index}", prompt, answer, tokens, messages, {**self._no_row, **row}, given)

    def _prompt(self, value: Any, location: str) -> tuple[str, tuple[Mapping[str, str], ...]]:
        """Return the text that is encoded, and the conversation it came from."""
        if isinstance(value, str) and value.strip():
            text = value + self._instruction
            if not self._chat:
                return (self._tokenizer.plain(text) if isinstance(self._tokenizer, PretrainedTokenizer) else text), ()
            messages: tuple[Mapping[str, str], ...] = ({"role": "user", "content": text},)
        elif isinstance(value, list) and value and all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in value):
            messages = tuple(value)
        else:
            raise InputError(f"{location} has no prompt in column {self._columns[0]!r}: a text or a list of messages is needed")
        if not self._chat:
            raise InputError(
                f"{location} is a conversation, which needs a tokenizer with a chat template; give prompts as text"
            )
        assert isinstance(self._tokenizer, PretrainedTokenizer)
        return self._tokenizer.filled_in(messages), messages


def _asked(messages: list[Any]) -> list[Any]:
    """Return the messages of a conversation that ask for a response: all but the assistant's at its end."""
    if not all(isinstance(message, Mapping) for message in messages):
        return messages
    asked = [
        {"role": ROLES.get(message["from"], message["from"]), "content": message["value"]}
        if {"from", "value"} <= message.keys()
        else message
        for message in messages
    ]
    while asked and asked[-1].get("role") == "assistant":
        asked.pop()
    return asked
