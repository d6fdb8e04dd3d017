"""Answers for a log with texts what speculative decoding would accept: by source of drafts, draft length, step and response.

Each number comes from ``measure_drafts``. Large logs are measured on a part: the last steps, up to ``max_tokens`` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.draft_acceptance import DraftedResponses, measure_drafts
from rlhfless.analysis.draft_groups import DraftSource, Encode
from rlhfless.errors import InputError
from solver.model.latency import LatencyModel
from solver.model.plurals import counted
from solver.timing.draft_length import DraftLength, length_table

TOLD_TOKENS = 2  # a change of the best length that readers are told
OLDER_STEPS = 4  # measured besides the last ones, evenly spread
QUARTILES = ("shortest quarter", "second quarter", "third quarter", "longest quarter")


@dataclass(frozen=True, eq=False)
class DraftStudy:
    """How many drafted tokens would have been accepted on the texts of a log, by source of the drafts.

    Attributes:
        unit: unit of all counts: ``tokens`` or ``bytes``. measured: numbers of measured responses and tokens, in words.
        by_source: one row per source and draft length: ``source, draft_tokens, tokens_per_pass, passes_saved, drafted_accepted,
            spread, longest_speedup``.
        best: the source with the highest acceptance, with the longest draft.
        by_step: tokens per pass of that source at some steps: ``step, tokens_per_pass``.
        by_length: the same for quarters of the responses by length: ``responses, mean_tokens, tokens_per_pass``.
        by_position: share of passes that accept each position of the longest draft: ``source, position, survival``.
        prompt_tokens: mean length of the prompts.
    """

    unit: str
    measured: str
    by_source: pd.DataFrame
    best: DraftedResponses
    by_step: pd.DataFrame
    by_length: pd.DataFrame
    by_position: pd.DataFrame
    prompt_tokens: float

    def lengths(self, latency: LatencyModel) -> list[DraftLength]:
        """Return the best draft length for each batch size, given the log's acceptance and mean context."""
        return length_table(latency, self.best.acceptance, self.context_tokens)

    @property
    def context_tokens(self) -> float:
        """Mean KV tokens of a decoded token: the prompt, and on average half of the response."""
        tokens = self.best.responses["tokens"].to_numpy(float)
        return self.prompt_tokens + (float((tokens**2).sum() / (2 * tokens.sum())) if tokens.sum() else 0.0)

    @property
    def verdict(self) -> str:
        """The result in two sentences."""
        best, rows = self.best, self.best.responses
        return (
            f"{best.max_draft_tokens} drafted {self.unit} from {best.source.name} give {best.tokens_per_pass:.2f} {self.unit} "
            f"per pass, so {1 - 1 / best.tokens_per_pass:.0%} of the passes are saved. The longest response has "
            f"{rows['tokens'].max():,} {self.unit} and the slowest one needs {rows['passes'].max():,} passes, so the end of "
            f"generation comes at most {best.longest_speedup:.2f} times as early."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "unit": self.unit,
            "measured": self.measured,
            "verdict": self.verdict,
            "best": {"source": self.best.source.name, "survival": self.best.acceptance.survival.tolist()},
            **{name: getattr(self, name).to_dict("records") for name in ("by_source", "by_step", "by_length", "by_position")},
        }


def joined(table: Sequence[DraftLength]) -> list[DraftLength]:
    """Join neighbouring ranges whose draft lengths differ by less than ``TOLD_TOKENS``, for readers.

    A joined range has the length and the speed-up of its smallest batch. Where drafts do not pay, the range stays its own.
    """
    shown: list[DraftLength] = []
    for row in table:
        last = shown[-1] if shown else None
        if last and last.draft_tokens and row.draft_tokens and abs(last.draft_tokens - row.draft_tokens) < TOLD_TOKENS:
            shown[-1] = replace(last, last_batch=row.last_batch)
        else:
            shown.append(row)
    return shown


