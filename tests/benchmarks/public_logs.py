"""The public logs of response lengths that several benchmarks read from the folder beside the checkout.

``rows`` is a log as it lies there; ``logs`` gives one step of each. Knows files; nothing of policies.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solver import Workload

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Log:
    """Lengths of one step.

    Attributes:
        prompt_of: (R,) prompt of each response. tokens: (R,) its length.
    """

    name: str
    prompt_of: np.ndarray
    tokens: np.ndarray
    limit: int

    def truth(self) -> Workload:
        """The step with its true lengths; prompts count as 0 tokens."""
        prompts = np.zeros(self.prompt_of.max() + 1, int)
        return Workload(prompts, self.prompt_of, self.tokens, max_response_tokens=self.limit)


def rows(name: str) -> list[dict[str, str]] | None:
    """The rows of a log, or None with a sentence when it is not there."""
    path = DATA / name
    if not path.is_file():
        print(f"skipped: the public log {name} is not in {DATA.name} beside this checkout")
        return None
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def log_of(name: str, table: list[dict[str, str]], limit: int) -> Log:
    """A log from the rows of a step, sorted by prompt."""
    prompt_of = np.array([int(row["prompt_index"]) for row in table])
    tokens = np.array([min(limit, int(row["response_tokens"])) for row in table])
    order = np.argsort(prompt_of, kind="stable")
    return Log(name, prompt_of[order], tokens[order], limit)


def logs() -> list[Log]:
    """The logs that are there: the second visit of GSM8K's prompts, and the answers to MATH-500 before RL."""
    found = []
    if (table := rows("grpo-gsm8k-lengths/areal_s0_lengths.csv")) is not None:
        found.append(log_of("GSM8K", [row for row in table if row["visit"] == "1"], 512))
    if (table := rows("reasoning-eval-lengths/response_lengths.csv")) is not None:
        math = [row for row in table if row["benchmark"] == "math500" and row["max_tokens"] == "4096"]
        found.append(log_of("MATH-500", [row for row in math if row["run"].startswith("base")], 4096))
    return found
