"""The shipped task: a chain of additions and subtractions, worked out step by step.

A prompt such as ``37+58-12?`` is answered by steps and the final answer, ``37+58=95;95-12=83;#83.``. The number of operands
differs between prompts, so the length of an answer does; and each problem can be solved in several styles (see ``STYLES``),
so the responses to *one* prompt differ in length too. Knows nothing of tokens, models or torch.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

STYLES = ("terse", "steps", "columns", "checked")
"""How a solution is written, from short to long; the four solutions of ``37+58-12?``:

- terse: the running total only, ``95;83;#83.``
- steps: one equation per operation, ``37+58=95;95-12=83;#83.``
- columns: every operation digit by digit, ones first, ``37+58:7+8=15,3+5+1=9=95;95-12:5-2=3,9-1=8=83;#83.``
- checked: as columns, and each operation is undone once, ``...=95(95-58=37);...``
"""

STYLE_WEIGHTS = (0.25, 0.35, 0.25, 0.15)
OPERANDS = (2, 8)
MAX_TOTAL = 99
HELD_OUT_SHARE = 1 / 8

_ANSWER = re.compile(r"#(\d+)\.$")


@dataclass(frozen=True)
class Problem:
    """One prompt with its answer and a reference solution in the style ``steps``."""

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
    """Whether a prompt belongs to the held-out problems: a fixed split by hash, whatever the seeds."""
    return zlib.crc32(prompt.encode()) < HELD_OUT_SHARE * 2**32


class ArithmeticTask:
    """``prompts`` distinct training problems, as many held-out ones as wanted, a reward, and worked solutions.

    Everything is a function of ``seed``. No held-out prompt is ever a training problem or a worked solution.
    """

    name = "arithmetic"

    def __init__(self, seed: int = 0, prompts: int = 128) -> None:
        if prompts < 1:
            raise ValueError(f"prompts is {prompts}; the task needs at least 1 prompt")
        self.seed = seed
        self.problems = self._distinct(prompts, held_out=False, stream="train")

    def held_out(self, count: int) -> tuple[Problem, ...]:
        """``count`` distinct problems that neither training nor warm-up sees."""
        return self._distinct(count, held_out=True, stream="held-out")

    def reward(self, problem: Problem, response_text: str) -> float:
        """1 if the response ends with ``#answer.`` and the answer is right, else 0.

        The full stop is part of the answer, so a response that was truncated inside its answer earns nothing. There is no
        credit for form or for right steps: the mean reward is the accuracy.
        """
        match = _ANSWER.search(response_text)
        return float(match is not None and int(match[1]) == problem.answer)

    def worked_solutions(self, seed: int = 0) -> Iterator[tuple[str, str]]:
        """Endless (prompt, solution) pairs for the warm-up, each in a style drawn by ``STYLE_WEIGHTS``."""
        rng = random.Random(f"{self.seed}/worked/{seed}")
        while True:
            problem = _draw(rng, held_out=False)
            style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
            yield problem.prompt, solution(problem.prompt, style)

    def _distinct(self, count: int, *, held_out: bool, stream: str) -> tuple[Problem, ...]:
        rng = random.Random(f"{self.seed}/{stream}")
        problems: dict[str, Problem] = {}
        while len(problems) < count:
            problem = _draw(rng, held_out=held_out)
            problems.setdefault(problem.prompt, problem)
        return tuple(problems.values())


def solution(prompt: str, style: str) -> str:
    """The right solution of ``prompt`` written in ``style``, one of ``STYLES``."""
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; it must be one of {', '.join(STYLES)}")
    first, *operations = re.findall(r"[+-]?\d+", prompt)
    total, text = int(first), []
    for operation in operations:
        sign, operand = operation[0], int(operation[1:])
        before, total = total, total + int(operation)
        text.append(_STEP[style](before, sign, operand, total))
    return "".join(text) + f"#{total}."


def _columns(before: int, sign: str, operand: int, total: int) -> str:
    """One operation digit by digit, ones first; a carry or a borrowed one is the third term."""
    columns, carry, places = [], 0, max(len(str(before)), len(str(operand)))
    for place in range(places):
        a, b = before // 10**place % 10, operand // 10**place % 10
        carried = f"{sign}1" if carry else ""
        if sign == "+":
            digit = a + b + carry
            carry = digit // 10
        else:
            digit = a - b - carry
            carry = int(digit < 0)
            a, digit = a + 10 * carry, digit + 10 * carry
        columns.append(f"{a}{sign}{b}{carried}={digit}")
    return f"{before}{sign}{operand}:{','.join(columns)}={total}"


_STEP = {
    "terse": lambda before, sign, operand, total: f"{total};",
    "steps": lambda before, sign, operand, total: f"{before}{sign}{operand}={total};",
    "columns": lambda before, sign, operand, total: _columns(before, sign, operand, total) + ";",
    "checked": lambda before, sign, operand, total: (
        _columns(before, sign, operand, total) + f"({total}{'-' if sign == '+' else '+'}{operand}={before});"
    ),
}


def _draw(rng: random.Random, *, held_out: bool) -> Problem:
    while True:
        operands = rng.randint(*OPERANDS)
        total = rng.randint(1, MAX_TOTAL)
        prompt = str(total)
        for _ in range(operands - 1):
            # Either sign may appear as often as the room above and below the running total allows.
            operand = rng.randint(-total, MAX_TOTAL - total) or 1
            operand = operand if 0 <= total + operand <= MAX_TOTAL else -operand
            total += operand
            prompt += f"{operand:+d}"
        prompt += "?"
        if is_held_out(prompt) == held_out:
            return Problem(f"arithmetic-{prompt[:-1]}", prompt, total, solution(prompt, "steps"), operands)
