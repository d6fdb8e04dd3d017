"""Response lengths drawn from a run's scalars, for logs that have no more than mean, longest and clipped share of every step.

A step's lengths follow one of several families, all with the logged mean, shortest, longest and clipped share. The log does not
tell the shape, so families are far apart:

- ``lognormal``: a heavy tail. Where nothing was clipped, the longest of the step's draws is expected at the logged length.
- ``two modes``: most responses are near the shortest or near the longest one. No other shape with this mean varies much more.
- ``narrow``: all but a few are near the mean.

Nor does it tell whether responses to a prompt are alike. So a ``Draw`` has a family, and either responses that are independent
or prompts whose responses are alike. ``DRAWS`` was chosen on public logs (``tests/benchmarks/drawn_coverage.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.compare_log import evenly
from rlhfless.errors import InputError
from rlhfless.trace import ImportedLog, OpenedLog, Trace, TraceError
from solver.model.errors import as_given, is_whole

Family = Literal["lognormal", "two modes", "narrow"]
FAMILIES: tuple[Family, ...] = ("lognormal", "two modes", "narrow")
CONCENTRATIONS: dict[Family, float] = {"two modes": 0.5, "narrow": 20.0}  # of beta distributions
ALIKE = 0.7  # correlation of the normal scores of two responses to one prompt, where they are alike
SAMPLES = 8  # of a prompt whose responses are alike, where nobody says how many it has
MAX_STEPS = 40
MAX_RESPONSES = 100_000  # of a step
MAX_TOKENS = 1_000_000_000  # of a response; no model generates as many
GRID = 4_001  # quantiles by which a mean is computed
DRAWN = "lengths_drawn"  # of meta.json: the sentence that says so
TOTAL_TOKENS = "perf/total_num_tokens"  # of verl: prompt and response tokens of the step


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
            f"{self.steps} steps, and was {self.idle_width:.0%} of the GPU time wide on average; for GPU-seconds that a schedule "
            f"saves, {self.gpu_s} of {self.steps} and {self.gpu_s_width:.0%}."
        )


COVERAGE = Coverage(43, 38, 0.41, 42, 0.04)
"""Of ``tests/benchmarks/results/drawn_coverage.json``: python tests/benchmarks/drawn_coverage.py --steps 5."""

DRAWS = (Draw("lognormal", False), Draw("lognormal", True), Draw("two modes", False), Draw("narrow", True))


class StepLengths(NamedTuple):
    """What the scalars of a step say of its lengths, in tokens.

    Attributes:
        mean, shortest, longest: of the responses. truncated: share that ended at the longest length, which is then the limit.
        responses: number of them. prompt_tokens: mean.
    """

    mean: float
    shortest: float
    longest: float
    truncated: float
    responses: int
    prompt_tokens: float


@dataclass(frozen=True)
class StepSizes:
    """How many responses a step has, where the log does not say it.

    Attributes:
        responses_per_step: None: from the step's tokens. samples_per_prompt: responses of a prompt.

    Raises:
        InputError: one is no whole number of 1 or more.
    """

    responses_per_step: int | None = None
    samples_per_prompt: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("responses_per_step", self.responses_per_step),
            ("samples_per_prompt", self.samples_per_prompt),
        ):
            if value is not None and not is_whole(value, 1):
                raise InputError(f"{name} is {as_given(value)}; a whole number of 1 or more is needed")


def drawn_logs(log: ImportedLog, sizes: StepSizes, draws: Sequence[Draw] = DRAWS) -> list[OpenedLog]:
    """Return a log with drawn lengths for each of ``draws``, for a log that has scalars alone.

    Of more than ``MAX_STEPS`` steps evenly chosen ones are drawn. The logs have the scalars of all steps.

    Raises:
        TraceError: the scalars lack the mean or the longest length, or the number of responses, or contradict each other.
    """
    steps = {int(row["step"]): _step_lengths(log, row, sizes) for _, row in log.scalars.iterrows() if _has_lengths(row)}
    if not steps:
        raise TraceError(
            f"{log.source}: has no responses, and its scalars lack the mean and the longest response of a step, so no lengths "
            "can be drawn; the rollout log of the same run is needed"
        )
    chosen = evenly(sorted(steps), MAX_STEPS)
    framework = log.format.name.removesuffix("-scalars")
    drawn = []
    for draw in draws:
        random = np.random.default_rng([FAMILIES.index(draw.family), draw.alike])
        samples = sizes.samples_per_prompt or (SAMPLES if draw.alike else 1)
        rows = [_rows(step, steps[step], draw, samples, random) for step in chosen]
        drawn.append(OpenedLog(_trace(log, pd.concat(rows), sizes), log.scalars, framework, log.summary))
    return drawn


def drawn_lengths(step: StepLengths, family: Family, random: np.random.Generator) -> np.ndarray:
    """Return (responses,) lengths in tokens, ascending: the logged longest and shortest one, clipped share and, where it can
    be, mean.

    Draws are stratified, one from each of ``responses`` equal parts of the distribution. Then lengths between the shortest and
    the longest are moved until the mean is the logged one.
    """
    strata = (np.arange(step.responses) + random.uniform(size=step.responses)) / step.responses
    lengths = _heavy_tail(step, strata) if family == "lognormal" else _bounded(step, CONCENTRATIONS[family], strata)
    clipped = max(1, round(step.truncated * step.responses))
    lengths[-clipped:] = step.longest
    uncut = max(step.shortest, step.longest - 1 if step.truncated > 0 else step.longest)
    lengths[:-clipped] = np.minimum(lengths[:-clipped], uncut)
    lengths[: min(1, step.responses - clipped)] = step.shortest
    whole = np.maximum(1, lengths.round()).astype(np.int64)
    _move_to(whole[1:-clipped], round(step.mean * step.responses) - int(whole.sum()), math.ceil(step.shortest), int(uncut))
    return np.sort(whole)


def dealt(lengths: np.ndarray, samples: int, alike: bool, random: np.random.Generator) -> np.ndarray:
    """Return ascending (n,) lengths in an order in which ``samples`` after each other are responses to one prompt.

    Where they are alike, lengths have the ranks of normal scores, of which those of a prompt correlate.
    """
    count = len(lengths)
    of_prompt = np.repeat(random.normal(size=-(-count // samples)), samples)[:count]
    share = ALIKE if alike and samples > 1 else 0.0
    scores = math.sqrt(share) * of_prompt + math.sqrt(1 - share) * random.normal(size=count)
    order = np.empty_like(lengths)
    order[np.argsort(scores)] = lengths
    return order


def _move_to(lengths: np.ndarray, more: int, least: int, most: int) -> None:
    """Add ``more`` tokens to the lengths in place, or take them away, evenly and between two bounds, as far as they allow."""
    while more and len(lengths):
        room = most - lengths if more > 0 else lengths - least
        movable = np.flatnonzero(room > 0)[: abs(more)]
        if not len(movable):
            return
        moved = np.minimum(room[movable], abs(more) // len(movable))
        lengths[movable] += moved if more > 0 else -moved
        more += int(moved.sum()) * (-1 if more > 0 else 1)


def _heavy_tail(step: StepLengths, shares: np.ndarray) -> np.ndarray:
    """Return (n,) quantiles of the lognormal distribution with the step's mean and share above the longest length."""
    spread, scale = _fitted(step)
    return _clipped(step, scale * np.exp(spread * np.array([_score(share) for share in shares])))


