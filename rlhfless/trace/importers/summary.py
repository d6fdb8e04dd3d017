"""What an import found, and what the log's gaps disable.

Knows rollouts; nothing of files or frameworks. Shared by all importers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

DISABLES = {
    "prompt_tokens": "planning counts 0 prompt tokens, so prefill and prompt KV are left out",
    "finish_reason": "truncation is unknown, so every length counts as the whole response",
    "reward": "rewards and their plots are left out",
    "weights_version": "the staleness of responses is unknown",
    "end_s": "the timeline of the logged run is unknown, so only simulated times can be shown",
}
"""What is not possible without a column."""


@dataclass(frozen=True)
class ImportSummary:
    """What came out of an import.

    Attributes:
        rows, prompts, steps, epochs: how many of each.
        duplicates_dropped: rows that repeated another row in every column.
        truncation_rate: share of responses that ended by ``length``, of those whose finish reason is known; None where
            none is known.
        missing: column that the log lacks, in all or some rows → what that disables.
        notes: what the import decided.
    """

    rows: int
    prompts: int
    steps: int
    epochs: int
    duplicates_dropped: int = 0
    truncation_rate: float | None = None
    missing: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rate = "truncation unknown" if self.truncation_rate is None else f"{self.truncation_rate:.1%} truncated"
        lines = [
            f"{self.rows:,} responses to {self.prompts:,} prompts in {self.steps:,} steps and {self.epochs:,} epochs, {rate}",
            f"duplicate rows dropped: {self.duplicates_dropped:,}",
            *(f"{column}: {text}" for column, text in self.missing.items()),
            *self.notes,
        ]
        return "\n".join(lines)


def summarize(rollouts: pd.DataFrame, duplicates_dropped: int = 0, notes: tuple[str, ...] = ()) -> ImportSummary:
    """The summary of validated rollouts."""
    reasons = rollouts["finish_reason"].dropna()
    missing = {}
    for column, disabled in DISABLES.items():
        unknown = int(rollouts[column].isna().sum()) if column in rollouts.columns else len(rollouts)
        if unknown == len(rollouts):
            missing[column] = f"not in the log; {disabled}"
        elif unknown:
            missing[column] = f"unknown in {unknown:,} of {len(rollouts):,} rows; for those {disabled}"
    return ImportSummary(
        rows=len(rollouts),
        prompts=len(rollouts[["run", "prompt_id"]].drop_duplicates()),
        steps=len(rollouts[["run", "step"]].drop_duplicates()),
        epochs=int(rollouts["epoch"].nunique()),
        duplicates_dropped=duplicates_dropped,
        truncation_rate=float((reasons == "length").mean()) if len(reasons) else None,
        missing=missing,
        notes=notes,
    )
