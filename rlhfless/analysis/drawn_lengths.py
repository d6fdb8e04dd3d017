"""Response lengths drawn from a run's scalars, for logs that have no more than mean, longest and clipped share of every step.

The log does not tell the shape of a step's lengths, so they are drawn from families that are far apart
(``length_families.py``). Nor does it tell whether responses to a prompt are alike. So a ``Draw`` has a family, and either
responses that are independent or prompts whose responses are alike. ``DRAWS`` was chosen on public logs
(``tests/benchmarks/drawn_coverage.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import DRAWN
from rlhfless.analysis.length_families import FAMILIES, Family, StepLengths, drawn_lengths, in_groups
from rlhfless.analysis.own_times import evenly
from rlhfless.diagnosis.counts import RESPONSES_LINE
from rlhfless.errors import InputError
from rlhfless.trace import ImportedLog, OpenedLog, Trace, TraceError
from rlhfless.trace.importers.scalars import runs_of
from rlhfless.trace.schema.validation import refuse_several_runs
from solver.model.errors import as_given, is_whole

SAMPLES = 8  # of a prompt whose responses are alike, if their number is unknown
MAX_STEPS = 40
MAX_RESPONSES = 100_000  # of a step
MAX_TOKENS = 1_000_000_000  # of a response; no model generates as many
TOTAL_TOKENS = "perf/total_num_tokens"  # of verl: prompt and response tokens of the step
NARROW_LONGEST = 2.0  # times the mean: the longest of narrow lengths, where none was cut and the longest is not logged


class Draw(NamedTuple):
    """How lengths are drawn: of which family, and whether responses to a prompt are alike."""

    family: Family
    alike: bool


class Coverage(NamedTuple):
    """How often ranges from scalars contained the true value, on logs that did not choose ``DRAWS``.

    Attributes:
        steps: of public logs. idle, gpu_s: of these, those whose idle share, and the GPU-seconds that `fold` saves, were in
            their ranges. idle_width, gpu_s_width: mean width of the ranges.
    """

    steps: int
    idle: int
    idle_width: float
    gpu_s: int
    gpu_s_width: float

    def __str__(self) -> str:
        return (
            f"On public logs that did not choose the draws, such a range contained the true idle share in {self.idle} of "
            f"{self.steps} steps, and was {100 * self.idle_width:.0f} points wide on average. For the GPU-seconds that a "
            f"schedule saves it was {self.gpu_s} of {self.steps}, and {100 * self.gpu_s_width:.0f} points."
        )


COVERAGE = Coverage(43, 41, 0.42, 42, 0.04)
"""Of ``tests/benchmarks/results/drawn_coverage.json``: python tests/benchmarks/drawn_coverage.py --steps 5."""

DRAWS = (Draw("lognormal", False), Draw("lognormal", True), Draw("two modes", False), Draw("narrow", True))


@dataclass(frozen=True)
class StepSizes:
    """How many responses a step has, where the log does not say it.

    Attributes:
        responses_per_step: None: from the step's tokens. samples_per_prompt: responses of a prompt.
        max_response_tokens: at which the run cut its responses; stands in for a longest response that is not logged.
        typical_responses: responses of a step whose scalars do not say it, such as those that a diagnosis derived.

    Raises:
        InputError: one is no whole number of 1 or more.
    """

    responses_per_step: int | None = None
    samples_per_prompt: int | None = None
    max_response_tokens: int | None = None
    typical_responses: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("responses_per_step", self.responses_per_step),
            ("samples_per_prompt", self.samples_per_prompt),
            ("max_response_tokens", self.max_response_tokens),
            ("typical_responses", self.typical_responses),
        ):
            if value is not None and not is_whole(value, 1):
                raise InputError(f"{name} is {as_given(value)}; a whole number of 1 or more is needed")

    def or_of(self, facts: Mapping[str, float]) -> StepSizes:
        """Return the same with what a log has of its whole run (``trace.importers.run_facts``) in place of None."""
        sizes = {name: value if value is not None else _whole(facts.get(name)) for name, value in vars(self).items()}
        return StepSizes(**sizes)


def _whole(fact: float | None) -> int | None:
    return int(fact) if fact is not None and fact >= 1 and fact == int(fact) else None


def drawn_logs(log: ImportedLog, sizes: StepSizes, draws: Sequence[Draw] = DRAWS) -> list[OpenedLog]:
    """Return a log with drawn lengths for each of ``draws``, for a log that has scalars alone.

    Of more than ``MAX_STEPS`` steps evenly chosen ones are drawn. The logs have the scalars of all steps.

    Raises:
        TraceError: the scalars are of several runs, lack the mean or the longest length, or the number of responses, or
            contradict each other.
    """
    refuse_several_runs(runs_of(log.scalars), log.source)
    with_mean = [row for _, row in log.scalars.iterrows() if _has(row, "response_tokens_mean")]
    rows = with_mean if sizes.max_response_tokens else [row for row in with_mean if _has(row, "response_tokens_max")]
    if not with_mean:
        raise TraceError(
            f"{log.source}: has no responses, and its scalars lack the mean length of a step's responses, so no lengths can be "
            "drawn; give the rollout log of the same run"
        )
    if not rows:
        counts = "--responses-per-step" in (lacking_options(log, sizes) or ())
        further = " and the responses of a step with --responses-per-step N" if counts else ""
        raise TraceError(
            f"{log.source}: has no responses, and its scalars lack the longest response of a step, so no lengths can be drawn; "
            f"give the run's limit with --max-response-tokens N{further}, or the rollout log of the same run"
        )
    steps = {int(row["step"]): _step_lengths(log, row, sizes) for row in rows}
    unknown = {int(row["step"]) for row in rows if not _has(row, "response_tokens_max")}
    chosen = evenly(sorted(steps), MAX_STEPS)
    drawn = []
    for draw in draws:
        random = np.random.default_rng([FAMILIES.index(draw.family), draw.alike])
        samples = sizes.samples_per_prompt or (SAMPLES if draw.alike else 1)
        tables = [
            _rows(step, _narrowed(steps[step], draw) if step in unknown else steps[step], draw, samples, random)
            for step in chosen
        ]
        trace = _trace(log, pd.concat(tables), sizes, longest_unknown=bool(unknown))
        drawn.append(OpenedLog(trace, log.scalars, log.framework, log.summary))
    return drawn


def lacking_options(log: ImportedLog, sizes: StepSizes) -> list[str] | None:
    """Return the options that drawing lengths still needs; None where the log has no mean lengths, so that none helps."""
    rows = [row for _, row in log.scalars.iterrows() if _has(row, "response_tokens_mean")]
    if not rows:
        return None
    needed = []
    if not sizes.max_response_tokens and not any(_has(row, "response_tokens_max") for row in rows):
        needed.append("--max-response-tokens")
    told = any(_has(row, "responses") or _has(row, TOTAL_TOKENS) for row in rows)
    if not (sizes.responses_per_step or sizes.typical_responses or told):
        needed.append("--responses-per-step")
    return needed


def _has(row: pd.Series, name: str) -> bool:
    return bool(pd.notna(row.get(name)))


def _narrowed(lengths: StepLengths, draw: Draw) -> StepLengths:
    """Return a step whose longest response is not logged, as the family has it: the limit, or less where none was cut."""
    if draw.family != "narrow" or lengths.truncated > 0:
        return lengths
    return lengths._replace(longest=min(lengths.longest, float(math.ceil(NARROW_LONGEST * lengths.mean))))


def _step_lengths(log: ImportedLog, row: pd.Series, sizes: StepSizes) -> StepLengths:
    step = int(row["step"])

    def number(name: str, default: float) -> float:
        value = row.get(name)
        return default if value is None or pd.isna(value) else float(value)

    mean, longest = float(row["response_tokens_mean"]), number("response_tokens_max", float(sizes.max_response_tokens or 0))
    shortest, truncated = number("response_tokens_min", 1.0), number("truncation_rate", 0.0)
    if longest > MAX_TOKENS:
        raise TraceError(
            f"{log.source}: step {step} has a response of {longest:g} tokens; no model generates more than {MAX_TOKENS:,}"
        )
    if not 0 < shortest <= mean <= longest or not 0 <= truncated <= 1:
        raise TraceError(
            f"{log.source}: step {step} has responses of {shortest:g} to {longest:g} tokens, {mean:g} on average, "
            f"{truncated:g} of them cut off; a mean between the shortest and the longest, and a share of 0 to 1 are needed"
        )
    prompt_tokens, total = number("prompt_tokens_mean", 0.0), number(TOTAL_TOKENS, 0.0)
    responses = sizes.responses_per_step or round(number("responses", total / (mean + prompt_tokens)))
    if responses < 1:
        responses = sizes.typical_responses or 0
    if responses < 1:
        raise TraceError(
            f"{log.source}: the scalars do not say how many responses step {step} has{_told_by(log)}; give --responses-per-step"
        )
    if responses > MAX_RESPONSES:
        raise TraceError(
            f"{log.source}: step {step} has {responses:,} responses by its scalars; lengths of at most {MAX_RESPONSES:,} are "
            "drawn, so give --responses-per-step"
        )
    return StepLengths(mean, shortest, longest, truncated, responses, prompt_tokens)


def _told_by(log: ImportedLog) -> str:
    line = RESPONSES_LINE.get(log.framework)
    return "" if line is None else f" ({line} would tell)"


def _rows(step: int, lengths: StepLengths, draw: Draw, samples: int, random: np.random.Generator) -> pd.DataFrame:
    tokens = in_groups(drawn_lengths(lengths, draw.family, random), samples, draw.alike, random)
    number = np.arange(len(tokens))
    limit = lengths.longest if lengths.truncated > 0 else math.inf
    return pd.DataFrame(
        {
            "step": step,
            "prompt_id": [f"{step}-{prompt}" for prompt in number // samples],
            "sample": number % samples,
            "prompt_tokens": round(lengths.prompt_tokens),
            "response_tokens": tokens,
            "finish_reason": np.where(tokens >= limit, "length", "stop"),
        }
    )


def _trace(log: ImportedLog, rollouts: pd.DataFrame, sizes: StepSizes, longest_unknown: bool) -> Trace:
    unknown = f"in groups of unknown size, taken as {SAMPLES} where they are alike"
    samples = unknown if sizes.samples_per_prompt is None else f"{sizes.samples_per_prompt} per prompt"
    each = rollouts.groupby("step").size()
    longest, how_sure = "", str(COVERAGE)
    if longest_unknown:
        limit = f"{sizes.max_response_tokens or 0:,}"
        longest = (
            f" It does not have the longest response, which is taken to have the limit of {limit} tokens. Where none was cut, "
            "it has twice the mean in the narrow distribution."
        )
        how_sure = "How often such ranges contain the true value was not measured for logs without the longest response."
    said = (
        "The log has no responses. Their lengths are drawn, so that every step has its logged mean, longest response and share "
        f"of cut responses: {int(each.median()):,} per step ({samples}).{longest} Ranges cover {len(DRAWS)} draws that are far "
        "apart: a lognormal distribution, one with two modes and a narrow one, with responses to one prompt alike or not. "
        f"Which prompts are long is unknown. {how_sure}"
    )
    meta = {"imported_from": log.source.name, "framework": log.framework, "dispatch_order": "unknown", DRAWN: said}
    return Trace(rollouts.reset_index(drop=True), meta=meta, source=str(log.source))