def study_drafts(
    rollouts: pd.DataFrame,
    encode: Encode,
    unit: str = "tokens",
    *,
    history: str = "last",
    max_draft_tokens: int = 8,
    max_tokens: int = 100_000,
) -> DraftStudy:
    """Measure the acceptance of speculative decoding on a log's texts, with every source of drafts.

    Args:
        rollouts: rows with texts, see ``measure_drafts``.
        unit: unit that ``encode`` counts in, for the tables.
        history: earlier responses of the prompt that drafts may come from: of the ``last`` epoch, of ``all`` epochs, or
            ``none``.
        max_tokens: measure about this many tokens at most, of the last steps.

    Raises:
        InputError: the log has no texts, or an argument is out of range.
    """
    if max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; 1 or more is needed")
    encode = cache(encode)  # every source and length reads the same texts
    sources = [DraftSource("none", False), DraftSource("none", True), DraftSource(history, False), DraftSource(history, True)]
    lengths = sorted({*(n for n in (1, 2, 4, 8, 16) if n < max_draft_tokens), max_draft_tokens})
    kept = last_prompts(rollouts, max_tokens)
    several = (kept.groupby(["step", "prompt_id"]).size() > 1).any()
    steps = sorted(set(kept["step"]))
    again = kept.groupby("prompt_id")["step"].nunique().max() > 1 if len(kept) else False
    rows, positions, best = [], [], None
    for source in dict.fromkeys(sources):
        if (source.siblings and not several) or (source.history != "none" and not again):
            continue
        for length in lengths:
            drafted = measure_drafts(kept, encode, source, length, steps=steps[-1:] if again else steps)
            rows.append(_row(drafted))
        positions += [(source.name, k, share) for k, share in enumerate(drafted.acceptance.survival.tolist(), start=1)]
        if best is None or drafted.tokens_per_pass > best.tokens_per_pass:
            best = drafted
    assert best is not None
    older = [steps[int(k)] for k in np.unique(np.linspace(0, len(steps) - 1, OLDER_STEPS + 1).round())] if again else steps
    by_step = [
        (step, measure_drafts(kept, encode, best.source, max_draft_tokens, steps=[step]).tokens_per_pass) for step in older
    ]
    measured = f"{counted(len(best.responses), 'response')} of {int(best.responses['tokens'].sum()):,} {unit}"
    return DraftStudy(
        unit, measured, pd.DataFrame(rows), best, pd.DataFrame(by_step, columns=["step", "tokens_per_pass"]),
        _by_length(best.responses), pd.DataFrame(positions, columns=["source", "position", "survival"]),
        _mean_prompt(kept, encode),
    )  # fmt: skip


def _mean_prompt(rollouts: pd.DataFrame, encode: Encode) -> float:
    """Return the mean length of the prompts' texts; 0 where the log has none."""
    texts = {text for text in rollouts.get("prompt", ()) if isinstance(text, str)}
    return float(np.mean([len(encode(text)) for text in texts])) if len(texts) else 0.0


def _row(drafted: DraftedResponses) -> dict[str, Any]:
    responses = drafted.responses
    return {
        "source": drafted.source.name,
        "draft_tokens": drafted.max_draft_tokens,
        "tokens_per_pass": drafted.tokens_per_pass,
        "passes_saved": 1 - 1 / drafted.tokens_per_pass,
        "drafted_accepted": float(responses["accepted_tokens"].sum() / max(responses["drafted_tokens"].sum(), 1)),
        "spread": drafted.spread,
        "longest_speedup": drafted.longest_speedup,
    }


def _by_length(responses: pd.DataFrame) -> pd.DataFrame:
    """Return tokens per pass of each quarter of the responses by length."""
    order = responses.sort_values("tokens", kind="stable").reset_index(drop=True)
    quarter = (order.index.to_numpy() * 4) // max(len(order), 1)
    sums = order.groupby(quarter)[["tokens", "passes"]].agg({"tokens": ["sum", "mean"], "passes": "sum"})
    return pd.DataFrame(
        {
            "responses": [QUARTILES[int(q)] for q in sums.index],
            "mean_tokens": sums["tokens", "mean"].to_numpy(),
            "tokens_per_pass": (sums["tokens", "sum"] / sums["passes", "sum"].clip(lower=1)).to_numpy(),
        }
    )


def last_prompts(rollouts: pd.DataFrame, max_tokens: int) -> pd.DataFrame:
    """Return the visits of as many prompts of the last step as ``max_tokens`` allow there, with all their earlier visits."""
    last = rollouts[rollouts["step"] == rollouts["step"].max()]
    sizes = last.groupby("prompt_id", sort=False)["response_tokens"].sum().cumsum()
    prompts = sizes.index[(sizes <= max_tokens) | (np.arange(len(sizes)) == 0)]
    return rollouts[rollouts["prompt_id"].isin(prompts)]