@lru_cache(2 * MAX_STEPS)  # every draw of the family has the same
def _fitted(step: StepLengths) -> tuple[float, float]:
    """The spread and the scale with the step's mean, and its share above the longest length, by bisection over the spread."""
    above = step.truncated if step.truncated > 0 else math.log(2) / step.responses
    grid, cut = _scores(GRID), _score(1.0 - above)

    def mean_of(spread: float) -> float:
        return float(_clipped(step, step.longest * np.exp(spread * (grid - cut))).mean())

    low, high = (1e-3, 8.0)  # from nearly equal lengths to a few long ones
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) > step.mean else (low, middle)
    return low, step.longest * math.exp(-low * cut)


@lru_cache
def _scores(count: int) -> np.ndarray:
    """The (count,) middle quantiles of the unit normal distribution."""
    return np.array([_score((i + 0.5) / count) for i in range(count)])


def _score(share: float) -> float:
    return NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12))


def _bounded(step: StepLengths, concentration: float, shares: np.ndarray) -> np.ndarray:
    """Return (n,) quantiles of the beta distribution between the shortest and the longest length.

    Its mean is that of the responses which were not cut. A concentration below 1 has two modes, at both ends.
    """
    cut = max(step.truncated, 1.0 / step.responses)
    uncut = (step.mean - cut * step.longest) / (1.0 - cut) if cut < 1.0 else step.mean
    width = max(step.longest - step.shortest, 1e-9)
    mean = min(max((uncut - step.shortest) / width, 1e-3), 1.0 - 1e-3)
    logits = np.linspace(-40.0, 40.0, GRID)  # a grid that is fine at both ends
    points = 1.0 / (1.0 + np.exp(-logits))
    log_density = -concentration * (mean * np.logaddexp(0.0, -logits) + (1.0 - mean) * np.logaddexp(0.0, logits))
    cumulated = np.cumsum(np.exp(log_density - log_density.max()))
    return step.shortest + width * np.interp(shares / (1.0 - cut + 1e-12), cumulated / cumulated[-1], points)


