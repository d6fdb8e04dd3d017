"""Summarises an import: what was found, what is missing, and which analyses the gaps disable."""

from __future__ import annotations

import html
from dataclasses import dataclass, field, replace

import pandas as pd

from rlhfless.trace.schema.casts import clean, listed
from solver.model.plurals import counted

DISABLES = {
    "prompt_tokens": "planning counts 0 prompt tokens, so prefill and prompt KV are left out",
    "finish_reason": "truncation is unknown, so every length counts as the whole response",
    "reward": "rewards and their plots are left out",
    "weights_version": "the staleness of responses is unknown",
    "end_s": "end times are unknown; unless spans or scalars have the generation time, times come from a latency profile alone",
}
"""What is not possible without a column."""

DISABLES_IN_PART = DISABLES | {
    "end_s": "end times are unknown; unless spans or scalars have the generation time of their steps, the known times of these "
    "steps give lower bounds of it"
}
"""The same of rows that lack a value, where others have it."""

OTHER_FRAMEWORK = "a file of their own is needed to read them"
"""End of the notes on lines of another framework, which are left out of a file."""

PREVIEW_HEADING = "the first rows, as imported"
PREVIEW_ROWS = 3
PREVIEW_CELL = 24


@dataclass(frozen=True)
class ImportSummary:
    """What an import found, and what the log lacks.

    Attributes:
        rows, prompts, steps, epochs: numbers of each; 0 for a log without responses.
        duplicates_dropped: number of repeated rows that were dropped.
        truncation_rate: share of responses that ended by ``length``, among those with a known finish reason; None if none is
            known.
        end_unknown: number of responses whose finish reason is unknown.
        missing: column that the log lacks, in all or some rows → what that disables.
        notes: decisions of the import, in sentences.
        unknown_fields, absent_fields: fields that the importer does not know, and expected fields that the log lacks; a sign
            that a framework changed its format.
        scalar_steps: number of steps with logged averages (scalars).
        preview: the first rows as a small table.
    """

    rows: int
    prompts: int
    steps: int
    epochs: int
    duplicates_dropped: int = 0
    truncation_rate: float | None = None
    missing: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unknown_fields: tuple[str, ...] = ()
    absent_fields: tuple[str, ...] = ()
    scalar_steps: int = 0
    preview: str = ""
    end_unknown: int = 0

    @property
    def truncation(self) -> str:
        """Return the share of truncated responses in words; a range if some finish reasons are unknown."""
        if self.truncation_rate is None:
            return "truncation unknown"
        judged = self.rows - self.end_unknown
        lowest = self.truncation_rate * judged / self.rows
        if not self.end_unknown:
            return f"{lowest:.1%} truncated"
        highest = lowest + self.end_unknown / self.rows
        return f"{lowest:.1%} to {highest:.1%} truncated (unknown for {counted(self.end_unknown, 'response')})"

    def lines(self) -> list[str]:
        """Return what was found, what is missing and what was decided, one sentence each; without the ``preview``."""
        lines = []
        if self.rows:
            lines += [
                f"{counted(self.rows, 'response')} to {counted(self.prompts, 'prompt')} in {counted(self.steps, 'step')} and "
                f"{counted(self.epochs, 'epoch')}, {self.truncation}",
                f"duplicate rows dropped: {self.duplicates_dropped:,}",
                *(f"{column}: {text}" for column, text in self.missing.items()),
            ]
        else:
            lines.append("the log has no responses; planning needs the rollout log of the same run")
        if self.scalar_steps:
            lines.append(f"scalars of {counted(self.scalar_steps, 'step')}")
        lines += self.notes
        if self.unknown_fields:
            lines.append(f"unknown fields, left out: {listed(map(clean, self.unknown_fields))}")
        if self.absent_fields:
            lines.append(f"expected fields that the log lacks: {listed(self.absent_fields)}")
        return lines

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *([f"{PREVIEW_HEADING}:", self.preview] if self.preview else [])])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in self.lines())
        rows = f"<pre style='overflow-x:auto'>{html.escape(self.preview)}</pre>"
        preview = f"<details><summary>{PREVIEW_HEADING}</summary>{rows}</details>" if self.preview else ""
        return f"<ul>{items}</ul>{preview}"


def summarize(
    rollouts: pd.DataFrame | None,
    duplicates_dropped: int = 0,
    notes: tuple[str, ...] = (),
    unknown_fields: tuple[str, ...] = (),
    absent_fields: tuple[str, ...] = (),
    scalar_steps: int = 0,
) -> ImportSummary:
    """Return the summary of validated rollouts, or of a log without responses."""
    log = ImportSummary(
        0, 0, 0, 0, duplicates_dropped, notes=notes, unknown_fields=unknown_fields, absent_fields=absent_fields,
        scalar_steps=scalar_steps,
    )  # fmt: skip
    if rollouts is None:
        return log
    reasons = rollouts["finish_reason"].dropna()
    missing = {}
    for column, disabled in DISABLES.items():
        unknown = int(rollouts[column].isna().sum()) if column in rollouts.columns else len(rollouts)
        if unknown == len(rollouts):
            missing[column] = f"not in the log; {disabled}"
        elif unknown:
            missing[column] = f"unknown in {unknown:,} of {counted(len(rollouts), 'row')}; for those {DISABLES_IN_PART[column]}"
    return replace(
        log,
        rows=len(rollouts),
        prompts=len(rollouts[["run", "prompt_id"]].drop_duplicates()),
        steps=len(rollouts[["run", "step"]].drop_duplicates()),
        epochs=int(rollouts["epoch"].nunique()),
        truncation_rate=float((reasons == "length").mean()) if len(reasons) else None,
        missing=missing,
        preview=_preview(rollouts),
        end_unknown=len(rollouts) - len(reasons),
    )


def _preview(rollouts: pd.DataFrame) -> str:
    head = rollouts.head(PREVIEW_ROWS)
    shown = head.loc[:, head.notna().any()].astype(object)
    return str(shown.map(_cell).to_string(index=False))


def _cell(value: object) -> str:
    """Return a cell as a short text: fractions with four decimals, or three digits where they are small."""
    if isinstance(value, float):
        small = 0 < abs(value) < 1e-3
        return f"{value:.3g}" if small else f"{value:.4f}".rstrip("0").rstrip(".")
    return " ".join(str(value).split())[:PREVIEW_CELL]
