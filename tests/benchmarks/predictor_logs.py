"""The logs that predictors are measured on: their steps, which of them are predicted, and the run pairs of an evaluation.

Knows the logs' files; nothing of predictors or plans.

The public evaluation (``reasoning-eval-lengths``) is one model before RL and checkpoints after it, one answer each to the same
prompts. A pair is the model before and one checkpoint, of one benchmark, language and limit. Where the limit was 4,096 tokens
it was that of prompt and answer together, and the file marks nobody as cut off: 143 and 183 of 500 answers to MATH-500 are
above 3,700 tokens, and there the two models' answers to a prompt end 12 tokens apart at the median, and the sooner the longer
the prompt is. Answers above 3,700 tokens of these sets are therefore taken as cut off; those of 8,192 tokens are marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from public_logs import rows

from rlhfless.trace import read_trace, response_limit

HERE = Path(__file__).parents[2]
SHARED_LIMIT, CUT_ABOVE = 4096, 3700
FOLDER = "reasoning-eval-lengths"


class Log(NamedTuple):
    """A log of rollouts: the steps to predict, and the response limit."""

    rollouts: pd.DataFrame
    steps: list[int]
    limit: int


def shipped() -> Log:
    """The recorded run, an epoch per step."""
    trace = read_trace(HERE / "data" / "traces" / "arithmetic-grpo")
    table = trace.rollouts.assign(step=trace.rollouts["epoch"])
    return Log(table, sorted(table["step"].unique())[-4:], int(response_limit(trace.meta)))


def gsm8k() -> Log | None:
    """The public GRPO log; its second pass over the first prompts is one step."""
    found = rows("grpo-gsm8k-lengths/areal_s0_lengths.csv")
    if found is None:
        return None
    raw = pd.DataFrame(found).astype(dict.fromkeys(("step", "visit", "rollout", "response_tokens", "hit_cap"), int))
    step = np.where(raw["visit"] == 0, raw["step"], 32)
    cut = raw["hit_cap"] == 1
    return Log(_rollouts(raw["prompt_index"], raw["rollout"], step, raw["visit"], raw["response_tokens"], cut), [32], 512)


def math500() -> Log | None:
    """MATH-500 before RL and after it."""
    raw = _evaluation()
    return None if raw is None else next(log for name, log in _pairs(raw) if name.startswith("math500"))


def pairs() -> list[tuple[str, Log]]:
    """All run pairs of the evaluation, each with a name of benchmark, language, limit and checkpoint; none without its file."""
    raw = _evaluation()
    return [] if raw is None else list(_pairs(raw))


def _evaluation() -> pd.DataFrame | None:
    found = rows(f"{FOLDER}/response_lengths.csv")
    numbers = ("prompt_index", "response_tokens", "hit_cap", "max_tokens")
    return None if found is None else pd.DataFrame(found).astype(dict.fromkeys(numbers, int))


def _pairs(raw: pd.DataFrame) -> Iterator[tuple[str, Log]]:
    for (benchmark, language, limit), own in raw.groupby(["benchmark", "language", "max_tokens"], sort=True):
        base = own["run"].str.startswith("base")
        assert own.loc[base, "run"].nunique() == 1, "one model before RL"
        for run, after in own[~base].groupby("run", sort=True):
            both = pd.concat([own[base], after])
            step = (both["run"] == run).astype(int)
            shared = limit == SHARED_LIMIT
            cut = both["response_tokens"] > CUT_ABOVE if shared else both["hit_cap"] == 1
            tokens = both["response_tokens"].clip(1, limit)
            yield (
                f"{benchmark} {language} {limit} {run}",
                Log(_rollouts(both["prompt_index"], 0, step, step, tokens, cut), [1], int(limit)),
            )


def _rollouts(prompt: Any, sample: Any, step: Any, epoch: Any, tokens: Any, cut: Any) -> pd.DataFrame:
    table = pd.DataFrame({"prompt_id": prompt.astype(str), "sample": sample, "step": step, "epoch": epoch})
    reason = np.where(np.asarray(cut, dtype=bool), "length", "stop")
    table = table.assign(run="log", response_tokens=tokens, prompt_tokens=0, finish_reason=reason)
    return table.reset_index(drop=True)
