"""The public logs of the benchmark of uncertainty, each as one step whose prompts were seen before.

Knows the logs' files and what of a step is told to whom; nothing of policies.
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
    """Lengths of one step, and those of the same prompts' last visit.

    Attributes:
        prompt_of, tokens: (R,); history: (P,) lengths of each prompt's last visit; origin: (P,) prompt that a (resampled)
            prompt is a copy of; folds are over origins.
    """

    name: str
    prompt_of: np.ndarray
    tokens: np.ndarray
    history: list[np.ndarray]
    limit: int
    origin: np.ndarray

    def resampled(self, seed: int) -> Log:
        """As many prompts, drawn with replacement, each with all its responses and its history."""
        drawn = np.random.default_rng(seed).integers(0, len(self.history), len(self.history))
        of = [np.flatnonzero(self.prompt_of == p) for p in drawn]
        owner = np.repeat(np.arange(len(drawn)), [len(r) for r in of])
        history = [self.history[p] for p in drawn]
        return Log(self.name, owner, self.tokens[np.concatenate(of)], history, self.limit, self.origin[drawn])

    def truth(self) -> Workload:
        """The step with its true lengths."""
        return Workload(np.zeros(len(self.history), int), self.prompt_of, self.tokens, max_response_tokens=self.limit)

    def blind(self) -> Workload:
        """The step when nothing is known of its lengths but the limit."""
        return self.truth().with_response_tokens(np.full(len(self.tokens), self.limit // 2))

    def expected(self) -> Workload:
        """The step with scenarios drawn from each prompt's last visit."""
        rng = np.random.default_rng(0)
        drawn = np.array([rng.choice(self.history[p], 8) for p in self.prompt_of]).T
        return Workload(np.zeros(len(self.history), int), self.prompt_of, drawn, max_response_tokens=self.limit)


def rows(name: str) -> list[dict[str, str]] | None:
    """The rows of a log, or None with a sentence when it is not there."""
    path = DATA / name
    if not path.is_file():
        print(f"skipped: the public log {name} is not in {DATA.name} beside this checkout")
        return None
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_prompt(table: list[dict[str, str]], prompts: int, limit: int) -> list[np.ndarray]:
    """(P,) lengths of each prompt."""
    lengths: list[list[int]] = [[] for _ in range(prompts)]
    for row in table:
        if int(row["prompt_index"]) < prompts:
            lengths[int(row["prompt_index"])].append(min(limit, int(row["response_tokens"])))
    return [np.array(x) for x in lengths]


def log_of(name: str, now: list[dict[str, str]], before: list[dict[str, str]], limit: int) -> Log:
    """A log from the rows of a step and those of an earlier visit of the same prompts."""
    prompts = 1 + max(int(row["prompt_index"]) for row in now)
    lengths = by_prompt(now, prompts, limit)
    owner = np.repeat(np.arange(prompts), [len(x) for x in lengths])
    return Log(name, owner, np.concatenate(lengths), by_prompt(before, prompts, limit), limit, np.arange(prompts))


def logs() -> list[Log]:
    """The logs that are there."""
    found = []
    if (table := rows("grpo-gsm8k-lengths/areal_s0_lengths.csv")) is not None:
        visits = [[row for row in table if row["visit"] == v] for v in "10"]
        found.append(log_of("GSM8K", *visits, 512))
    if (table := rows("reasoning-eval-lengths/response_lengths.csv")) is not None:
        math = [row for row in table if row["benchmark"] == "math500" and row["max_tokens"] == "4096"]
        base = [[row for row in math if row["run"].startswith("base") is is_base] for is_base in (True, False)]
        found.append(log_of("MATH-500", *base, 4096))
    return found


def made_up() -> Log:
    """40 prompts x 2 responses of lognormal lengths, which try the script."""
    rng = np.random.default_rng(0)
    before, now = np.clip(rng.lognormal(4.5, 0.6, (2, 40, 2)), 1, 512).astype(int)
    return Log("made up", np.repeat(np.arange(40), 2), now.ravel(), list(before), 512, np.arange(40))
