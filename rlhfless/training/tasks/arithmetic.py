"""The shipped task: a chain of additions and subtractions, worked out line by line.

The prompt ``47+8-3+9?`` is answered by writing what remains after each operation, and the answer: ``55-3+9;52+9;61;#61.``.
The number of operands differs between prompts, so answer lengths differ too. A problem can be solved in several styles (see
``STYLES``), so the responses to *one* prompt also differ in length. Needs no torch.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from rlhfless.errors import InputError
from solver.model.errors import as_given, is_whole

STYLES = ("plain", "noted", "columns", "checked")
"""How a solution is written, from short to long. All write a line with what remains; they differ in the notes before it.
The first line of the four solutions of ``47+8-3+9?``:

- plain: no note, ``55-3+9;``
- noted: the operation, ``(47+8=55)55-3+9;``
- columns: the operation digit by digit, ones first, ``(47+8:7+8=15,4+1=5)55-3+9;``
- checked: as columns, then undone in the same way, ``(47+8:7+8=15,4+1=5)(55-8:15-8=7,5-1=4)55-3+9;``"""

STYLE_WEIGHTS = (0.25, 0.3, 0.25, 0.2)
OPERANDS = (2, 3, 4, 5, 6, 7, 8)
OPERAND_WEIGHTS = (1, 1, 2, 4, 4, 2, 1)
MAX_TOTAL = 99
HELD_OUT_SHARE = 1 / 8
GROWING = 3_000

_ANSWER = re.compile(r"#(\d+)\.$")


@dataclass(frozen=True)
class ArithmeticProblem:
    """One prompt with its answer and a reference solution in the style ``noted``."""

    prompt_id: str
    prompt: str
    answer: int
    solution: str
    operands: int

    @property
    def reference_answer_tokens(self) -> int:
        """Tokens of the reference solution in characters, the end token included."""
        return len(self.solution) + 1


def is_held_out(prompt: str) -> bool:
    """Return whether a prompt is a held-out problem: a fixed split by hash, independent of all seeds."""
    return zlib.crc32(prompt.encode()) < HELD_OUT_SHARE * 2**32


class ArithmeticTask:
    """Arithmetic problems: ``prompts`` distinct training problems, held-out problems, a reward, and worked solutions.

    Everything is determined by ``seed``. No held-out prompt is ever a training problem or a worked solution.

    Raises:
        InputError: ``prompts`` is not a whole number of 1 or more.
    """

    name = "arithmetic"

    def __init__(self, seed: int = 0, prompts: int = 128) -> None:
        if not is_whole(prompts, 1):
            raise InputError(f"prompts is {as_given(prompts)}; a whole number of 1 or more is needed")
        self.seed = seed
        self.problems = self._distinct(prompts, held_out=False, stream="train")

    def held_out(self, count: int) -> tuple[ArithmeticProblem, ...]:
        """Return ``count`` distinct problems that neither training nor warm-up uses."""
        return self._distinct(count, held_out=True, stream="held-out")

    def reward(self, problem: ArithmeticProblem, response_text: str) -> float:
        """Return 1 if the response ends with ``#answer.`` and the answer is right, else 0.

        The full stop is part of the answer, so a response that was truncated inside its answer gets 0. Format and intermediate
        steps give no reward, so the mean reward is the accuracy.
        """
        match = _ANSWER.search(response_text)
        return float(match is not None and int(match[1]) == problem.answer)

    def worked_solutions(self, seed: int = 0) -> Iterator[tuple[str, str]]:
        """Yield endless (prompt, solution) pairs for the warm-up, each in a style drawn by ``STYLE_WEIGHTS``.

        Short problems come first: the number of operands grows over the first ``GROWING`` pairs.
        """
        rng = random.Random(f"{self.seed}/worked/{seed}")
        for count in itertools.count():
            problem = _draw(rng, held_out=False, max_operands=3 + count * max(OPERANDS) // GROWING)
            style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
            yield problem.prompt, solution(problem.prompt, style)

    def _distinct(self, count: int, *, held_out: bool, stream: str) -> tuple[ArithmeticProblem, ...]:
        rng = random.Random(f"{self.seed}/{stream}")
        problems: dict[str, ArithmeticProblem] = {}
        while len(problems) < count:
            problem = _draw(rng, held_out=held_out)
            problems.setdefault(problem.prompt, problem)
        return tuple(problems.values())


def solution(prompt: str, style: str) -> str:
    """Return the right solution of ``prompt`` written in ``style``, one of ``STYLES``.

    Raises:
        InputError: there is no such style.
    """
    if style not in STYLES:
        raise InputError(f"style is {as_given(style)}; it must be one of {', '.join(STYLES)}")
    first, *operations = re.findall(r"[+-]?\d+", prompt)
    total, lines = int(first), []
    for i, operation in enumerate(operations, start=1):
        before, total = total, total + int(operation)
        lines.append(f"{_note(style, before, operation, total)}{total}{''.join(operations[i:])};")
    return "".join(lines) + f"#{total}."


def _note(style: str, before: int, operation: str, total: int) -> str:
    """Return what is written before the line that follows from ``before`` and ``operation``, such as 47 and ``+8``."""
    if style == "plain":
        return ""
    if style == "noted":
        return f"({before}{operation}={total})"
    note = f"({before}{operation}:{_columns(before, operation)})"
    if style == "columns":
        return note
    inverse = ("-" if operation[0] == "+" else "+") + operation[1:]
    return f"{note}({total}{inverse}:{_columns(total, inverse)})"


def _columns(before: int, operation: str) -> str:
    """Return the operation digit by digit, ones first: ``7+8=15,4+1=5`` with a carry, ``12-7=5,4-1=3`` with a borrowed ten."""
    tens, ones = divmod(before, 10)
    borrowed = 10 if operation[0] == "-" and ones < int(operation[1:]) else 0
    result = ones + borrowed + int(operation)
    text = f"{ones + borrowed}{operation}={result}"
    if borrowed:
        return f"{text},{tens}-1={tens - 1}"
    return f"{text},{tens}+1={tens + 1}" if result > 9 else text


def _draw(rng: random.Random, *, held_out: bool, max_operands: int = max(OPERANDS)) -> ArithmeticProblem:
    """Return a number of two digits and a few of one digit, added or subtracted so that every total lies in 0 ... 99."""
    while True:
        operands = min(rng.choices(OPERANDS, OPERAND_WEIGHTS)[0], max_operands)
        total = rng.randint(10, MAX_TOTAL)
        prompt = str(total)
        for _ in range(operands - 1):
            operand = rng.randint(1, 9) * rng.choice((-1, 1))
            if not 0 <= total + operand <= MAX_TOTAL:
                operand = -operand
            total += operand
            prompt += f"{operand:+d}"
        prompt += "?"
        if is_held_out(prompt) == held_out:
            return ArithmeticProblem(f"arithmetic-{prompt[:-1]}", prompt, total, solution(prompt, "noted"), operands)