def _clipped(step: StepLengths, lengths: np.ndarray) -> np.ndarray:
    return np.clip(lengths, step.shortest, step.longest)


def _has_lengths(row: pd.Series) -> bool:
    return all(pd.notna(row.get(name)) for name in ("response_tokens_mean", "response_tokens_max"))


def _step_lengths(log: ImportedLog, row: pd.Series, sizes: StepSizes) -> StepLengths:
    step = int(row["step"])

    def number(name: str, default: float) -> float:
        value = row.get(name)
        return default if value is None or pd.isna(value) else float(value)

    mean, longest = float(row["response_tokens_mean"]), float(row["response_tokens_max"])
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
        raise TraceError(
            f"{log.source}: the scalars do not say how many responses step {step} has ('{TOTAL_TOKENS}' is missing); give "
            "--responses-per-step"
        )
    if responses > MAX_RESPONSES:
        raise TraceError(
            f"{log.source}: step {step} has {responses:,} responses by its scalars; lengths of at most {MAX_RESPONSES:,} are "
            "drawn, so give --responses-per-step"
        )
    return StepLengths(mean, shortest, longest, truncated, responses, prompt_tokens)


def _rows(step: int, lengths: StepLengths, draw: Draw, samples: int, random: np.random.Generator) -> pd.DataFrame:
    tokens = dealt(drawn_lengths(lengths, draw.family, random), samples, draw.alike, random)
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


def _trace(log: ImportedLog, rollouts: pd.DataFrame, sizes: StepSizes) -> Trace:
    samples = "in groups of unknown size" if sizes.samples_per_prompt is None else f"{sizes.samples_per_prompt} per prompt"
    each = rollouts.groupby("step").size()
    said = (
        "The log has no responses. Their lengths are drawn, so that every step has its logged mean, longest response and share "
        f"of cut responses: {int(each.median()):,} per step ({samples}). Ranges cover {len(DRAWS)} draws that are far apart: a "
        "lognormal distribution, one with two modes and a narrow one, with responses to one prompt alike or not. Which prompts are "
        f"long is unknown. {COVERAGE}"
    )
    meta = {"imported_from": log.source.name, "framework": log.format.name, "dispatch_order": "unknown", DRAWN: said}
    return Trace(rollouts.reset_index(drop=True), meta=meta, source=str(log.source))
